package link

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

func request(payload int) *Request {
	r := &Request{DataRequest: &canopyv1.DataRequest{
		Id: 7, Column: &canopyv1.Column{Pool: 1, Pg: 3, DataId: 1 << 50, Component: 1, Column: 2}, PgEpoch: 9, SizeEpoch: 4,
		Cuts:   []*canopyv1.Cut{{SizeEpoch: 4, Size: 0}},
		Client: 1 << 63, Incarnation: 2, Seq: 77, FromPrimary: true, Floor: 70, LogSeq: 5, LogFloor: 4, Capability: []byte("allowed"),
		Call: &canopyv1.DataRequest_Write{Write: &canopyv1.WriteCall{Offset: 4096, Crc32C: 0xdeadbeef, Sync: true, Repair: true}},
	}}
	if payload > 0 {
		r.Payload = mem.BufferSlice{mem.SliceBuffer(bytes.Repeat([]byte{5}, payload))}
	}
	return r
}

// split cuts a message into buffers as the network does.
func split(b []byte, size int) mem.BufferSlice {
	var out mem.BufferSlice
	for len(b) > size {
		out = append(out, mem.SliceBuffer(b[:size]))
		b = b[size:]
	}
	return append(out, mem.SliceBuffer(b))
}

// TestFrameIsTheProtobufMessage: what a frame sends, any protobuf decoder reads,
// and what any encoder sends, a frame reads.
func TestFrameIsTheProtobufMessage(t *testing.T) {
	for _, size := range []int{0, 1, 100, 5000, 1 << 20} {
		r := request(size)
		frame, err := r.MarshalFrame()
		if err != nil {
			t.Fatal(err)
		}
		plain := &canopyv1.DataRequest{}
		if err := proto.Unmarshal(frame.Materialize(), plain); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		want := proto.CloneOf(r.DataRequest)
		if size > 0 {
			want.GetWrite().Data = r.Payload.Materialize()
		}
		if !proto.Equal(plain, want) {
			t.Fatalf("%d bytes: got %v", size, plain)
		}
		standard, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		for _, encoded := range [][]byte{frame.Materialize(), standard} {
			for _, piece := range []int{1, 37, 16384, 1 << 21} {
				back := &Request{}
				if err := back.UnmarshalFrame(split(encoded, piece)); err != nil {
					t.Fatal(err)
				}
				if !proto.Equal(back.DataRequest, r.DataRequest) || !bytes.Equal(back.Payload.Materialize(), r.Payload.Materialize()) {
					t.Fatalf("%d bytes in pieces of %d: got %v", size, piece, back.DataRequest)
				}
			}
		}
	}
}

func TestResponseFrame(t *testing.T) {
	for _, size := range []int{0, 1, 5000, 1 << 20} {
		r := &Response{DataResponse: &canopyv1.DataResponse{Id: 3, Crc32C: 9, PgEpoch: 4, AllocatedBytes: 4096, ColumnSize: 8,
			Columns: []*canopyv1.ColumnInfo{{Size: 1, Column: &canopyv1.Column{DataId: 5}}}}}
		if size > 0 {
			r.Payload = mem.BufferSlice{mem.SliceBuffer(bytes.Repeat([]byte{5}, size))}
		}
		frame, err := r.MarshalFrame()
		if err != nil {
			t.Fatal(err)
		}
		for _, piece := range []int{1, 37, 16384, 1 << 21} {
			back := &Response{}
			if err := back.UnmarshalFrame(split(frame.Materialize(), piece)); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(back.DataResponse, r.DataResponse) || !bytes.Equal(back.Payload.Materialize(), r.Payload.Materialize()) {
				t.Fatalf("%d bytes in pieces of %d: got %v", size, piece, back.DataResponse)
			}
		}
	}
}

// FuzzRequest: no input crashes the decoder, and what it accepts is what the
// plain decoder makes of it.
func FuzzRequest(f *testing.F) {
	for _, size := range []int{0, 10, 5000} {
		frame, err := request(size).MarshalFrame()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(frame.Materialize(), 100)
	}
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		r := &Request{}
		errFrame := r.UnmarshalFrame(split(b, max(piece, 1)))
		plain := &canopyv1.DataRequest{}
		if err := plain.UnmarshalVT(append([]byte(nil), b...)); (err == nil) != (errFrame == nil) {
			t.Fatalf("frame: %v, plain: %v", errFrame, err)
		}
		if errFrame != nil || plain.GetWrite() == nil {
			return
		}
		if !bytes.Equal(plain.GetWrite().GetData(), r.Payload.Materialize()) {
			t.Fatal("payloads differ")
		}
	})
}

// FuzzResponse likewise.
func FuzzResponse(f *testing.F) {
	f.Add([]byte{}, 1)
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		r := &Response{}
		errFrame := r.UnmarshalFrame(split(b, max(piece, 1)))
		plain := &canopyv1.DataResponse{}
		if err := plain.UnmarshalVT(append([]byte(nil), b...)); (err == nil) != (errFrame == nil) {
			t.Fatalf("frame: %v, plain: %v", errFrame, err)
		}
		if errFrame == nil && !bytes.Equal(plain.GetData(), r.Payload.Materialize()) {
			t.Fatal("payloads differ")
		}
	})
}
