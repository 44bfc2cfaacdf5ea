package wire

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

func TestCodecAgreesWithProto(t *testing.T) {
	for _, size := range []int{0, 10, 1 << 20} {
		in := &canopyv1.DataResponse{Id: 7, Data: bytes.Repeat([]byte("x"), size)}
		encoded, err := Codec().Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var std, fast canopyv1.DataResponse
		if err := proto.Unmarshal(encoded.Materialize(), &std); err != nil {
			t.Fatal(err)
		}
		if err := Codec().Unmarshal(encoded, &fast); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(in, &std) || !proto.Equal(in, &fast) {
			t.Errorf("%d bytes: the codecs disagree", size)
		}
	}
}

func TestCodecTakesForeignMessages(t *testing.T) {
	in := &grpc_health_v1.HealthCheckRequest{Service: "x"}
	encoded, err := Codec().Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out grpc_health_v1.HealthCheckRequest
	if err := Codec().Unmarshal(encoded, &out); err != nil || out.Service != "x" {
		t.Fatalf("%v, %v", &out, err)
	}
	if _, err := Codec().Marshal(1); err == nil {
		t.Error("an int was marshalled")
	}
}
