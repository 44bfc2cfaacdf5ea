package dataserver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/client/data/poolmap"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// TestLateWriteAndLateCut is PROTOCOLS J1: a write-back of an older size epoch
// is refused and revives nothing, a cut that comes late destroys nothing, and a
// request that knows of cuts makes the server know them first.
func TestLateWriteAndLateCut(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2})
	d := c.client(1)
	at := func(epoch uint64, cuts ...*canopyv1.Cut) data.File {
		f := testFile(100)
		f.SizeEpoch, f.Cuts = epoch, cuts
		return f
	}
	old := randomBytes(1, 3<<20)
	mustWrite(t, d, at(1), old, 0)
	cut2 := &canopyv1.Cut{SizeEpoch: 2, Size: 1<<20 + 500_000}
	if err := d.Cut(testContext(t), at(2, cut2)); err != nil {
		t.Fatal(err)
	}
	// A late write-back under epoch 1, below and beyond the cut.
	for _, off := range []int64{0, 2 << 20} {
		if _, err := d.WriteAt(testContext(t), at(1), old[:5000], off); !errors.Is(err, fserr.OldEpoch) {
			t.Fatalf("late write at %d: %v", off, err)
		}
	}
	want := append(append([]byte(nil), old[:cut2.Size]...), make([]byte, 3<<20-int(cut2.Size))...)
	requireBytes(t, mustRead(t, d, at(2), 3<<20, 0), want, "after the cut")

	// Epoch 3 cuts to 1000; only a writer that knows of it tells the servers.
	cut3 := &canopyv1.Cut{SizeEpoch: 3, Size: 1000}
	requireBytes(t, mustRead(t, d, at(3, cut2, cut3), 5000, 0), append(append([]byte(nil), old[:1000]...), make([]byte, 4000)...), "a reader that knows the cut")
	fresh := randomBytes(2, 100)
	mustWrite(t, d, at(3, cut2, cut3), fresh, 4000)
	want = make([]byte, 5000)
	copy(want, old[:1000])
	copy(want[4000:], fresh)
	requireBytes(t, mustRead(t, d, at(3), 5000, 0), want, "after the write of epoch 3")

	// The cuts of epochs 2 and 3 come (again) late.
	for _, late := range []data.File{at(2, cut2), at(3, cut2, cut3)} {
		if err := d.Cut(testContext(t), late); err != nil {
			t.Fatal(err)
		}
	}
	requireBytes(t, mustRead(t, d, at(3), 5000, 0), want, "after late cuts")
	c.requireEqualReplicas(d, 2, 100)
}

// TestTombstone is PROTOCOLS H3: a deletion is confirmed by every member or
// fails, a repetition is harmless, and no late write makes the bytes again, not
// even at a member that was away.
func TestTombstone(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 2, pgs: 3})
	d := c.client(1)
	f := testFile(100)
	mustWrite(t, d, f, randomBytes(1, 5<<20), 0)
	away := c.servers[2]
	away.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := d.Delete(ctx, f.ID, f.Layout, stripe.MaxFileBytes); err == nil {
		t.Fatal("the deletion was confirmed without one member")
	}
	c.waitMap(d, "the server to be out", outOfSyncEverywhere(away.id))
	if _, err := d.WriteAt(testContext(t), f, []byte("late"), 0); !errors.Is(err, fserr.Stale) {
		t.Fatalf("late write: %v", err)
	}
	away.start()
	c.waitMap(d, "all in sync", allInSync)
	for range 2 {
		// A deletion asks each member once, and the connection to the server that was
		// away may not stand again yet: whoever deletes tries again (PROTOCOLS H3).
		await.Nil(t, 20*time.Second, "the deletion is confirmed by all members", func() error {
			return d.Delete(testContext(t), f.ID, f.Layout, stripe.MaxFileBytes)
		})
	}
	byServer, err := d.StatColumns(testContext(t), f.ID)
	if err != nil {
		t.Fatal(err)
	}
	for server, infos := range byServer {
		for _, i := range infos {
			if !i.Tombstone {
				t.Errorf("server %d still has %s", server, keyOf(i.Column))
			}
		}
	}
	for _, off := range []int64{0, 1 << 20, 3 << 20} {
		if _, err := d.WriteAt(testContext(t), f, []byte("late"), off); !errors.Is(err, fserr.Stale) {
			t.Fatalf("late write at %d: %v", off, err)
		}
	}
	for _, s := range c.servers {
		s.stop()
		s.start()
	}
	if _, err := d.WriteAt(testContext(t), f, []byte("late"), 0); !errors.Is(err, fserr.Stale) {
		t.Fatalf("late write after a restart: %v", err)
	}
}

