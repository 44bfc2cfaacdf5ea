package dataserver

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/await"
)

// flipShards flips a bit of the first data block of every shard file that the server has
// of the erasure coded pool.
func (s *testServer) flipShards() (flipped int) {
	s.c.t.Helper()
	names, err := filepath.Glob(filepath.Join(s.dir(), "pgs", "2.*", "??", "*"))
	if err != nil {
		s.c.t.Fatal(err)
	}
	for _, name := range names {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			s.c.t.Fatal(err)
		}
		b := make([]byte, 1)
		if _, err := f.ReadAt(b, 4096+77); err == nil {
			b[0] ^= 4
			if _, err := f.WriteAt(b, 4096+77); err != nil {
				s.c.t.Fatal(err)
			}
			flipped++
		}
		f.Close()
	}
	return flipped
}

// TestShardDamage: damaged blocks are made from the others, also when they are of as many
// shards as there is parity; reading and scrubbing put them right on the disks. With more
// it is an error, never wrong bytes.
func TestShardDamage(t *testing.T) {
	t.Parallel() // most of it is waiting
	c := newCluster(t, clusterOptions{servers: 4, replicas: 1, data: 2, parity: 2, pgs: 1})
	d := c.client(1)
	f := shardFile(100)
	want := randomBytes(1, 200000)
	mustWrite(t, d, f, want, 0)
	for _, s := range c.servers[:2] {
		if s.flipShards() == 0 {
			t.Fatal("there is no shard to damage")
		}
	}
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "with two damaged blocks of a row")
	c.scrub()
	c.requireWholeRows(d)
	for _, s := range c.servers[:3] {
		s.flipShards()
	}
	got := make([]byte, len(want))
	if _, err := d.ReadAt(testContext(t), f, got, 0); err == nil {
		t.Error("a row of which one block is whole is read")
	}
	requireBytes(t, mustRead(t, d, f, len(want)-8192, 8192), want[8192:], "the other rows")
	mustWrite(t, d, f, want[:8192], 0)
	await.Until(t, 20*time.Second, "the row is whole again", func() bool {
		_, err := d.ReadAt(testContext(t), f, got, 0)
		return err == nil
	})
	requireBytes(t, got, want, "after the row was written anew")
	c.requireWholeRows(d)
}

// TestShardRebuild: the shards of a server that is gone for long are made on another one,
// which has the same shard numbers; a drained server is replaced too.
func TestShardRebuild(t *testing.T) {
	t.Parallel() // most of it is waiting
	c := newCluster(t, clusterOptions{servers: 6, replicas: 1, data: 2, parity: 2, pgs: 2, rebuildAfter: 300 * time.Millisecond})
	d := c.client(1)
	f := shardFile(100)
	want := randomBytes(1, 1<<20)
	mustWrite(t, d, f, want, 0)
	gone := c.servers[0]
	gone.stop()
	whole := func(without uint64) func(m *canopyv1.PoolMap) bool {
		return func(m *canopyv1.PoolMap) bool {
			for _, pg := range shardPool(m).Pgs {
				if len(pg.Members) != 4 || len(pg.InSync) != 4 || inSyncShards(pg) != 4 || slices.Contains(pg.Members, without) {
					return false
				}
			}
			return true
		}
	}
	c.waitMap(d, "the groups to be whole without the server", whole(gone.id))
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after the rebuild")
	answer, err := c.layoutClient().SetServer(testContext(t), &canopyv1.SetServerRequest{Server: c.servers[1].id, Draining: true})
	if err != nil || answer.Error != 0 {
		t.Fatalf("drain: %v, %v", answer, err)
	}
	c.waitMap(d, "the groups to be whole without the drained server", whole(c.servers[1].id))
	copy(want[500:], "after the drain")
	mustWrite(t, d, f, []byte("after the drain"), 500)
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after the drain")
	c.requireWholeRows(d)
}
