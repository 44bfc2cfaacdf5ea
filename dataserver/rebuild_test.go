package dataserver

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// patience bounds every wait of these tests.
const patience = 60 * time.Second

func (c *testCluster) layoutClient() canopyv1.LayoutServiceClient {
	c.t.Helper()
	conn, err := grpc.NewClient(c.layAddr, append(wire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	return canopyv1.NewLayoutServiceClient(conn)
}

// wholeWithout reports whether every group has all its replicas in sync, none
// of them on the server, and nobody is leaving.
func wholeWithout(server uint64) func(*canopyv1.PoolMap) bool {
	return func(m *canopyv1.PoolMap) bool {
		for _, p := range m.Pools {
			for _, pg := range p.Pgs {
				if slices.Contains(pg.Members, server) || len(pg.InSync) != int(p.Replicas) || len(pg.Members) != int(p.Replicas) {
					return false
				}
			}
		}
		return len(m.Pools) > 0
	}
}

// requireEqualAt compares what the members of each group hold of the files, in
// their stores: every member has every column, with equal bytes, and no other
// running server has any.
func (c *testCluster) requireEqualAt(d *data.Data, files ...data.File) {
	c.t.Helper()
	m, err := d.PoolMap(testContext(c.t))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, f := range files {
		mapping, err := stripe.NewMap(f.Layout, f.ID, len(m.Pools[0].Pgs))
		if err != nil {
			c.t.Fatal(err)
		}
		for _, col := range mapping.Columns() {
			key := chunkstore.Key{Pool: 1, PG: col.PG, Data: f.ID, Component: col.Component, Column: col.Column}
			pg := m.Pools[0].Pgs[col.PG]
			digests := map[uint64][]uint64{}
			for _, s := range c.servers {
				if s.process == nil {
					continue
				}
				info, ok, err := s.server.store.Stat(key, true)
				if err != nil {
					c.t.Fatal(err)
				}
				member := slices.Contains(pg.Members, s.id)
				if !member && ok {
					c.t.Errorf("server %d holds %s, and is no member of %v", s.id, key, pg)
				}
				if member {
					digests[info.Digest] = append(digests[info.Digest], s.id)
				}
			}
			if len(digests) > 1 {
				c.t.Errorf("%s differs: %v", key, digests)
			}
		}
	}
}

// writer writes the same ranges of a file again and again, until it is told to
// end, and knows what the file then holds.
type writer struct {
	stop atomic.Bool
	g    errgroup.Group
	want []byte
}

func (c *testCluster) startWriter(d *data.Data, f data.File, size int) *writer {
	w := &writer{want: make([]byte, size)}
	w.g.Go(func() error {
		for i := uint64(0); !w.stop.Load(); i++ {
			p := randomBytes(i, 20_000+int(i%5)*30_000)
			off := int(i*77_777) % (size - len(p))
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			_, err := d.WriteAt(ctx, f, p, int64(off))
			cancel()
			if err != nil {
				return fmt.Errorf("write %d: %w", i, err)
			}
			copy(w.want[off:], p)
		}
		return nil
	})
	return w
}

func (w *writer) end(t testing.TB) []byte {
	t.Helper()
	w.stop.Store(true)
	if err := w.g.Wait(); err != nil {
		t.Fatal(err)
	}
	return w.want
}

// TestRebuild: a server that is gone for longer than is waited is replaced under
// load, PROTOCOLS J3; what it holds it drops when it comes back, and not before.
func TestRebuild(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 2, pgs: 6, rebuildAfter: 300 * time.Millisecond})
	d := c.client(1)
	f, g := testFile(100), testFile(101)
	want := randomBytes(1, 5<<20)
	mustWrite(t, d, f, want, 0)
	w := c.startWriter(d, g, 3<<20)
	victim := c.servers[1]
	victim.stop()
	c.waitMap(d, "all groups to be whole without the server", wholeWithout(victim.id))
	written := w.end(t)
	requireBytes(t, mustRead(t, d, g, len(written), 0), written, "written meanwhile")
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "written before")
	c.requireEqualAt(d, f, g)
	victim.start()
	await.Until(t, patience, "the server that came back drops what others hold now", func() bool {
		pgs, err := victim.server.store.PGs()
		if err != nil {
			t.Fatal(err)
		}
		return len(pgs) == 0
	})
	// It is there for others: the next that is gone is replaced by it.
	c.servers[0].stop()
	c.waitMap(d, "all groups to be whole without the second server", wholeWithout(c.servers[0].id))
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after the second rebuild")
	c.requireEqualAt(d, f, g)
}

