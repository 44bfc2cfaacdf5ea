package dataserver

import (
	"testing"
)

// TestWriteReadSync moves bytes of all kinds of ranges through three servers.
func TestWriteReadSync(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 2})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 7<<20)
	if n := mustWrite(t, d, f, want, 0); n != uint64(len(want)) {
		t.Errorf("allocated %d bytes, want %d", n, len(want))
	}
	patch := randomBytes(2, 100_001)
	copy(want[3<<20-50_000:], patch)
	if n := mustWrite(t, d, f, patch, 3<<20-50_000); n != 0 {
		t.Errorf("overwriting allocated %d bytes", n)
	}
	if err := d.Sync(testContext(t), f); err != nil {
		t.Fatal(err)
	}
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "whole file")
	requireBytes(t, mustRead(t, d, f, 12_345, 1<<20-77), want[1<<20-77:1<<20-77+12_345], "range")
	requireBytes(t, mustRead(t, d, f, 1000, 7<<20), make([]byte, 1000), "beyond the end")
	c.requireEqualReplicas(d, 2, f.ID)
}
