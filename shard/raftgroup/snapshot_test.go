package raftgroup

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// mapReader is a shard.Reader over keys in order.
type mapReader []struct{ key, value []byte }

var _ shard.Reader = mapReader{}

func (m mapReader) Get([]byte) ([]byte, bool, error) { return nil, false, errors.ErrUnsupported }

func (m mapReader) GetNew([]byte) ([]byte, bool, error) { return nil, false, errors.ErrUnsupported }

func (m mapReader) Scan(_, _ []byte, fn func(key, value []byte) (bool, error)) error {
	for _, e := range m {
		if more, err := fn(e.key, e.value); err != nil || !more {
			return err
		}
	}
	return nil
}

func sampleStream(t testing.TB, id base.ShardID) ([]byte, mapReader) {
	t.Helper()
	var m mapReader
	for i := range 50 {
		m = append(m, struct{ key, value []byte }{testKey(id, fmt.Sprintf("%03d", i)), bytes.Repeat([]byte{byte(i)}, i*3)})
	}
	lo, hi := schema.ShardRange(id)
	var b bytes.Buffer
	if err := writeSnapshot(&b, m, id, lo, hi, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), m
}

func readStream(b []byte, id base.ShardID) (m mapReader, err error) {
	lo, hi := schema.ShardRange(id)
	err = readSnapshot(bytes.NewReader(b), id, lo, hi, nil, func(k, v []byte) error {
		m = append(m, struct{ key, value []byte }{bytes.Clone(k), bytes.Clone(v)})
		return nil
	})
	return m, err
}

func TestSnapshotStream(t *testing.T) {
	b, want := sampleStream(t, 7)
	got, err := readStream(b, 7)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d records, %v", len(got), err)
	}
	for i := range want {
		if !bytes.Equal(got[i].key, want[i].key) || !bytes.Equal(got[i].value, want[i].value) {
			t.Fatalf("record %d differs", i)
		}
	}
	if _, err := readStream(b, 8); !errors.Is(err, errBadSnapshot) {
		t.Fatalf("another shard's stream: %v", err)
	}
	for _, n := range []int{0, 100, 600, len(b) - 1} {
		if _, err := readStream(b[:n], 7); !errors.Is(err, errBadSnapshot) {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	for i := snapshotHeaderBytes; i < len(b); i += 97 {
		bad := bytes.Clone(b)
		bad[i] ^= 0x40
		if _, err := readStream(bad, 7); err == nil {
			t.Fatalf("a flipped bit at %d was not seen", i)
		}
	}
}

func FuzzSnapshot(f *testing.F) {
	b, _ := sampleStream(f, 7)
	f.Add(b)
	f.Add(b[:700])
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := readStream(b, 7); err == nil && len(m) > len(b) {
			t.Fatal("more records than bytes")
		}
	})
}
