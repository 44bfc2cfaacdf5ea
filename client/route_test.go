package client

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

func TestRedirectToTheHolder(t *testing.T) {
	f := newFake(t, 3)
	f.moveHolder(1, f.nodes[2], false) // the map does not know
	c := f.connect(t, newMemData())
	create(t, c, "a")
	f.moveHolder(1, f.nodes[1], false)
	create(t, c, "b")
	if n := len(f.names()); n != 2 {
		t.Errorf("%d names", n)
	}
}

// What was in flight when a holder dies goes to the next one, exactly once
// (PROTOCOLS C1).
func TestFailover(t *testing.T) {
	f := newFake(t, 3)
	c := f.connect(t, newMemData())
	var wg sync.WaitGroup
	var made atomic.Int64
	stop := make(chan struct{})
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				create(t, c, fmt.Sprint("w", w, "-", i)).Close(t.Context())
				made.Add(1)
			}
		})
	}
	for round := range 3 {
		before := made.Load()
		eventually(t, "progress", func() bool { return made.Load() > before+100 })
		old, next := f.nodes[round%3], f.nodes[(round+1)%3]
		old.stop()
		f.moveHolder(1, next, round == 1)
		before = made.Load()
		start := time.Now()
		eventually(t, "service at the next holder", func() bool { return made.Load() > before+10 })
		if d := time.Since(start); d > await.Limit(t, time.Second) {
			t.Errorf("back after %v", d)
		}
		old.restart()
	}
	close(stop)
	wg.Wait()
	if n := int64(len(f.names())); n != made.Load() && n < 1024 {
		t.Errorf("%d names of %d creates", n, made.Load())
	}
}

// A node that is silent, not dead, is left when the map names another holder.
func TestMapHintLeavesASilentHolder(t *testing.T) {
	f := newFake(t, 2)
	c := f.connect(t, newMemData())
	create(t, c, "a")
	f.setHook(func(n *fakeNode, _ *canopyv1.Op, _ uint64) verdict {
		return verdict{mute: n == f.nodes[0]}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		create(t, c, "b")
	}()
	eventually(t, "the create ran", func() bool { return len(f.names()) == 2 })
	f.moveHolder(1, f.nodes[1], true)
	<-done
}

// A subtree that lives elsewhere than the map says is found by MOVED.
func TestMovedSubtree(t *testing.T) {
	f := newFake(t, 1)
	f.addShard(2, 7, 1<<44|1<<43)
	f.changeMap(func(m *canopyv1.PlacementMap) { m.Subtrees[1].Shard = 1 })
	f.moved = &canopyv1.Redirect{Subtree: 7, Shard: 2, Epoch: 1}
	c := f.connect(t, newMemData())
	n := c.inodes.enter(base.Ino(1<<44|1<<43), modeDir, 7)
	defer n.Release()
	if _, err := c.GetAttr(t.Context(), root, n); err != nil {
		t.Fatal(err)
	}
	if to, _, _ := c.routes.find(7); to.shard != 2 {
		t.Errorf("subtree 7 is routed to shard %v", to.shard)
	}
	// Both shards share the client's sequence numbers (PROTOCOLS C1).
	if _, _, _, err := c.Mkdir(t.Context(), root, n, "there", 0o755); err != nil {
		t.Error(err)
	}
	create(t, c, "here")
}

func TestMapSurvivesItsNode(t *testing.T) {
	f := newFake(t, 2)
	c := f.connect(t, newMemData())
	f.nodes[0].stop()
	f.nodes[1].stop()
	if c.ClusterID() != "fake" {
		t.Error("the last map is gone")
	}
	f.nodes[1].restart()
	f.moveHolder(1, f.nodes[1], true)
	create(t, c, "a")
	f.changeMap(func(m *canopyv1.PlacementMap) { m.Cluster = "another" })
	f.changeMap(func(m *canopyv1.PlacementMap) { m.Cluster = "fake"; m.Format = 9 })
	eventually(t, "the map follows", func() bool { return c.Map().Format == 9 })
	f.nodes[0].restart()
}

func TestConnectFails(t *testing.T) {
	for _, bad := range []string{"", "nohost", "a:1,,b"} {
		if _, err := Connect(t.Context(), Config{Cluster: bad}); bad != "a:1,,b" && fserr.KindOf(err) != fserr.Invalid || err == nil {
			t.Errorf("address %q: %v", bad, err)
		}
		if bad == "nohost" {
			break
		}
	}
	_, err := Connect(t.Context(), Config{Cluster: "127.0.0.1:1", DialTimeout: 50 * time.Millisecond})
	if fserr.KindOf(err) != fserr.TimedOut || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("nobody there: %v", err)
	}
}