// TestLeaseExpiry is PROTOCOLS J3: a server that the layout service does not
// hear of serves neither reads nor writes once its lease ran out, and the other
// member takes over only after that.
func TestLeaseExpiry(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, pgs: 1})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 1<<20)
	mustWrite(t, d, f, want, 0)
	m, err := d.PoolMap(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	primary, other := c.servers[0], c.servers[1]
	if m.Pools[0].Pgs[0].InSync[0] != primary.id {
		primary, other = other, primary
	}
	// Cut the primary off from the layout service alone.
	var cutOff atomic.Bool
	primary.server.member.mu.Lock()
	primary.server.member.addresses = []string{"127.0.0.1:1"}
	primary.server.member.leader = "127.0.0.1:1"
	primary.server.member.mu.Unlock()
	cutOff.Store(true)
	for until := time.Now().Add(15 * time.Second); ; time.Sleep(time.Millisecond) {
		served := primary.server.lease.valid()
		now := poolmap.New(mapOf(t, d)).PG(1, 0)
		if now.InSync[0] == other.id {
			if served {
				t.Fatal("the other member took over while the lease ran")
			}
			break
		}
		if time.Now().After(until) {
			t.Fatal("the other member never took over")
		}
	}
	// The old primary still has its connections; only its lease stops it.
	g := primary.server.group(chunkstore.Key{Pool: 1, PG: 0})
	if _, err := g.admitPrimary(testContext(t), m.Pools[0].Pgs[0].Epoch); err == nil {
		t.Fatal("a server without a lease serves")
	}
	patch := randomBytes(2, 1000)
	mustWrite(t, d, f, patch, 0)
	copy(want, patch)
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after the take-over")
	primary.server.member.mu.Lock()
	primary.server.member.addresses = []string{c.layAddr}
	primary.server.member.leader = ""
	primary.server.member.mu.Unlock()
	c.waitMap(d, "all in sync", allInSync)
	c.requireEqualReplicas(d, 2, f.ID)
}

func mapOf(t testing.TB, d *data.Data) *canopyv1.PoolMap {
	t.Helper()
	m, err := d.PoolMap(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestDamagedBlockIsRepaired: a block that rots is read from the other member
// and put right.
func TestDamagedBlockIsRepaired(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, pgs: 1})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 300_000)
	mustWrite(t, d, f, want, 0)
	for _, s := range c.servers {
		damage(t, s, 5)
		requireBytes(t, mustRead(t, d, f, len(want), 0), want, "over a damaged block")
	}
	for _, s := range c.servers {
		key := chunkstore.Key{Pool: 1, PG: 0, Data: 100}
		buffer := make([]byte, chunkstore.BufferBytes(0, uint64(len(want))))
		got, _, err := s.server.store.Read(key, 0, uint64(len(want)), 0, nil, buffer)
		if err == nil {
			requireBytes(t, got, want, "the repaired copy")
		} else if s.server.member.server.Load() == mapOf(t, d).Pools[0].Pgs[0].InSync[0] {
			t.Errorf("the primary's copy was not repaired: %v", err)
		}
	}
}

// damage flips a byte of one block of data id 100 on a server's disk.
func damage(t testing.TB, s *testServer, block int64) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(s.dir(), "pgs", "1.0", "*", "64.0.0"))
	if err != nil || len(names) != 1 {
		t.Fatalf("column files: %v, %v", names, err)
	}
	file, err := os.OpenFile(names[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	b := make([]byte, 1)
	at := (1+block)*chunkstore.BlockBytes + 100
	if _, err := file.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x40
	if _, err := file.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// TestPrimaryLossUnderWrites kills primaries of three-way groups under parallel
// writers and wants every acknowledged byte and equal replicas.
func TestPrimaryLossUnderWrites(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 3, pgs: 3})
	const writers = 4
	stop := make(chan struct{})
	type result struct {
		id   base.DataID
		last []byte
		err  error
	}
	results := make(chan result, writers)
	for w := range writers {
		d := c.client(base.ClientID(w + 1))
		go func() {
			f := testFile(base.DataID(200 + w))
			r := result{id: f.ID, last: make([]byte, 2<<20)}
			for i := uint64(0); ; i++ {
				select {
				case <-stop:
					results <- r
					return
				default:
				}
				p := randomBytes(uint64(w)<<8|i, 50_000)
				off := int64(i*37_123) % (2<<20 - 50_000)
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				_, err := d.WriteAt(ctx, f, p, off)
				cancel()
				if err != nil {
					r.err = err
					results <- r
					return
				}
				copy(r.last[off:], p)
			}
		}()
	}
	d := c.client(100)
	for _, victim := range []int{0, 1} {
		time.Sleep(300 * time.Millisecond)
		c.servers[victim].stop()
		c.waitMap(d, "the server to be out", outOfSyncEverywhere(c.servers[victim].id))
		c.servers[victim].start()
		c.waitMap(d, "all in sync", allInSync)
	}
	close(stop)
	for range writers {
		r := <-results
		if r.err != nil {
			t.Fatalf("writer of %d: %v", r.id, r.err)
		}
		requireBytes(t, mustRead(t, d, testFile(r.id), len(r.last), 0), r.last, "what was acknowledged")
		c.requireEqualReplicas(d, 3, r.id)
	}
}
