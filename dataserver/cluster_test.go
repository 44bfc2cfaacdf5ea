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

// TestReplicaLoss kills a server under writes, brings it back, and wants equal
// replicas.
func TestReplicaLoss(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 2})
	d := c.client(1)
	f, g := testFile(100), testFile(101)
	want := randomBytes(1, 5<<20)
	mustWrite(t, d, f, want, 0)
	if err := d.Sync(testContext(t), f); err != nil {
		t.Fatal(err)
	}
	victim := c.servers[1]
	victim.stop()
	patch := randomBytes(2, 3<<20)
	mustWrite(t, d, f, patch, 1<<20+5)
	copy(want[1<<20+5:], patch)
	other := randomBytes(3, 2<<20)
	mustWrite(t, d, g, other, 0)
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "with a server down")
	c.waitMap(d, "the server to be out of sync", outOfSyncEverywhere(victim.id))
	victim.start()
	mustWrite(t, d, g, other[:100], 50)
	copy(other[50:], other[:100])
	c.waitMap(d, "the server to be in sync again", allInSync)
	c.requireEqualReplicas(d, 2, f.ID, g.ID)
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after recovery")
	requireBytes(t, mustRead(t, d, g, len(other), 0), other, "after recovery")
}

// TestRestartOfAll stops everything and starts it again.
func TestRestartOfAll(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 2})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 5<<20)
	mustWrite(t, d, f, want, 0)
	for _, s := range c.servers {
		s.stop()
	}
	c.layout.stop(t)
	c.startLayout()
	done := make(chan bool)
	for _, s := range c.servers {
		go func() { s.start(); done <- true }()
	}
	for range c.servers {
		<-done
	}
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after the restart")
	c.waitMap(d, "all in sync", allInSync)
	c.requireEqualReplicas(d, 2, f.ID)
}
