package client

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// crowd are clients of one cluster that do the same at the same time.
type crowd struct {
	t   *testing.T
	f   *fakeCluster
	all []*Client
}

// newCrowd connects many clients, which share a connection: a file descriptor for each is
// more than a process gets.
func newCrowd(t *testing.T, f *fakeCluster) *crowd {
	w := &crowd{t: t, f: f, all: make([]*Client, manyClients)}
	shared := newNodes(nil)
	t.Cleanup(shared.close)
	w.each(func(i int) error {
		cfg := Config{Cluster: f.nodes[0].address, Data: newMemData(), Mount: fmt.Sprint("client ", i), DialTimeout: time.Minute}
		c, err := newClient(cfg)
		if err != nil {
			return err
		}
		c.nodes, c.env.nodes = shared, shared
		w.all[i], err = c.connect(t.Context(), cfg)
		return err
	})
	return w
}

// each calls do for each client, all at once.
func (w *crowd) each(do func(i int) error) {
	w.t.Helper()
	start := make(chan struct{})
	var wg sync.WaitGroup
	var failed atomic.Int64
	for i := range w.all {
		wg.Go(func() {
			<-start
			if err := do(i); err != nil && failed.Add(1) <= 5 {
				w.t.Errorf("client %d: %v", i, err)
			}
		})
	}
	close(start)
	wg.Wait()
	if w.t.Failed() {
		w.t.FailNow()
	}
}

// redirected holds that each client was redirected once since the last call, or, with
// fewer than that allowed, once at the most; and that nobody asked for a map again.
func (w *crowd) redirected(what string, least int) {
	w.t.Helper()
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	wrong := 0
	for i, c := range w.all {
		if n := w.f.redirected[uint64(c.id)]; n < least || n > 1 {
			if wrong++; wrong <= 5 {
				w.t.Errorf("%s: client %d was redirected %d times", what, i, n)
			}
		}
	}
	if wrong > 0 {
		w.t.Errorf("%s: %d of %d clients", what, wrong, len(w.all))
	}
	clear(w.f.redirected)
	if w.f.maps != len(w.all) {
		w.t.Errorf("%s: the map was asked for %d times by %d clients", what, w.f.maps, len(w.all))
	}
}

// close ends all clients, but not the connections, which the others use, too.
func (w *crowd) close() {
	w.each(func(i int) error {
		c := w.all[i]
		c.mu.Lock()
		c.closing, c.stopped = true, true
		c.mu.Unlock()
		c.cancel()
		c.wg.Wait()
		return nil
	})
}

// PROTOCOLS E7: many clients that know a directory at its old place find out at
// once that it has moved. Each is redirected once, goes where the redirect says, and uses
// all that lies in the directory there; nobody asks for a map, or all shards.
func TestManyClientsFollowADirectory(t *testing.T) {
	f := newFake(t, 1)
	f.addShard(2, 2, 1<<44|1<<43)
	maker := f.connect(t, newMemData())
	const files = 4
	d, _ := tree(t, maker, files)
	f.mu.Lock()
	f.maps = 0
	f.mu.Unlock()
	w := newCrowd(t, f)
	defer w.close()
	dirs := make([]*Inode, len(w.all))
	w.each(func(i int) (err error) {
		dirs[i], _, _, err = w.all[i].Lookup(t.Context(), root, w.all[i].Root(), "d")
		return err
	})
	var asked, located atomic.Int64
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if op.GetLocate() != nil {
			located.Add(1)
		}
		asked.Add(1)
		return verdict{}
	})
	f.carve(1, d.ino, carvedInto, 1, 2) // and the map does not say so yet
	w.each(func(i int) error {
		c := w.all[i]
		for k := range files {
			n, _, _, err := c.Lookup(t.Context(), root, dirs[i], fmt.Sprint("f", (i+k)%files))
			if err != nil {
				return err
			}
			n.Release()
		}
		_, err := c.GetAttr(t.Context(), root, dirs[i])
		return err
	})
	w.redirected("a directory that moved", 1)
	// Each: a session at the new shard, a lookup of each file, the directory, and one of these twice.
	if n, want := asked.Load(), int64(len(w.all)*(files+3)); n != want || located.Load() != 0 {
		t.Errorf("%d operations and %d searches, want %d and none", n, located.Load(), want)
	}
	for i, n := range dirs {
		if at := n.subtreeID(); at != carvedInto {
			t.Fatalf("client %d believes the directory in subtree %v", i, at)
		}
		n.Release()
	}
}

