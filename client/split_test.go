package client

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
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
			for try, allowed := range []int{int(splitCopies) + moves, 0} {
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
		// Ranges go while the fragments are being asked, and are nobody's for a while.
		var moving sync.Mutex
		d.before = func(op *canopyv1.Op) {
			if op.GetGetAttr() == nil || rand.IntN(12) > 0 {
				return
			}
			moving.Lock()
			defer moving.Unlock()
			if r, to := d.randomMove(rand.IntN); to != 0 && d.ownerAt(r.Lo) != to {
				d.handOff(r, to)
				time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
				d.activate()
			}
		}
		for i := range 300 {
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

// list reads a listing page by page, with what happens before each.
func list(t testing.TB, c *Client, dir *Inode, pageSize int, before func()) map[string]int {
	t.Helper()
	seen := map[string]int{}
	req := ReadDirRequest{MaxEntries: pageSize, Plus: true}
	for {
		before()
		page, err := c.ReadDir(t.Context(), root, dir, req)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range page.Entries {
			seen[string(e.Name)]++
			if e.Cookie <= req.Cookie {
				t.Fatalf("entry %d of a page at %d is at %d", i, req.Cookie, e.Cookie)
			}
			req.Cookie = e.Cookie
		}
		if page.EOF {
			return seen
		}
		if len(page.Entries) == 0 || len(page.Entries) > pageSize {
			t.Fatalf("a page of %d entries, of %d wanted, which is not the last", len(page.Entries), pageSize)
		}
		req.Mark = page.Mark
	}
}

// DESIGN 10.5: a listing shows each name that was there throughout exactly once,
// whatever splits and merges meanwhile; and none that is newer.
func TestListingAcrossSplits(t *testing.T) {
	for _, relaxed := range []time.Duration{0, time.Nanosecond} {
		f := newFake(t, 1)
		d := newSplitDir(t, f)
		c := f.connect(t, newMemData(), func(c *Config) { c.Relaxed = relaxed })
		dir := d.inode(t, c)
		names := d.fill(60)
		made := 0
		rapid.Check(t, func(rt *rapid.T) {
			n := func(bound int) int { return rapid.IntRange(0, bound-1).Draw(rt, "n") }
			removed := map[string]bool{}
			seen := list(t, c, dir, 1+n(20), func() {
				for range n(3) {
					d.moveAtRandom(n)
				}
				if made++; n(2) == 0 {
					d.create(fmt.Sprint("later-", made))
				}
				if gone := n(2 * len(names)); gone < len(names) {
					removed[names[gone]] = true
					d.remove(names[gone])
				}
			})
			for _, name := range names {
				if got := seen[name]; got > 1 || got == 0 && !removed[name] {
					rt.Fatalf("%s is shown %d times", name, got)
				}
			}
			for name := range removed {
				d.create(name)
			}
			d.mu.Lock()
			for name := range d.names {
				if name[0] == 'l' {
					delete(d.names, name)
				}
			}
			d.mu.Unlock()
		})
	}
}

// PROTOCOLS F3: if one name was acknowledged before another was asked for, no listing
// shows the second without the first: marks are taken of all fragments together, and
// again when one of them was lost.
func TestListingKeepsOrder(t *testing.T) {
	f := newFake(t, 1)
	d := newSplitDir(t, f)
	c := f.connect(t, newMemData())
	dir := d.inode(t, c)
	for i := range uint32(8) {
		d.move(shard.Range{Lo: (i + 1) * 7 * (shard.BorderEnd / 64), Hi: shard.BorderEnd}, splitHome+base.SubtreeID(i)+1)
	}
	// Marks are taken of one after the other, as over a slow network. In every third try
	// the first mark is lost, and the others come later still, so that names are made
	// between them.
	var mu sync.Mutex
	var lost atomic.Bool
	asked, dropped := map[uint64]bool{}, map[uint64]bool{} // by token
	d.dropMark = func(call *canopyv1.MarkNamesCall) bool {
		mu.Lock()
		defer mu.Unlock()
		if call.Token%3 != 0 || dropped[call.Token] {
			return false
		}
		dropped[call.Token] = true
		lost.Store(true)
		return true
	}
	d.before = func(op *canopyv1.Op) {
		call := op.GetMarkNames()
		if call == nil || call.Free {
			return
		}
		mu.Lock()
		first := !asked[call.Token]
		asked[call.Token] = true
		mu.Unlock()
		switch {
		case first:
		case call.Token%3 == 0:
			time.Sleep(3 * time.Millisecond)
		default:
			time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
		}
	}
	// Each round has its share of names, which are made while marks are taken: how slow
	// a listing is does not make the next one slower.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var share atomic.Int64
	const makers, rounds, perRound = 6, 12, 250
	for m := range makers {
		wg.Go(func() {
			for i := 0; ; {
				select {
				case <-stop:
					return
				default:
				}
				if int64(i) < share.Load() {
					d.create(fmt.Sprint(m, "-", i))
					i++
				}
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	for round := range rounds {
		share.Add(perRound)
		seen := list(t, c, dir, 1000, func() {
			if round%4 == 3 {
				d.moveAtRandom(rand.IntN)
			}
		})
		for m := range makers {
			first := -1
			for i := range 2 * len(seen) {
				switch name := fmt.Sprint(m, "-", i); {
				case seen[name] == 0 && first < 0:
					first = i
				case seen[name] > 0 && first >= 0:
					t.Fatalf("round %d: the listing shows %s without %d-%d", round, name, m, first)
				}
			}
		}
	}
	close(stop)
	d.mu.Lock()
	for _, c := range d.copies {
		if len(c.standing) > 0 {
			t.Errorf("a listing left marks standing")
		}
	}
	d.mu.Unlock()
	wg.Wait()
	if !lost.Load() {
		t.Error("no mark was lost")
	}
}

// In relaxed mode no marks are taken of a split directory; of one that is not split
// nobody takes any beside the first page.
func TestWhoTakesMarks(t *testing.T) {
	f := newFake(t, 1)
	d := newSplitDir(t, f)
	relaxed := f.connect(t, newMemData(), func(c *Config) { c.Relaxed = time.Nanosecond })
	strict := f.connect(t, newMemData())
	d.fill(20)
	look := func(c *Client) (marks, asked int64) {
		d.marks.Store(0)
		d.asked.Store(0)
		if seen := list(t, c, d.inode(t, c), 7, func() {}); len(seen) != 20 {
			t.Errorf("%d names", len(seen))
		}
		return d.marks.Load(), d.asked.Load()
	}
	if marks, asked := look(strict); marks != 0 || asked != 3 {
		t.Errorf("in one piece: %d marks, %d requests for 3 pages", marks, asked)
	}
	d.move(half, splitHome+1)
	if marks, _ := look(relaxed); marks != 0 {
		t.Errorf("relaxed mode took %d marks", marks)
	}
	if marks, _ := look(strict); marks != 2 {
		t.Errorf("%d marks of two fragments", marks)
	}
	// What is known by now: two marks, given back, and a page of each.
	if _, asked := look(strict); asked > 4+4 {
		t.Errorf("%d requests", asked)
	}
}

// Removing all that a split directory has is one listing of it, however many pages that is.
func TestRemovalTakesMarksOnce(t *testing.T) {
	f := newFake(t, 1)
	d := newSplitDir(t, f)
	c := f.connect(t, newMemData())
	d.fill(2500)
	d.move(half, splitHome+1)
	if err := c.FS(root).empty(t.Context(), d.inode(t, c)); err != nil || len(d.names) > 0 {
		t.Errorf("%v; %d names are left", err, len(d.names))
	}
	if marks := d.marks.Load(); marks != 2 {
		t.Errorf("%d marks of two fragments", marks)
	}
}

// A position that was told once is good for ever: seekdir goes on there, in a new
// listing, after whatever splits.
func TestCookiesStayValid(t *testing.T) {
	f := newFake(t, 1)
	d := newSplitDir(t, f)
	c := f.connect(t, newMemData())
	dir := d.inode(t, c)
	d.fill(50)
	page, err := c.ReadDir(t.Context(), root, dir, ReadDirRequest{})
	if err != nil || len(page.Entries) != 50 || !page.EOF {
		t.Fatal(page, err)
	}
	all := page.Entries
	for i := range 50 {
		d.moveAtRandom(rand.IntN)
		page, err := c.ReadDir(t.Context(), root, dir, ReadDirRequest{Cookie: all[i].Cookie, MaxEntries: 100})
		if err != nil || len(page.Entries) != 49-i || !page.EOF {
			t.Fatalf("behind entry %d: %d entries, %v", i, len(page.Entries), err)
		}
		for j, e := range page.Entries {
			if string(e.Name) != string(all[i+1+j].Name) {
				t.Fatalf("behind entry %d: %s is entry %d", i, e.Name, j)
			}
		}
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

// The word of a holder that names went from one subtree to another has the open files
// among them reported where they are (PROTOCOLS H2), whichever of the directory's files is
// asked for first.
func TestOpenFilesAreReportedAfterASplit(t *testing.T) {
	f := newFake(t, 1)
	d := newSplitDir(t, f)
	c := f.connect(t, newMemData())
	dir := d.inode(t, c)
	var moving base.Ino
	for i, stay := 0, 0; stay < 40 || moving == 0; i++ {
		name := fmt.Sprint("open-", i)
		goes := half.Contains(shard.NameHash([]byte(name)).Border())
		if goes && moving != 0 {
			continue
		}
		made, err := c.Create(t.Context(), root, dir, name, 0o644, syscall.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		defer made.Inode.Release()
		defer made.File.Close(t.Context())
		if goes {
			moving = made.Inode.Ino()
		} else {
			stay++
		}
	}
	reported := func(shard base.ShardID) bool {
		for _, r := range f.reports() {
			for _, p := range r.Opened {
				if r.Shard == uint64(shard) && base.Ino(p.Ino) == moving {
					return true
				}
			}
		}
		return false
	}
	from, to := shardOf(splitHome), shardOf(splitHome+1)
	eventually(t, "the file is reported where it is", func() bool { return reported(from) })
	d.move(half, splitHome+1)
	events := func() chan *canopyv1.Event {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.events[f.nodes[0].address]
	}
	eventually(t, "an events stream", func() bool { return events() != nil })
	events() <- &canopyv1.Event{Event: &canopyv1.Event_SubtreeMoved{SubtreeMoved: &canopyv1.SubtreeMoved{
		FromSubtree: uint64(splitHome), Subtree: uint64(splitHome + 1), Shard: uint64(to), Epoch: 1}}}
	eventually(t, "the file is reported at the new owner", func() bool { return reported(to) })
}
