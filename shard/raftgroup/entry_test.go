package raftgroup

import (
	"bytes"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

var sampleEntries = []*canopyv1.RaftEntry{
	{},
	{LeaseEpoch: 3, Number: 17, TimeNs: 1234567890123456789, Commands: [][]byte{[]byte("a"), {}, bytes.Repeat([]byte("b"), 300)}},
	{LeaseEpoch: 3, Number: 18, TimeNs: -5, ChecksumToken: 99},
	{LeaseEpoch: 1 << 60, Lease: &canopyv1.LeaseCommand{
		Action: canopyv1.LeaseAction_LEASE_ACQUIRE, Node: 2, Replica: 5, SeenRenewal: 1 << 50, DurationMs: 1500, Instance: 1<<64 - 1,
	}},
	{LeaseEpoch: 9, Number: 4, Lease: &canopyv1.LeaseCommand{Action: canopyv1.LeaseAction_LEASE_RELEASE}},
}

// The entry's own codec is that of canopyv1.RaftEntry.
func TestEntryCodecIsRaftEntry(t *testing.T) {
	for _, want := range sampleEntries {
		generated, err := want.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		var e entry
		if err := decodeEntry(generated, &e); err != nil {
			t.Fatal(err)
		}
		own := appendEntry(nil, &e)
		var got canopyv1.RaftEntry
		if err := got.UnmarshalVT(own); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(&got, want) {
			t.Errorf("%v became %v", want, &got)
		}
	}
}

// FuzzEntry: no input crashes the decoder, and what it takes survives a round.
func FuzzEntry(f *testing.F) {
	for _, s := range sampleEntries {
		b, _ := s.MarshalVT()
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var e, again entry
		if decodeEntry(b, &e) != nil {
			return
		}
		if err := decodeEntry(appendEntry(nil, &e), &again); err != nil {
			t.Fatal(err)
		}
		if len(e.commands) == 0 {
			e.commands, again.commands = nil, nil
		}
		if e.lease.action == canopyv1.LeaseAction_LEASE_NONE {
			e.lease = leaseCommand{}
		}
		if !reflect.DeepEqual(e, again) {
			t.Fatalf("%+v became %+v", e, again)
		}
	})
}
