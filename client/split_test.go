package client

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// A range of a directory's names that went elsewhere costs one redirect, not one for
// each file in it, and so does its way back. Everything then goes there at once.
func TestOneRedirectForARange(t *testing.T) {
	f := newFake(t, 1)
	d := newSplitDir(t, f)
	c := f.connect(t, newMemData())
	dir := d.inode(t, c)
	names := d.fill(64)
	var files []*Inode
	for _, name := range names {
		n, _, _, err := c.Lookup(t.Context(), root, dir, name)
		if err != nil {
			t.Fatal(err)
		}
		defer n.Release()
		files = append(files, n)
	}
	use := func() {
		t.Helper()
		for i, name := range names {
			if _, err := c.GetAttr(t.Context(), root, files[i]); err != nil {
				t.Fatal(name, err)
			}
			n, _, _, err := c.Lookup(t.Context(), root, dir, name)
			if err != nil || n != files[i] {
				t.Fatal(name, err)
			}
			n.Release()
		}
		for i := range 16 {
			made, err := c.Create(t.Context(), root, dir, fmt.Sprint("new-", i), 0o644, syscall.O_RDWR)
			if err != nil {
				t.Fatal(err)
			}
			made.File.Close(t.Context())
			made.Inode.Release()
			if _, err := c.Unlink(t.Context(), root, dir, fmt.Sprint("new-", i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	use()
	quarter := shard.Range{Lo: shard.BorderEnd / 4, Hi: shard.BorderEnd / 2}
	for _, step := range []struct {
		what string
		r    shard.Range
		to   base.SubtreeID
	}{
		{"a half is split off", half, splitHome + 1},
		{"a quarter is split off", quarter, splitHome + 2},
		{"the half joins the quarter", half, splitHome + 2},
		{"all comes back", shard.Range{Lo: quarter.Lo, Hi: shard.BorderEnd}, splitHome},
	} {
		d.moved.Store(0)
		d.move(step.r, step.to)
		use()
		if n := d.moved.Load(); n > 1 {
			t.Errorf("%s: %d redirects, want 1", step.what, n)
		}
	}
	if m := c.inodes.dirs.find(d.ino); m.Split() {
		t.Errorf("after the merge the client believes in %v", m)
	}
}

// Whatever copies say that have not heard of the newest moves, an operation arrives,
// after no more redirects than there were moves; the next one for the name goes there
// at once.
func TestOperationsArrive(t *testing.T) {
	f := newFake(t, 1)
	d := newSplitDir(t, f)
	c := f.connect(t, newMemData())
	dir := d.inode(t, c)
	names := d.fill(40)
	rapid.Check(t, func(rt *rapid.T) {
		n := func(bound int) int { return rapid.IntRange(0, bound-1).Draw(rt, "n") }
		moves := 0
		for range 12 {
			for range n(3) {
				d.moveAtRandom(n)
				moves++
			}
			name := names[n(len(names))]
			for try, allowed := range []int{splitCopies + moves, 0} {
				d.moved.Store(0)
				inode, _, _, err := c.Lookup(t.Context(), root, dir, name)
				if err != nil {
					rt.Fatal(name, err)
				}
				if got := d.moved.Load(); got > int64(allowed) {
					rt.Fatalf("try %d of %s: %d redirects after %d moves, at most %d wanted", try, name, got, moves, allowed)
				}
				if _, err := c.GetAttr(t.Context(), root, inode); err != nil {
					rt.Fatal(name, err)
				}
				inode.Release()
			}
		}
	})
}

// What a copy has heard of ranges that it never had takes nothing from what their
// owners said.
func TestHearsayTeachesNothing(t *testing.T) {
	d := &dirRoutes{}
	q := shard.BorderEnd / 4
	const dir base.Ino = 7
	d.learn(dir, 1, shard.FragmentMap{{Lo: 0, Subtree: 1}, {Lo: q, Subtree: 2}, {Lo: 2 * q, Subtree: 3}})
	d.learn(dir, 3, shard.FragmentMap{{Lo: 0, Subtree: 1}, {Lo: 2 * q, Subtree: 3}, {Lo: 3 * q, Subtree: 4}}) // thinks that 1 still has all below
	want := shard.FragmentMap{{Lo: 0, Subtree: 1}, {Lo: q, Subtree: 2}, {Lo: 2 * q, Subtree: 3}, {Lo: 3 * q, Subtree: 4}}
	if got := d.find(dir); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("learnt %v, want %v", got, want)
	}
	news := d.news.Load()
	if d.learn(dir, 3, want) || d.learn(dir, 0, shard.Whole(9)) || d.news.Load() != news {
		t.Error("what is known was learnt again")
	}
	d.learn(dir, 2, shard.Whole(1)) // it was merged away
	if got := d.find(dir).Of(q); got != 1 {
		t.Errorf("after a merge the range is believed in %v", got)
	}
}

// The table of directories is bounded by the fragments in it.
func TestDirRoutesAreBounded(t *testing.T) {
	d := &dirRoutes{}
	m := shard.Whole(1)
	for i := range uint32(shard.MaxFragments) {
		m = m.With(shard.Range{Lo: i * (shard.BorderEnd / shard.MaxFragments), Hi: shard.BorderEnd}, base.SubtreeID(1+i))
	}
	for i := range base.Ino(2 * maxDirRoutes / shard.MaxFragments) {
		d.learn(10+i, 1, m)
	}
	total := 0
	for _, m := range d.in {
		total += len(m)
	}
	if total != d.fragments || total > maxDirRoutes {
		t.Errorf("%d fragments, counted %d", total, d.fragments)
	}
}

// stat of a split directory is what all fragments have together, also while ranges go
// from one to another (PROTOCOLS F1), and none of them is shown or kept as the whole.
func TestStatGathers(t *testing.T) {
	for _, relaxed := range []time.Duration{0, time.Nanosecond} {
		f := newFake(t, 1)
		d := newSplitDir(t, f)
		c := f.connect(t, newMemData(), func(c *Config) { c.Relaxed = relaxed })
		dir := d.inode(t, c)
		names := d.fill(100)
		version := uint64(len(names)) + 1
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if r, to := d.randomMove(rand.IntN); to != 0 && d.ownerAt(r.Lo) != to {
					d.handOff(r, to)
					time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
					d.activate()
				}
				time.Sleep(time.Duration(2+rand.IntN(5)) * time.Millisecond)
			}
		})
		for i := range 1500 {
			attr, err := c.GetAttr(t.Context(), root, dir)
			if err != nil {
				t.Fatal(err)
			}
			if attr.Size != uint64(len(names)) || attr.Nlink != 2 || isPartial(attr) || base.SubtreeID(attr.Subtree) != splitHome {
				t.Fatalf("try %d: size %d of %d, %v", i, attr.Size, len(names), attr)
			}
			if attr.Version != version {
				t.Fatalf("version %d, want %d", attr.Version, version)
			}
			// What comes along with other answers is a part, and nobody sees it.
			n, _, dirAttr, err := c.Lookup(t.Context(), root, dir, names[i%len(names)])
			if err != nil || dirAttr != nil && dirAttr.Size != uint64(len(names)) {
				t.Fatal(dirAttr, err)
			}
			n.Release()
		}
		close(stop)
		wg.Wait()
	}
}

