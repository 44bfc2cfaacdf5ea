package dataserver

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/fserr"
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
	if err := d.Sync(testContext(t), f, nil); err != nil {
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
	if err := d.Sync(testContext(t), f, nil); err != nil {
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

// TestLayoutServiceAway: clients and servers go on by the map that they know,
// as long as leases run, and after its return.
func TestLayoutServiceAway(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, lease: 2 * time.Second})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 2<<20)
	mustWrite(t, d, f, want, 0)
	c.layout.stop(t)
	copy(want, "written while nobody answers")
	mustWrite(t, d, f, want[:100], 0)
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "without a layout service")
	time.Sleep(2 * time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := d.ReadAt(ctx, f, make([]byte, 10), 0); err == nil {
		t.Error("a server without a lease answers")
	}
	c.startLayout()
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after its return")
}

// TestParallelWriters of disjoint and of overlapping ranges, from two clients:
// replicas end up equal.
func TestParallelWriters(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 3, pgs: 2})
	f := testFile(100)
	clients := []*data.Data{c.client(1), c.client(2)}
	var g errgroup.Group
	for w := range 6 {
		d := clients[w%2]
		g.Go(func() error {
			for i := range 40 {
				p := randomBytes(uint64(w*1000+i), 3000+w*777)
				if _, err := d.WriteAt(testContext(t), f, p, int64(i*2500)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	c.requireEqualReplicas(c.client(9), 3, f.ID)
}

// TestUsageAndLocate answers from the pool map.
func TestUsageAndLocate(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 2})
	d := c.client(1)
	total, free, err := d.Usage(testContext(t), 1)
	if err != nil || total == 0 || free == 0 || free > total {
		t.Fatalf("usage: %d, %d, %v", total, free, err)
	}
	where, err := d.Locate(testContext(t), testFile(100), data.Range{Length: 4 << 20})
	if err != nil || len(where) != 4 {
		t.Fatalf("locate: %v, %v", where, err)
	}
	for _, l := range where {
		if len(l.Servers) != 2 || l.Servers[0].Address == "" {
			t.Errorf("location %+v", l)
		}
	}
	if l, err := d.DefaultLayout(testContext(t), 1); err != nil || len(l.Components) != 2 {
		t.Errorf("layout: %v, %v", l, err)
	}
	if _, err := d.WriteAt(testContext(t), data.File{ID: 1}, []byte("x"), 0); !errors.Is(err, fserr.Invalid) {
		t.Errorf("a file without a layout: %v", err)
	}
	if _, err := d.WriteAt(testContext(t), testFile(1), []byte("x"), -1); !errors.Is(err, fserr.FileTooBig) {
		t.Errorf("a negative offset: %v", err)
	}
	d.Close()
	if _, err := d.WriteAt(testContext(t), testFile(1), []byte("x"), 0); !errors.Is(err, fserr.NotConnected) {
		t.Errorf("after Close: %v", err)
	}
}
