package mds_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/mds"
	"github.com/canopyfs/canopy/placement"
)

// fakeData is a data plane that remembers what was asked of it.
type fakeData struct {
	down atomic.Bool

	mu      sync.Mutex
	deleted map[base.DataID]int
	cut     map[base.DataID][]uint64 // sizes of the last cuts
}

func newFakeData() *fakeData {
	return &fakeData{deleted: map[base.DataID]int{}, cut: map[base.DataID][]uint64{}}
}

func (d *fakeData) Delete(_ context.Context, id base.DataID, _ *canopyv1.Layout, _ uint64) error {
	if d.down.Load() {
		return errors.New("the data servers are away")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deleted[id]++
	return nil
}

func (d *fakeData) Cut(_ context.Context, id base.DataID, _ *canopyv1.Layout, _ uint64, cuts []*canopyv1.Cut) error {
	if d.down.Load() {
		return errors.New("the data servers are away")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut[id] = nil
	for _, c := range cuts {
		d.cut[id] = append(d.cut[id], c.Size)
	}
	return nil
}

func (d *fakeData) Usage(context.Context, base.PoolID) (uint64, uint64, error) {
	return 1000, 400, nil
}

func (d *fakeData) wasDeleted(id uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.deleted[base.DataID(id)] > 0
}

// report tells the holder what the caller has open.
func (k *caller) report(shard base.ShardID, number uint64, opened ...*canopyv1.Place) *canopyv1.ReportOpensResponse {
	k.c.t.Helper()
	var out *canopyv1.ReportOpensResponse
	eventually(k.c.t, "a report is taken", func() bool {
		i := k.c.holder(shard)
		if i < 0 {
			return false
		}
		r, err := canopyv1.NewMetadataClient(connect(k.c.t, k.c.nodes[i].Addr())).ReportOpens(k.context(k.c.t.Context()),
			&canopyv1.ReportOpensRequest{Shard: uint64(shard), Full: true, Number: number, Opened: opened})
		out = r
		return err == nil && r.Error == 0
	})
	return out
}

func getattr(p *canopyv1.Place) *canopyv1.Op {
	return &canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: p}}}
}

// quick are settings that let the background work be seen in a test.
func quick(data *fakeData) func(*mds.Config) {
	return func(c *mds.Config) {
		c.OrphanGrace, c.Heartbeat = 300*time.Millisecond, 100*time.Millisecond
		if data != nil {
			c.Data = data
		}
	}
}

// makeOrphan creates and unlinks a file with bytes, and returns its old place.
func (k *caller) makeOrphan(name string) (*canopyv1.Place, uint64) {
	k.c.t.Helper()
	made := k.must(1, k.write(create(1, name))).Attr
	place := &canopyv1.Place{Ino: made.Ino, Dir: 1, Name: []byte(name)}
	k.must(1, k.write(&canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_ReportSize{ReportSize: &canopyv1.ReportSizeCall{
		Place: place, SizeEpoch: made.SizeEpoch, Size: 100, AllocatedBytes: 100, Changed: true}}}))
	attr := k.must(1, lookup(1, name)).Attr
	k.must(1, k.write(unlink(1, name)))
	return place, attr.DataId
}

// TestOrphansGoWhenNobodyHasThem: PROTOCOLS H2, H3.
func TestOrphansGoWhenNobodyHasThem(t *testing.T) {
	t.Parallel()
	data := newFakeData()
	c := newCluster(t, single, quick(data))
	k := c.caller(7).open(1)
	other := c.caller(8).open(1)
	held, heldData := k.makeOrphan("held")
	free, freeData := k.makeOrphan("free")

	// Nothing goes while a live session has not reported.
	k.report(1, 1, held)
	await.Throughout(t, 4*300*time.Millisecond, "the orphans are there", func() bool {
		for _, p := range []*canopyv1.Place{held, free} {
			if r := k.must(1, getattr(p)); r.Attr.GetNlink() != 0 {
				t.Errorf("orphan %v: %v", p, r.Attr)
			}
		}
		return true
	})
	other.report(1, 1)
	eventually(t, "the orphan that nobody has open goes", func() bool {
		return fserr.Kind(k.do(1, getattr(free)).Error) == fserr.Stale
	})
	eventually(t, "its data go", func() bool { return data.wasDeleted(freeData) })
	if r := k.must(1, getattr(held)); r.Attr.GetIno() != held.Ino {
		t.Errorf("the open orphan: %v", r)
	}
	if data.wasDeleted(heldData) {
		t.Error("data of an open file were deleted")
	}
	k.report(1, 2) // closed
	eventually(t, "the other goes after its close", func() bool {
		return fserr.Kind(k.do(1, getattr(held)).Error) == fserr.Stale
	})
	eventually(t, "its data go too", func() bool { return data.wasDeleted(heldData) })
	eventually(t, "the queue is empty", func() bool { return c.queue() == 0 })
}