func TestClosedClient(t *testing.T) {
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	file := create(t, c, "a")
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetAttr(t.Context(), root, c.Root()); fserr.KindOf(err) != fserr.NotConnected {
		t.Errorf("getattr: %v", err)
	}
	if _, err := file.WriteAt(t.Context(), []byte("x"), 0); fserr.KindOf(err) != fserr.NotConnected {
		t.Errorf("write: %v", err)
	}
	f.expire(1) // fatal if the session were still there? none is: nothing to end
	if err := c.Close(t.Context()); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func (c *fakeCluster) reports() []*canopyv1.ReportOpensRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*canopyv1.ReportOpensRequest(nil), c.opens...)
}

// reported returns what the reports so far say is open.
func (c *fakeCluster) reported() (open map[uint64]bool, full int) {
	open = map[uint64]bool{}
	var number uint64
	for _, r := range c.reports() {
		if r.Number <= number {
			c.t.Errorf("report %d after %d", r.Number, number)
		}
		number = r.Number
		if r.Full {
			full++
			clear(open)
		}
		for _, p := range r.Opened {
			open[p.Ino] = true
		}
		for _, p := range r.Closed {
			delete(open, p.Ino)
		}
	}
	return open, full
}

// PROTOCOLS H1: open files are reported within a second, in batches, everything
// again when a holder asks and to a new holder.
func TestOpenReports(t *testing.T) {
	f := newFake(t, 2)
	c := f.connect(t, newMemData())
	a, b := create(t, c, "a"), create(t, c, "b")
	ino := func(x *File) uint64 { return uint64(x.Inode().Ino()) }
	eventually(t, "both are reported", func() bool {
		open, _ := f.reported()
		return open[ino(a)] && open[ino(b)]
	})
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the close is reported", func() bool { open, _ := f.reported(); return !open[ino(a)] && open[ino(b)] })
	_, before := f.reported()
	f.mu.Lock()
	events := f.events[f.nodes[0].address]
	f.mu.Unlock()
	events <- &canopyv1.Event{Event: &canopyv1.Event_Report{Report: &canopyv1.ReportRequest{Shard: 1}}}
	eventually(t, "a full report on request", func() bool {
		open, full := f.reported()
		return full > before && open[ino(b)] && len(open) == 1
	})
	_, before = f.reported()
	f.moveHolder(1, f.nodes[1], true)
	eventually(t, "a full report to the new holder", func() bool {
		open, full := f.reported()
		return full > before && open[ino(b)]
	})
}

// The heartbeat names the shards with sessions, to the node that holds them.
func TestHeartbeatsFollowTheHolder(t *testing.T) {
	f := newFake(t, 2)
	c := f.connect(t, newMemData())
	create(t, c, "a")
	beats := func(n *fakeNode) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		b := f.beats[n.address]
		return len(b) == 1 && b[0] == 1
	}
	eventually(t, "heartbeats at the holder", func() bool { return beats(f.nodes[0]) })
	f.moveHolder(1, f.nodes[1], true)
	eventually(t, "heartbeats at the new holder", func() bool { return beats(f.nodes[1]) })
}