// The same with a directory that was split into eight: the redirect has all of its
// fragments, so one is enough for the names of all of them, and each name is then
// asked for where it is.
func TestManyClientsLearnOfASplit(t *testing.T) {
	f := newFake(t, 1)
	d := newSplitDir(t, f)
	names := d.fill(24)
	w := newCrowd(t, f)
	defer w.close()
	dirs := make([]*Inode, len(w.all))
	use := func(i, n int) error {
		for k := range n {
			n, _, _, err := w.all[i].Lookup(t.Context(), root, dirs[i], names[(i+k)%len(names)])
			if err != nil {
				return err
			}
			n.Release()
		}
		return nil
	}
	w.each(func(i int) error {
		dirs[i] = w.all[i].inodes.enter(d.ino, modeDir, splitHome)
		return use(i, 2)
	})
	const eighth = shard.BorderEnd / 8
	for k := uint32(1); k < 8; k++ {
		d.move(shard.Range{Lo: k * eighth, Hi: (k + 1) * eighth}, splitHome+base.SubtreeID(k))
	}
	d.asked.Store(0)
	w.each(func(i int) error {
		if err := use(i, len(names)); err != nil {
			return err
		}
		made, err := w.all[i].Create(t.Context(), root, dirs[i], fmt.Sprint("new-", i), 0o644, syscall.O_RDWR)
		if err != nil {
			return err
		}
		made.Inode.Release()
		return made.File.Close(t.Context())
	})
	w.redirected("a directory that was split into eight", 0) // an answer tells as much
	if n, most := d.asked.Load(), int64(len(w.all)*(len(names)+3)); n > most {
		t.Errorf("%d operations on the directory, want %d at the most", n, most)
	}
	for _, n := range dirs {
		n.Release()
	}
}

// A subtree moves in which many clients have a file open, and all hear of it at once:
// each is redirected once, and reports its file at the new owner.
func TestManyClientsReportAfterAMove(t *testing.T) {
	f := newFake(t, 1)
	f.addShard(2, 2, 1<<44|1<<43)
	maker := f.connect(t, newMemData())
	d, _ := tree(t, maker, 1)
	f.mu.Lock()
	f.maps = 0
	f.mu.Unlock()
	w := newCrowd(t, f)
	defer w.close()
	open := make([]*File, len(w.all))
	w.each(func(i int) error {
		c := w.all[i]
		dir, _, _, err := c.Lookup(t.Context(), root, c.Root(), "d")
		if err != nil {
			return err
		}
		defer dir.Release()
		n, _, _, err := c.Lookup(t.Context(), root, dir, "f0")
		if err != nil {
			return err
		}
		defer n.Release()
		open[i], err = c.Open(t.Context(), root, n, syscall.O_RDONLY)
		if err == nil { // a session, whose heartbeats bring the news
			_, err = c.GetAttr(t.Context(), root, n)
		}
		return err
	})
	reported := func(shard uint64) int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.reporters[shard])
	}
	eventually(t, "all files are reported where they are", func() bool { return reported(1) == len(w.all) })
	k := f.carve(1, d.ino, carvedInto, 1, 2)
	f.afterCarve(k, k.Clean)
	streams := 0
	f.mu.Lock()
	for out := range f.told {
		streams++
		out <- &canopyv1.Event{Event: &canopyv1.Event_SubtreeMoved{SubtreeMoved: &canopyv1.SubtreeMoved{
			FromSubtree: 1, Subtree: uint64(carvedInto), Shard: 2, Epoch: 1}}}
	}
	f.mu.Unlock()
	if streams < len(w.all) {
		t.Fatalf("%d clients listen", streams)
	}
	eventually(t, "all files are reported at the new owner", func() bool { return reported(2) == len(w.all) })
	w.redirected("a directory with open files", 1)
	w.each(func(i int) error { return open[i].Close(t.Context()) })
}

// Who was refused together, and tries again, does not come back together: of many
// waits no short time has a large share, for each try and whatever the server asks for.
func TestNobodyReturnsInStep(t *testing.T) {
	for try := range 10 {
		for _, asked := range []uint32{0, 20} {
			waits := make([]time.Duration, 1000)
			longest := time.Duration(0)
			for i := range waits {
				waits[i] = retryAfter(&canopyv1.Result{RetryAfterMs: asked}, try)
				longest = max(longest, waits[i])
			}
			slot := backoffFirst / 20
			if try > 0 {
				slot = (longest - time.Duration(asked)*time.Millisecond) / 20
			}
			share := map[time.Duration]int{}
			for _, d := range waits {
				share[d/slot]++
			}
			for at, n := range share {
				if n > len(waits)/5 { // a tenth, about, if they are spread evenly
					t.Errorf("try %d, asked for %d ms: %d of %d wait %v", try, asked, n, len(waits), at*slot)
				}
			}
		}
	}
}