// queue returns how many deletions wait at shard 1.
func (c *cluster) queue() uint64 {
	for _, n := range c.nodes {
		if n == nil {
			continue
		}
		r, err := canopyv1.NewAdminClient(connect(c.t, n.Addr())).ShardStatus(c.t.Context(), &canopyv1.ShardStatusRequest{Shard: 1})
		if err == nil && r.Shards[0].Holder {
			return r.Shards[0].DeletionsQueued
		}
	}
	return 1 << 32
}

// TestANewHolderKeepsWhatItHasNotHeardOf: PROTOCOLS H2. The old holder knew that
// the file is open; the new one purges nothing until it was told everything.
func TestANewHolderKeepsWhatItHasNotHeardOf(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, quick(nil))
	k := c.caller(7).open(1)
	held, _ := k.makeOrphan("held")
	k.report(1, 1, held)
	c.kill(0)
	c.start(0)
	c.waitReady(0)
	kept := func() bool { return k.must(1, getattr(held)).Attr != nil }
	await.Throughout(t, 4*300*time.Millisecond, "the file that may be open is there", kept)
	k.report(1, 2, held)
	await.Throughout(t, 2*300*time.Millisecond, "the open file is there", kept)
	k.report(1, 3)
	eventually(t, "it goes", func() bool { return fserr.Kind(k.do(1, getattr(held)).Error) == fserr.Stale })
}

// TestDataWaitForTheirServers: PROTOCOLS H3. A queue entry stays until the data
// are gone everywhere, also over a restart.
func TestDataWaitForTheirServers(t *testing.T) {
	t.Parallel()
	data := newFakeData()
	data.down.Store(true)
	c := newCluster(t, single, quick(data))
	k := c.caller(7).open(1)
	gone, dataID := k.makeOrphan("a")
	k.report(1, 1)
	eventually(t, "the inode goes", func() bool { return fserr.Kind(k.do(1, getattr(gone)).Error) == fserr.Stale })
	eventually(t, "the data are queued", func() bool { return c.queue() == 1 })
	c.kill(0)
	c.start(0)
	c.waitReady(0)
	eventually(t, "the queue is still there", func() bool { return c.queue() == 1 })
	data.down.Store(false)
	eventually(t, "the data go", func() bool { return data.wasDeleted(dataID) && c.queue() == 0 })
}

// TestCutsReachTheDataServers: PROTOCOLS J1.
func TestCutsReachTheDataServers(t *testing.T) {
	t.Parallel()
	data := newFakeData()
	c := newCluster(t, single, quick(data))
	k := c.caller(7).open(1)
	made := k.must(1, k.write(create(1, "a"))).Attr
	place := &canopyv1.Place{Ino: made.Ino, Dir: 1, Name: []byte("a")}
	k.must(1, k.write(&canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_ReportSize{ReportSize: &canopyv1.ReportSizeCall{
		Place: place, SizeEpoch: made.SizeEpoch, Size: 100, AllocatedBytes: 100, Changed: true}}}))
	cut := k.must(1, k.write(&canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_SetAttr{SetAttr: &canopyv1.SetAttrCall{
		Place: place, Mask: uint32(canopyv1.SetAttrMask_SET_ATTR_SIZE), Size: 10}}}))
	if len(cut.Attr.GetCuts()) == 0 {
		t.Fatalf("a truncated file without cuts: %v", cut.Attr)
	}
	eventually(t, "the cut is known everywhere and forgotten here", func() bool {
		return len(k.must(1, lookup(1, "a")).Attr.GetCuts()) == 0
	})
	data.mu.Lock()
	defer data.mu.Unlock()
	if got := data.cut[base.DataID(cut.Attr.DataId)]; len(got) != 1 || got[0] != 10 {
		t.Errorf("cuts %v", got)
	}
}

// TestReportsFollowMovedFiles: PROTOCOLS H1.
func TestReportsFollowMovedFiles(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, nil)
	k := c.caller(7).open(1)
	made := k.must(1, k.write(create(1, "a"))).Attr
	old := &canopyv1.Place{Ino: made.Ino, Dir: 1, Name: []byte("a")}
	k.must(1, k.write(rename("a", "b")))
	r := k.report(1, 1, old)
	if len(r.Moved) != 1 || r.Moved[0].Ino != made.Ino || string(r.Moved[0].Name) != "b" {
		t.Errorf("moved: %v", r.Moved)
	}
}

func TestStatFsShowsTheDataServers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, quick(newFakeData()))
	k := c.caller(7)
	eventually(t, "capacity", func() bool {
		r := k.must(1, &canopyv1.Op{Subtree: 1, Call: &canopyv1.Op_StatFs{StatFs: &canopyv1.StatFsCall{}}})
		return r.Statfs.GetTotalBytes() == 1000 && r.Statfs.GetFreeBytes() == 400
	})
}

