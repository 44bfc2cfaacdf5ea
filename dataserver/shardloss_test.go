package dataserver

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/await"
)

// killAtOnce kills servers, which then lose power if power says so.
func killAtOnce(servers []*testServer, power func(i int) bool) {
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() { s.kill(power(i)) })
	}
	wg.Wait()
}

func (c *testCluster) lossEpoch() uint64 { return c.shardGroups()[0].LossEpoch }

// TestLostShardLeaves: a server that lost what it had not synced leaves the in-sync set
// for one that was killed with it and kept everything, though there are too few without
// that one, whichever is at the door first. Nothing acknowledged is lost then (PROTOCOLS J3).
func TestLostShardLeaves(t *testing.T) {
	for what, order := range map[string][]int{"who lost comes first": {0, 1}, "who kept comes first": {1, 0}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, clusterOptions{servers: 3, replicas: 1, data: 2, parity: 1, pgs: 1, power: true, lease: 2 * time.Second})
			d := c.client(1)
			f := shardFile(100)
			want := randomBytes(1, 300_000)
			mustWrite(t, d, f, want, 0)
			lost, kept := c.servers[0], c.servers[1]
			pair := []*testServer{lost, kept}
			killAtOnce(pair, func(i int) bool { return i == 0 })
			first, second := pair[order[0]], pair[order[1]]
			done, begun := make(chan struct{}), make(chan struct{})
			first.begun = func() { close(begun) }
			go func() { defer close(done); first.start() }()
			<-begun // its next step is to knock, while the other must still open its store
			second.start()
			<-done
			requireBytes(t, mustRead(t, d, f, len(want), 0), want, "when they are back")
			c.waitMap(d, "all in sync", allInSync)
			c.requireWholeRows(d)
			if e := c.lossEpoch(); e != 0 {
				t.Errorf("a loss is recorded, epoch %d", e)
			}
		})
	}
}

// TestPowerLossOfShards: more machines than there are parity shards lose power, amid
// changes that nobody synced; of some the disk has these changes. What was synced is
// there, to the block, the writers of the rest are told, and as soon as the primary has
// compared all, as many servers as there are parity shards can go.
func TestPowerLossOfShards(t *testing.T) {
	t.Parallel() // most of it is waiting
	c := newCluster(t, clusterOptions{servers: 6, replicas: 1, data: 4, parity: 2, pgs: 1, power: true})
	d := c.client(1)
	f := shardFile(100)
	synced := randomBytes(1, 1<<20)
	if err := d.Sync(testContext(t), f, writeAcked(t, d, f, synced)); err != nil {
		t.Fatal(err)
	}
	now := bytes.Clone(synced)
	var acks data.Acks
	for i := range 12 { // one block in rows of four
		at := int64(i*80_000 - i*80_000%4096)
		copy(now[at:at+4096], randomBytes(uint64(10+i), 4096))
		w, err := d.WriteAt(testContext(t), f, now[at:at+4096], at)
		if err != nil {
			t.Fatal(err)
		}
		acks = w.Acks
	}
	killAtOnce(c.servers, func(i int) bool { return i%2 == 0 })
	c.startAll()
	if err := d.Sync(testContext(t), f, acks); !errors.Is(err, data.ErrLost) {
		t.Errorf("sync after the loss: %v", err)
	}
	requireEither := func(got []byte, what string) {
		t.Helper()
		for at := 0; at < len(got); at += 4096 {
			b := got[at : at+4096]
			if !bytes.Equal(b, synced[at:at+4096]) && !bytes.Equal(b, now[at:at+4096]) {
				t.Fatalf("%s: the block at %d is neither what was synced nor what was written", what, at)
			}
		}
	}
	got := mustRead(t, d, f, len(synced), 0)
	requireEither(got, "after the loss")
	c.waitMap(d, "all in sync", allInSync)
	c.awaitMended()
	c.requireWholeRows(d)
	for _, s := range c.servers[1:3] {
		s.stop()
		c.waitMap(d, "the server to be out of sync", outOfSyncEverywhere(s.id))
	}
	requireBytes(t, mustRead(t, d, f, len(synced), 0), got, "with two servers away")
}

// awaitMended waits until the primary has compared all after the loss.
func (c *testCluster) awaitMended() {
	c.t.Helper()
	await.Until(c.t, 20*time.Second, "the primary compares all", func() bool {
		pg := c.shardGroups()[0]
		i := slices.IndexFunc(c.servers, func(s *testServer) bool { return s.id == pg.InSync[0] })
		g := c.servers[i].server.group(chunkstore.Key{Pool: 2})
		return pg.LossEpoch > 0 && g != nil && g.mended.Load() >= pg.LossEpoch
	})
}

// TestPowerLossAmidACut: all machines lose power when some have made a cut, which is
// durable there, and others have not. No byte from behind the cut comes back
// (PROTOCOLS J1).
func TestPowerLossAmidACut(t *testing.T) {
	t.Parallel() // most of it is waiting
	c := newCluster(t, clusterOptions{servers: 3, replicas: 1, data: 2, parity: 1, pgs: 1, power: true})
	d := c.client(1)
	f := shardFile(100)
	want := randomBytes(1, 200_000)
	if err := d.Sync(testContext(t), f, writeAcked(t, d, f, want)); err != nil {
		t.Fatal(err)
	}
	const rows, size = 3, 3 * 8192
	key := chunkstore.Key{Pool: 2, PG: 0, Data: f.ID}
	for _, s := range c.servers[:2] {
		g := s.server.group(key)
		term, _, _, _ := g.undo.State()
		_, err := g.shardChange(key, &link.Request{DataRequest: &canopyv1.DataRequest{
			Column: columnOf(key), SizeEpoch: 1, LogTerm: term, LogSeq: 1 << 50, Shard: &canopyv1.ShardCall{FirstRow: rows, Cut: true},
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	killAtOnce(c.servers, func(int) bool { return true })
	c.startAll()
	// The client that cut the file asks again.
	f.SizeEpoch, f.Cuts = 1, []*canopyv1.Cut{{SizeEpoch: 1, Size: size}}
	if err := d.Cut(testContext(t), f); err != nil {
		t.Fatal(err)
	}
	f.Cuts = nil
	clear(want[size:])
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after the cut")
	c.waitMap(d, "all in sync", allInSync)
	c.awaitMended()
	c.requireWholeRows(d)
}
