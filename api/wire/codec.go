// Package wire has the gRPC codec that Canopy's processes use: protobuf's wire
// format, by the generated vtprotobuf code where a message has it. Peers that
// use the standard codec (grpcurl, health probes) interoperate.
package wire

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// MaxMessageBytes bounds a gRPC message in both directions: the largest WRITE
// of a mount (1 MiB) and a batch of operations fit with room to spare.
const MaxMessageBytes = 8 << 20

type fastMessage interface {
	SizeVT() int
	MarshalToSizedBufferVT([]byte) (int, error)
	UnmarshalVT([]byte) error
}

// Frame is a message that codes itself in protobuf's format, so that a large
// payload need not be copied. UnmarshalFrame takes references (Ref) to what it
// keeps of data.
type Frame interface {
	MarshalFrame() (mem.BufferSlice, error)
	UnmarshalFrame(data mem.BufferSlice) error
}

type codec struct{}

// Codec returns the codec. Pass it with grpc.ForceServerCodecV2 and
// grpc.ForceCodecV2; nothing is registered globally.
func Codec() encoding.CodecV2 { return codec{} }

// Name returns "proto", since the bytes are the standard ones.
func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	var size int
	var fill func([]byte) error
	switch m := v.(type) {
	case Frame:
		return m.MarshalFrame()
	case fastMessage:
		size = m.SizeVT()
		fill = func(b []byte) error { _, err := m.MarshalToSizedBufferVT(b); return err }
	case proto.Message:
		size = proto.Size(m)
		fill = func(b []byte) error {
			_, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b[:0], m)
			return err
		}
	default:
		return nil, fmt.Errorf("wire: cannot marshal %T: no protobuf message", v)
	}
	if mem.IsBelowBufferPoolingThreshold(size) {
		b := make([]byte, size)
		if err := fill(b); err != nil {
			return nil, err
		}
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	pool := mem.DefaultBufferPool()
	b := pool.Get(size)
	if err := fill((*b)[:size]); err != nil {
		pool.Put(b)
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(b, pool)}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(Frame); ok {
		return f.UnmarshalFrame(data)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	switch m := v.(type) {
	case fastMessage:
		return m.UnmarshalVT(buf.ReadOnlyData())
	case proto.Message:
		return proto.Unmarshal(buf.ReadOnlyData(), m)
	}
	return fmt.Errorf("wire: cannot unmarshal into %T: no protobuf message", v)
}
