package client

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// newSought returns a directory that nobody knows, in a cluster of two shards at two nodes.
func newSought(t *testing.T) (f *fakeCluster, c *Client, gone *Inode) {
	f = newFake(t, 2)
	f.addShard(2, 2, 1<<44|1<<43)
	f.moveHolder(2, f.nodes[1], true)
	c = f.connect(t, newMemData())
	eventually(t, "the map has both shards", func() bool { return c.routes.split.Load() })
	gone = c.inodes.enter(1<<44|1<<42, modeDir, 1)
	t.Cleanup(gone.Release)
	return f, c, gone
}

// PROTOCOLS E7: those who look for the same ask all shards together, once.
func TestLocatesAreShared(t *testing.T) {
	f, c, gone := newSought(t)
	c.locates.patience = time.Hour
	release := make(chan struct{})
	var asked atomic.Int64
	f.setHook(func(n *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if op.GetLocate() == nil {
			return verdict{}
		}
		asked.Add(1)
		if n == f.nodes[1] {
			<-release
		}
		return verdict{result: &canopyv1.Result{Error: uint32(fserr.Stale)}}
	})
	const many = 20
	var wg sync.WaitGroup
	for range many {
		wg.Go(func() {
			if _, err := c.locate(t.Context(), gone.ino, 0); fserr.KindOf(err) != fserr.Stale {
				t.Errorf("what is nowhere: %v", err)
			}
		})
	}
	eventually(t, "all ask", func() bool {
		c.locates.mu.Lock()
		defer c.locates.mu.Unlock()
		l := c.locates.running[sought{gone.ino, 0}]
		return l != nil && l.askers == many
	})
	close(release)
	wg.Wait()
	if n := asked.Load(); n != 4 {
		t.Errorf("shards were asked %d times, want two passes over two", n)
	}
	c.locates.mu.Lock()
	defer c.locates.mu.Unlock()
	if len(c.locates.running) > 0 {
		t.Errorf("%d questions are left", len(c.locates.running))
	}
}

// A shard without a holder keeps nobody from finding what others have. Whether something is
// gone is not known then: who asks is told so, and an operation waits until it is.
func TestLocateAtASilentShard(t *testing.T) {
	f, c, gone := newSought(t)
	c.locates.patience = 50 * time.Millisecond
	var silent atomic.Bool
	var asked atomic.Int64
	silent.Store(true)
	f.setHook(func(n *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if l := op.GetLocate(); l != nil && l.Ino == uint64(gone.ino) && n == f.nodes[0] {
			asked.Add(1)
		}
		return verdict{hold: op.GetLocate() != nil && n == f.nodes[1] && silent.Load()}
	})
	if _, err := c.locate(t.Context(), gone.ino, 0); fserr.KindOf(err) != fserr.NotReady {
		t.Errorf("what a silent shard may have: %v", err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := c.GetAttr(t.Context(), root, gone)
		ended <- err
	}()
	before := asked.Load()
	eventually(t, "the operation asks again", func() bool { return asked.Load() > before+2 })
	if at, err := c.locate(t.Context(), base.RootIno, 0); err != nil || at.subtree != 1 {
		t.Errorf("what another shard has: %v, %v", at, err)
	}
	select {
	case err := <-ended:
		t.Errorf("the operation ended before anybody could know: %v", err)
	default:
	}
	silent.Store(false)
	if err := <-ended; fserr.KindOf(err) != fserr.Stale {
		t.Errorf("what is nowhere: %v", err)
	}
}