// events opens an events stream that lists a shard, and passes on what comes.
func (k *caller) events(ctx context.Context, n *mds.Server, shard uint64) (grpc.BidiStreamingClient[canopyv1.EventsRequest, canopyv1.Event], chan *canopyv1.Event) {
	k.c.t.Helper()
	stream, err := canopyv1.NewMetadataClient(connect(k.c.t, n.Addr())).Events(k.context(ctx))
	if err != nil {
		k.c.t.Fatal(err)
	}
	if err := stream.Send(&canopyv1.EventsRequest{Shards: []uint64{shard}}); err != nil {
		k.c.t.Fatal(err)
	}
	out := make(chan *canopyv1.Event, 100)
	go func() {
		defer close(out)
		for {
			e, err := stream.Recv()
			if err != nil {
				return
			}
			out <- e
		}
	}()
	return stream, out
}

// TestSilentSessionsEnd: PROTOCOLS C3; heartbeats keep a session alive.
func TestSilentSessionsEnd(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, func(c *mds.Config) {
		// Long enough for heartbeats that a busy machine sends late.
		c.SessionTimeout, c.Heartbeat = 3*time.Second, 100*time.Millisecond
	})
	silent := c.caller(7).open(1)
	alive := c.caller(8).open(1)
	stream, events := alive.events(t.Context(), c.nodes[0], 1)
	lost, _ := silent.events(t.Context(), c.nodes[0], 1)
	_ = lost // opened, but silent from here on
	sawBeat, sawReport := false, false
	deadline := time.After(patience)
	beat := time.NewTicker(100 * time.Millisecond)
	defer beat.Stop()
	ended := func() bool {
		r := alive.c.sessions()
		return len(r) == 1 && r[0] == 8
	}
	for !ended() {
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatal("the stream ended")
			}
			switch e := e.Event.(type) {
			case *canopyv1.Event_Heartbeat:
				sawBeat = sawBeat || e.Heartbeat.SessionTimeoutMs == 3000
			case *canopyv1.Event_Report:
				sawReport = sawReport || e.Report.Shard == 1
			case *canopyv1.Event_SessionLost:
				t.Fatal("the live session was ended")
			}
		case <-beat.C:
			if err := stream.Send(&canopyv1.EventsRequest{Shards: []uint64{1}}); err != nil {
				t.Fatal(err)
			}
		case <-deadline:
			t.Fatalf("sessions are %v", c.sessions())
		}
	}
	if !sawBeat || !sawReport {
		t.Errorf("heartbeat seen: %v, request for a report: %v", sawBeat, sawReport)
	}
	if r := silent.do(1, silent.write(create(1, "late"))); fserr.Kind(r.Error) != fserr.SessionExpired {
		t.Errorf("a write of the ended session: %v", r)
	}
	_, events = silent.events(t.Context(), c.nodes[0], 1)
	eventually(t, "the client learns of it", func() bool {
		select {
		case e := <-events:
			return e.GetSessionLost().GetShard() == 1
		default:
			return false
		}
	})
}

// sessions lists the clients with a session at shard 1.
func (c *cluster) sessions() (out []uint64) {
	r, err := canopyv1.NewAdminClient(connect(c.t, c.nodes[0].Addr())).ListSessions(c.t.Context(), &canopyv1.ListSessionsRequest{Shard: 1})
	if err != nil {
		return nil
	}
	for _, s := range r.Sessions {
		out = append(out, s.Client)
	}
	return out
}

// TestThePauseOfADrain: a drained node costs its shards little.
func TestThePauseOfADrain(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 3, Replicas: 3, Shards: 1}, nil)
	k := c.caller(7).open(1)
	k.must(1, k.write(create(1, "warm")))
	from := c.holding(1)
	admin := canopyv1.NewAdminClient(connect(t, c.nodes[from].Addr()))
	done := make(chan error, 1)
	go func() {
		_, err := admin.Drain(context.Background(), &canopyv1.DrainRequest{})
		done <- err
	}()
	var worst time.Duration
	for i, drained := 0, false; i < 20 || !drained; i++ {
		begin := time.Now()
		k.must(1, k.write(create(1, "n"+time.Now().Format("150405.000000000"))))
		worst = max(worst, time.Since(begin))
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			drained = true
		default:
		}
	}
	t.Logf("longest write during a drain: %v", worst)
	if to := c.holding(1); to == from {
		t.Errorf("the holder is still node %d", to+1)
	}
	if worst > await.Limit(t, 3*time.Second) {
		t.Errorf("the drain cost %v", worst)
	}
}