// TestReturnDuringRebuild: a server that comes back before others have taken
// over is brought up to date with what it missed alone.
func TestReturnDuringRebuild(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 2, pgs: 4, rebuildAfter: 200 * time.Millisecond, recoveryRate: 64 << 10})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 24<<20) // far more than the rate and its burst send soon
	mustWrite(t, d, f, want, 0)
	victim := c.servers[1]
	victim.stop()
	c.waitMap(d, "others to be taken in", func(m *canopyv1.PoolMap) bool {
		for _, pg := range m.Pools[0].Pgs {
			if slices.Contains(pg.Leaving, victim.id) {
				return true
			}
		}
		return false
	})
	await.Until(t, patience, "progress is told", func() bool {
		for _, s := range c.servers {
			if s.process == nil {
				continue
			}
			status := s.server.repairStatus()
			for _, r := range status.Groups {
				if r.BytesSent > 0 && r.BytesTotal > r.BytesDone && r.ColumnsTotal > 0 {
					return true
				}
			}
		}
		return false
	})
	copy(want, "missed")
	mustWrite(t, d, f, want[:6], 0)
	victim.start()
	c.waitMap(d, "it to be a member in sync again", func(m *canopyv1.PoolMap) bool {
		groups := 0
		for _, pg := range m.Pools[0].Pgs {
			if len(pg.InSync) != 2 || len(pg.Members) != 2 {
				return false
			}
			if slices.Contains(pg.InSync, victim.id) {
				groups++
			}
		}
		return groups > 0
	})
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after its return")
	c.requireEqualAt(d, f)
}

// TestDrain: a server is emptied under load, and no group has fewer copies in
// sync than the pool's replicas meanwhile.
func TestDrain(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 4, replicas: 2, pgs: 8})
	d := c.client(1)
	f := testFile(100)
	w := c.startWriter(d, f, 3<<20)
	leaving := c.servers[0]
	layout := c.layoutClient()
	answer, err := layout.SetServer(testContext(t), &canopyv1.SetServerRequest{Server: leaving.id, Draining: true})
	if err != nil || answer.Error != 0 {
		t.Fatalf("drain: %v, %v", answer, err)
	}
	c.waitMap(d, "the server to be empty", func(m *canopyv1.PoolMap) bool {
		for _, pg := range m.Pools[0].Pgs {
			if len(pg.InSync) < 2 {
				t.Fatalf("a group lost a copy: %v", pg)
			}
		}
		return wholeWithout(leaving.id)(m)
	})
	written := w.end(t)
	requireBytes(t, mustRead(t, d, f, len(written), 0), written, "written meanwhile")
	await.Until(t, patience, "the server dropped all", func() bool {
		pgs, err := leaving.server.store.PGs()
		return err == nil && len(pgs) == 0
	})
	c.requireEqualAt(d, f)
	forget := func() *canopyv1.SetServerResponse {
		answer, err := layout.SetServer(testContext(t), &canopyv1.SetServerRequest{Server: leaving.id, Forget: true})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	if answer := forget(); answer.Error == 0 {
		t.Error("a server that is alive was forgotten")
	}
	leaving.stop()
	if answer := forget(); answer.Error != 0 {
		t.Errorf("forget: %v", answer)
	}
	c.waitMap(d, "the record to be gone", func(m *canopyv1.PoolMap) bool { return len(m.Servers) == 3 })
}

// TestNoPlaceToRebuild: with too few servers a group stays degraded and says
// why, until there is one more.
func TestNoPlaceToRebuild(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, pgs: 2, rebuildAfter: 200 * time.Millisecond})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 1<<20)
	mustWrite(t, d, f, want, 0)
	victim := c.servers[0]
	victim.stop()
	layout := c.layoutClient()
	await.Until(t, patience, "the layout service says that there is no place", func() bool {
		r, err := layout.Repairs(testContext(t), &canopyv1.RepairsRequest{})
		if err != nil || r.Error != 0 {
			t.Fatalf("repairs: %v, %v", r, err)
		}
		return len(r.Stuck) == 2 && len(r.Gone) == 1 && r.Gone[0].Server == victim.id
	})
	third := &testServer{c: c, n: 2, boot: "boot"}
	c.servers = append(c.servers, third)
	third.start()
	t.Cleanup(third.stopIfRunning)
	c.waitMap(d, "the new server to take over", wholeWithout(victim.id))
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after the rebuild")
	c.requireEqualAt(d, f)
}

// TestDeleteDuringRebuild: a deletion that knows the members of before reaches
// who was taken in meanwhile (PROTOCOLS H3).
func TestDeleteDuringRebuild(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 2, pgs: 1})
	d, stale := c.client(1), c.client(2)
	var files []data.File
	for i := range 40 {
		f := testFile(base.DataID(100 + i))
		mustWrite(t, d, f, randomBytes(uint64(i), 30_000), 0)
		files = append(files, f)
	}
	m, err := stale.PoolMap(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	leaving := m.Pools[0].Pgs[0].InSync[1]
	var group errgroup.Group
	for _, f := range files {
		group.Go(func() error { return stale.Delete(testContext(t), f.ID, f.Layout, stripe.MaxFileBytes) })
	}
	answer, err := c.layoutClient().SetServer(testContext(t), &canopyv1.SetServerRequest{Server: leaving, Draining: true})
	if err != nil || answer.Error != 0 {
		t.Fatalf("drain: %v, %v", answer, err)
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	c.waitMap(d, "the group to move", wholeWithout(leaving))
	for _, s := range c.servers {
		columns, _, err := s.server.store.Count(1, 0)
		if err != nil || columns != 0 {
			t.Errorf("server %d: %d columns, %v", s.id, columns, err)
		}
	}
}
