// Package link carries data requests to one data server: frames that code their
// payload without copying it, and a stream with many requests in flight. Clients
// use it towards data servers, data servers towards their replicas.
package link

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// castagnoli is CRC-32C; the table is constant.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC returns the CRC-32C of a payload.
func CRC(payload mem.BufferSlice) uint32 {
	var sum uint32
	for _, b := range payload {
		sum = crc32.Update(sum, castagnoli, b.ReadOnlyData())
	}
	return sum
}

// Request is a DataRequest whose write's data lies beside it. On the wire it is
// the same message.
type Request struct {
	*canopyv1.DataRequest
	// Payload is the data of a WriteCall, whose own data field stays empty. The
	// Request holds one reference to it.
	Payload mem.BufferSlice
}

// Response is a DataResponse whose data lies beside it.
type Response struct {
	*canopyv1.DataResponse
	Payload mem.BufferSlice // one reference
}

// Free gives the payload back. It may be called once, also on nil.
func (r *Request) Free() {
	if r != nil {
		r.Payload.Free()
		r.Payload = nil
	}
}

// Free gives the payload back. It may be called once, also on nil.
func (r *Response) Free() {
	if r != nil {
		r.Payload.Free()
		r.Payload = nil
	}
}

// Field numbers and their tags (field << 3 | wire type 2) in data.proto.
const (
	tagRequestWrite = 16<<3 | 2
	tagWriteData    = 2<<3 | 2
	tagResponseData = 4<<3 | 2
)

