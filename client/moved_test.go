package client

import (
	"slices"
	"sync"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// PROTOCOLS C5: sessions, floors and results move with a subtree. So a request that
// may have run at the old owner goes to the new one under its number: there its
// result is, and it does not run a second time.
func TestMovedSubtreeKeepsTheNumber(t *testing.T) {
	f := newFake(t, 1)
	f.addShard(2, 7, 1<<44|1<<43)
	f.changeMap(func(m *canopyv1.PlacementMap) { m.Subtrees[1].Shard = 1 })
	moved := &canopyv1.Redirect{Subtree: 7, Shard: 2, Epoch: 1}
	c := f.connect(t, newMemData())
	create(t, c, "here") // opens the session at the old owner
	n := c.inodes.enter(base.Ino(1<<44|1<<43), modeDir, 7)
	defer n.Release()
	var mu sync.Mutex
	var seqs []uint64
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, floor uint64) verdict {
		if op.GetMkdir() == nil {
			return verdict{}
		}
		mu.Lock()
		defer mu.Unlock()
		seqs = append(seqs, op.Seq)
		if floor > op.Seq {
			t.Errorf("request %d goes out under floor %d", op.Seq, floor)
		}
		switch len(seqs) {
		case 1:
			return verdict{drop: true} // it ran, and nobody heard of it
		case 2:
			return verdict{result: &canopyv1.Result{Error: uint32(fserr.Moved), Redirect: moved}}
		}
		return verdict{}
	})
	if _, _, _, err := c.Mkdir(t.Context(), root, n, "there", 0o755); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seqs) != 3 || slices.Min(seqs) != slices.Max(seqs) {
		t.Errorf("sent with numbers %v, want three times the same", seqs)
	}
}

// PROTOCOLS H1: the answer to a report of open files says where they are that
// another client has moved, and the client addresses them there from then on.
func TestOpenFilesFollowReports(t *testing.T) {
	f := newFake(t, 1)
	c, other := f.connect(t, newMemData()), f.connect(t, newMemData())
	file := create(t, c, "a")
	defer file.Close(t.Context())
	if _, _, err := other.Rename(t.Context(), root, other.Root(), "a", other.Root(), "b", 0); err != nil {
		t.Fatal(err)
	}
	c.opens.askFull(1)
	eventually(t, "the client knows the new name, though it asked for nothing", func() bool {
		return string(file.Inode().place().Name) == "b"
	})
}