// An inode whose name is gone is addressed by its number, and is Stale only when
// it is gone as well.
func TestPlacesFollowNames(t *testing.T) {
	f := newFake(t, 1)
	c, other := f.connect(t, newMemData()), f.connect(t, newMemData())
	file := create(t, c, "a")
	n := file.Inode()
	if _, _, err := other.Rename(t.Context(), root, other.Root(), "a", other.Root(), "b", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetAttr(t.Context(), root, n); err != nil {
		t.Fatalf("after a rename by another client: %v", err)
	}
	if p := n.place(); string(p.Name) != "b" {
		t.Errorf("place after the answer: %v", p)
	}
	if _, _, err := c.Rename(t.Context(), root, c.Root(), "b", c.Root(), "c", 0); err != nil {
		t.Fatal(err)
	}
	if p := n.place(); string(p.Name) != "c" {
		t.Errorf("place after our own rename: %v", p)
	}
	if _, err := c.Unlink(t.Context(), root, c.Root(), "c"); err != nil {
		t.Fatal(err)
	}
	attr, err := c.GetAttr(t.Context(), root, n)
	if err != nil || attr.Nlink != 0 {
		t.Errorf("unlinked and open: %v %v", attr, err)
	}
	f.shards[1].own(t, &canopyv1.Command{Own: &canopyv1.Command_Purge{Purge: &canopyv1.PurgeCommand{
		Subtree: 1, Orphans: []uint64{uint64(n.Ino())}, BeforeNs: time.Now().Add(time.Hour).UnixNano()}}})
	if _, err := c.GetAttr(t.Context(), root, n); fserr.KindOf(err) != fserr.Stale {
		t.Errorf("purged: %v", err)
	}
}

func TestInodesAreShared(t *testing.T) {
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	file := create(t, c, "a")
	n, attr, _, err := c.Lookup(t.Context(), root, c.Root(), "a")
	if err != nil || n != file.Inode() || attr.Ino != uint64(n.Ino()) {
		t.Fatalf("lookup: %p %v", n, err)
	}
	n.Release()
	if err := file.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.inodes.find(base.Ino(attr.Ino)) != nil {
		t.Error("the inode is still known after its last reference")
	}
	_, _, _, err = c.Lookup(t.Context(), root, c.Root(), "none")
	if fserr.KindOf(err) != fserr.NotFound {
		t.Error(err)
	}
}

// In relaxed mode names and attributes are cached for the time; the client's own
// changes are seen at once. In strict mode every call asks.
func TestRelaxedAndStrict(t *testing.T) {
	f := newFake(t, 1)
	strict := f.connect(t, newMemData())
	relaxed := f.connect(t, newMemData(), func(c *Config) { c.Relaxed = time.Hour })
	create(t, strict, "a").Close(t.Context())
	var reads atomic.Int32
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if op.Seq == 0 {
			reads.Add(1)
		}
		return verdict{}
	})
	look := func(c *Client) (*Inode, *Attr) {
		n, attr, _, err := c.Lookup(t.Context(), root, c.Root(), "a")
		if err != nil {
			t.Fatal(err)
		}
		return n, attr
	}
	count := func(c *Client) int32 {
		before := reads.Load()
		for range 3 {
			n, _ := look(c)
			if _, err := c.GetAttr(t.Context(), root, n); err != nil {
				t.Fatal(err)
			}
			n.Release()
		}
		return reads.Load() - before
	}
	if n := count(strict); n != 6 {
		t.Errorf("strict asked %d times, want 6", n)
	}
	if n := count(relaxed); n != 1 {
		t.Errorf("relaxed asked %d times, want 1", n)
	}
	n, _ := look(relaxed)
	defer n.Release()
	if _, err := relaxed.SetAttr(t.Context(), root, n, SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_MODE, Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if _, attr := look(relaxed); attr.Mode&0o777 != 0o600 {
		t.Errorf("own change not seen: %o", attr.Mode)
	}
	n.Release()
	if _, _, err := relaxed.Rename(t.Context(), root, relaxed.Root(), "a", relaxed.Root(), "b", 0); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := relaxed.Lookup(t.Context(), root, relaxed.Root(), "a"); fserr.KindOf(err) != fserr.NotFound {
		t.Errorf("own rename not seen: %v", err)
	}
}

func TestCreateExisting(t *testing.T) {
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	file := create(t, c, "a")
	if _, err := file.WriteAt(t.Context(), []byte("hello"), 0); err != nil {
		t.Fatal(err)
	}
	made, err := c.Create(context.Background(), root, c.Root(), "a", 0o600, syscall.O_RDWR|syscall.O_TRUNC)
	if err != nil || !made.Existed || made.Inode != file.Inode() || made.Attr.Size != 0 {
		t.Fatalf("create with O_TRUNC: %+v %v", made, err)
	}
	_, err = c.Create(t.Context(), root, c.Root(), "a", 0o600, syscall.O_EXCL)
	if fserr.KindOf(err) != fserr.Exist {
		t.Error(err)
	}
}