// MarshalFrame implements wire.Frame.
func (r *Request) MarshalFrame() (mem.BufferSlice, error) {
	write, ok := r.Call.(*canopyv1.DataRequest_Write)
	if !ok || len(r.Payload) == 0 {
		b, err := r.MarshalVT()
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	head := shallow(r.DataRequest)
	headBytes, bodyBytes := head.SizeVT(), write.Write.SizeVT()
	n := r.Payload.Len()
	body := bodyBytes + 1 + uvarintBytes(uint64(n)) + n
	b := make([]byte, headBytes, headBytes+bodyBytes+24)
	if _, err := head.MarshalToSizedBufferVT(b); err != nil {
		return nil, err
	}
	b = binary.AppendUvarint(b, tagRequestWrite)
	b = binary.AppendUvarint(b, uint64(body))
	at := len(b)
	b = b[:at+bodyBytes]
	if _, err := write.Write.MarshalToSizedBufferVT(b[at:]); err != nil {
		return nil, err
	}
	return behind(b, tagWriteData, r.Payload), nil
}

// shallow copies the fields of a request without its call.
func shallow(r *canopyv1.DataRequest) *canopyv1.DataRequest {
	return &canopyv1.DataRequest{
		Id: r.Id, Column: r.Column, PgEpoch: r.PgEpoch, SizeEpoch: r.SizeEpoch, Cuts: r.Cuts,
		Client: r.Client, Incarnation: r.Incarnation, Seq: r.Seq, FromPrimary: r.FromPrimary, Floor: r.Floor,
		LogSeq: r.LogSeq, LogFloor: r.LogFloor, Capability: r.Capability,
	}
}

// behind appends the payload as a bytes field behind b.
func behind(b []byte, tag uint64, payload mem.BufferSlice) mem.BufferSlice {
	b = binary.AppendUvarint(b, tag)
	b = binary.AppendUvarint(b, uint64(payload.Len()))
	out := make(mem.BufferSlice, 0, len(payload)+1)
	out = append(out, mem.SliceBuffer(b))
	payload.Ref()
	return append(out, payload...)
}

// MarshalFrame implements wire.Frame.
func (r *Response) MarshalFrame() (mem.BufferSlice, error) {
	b, err := r.MarshalVT()
	if err != nil || len(r.Payload) == 0 {
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	return behind(b, tagResponseData, r.Payload), nil
}

func uvarintBytes(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

// copyBelowBytes: smaller messages are decoded from one piece of memory.
const copyBelowBytes = 4 << 10

// UnmarshalFrame implements wire.Frame. The payload refers to data's buffers.
func (r *Request) UnmarshalFrame(data mem.BufferSlice) error {
	if ok, err := r.unmarshalInPlace(data); ok || err != nil {
		return err
	}
	r.DataRequest, r.Payload = &canopyv1.DataRequest{}, nil
	if err := r.UnmarshalVT(data.Materialize()); err != nil {
		return err
	}
	if w := r.GetWrite(); w != nil && len(w.Data) > 0 {
		r.Payload, w.Data = mem.BufferSlice{mem.SliceBuffer(w.Data)}, nil
	}
	return nil
}

// unmarshalInPlace decodes a large write whose data come last, as MarshalFrame
// makes them. Not ok: decode the plain way.
func (r *Request) unmarshalInPlace(data mem.BufferSlice) (ok bool, err error) {
	total := data.Len()
	if total <= copyBelowBytes {
		return false, nil
	}
	first := data[0].ReadOnlyData()
	at, body, ok := findLast(first, 0, total, tagRequestWrite)
	if !ok {
		return false, nil
	}
	dataAt, payload, ok := findLast(first, body, total, tagWriteData)
	if !ok {
		return false, nil
	}
	head, w := &canopyv1.DataRequest{}, &canopyv1.WriteCall{}
	if err := head.UnmarshalVT(first[:at]); err != nil {
		return false, err
	}
	if head.Call != nil {
		return false, nil // a field that comes twice is merged
	}
	if err := w.UnmarshalVT(first[body:dataAt]); err != nil {
		return false, err
	}
	w.Data = nil // of a field that comes twice the last counts
	head.Call = &canopyv1.DataRequest_Write{Write: w}
	r.DataRequest, r.Payload = head, tail(data, payload)
	return true, nil
}

// UnmarshalFrame implements wire.Frame. The payload refers to data's buffers.
func (r *Response) UnmarshalFrame(data mem.BufferSlice) error {
	r.DataResponse, r.Payload = &canopyv1.DataResponse{}, nil
	if total := data.Len(); total > copyBelowBytes {
		first := data[0].ReadOnlyData()
		if at, payload, ok := findLast(first, 0, total, tagResponseData); ok {
			if err := r.UnmarshalVT(first[:at]); err != nil {
				return err
			}
			r.Data = nil // of a field that comes twice the last counts
			r.Payload = tail(data, payload)
			return nil
		}
	}
	if err := r.UnmarshalVT(data.Materialize()); err != nil {
		return err
	}
	if len(r.Data) > 0 {
		r.Payload, r.Data = mem.BufferSlice{mem.SliceBuffer(r.Data)}, nil
	}
	return nil
}

// findLast walks the fields of first from at, and finds the one with the tag if
// it is the message's last: its contents end at total. at is where the field
// begins, body where its contents do. Not ok: decode the plain way.
func findLast(first []byte, from, total int, tag uint64) (at, body int, ok bool) {
	for pos := from; pos < len(first); {
		t, n := binary.Uvarint(first[pos:])
		if n <= 0 {
			return 0, 0, false
		}
		next := pos + n
		size, skip := uint64(0), 0
		switch t & 7 {
		case 0:
			_, skip = binary.Uvarint(first[next:])
		case 1:
			skip, size = 0, 8
		case 5:
			skip, size = 0, 4
		case 2:
			size, skip = binary.Uvarint(first[next:])
			if skip > 0 && t == tag {
				body = next + skip
				return pos, body, body <= len(first) && size == uint64(total-body)
			}
		default:
			return 0, 0, false
		}
		if skip < 0 || (t&7 == 0 || t&7 == 2) && skip == 0 || size > uint64(len(first)) {
			return 0, 0, false
		}
		pos = next + skip + int(size)
	}
	return 0, 0, false
}

// tail returns references to data from the offset on, which lies within the
// first buffer or at its end.
func tail(data mem.BufferSlice, from int) mem.BufferSlice {
	out := make(mem.BufferSlice, 0, len(data))
	if n := data[0].Len(); from < n {
		out = append(out, data[0].Slice(from, n))
	}
	for _, b := range data[1:] {
		b.Ref()
		out = append(out, b)
	}
	return out
}

// Check compares a payload with its checksum.
func Check(payload mem.BufferSlice, want uint32) error {
	if got := CRC(payload); got != want {
		return fmt.Errorf("checksum of %d bytes is %08x, not %08x", payload.Len(), got, want)
	}
	return nil
}
