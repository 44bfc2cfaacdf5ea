package client

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/memkv"
)

// carve makes what lies below a directory of subtree from a subtree of its own at
// another shard, with its forwards. Nobody is told.
func (c *fakeCluster) carve(from base.SubtreeID, root base.Ino, into base.SubtreeID, shard, other base.ShardID) *memkv.Carve {
	a, b := c.shards[shard], c.shards[other]
	a.mu.Lock()
	defer a.mu.Unlock()
	if a != b {
		b.mu.Lock()
		defer b.mu.Unlock()
	}
	k := &memkv.Carve{From: a.store, To: b.store, Shard: shard, Other: other, Subtree: from, Root: root, Into: into, Epoch: 1}
	k.Begin()
	k.HandOff()
	for _, s := range []*fakeShard{a, b} {
		if err := s.machine.Load(s.store); err != nil {
			c.t.Fatal(err)
		}
	}
	return k
}

// afterCarve runs a later step of a carve.
func (c *fakeCluster) afterCarve(k *memkv.Carve, step func()) {
	s := c.shards[k.Shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	step()
	if err := s.machine.Load(s.store); err != nil {
		c.t.Fatal(err)
	}
}

// publish has the map tell of a subtree.
func (c *fakeCluster) publish(subtree base.SubtreeID, shard base.ShardID, epoch uint64) {
	c.changeMap(func(m *canopyv1.PlacementMap) {
		m.Subtrees = append(m.Subtrees, &canopyv1.SubtreeRoute{Subtree: uint64(subtree), Shard: uint64(shard), Epoch: epoch})
	})
}

// countMoved counts the answers that redirected, by the directory that they named.
func (c *fakeCluster) countMoved() func() int {
	var n atomic.Int64
	c.setAfter(func(_ *fakeNode, _ *canopyv1.Op, r *canopyv1.Result) bool {
		if fserr.Kind(r.Error) == fserr.Moved {
			n.Add(1)
		}
		return false
	})
	return func() int { return int(n.Load()) }
}

// tree makes /d with files f0...; the client keeps their inodes.
func tree(t *testing.T, c *Client, files int) (d *Inode, fs []*Inode) {
	t.Helper()
	d, _, _, err := c.Mkdir(t.Context(), root, c.Root(), "d", 0o755)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Release)
	for i := range files {
		made, err := c.Create(t.Context(), root, d, fmt.Sprint("f", i), 0o644, syscall.O_EXCL|syscall.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		made.File.Close(t.Context())
		fs = append(fs, made.Inode)
		t.Cleanup(made.Inode.Release)
	}
	return d, fs
}

const carvedInto base.SubtreeID = 2<<44 | 7

// A directory that was carved out costs one redirect, not one for each file in it;
// and what a client makes there later goes there at once.
func TestOneRedirectForADirectory(t *testing.T) {
	f := newFake(t, 1)
	f.addShard(2, 2, 1<<44|1<<43)
	c := f.connect(t, newMemData())
	d, files := tree(t, c, 50)
	moved := f.countMoved()
	k := f.carve(1, d.ino, carvedInto, 1, 2)
	f.publish(carvedInto, 2, 1)
	for _, n := range files {
		if _, err := c.GetAttr(t.Context(), root, n); err != nil {
			t.Fatal(err)
		}
	}
	f.afterCarve(k, k.Clean)
	for i, n := range files {
		if _, err := c.SetAttr(t.Context(), root, n, SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_MODE, Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if m, _, _, err := c.Lookup(t.Context(), root, d, fmt.Sprint("f", i)); err != nil || m != n {
			t.Fatalf("lookup: %v", err)
		} else {
			m.Release()
		}
	}
	if _, _, _, err := c.Mkdir(t.Context(), root, d, "new", 0o755); err != nil {
		t.Fatal(err)
	}
	if n := moved(); n != 1 {
		t.Errorf("%d redirects, want 1", n)
	}
}

// What the answer to a lookup, a listing or "..", only says where it is, is asked for
// there: who uses the client sees no border.
func TestReadsAcrossABorder(t *testing.T) {
	f := newFake(t, 1)
	f.addShard(2, 2, 1<<44|1<<43)
	c := f.connect(t, newMemData())
	d, files := tree(t, c, 1)
	if _, _, err := c.Link(t.Context(), root, files[0], c.Root(), "second"); err != nil {
		t.Fatal(err)
	}
	k := f.carve(1, d.ino, carvedInto, 1, 2)
	f.afterCarve(k, k.Clean)
	f.publish(carvedInto, 2, 1)
	other := f.connect(t, newMemData())
	fs := other.FS(root)
	info, err := fs.Stat(t.Context(), "/d")
	if err != nil || !info.IsDir() || info.Sys().(*Attr).Nlink != 2 || base.SubtreeID(info.Sys().(*Attr).Subtree) != carvedInto {
		t.Fatalf("stat of the directory: %v, %v", info, err)
	}
	if info, err = fs.Stat(t.Context(), "/d/f0"); err != nil || info.Sys().(*Attr).Nlink != 2 {
		t.Errorf("stat of a file whose inode stayed: %v, %v", info, err)
	}
	for _, dir := range []string{"/", "/d"} {
		entries, err := fs.ReadDir(t.Context(), dir)
		if err != nil || len(entries) == 0 {
			t.Fatal(entries, err)
		}
		for _, e := range entries {
			if info, err := e.Info(); err != nil || info.Sys().(*Attr).Nlink != 2 {
				t.Errorf("listing of %s: %s: %v, %v", dir, e.Name(), info, err)
			}
		}
	}
	n, _, err := fs.Walk(t.Context(), "/d", true)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	up, attr, err := other.Parent(t.Context(), root, n)
	if err != nil || up != other.Root() || attr.Nlink != 3 {
		t.Errorf("..: %v, %v", attr, err)
	}
	if path, err := other.DirPath(t.Context(), n.ino); err != nil || path != "/d" {
		t.Errorf("path %q, %v", path, err)
	}
	// A file that is there already, whose inode is in another subtree.
	made, err := other.Create(t.Context(), root, n, "f0", 0o644, syscall.O_RDWR|syscall.O_TRUNC)
	if err != nil || !made.Existed || made.Attr.Nlink != 2 {
		t.Fatalf("create: %+v, %v", made, err)
	}
	made.File.Close(t.Context())
	made.Inode.Release()
	s, err := other.StatFS(t.Context(), other.Root())
	if err != nil || s.Files-s.FreeFiles != 4 { // two roots, /d, and one file
		t.Errorf("statfs: %v, %v", s, err)
	}
}

// Files that are open go on when their directory moves: bytes, sizes, attributes,
// appends, locks, also of one that has no name any more, and of one that was renamed
// just before.
func TestOpenFilesGoAlong(t *testing.T) {
	for _, end := range []string{"handed off", "cleaned", "forgotten"} {
		t.Run(end, func(t *testing.T) {
			f := newFake(t, 1)
			f.addShard(2, 2, 1<<44|1<<43)
			d := newMemData()
			c, other := f.connect(t, d), f.connect(t, d)
			dir, files := tree(t, c, 4)
			var open []*File
			for _, n := range files {
				h, err := c.Open(t.Context(), root, n, syscall.O_RDWR)
				if err != nil {
					t.Fatal(err)
				}
				defer h.Close(t.Context())
				open = append(open, h)
			}
			_, _, _, err := other.Lookup(t.Context(), root, other.Root(), "d")
			if err != nil {
				t.Fatal(err)
			}
			od := other.inodes.find(dir.ino)
			defer od.Release()
			if _, err := other.Unlink(t.Context(), root, od, "f1"); err != nil {
				t.Fatal(err)
			}
			if _, _, err := other.Rename(t.Context(), root, od, "f2", od, "renamed", 0); err != nil {
				t.Fatal(err)
			}
			lock := LockRequest{Type: LockExclusive, Flock: true, Owner: 1, Last: LockToEnd}
			if err := open[3].SetLock(t.Context(), lock); err != nil {
				t.Fatal(err)
			}
			k := f.carve(1, dir.ino, carvedInto, 1, 2)
			f.publish(carvedInto, 2, 1)
			if end != "handed off" {
				f.afterCarve(k, k.Clean)
			}
			if end == "forgotten" {
				f.afterCarve(k, k.ForgetForwards)
			}
			for i, h := range open {
				what := fmt.Sprint("file ", i)
				data := []byte(strings.Repeat("x", 100+i))
				if _, err := h.WriteAt(t.Context(), data, 0); err != nil {
					t.Fatal(what, err)
				}
				if err := h.Fsync(t.Context()); err != nil {
					t.Fatal(what, err)
				}
				if off, err := h.Append(t.Context(), []byte("tail")); err != nil || off != int64(len(data)) {
					t.Fatal(what, off, err)
				}
				if _, err := c.SetAttr(t.Context(), root, files[i], SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_MODE, Mode: 0o640}); err != nil {
					t.Fatal(what, err)
				}
				attr, err := c.GetAttr(t.Context(), root, files[i])
				if err != nil || attr.Size != uint64(len(data))+4 || attr.Mode&0o777 != 0o640 {
					t.Fatalf("%s: %v, %v", what, attr, err)
				}
				if err := c.SetXattr(t.Context(), root, files[i], "user.a", []byte("b"), 0); err != nil {
					t.Fatal(what, err)
				}
			}
			// The lock is still held, and is given back at the new place.
			n, _, _, err := other.Lookup(t.Context(), root, od, "f3")
			if err != nil {
				t.Fatal(err)
			}
			defer n.Release()
			h, err := other.Open(t.Context(), root, n, syscall.O_RDWR)
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close(t.Context())
			if err := h.SetLock(t.Context(), lock); fserr.KindOf(err) != fserr.WouldBlock {
				t.Fatalf("a lock that another client holds: %v", err)
			}
			lock.Type = Unlock
			if err := open[3].SetLock(t.Context(), lock); err != nil {
				t.Fatal(err)
			}
			lock.Type = LockExclusive
			if err := h.SetLock(t.Context(), lock); err != nil {
				t.Fatal(err)
			}
			if _, _, err := other.Rename(t.Context(), root, od, "renamed", od, "f2", 0); err != nil {
				t.Fatal(err)
			}
			if _, err := other.Unlink(t.Context(), root, od, "f0"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// PROTOCOLS E7: what neither an owner nor a forward is known of is found by asking
// all shards. That it is nowhere is said after two passes with no move between.
func TestLocate(t *testing.T) {
	f := newFake(t, 1)
	f.addShard(2, 2, 1<<44|1<<43)
	c := f.connect(t, newMemData())
	d, _ := tree(t, c, 1)
	k := f.carve(1, d.ino, carvedInto, 1, 2)
	f.afterCarve(k, k.Clean)
	f.afterCarve(k, k.ForgetForwards)
	// The map does not know the new subtree either.
	if _, err := c.GetAttr(t.Context(), root, d); err != nil {
		t.Fatal(err)
	}
	if d.subtreeID() != carvedInto {
		t.Errorf("the directory is believed to be in subtree %v", d.subtreeID())
	}
	gone := c.inodes.enter(1<<44|1<<42, modeDir, 1)
	defer gone.Release()
	var mu sync.Mutex
	asked, moves := 0, 0
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if op.GetLocate().GetIno() != uint64(gone.ino) {
			return verdict{} // also what the first search left on its way when it had found the directory
		}
		mu.Lock()
		defer mu.Unlock()
		if asked++; asked > 4 {
			return verdict{}
		}
		moves++ // each of the first two passes meets a move
		return verdict{result: &canopyv1.Result{Error: uint32(fserr.Stale), Moves: uint64(moves)}}
	})
	if _, err := c.GetAttr(t.Context(), root, gone); fserr.KindOf(err) != fserr.Stale {
		t.Errorf("a directory that is nowhere: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if asked != 8 {
		t.Errorf("shards were asked %d times, want 8: two passes that met moves, and two without", asked)
	}
}

// The word of a holder that a subtree moved has the open files in it reported at the
// new owner, where the client has a session from then on (PROTOCOLS H2).
func TestOpenFilesAreReportedAfterAMove(t *testing.T) {
	f := newFake(t, 1)
	f.addShard(2, 2, 1<<44|1<<43)
	c := f.connect(t, newMemData())
	d, files := tree(t, c, 1)
	h, err := c.Open(t.Context(), root, files[0], syscall.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close(t.Context())
	reported := func(shard uint64) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, r := range f.opens {
			for _, p := range r.Opened {
				if r.Shard == shard && p.Ino == uint64(files[0].ino) {
					return true
				}
			}
		}
		return false
	}
	eventually(t, "the file is reported where it is", func() bool { return reported(1) })
	k := f.carve(1, d.ino, carvedInto, 1, 2)
	f.afterCarve(k, k.Clean)
	events := func() chan *canopyv1.Event {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.events[f.nodes[0].address]
	}
	eventually(t, "an events stream", func() bool { return events() != nil })
	events() <- &canopyv1.Event{Event: &canopyv1.Event_SubtreeMoved{SubtreeMoved: &canopyv1.SubtreeMoved{
		FromSubtree: 1, Subtree: uint64(carvedInto), Shard: 2, Epoch: 1}}}
	eventually(t, "the file is reported at the new owner", func() bool { return reported(2) })
}

// Redirects that tell nothing new are no reason to ask again at once, and after some
// of them all shards are asked.
func TestNoPingPong(t *testing.T) {
	f := newFake(t, 1)
	f.addShard(2, 2, 1<<44|1<<43)
	c := f.connect(t, newMemData())
	d, _ := tree(t, c, 1)
	f.carve(1, d.ino, carvedInto, 1, 2)
	f.publish(carvedInto, 2, 1)
	var sent atomic.Int64
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if op.GetGetAttr() == nil || sent.Add(1) > 40 {
			return verdict{}
		}
		to := uint64(carvedInto) // each says that the other has it
		shard := uint64(2)
		if op.Subtree == to {
			to, shard = 1, 1
		}
		return verdict{result: &canopyv1.Result{Error: uint32(fserr.Moved), Redirect: &canopyv1.Redirect{Subtree: to, Shard: shard, Epoch: 1, Dir: uint64(d.ino)}}}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	located := make(chan struct{}, 1024)
	f.setAfter(func(_ *fakeNode, op *canopyv1.Op, _ *canopyv1.Result) bool {
		if op.GetLocate() != nil {
			located <- struct{}{}
		}
		return false
	})
	done := make(chan error, 1)
	go func() { _, err := c.GetAttr(ctx, root, d); done <- err }()
	select {
	case <-located:
	case err := <-done:
		t.Fatalf("all shards were never asked: %v", err)
	}
	if n := sent.Load(); n > freeHops+locateAfter+1 {
		t.Errorf("asked %d times before all shards were", n)
	}
	sent.Store(1 << 20)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