// A change of a split directory's attributes goes to its first fragment.
func TestChangesGoHome(t *testing.T) {
	f := newFake(t, 1)
	d := newSplitDir(t, f)
	c := f.connect(t, newMemData())
	dir := d.inode(t, c)
	d.fill(10)
	d.move(half, splitHome+1)
	if _, err := c.GetAttr(t.Context(), root, dir); err != nil {
		t.Fatal(err)
	}
	attr, err := c.SetAttr(t.Context(), root, dir, SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_MODE, Mode: 0o700})
	if err != nil || attr.Size != 10 {
		t.Fatal(attr, err)
	}
	if err := c.SetXattr(t.Context(), root, dir, "user.a", []byte("b"), 0); err != nil {
		t.Fatal(err)
	}
}

// A subtree that a copy has heard of and that nobody knows holds nobody up for long:
// the first fragment is asked.
func TestUnknownFragment(t *testing.T) {
	f := newFake(t, 1)
	d := newSplitDir(t, f)
	c := f.connect(t, newMemData())
	dir := d.inode(t, c)
	names := d.fill(4)
	c.inodes.dirs.learn(d.ino, 0, shard.FragmentMap{{Lo: 0, Subtree: splitHome}, {Lo: 1, Subtree: 1 << 50}})
	for _, name := range names {
		n, _, _, err := c.Lookup(t.Context(), root, dir, name)
		if err != nil {
			t.Fatal(err)
		}
		n.Release()
	}
}

// Names of a split directory that are the second operand go to the subtree that has
// them, too (PROTOCOLS C4).
func TestSecondOperandByName(t *testing.T) {
	f := newFake(t, 1)
	d := newSplitDir(t, f)
	c := f.connect(t, newMemData())
	dir := d.inode(t, c)
	d.move(half, splitHome+1)
	if _, err := c.GetAttr(t.Context(), root, dir); err != nil {
		t.Fatal(err)
	}
	at := func(name string) uint64 {
		if shard.NameHash([]byte(name)).Border() >= half.Lo {
			return uint64(splitHome + 1)
		}
		return uint64(splitHome)
	}
	file := create(t, c, "file")
	defer file.Close(t.Context())
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if r := op.GetRename(); r != nil && (op.Subtree != at(string(r.SrcName)) || r.DstSubtree != at(string(r.DstName))) {
			t.Errorf("rename %s to %s at %d, %d", r.SrcName, r.DstName, op.Subtree, r.DstSubtree)
		}
		if l := op.GetLink(); l != nil && l.DirSubtree != at(string(l.Name)) {
			t.Errorf("link %s at %d", l.Name, l.DirSubtree)
		}
		if op.GetRename() == nil && op.GetLink() == nil {
			return verdict{}
		}
		return verdict{result: &canopyv1.Result{Error: uint32(fserr.NoSpace)}}
	})
	for i := range 16 {
		from, to := fmt.Sprint("from", i), fmt.Sprint("to", i)
		if _, _, err := c.Rename(t.Context(), root, dir, from, dir, to, 0); fserr.KindOf(err) != fserr.NoSpace {
			t.Fatal(err)
		}
		if _, _, err := c.Link(t.Context(), root, file.Inode(), dir, to); fserr.KindOf(err) != fserr.NoSpace {
			t.Fatal(err)
		}
	}
}
