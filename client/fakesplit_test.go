package client

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// splitDir is a directory in fragments, as servers answer for it: each subtree with a
// copy is right about its own ranges, and has only heard of the others when it took a
// range or gave one away. A range that was handed off is busy until it is activated.
type splitDir struct {
	t     testing.TB
	ino   base.Ino
	moved atomic.Int64 // redirects answered
	asked atomic.Int64 // operations
	marks atomic.Int64 // marks taken

	mu       sync.Mutex
	freed    *sync.Cond
	truth    shard.FragmentMap
	copies   map[base.SubtreeID]*dirCopy
	names    map[string]*splitName
	busy     *shard.Range // handed off, not yet activated
	lastIno  uint64
	dropMark func(*canopyv1.MarkNamesCall) bool // whether a mark is lost now, as a new holder loses it
	before   func(op *canopyv1.Op)
}

// dirCopy is what one subtree keeps of the directory.
type dirCopy struct {
	m        shard.FragmentMap
	appeared uint64
	version  uint64
	standing map[uint64]bool // tokens
}

type splitName struct {
	name     string
	ino      uint64
	at       base.Cookie
	appeared uint64
}

const (
	splitHome   base.SubtreeID = 100
	splitCopies base.SubtreeID = 24 // subtrees that can have a copy, from splitHome on
)

// newSplitDir makes an unsplit directory in subtree splitHome, and subtrees for its
// fragments, on two shards.
func newSplitDir(t testing.TB, f *fakeCluster) *splitDir {
	f.addShard(2, 2, 1<<44|1<<43)
	for i := range splitCopies {
		f.publish(splitHome+i, shardOf(splitHome+i), 1)
	}
	d := &splitDir{t: t, ino: 1<<44 | 1<<42, truth: shard.Whole(splitHome), copies: map[base.SubtreeID]*dirCopy{},
		names: map[string]*splitName{}, dropMark: func(*canopyv1.MarkNamesCall) bool { return false }, before: func(*canopyv1.Op) {}}
	d.freed = sync.NewCond(&d.mu)
	d.copies[splitHome] = &dirCopy{m: d.truth, appeared: 1, version: 1, standing: map[uint64]bool{}}
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if base.Ino(op.Dir()) != d.ino {
			return verdict{}
		}
		return verdict{result: d.answer(op)}
	})
	return d
}

func shardOf(s base.SubtreeID) base.ShardID { return base.ShardID(1 + s%2) }

// inode returns the client's inode of the directory.
func (d *splitDir) inode(t testing.TB, c *Client) *Inode {
	n := c.inodes.enter(d.ino, modeDir, splitHome)
	t.Cleanup(n.Release)
	return n
}

// handOff begins to move a range that lies in one subtree: nobody serves it.
func (d *splitDir) handOff(r shard.Range, to base.SubtreeID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	from := d.truth.Of(r.Lo)
	x, y := d.copies[from], d.copies[to]
	if y == nil {
		y = &dirCopy{m: x.m, standing: map[uint64]bool{}}
		d.copies[to] = y
	}
	y.m = y.m.Refer(from, x.m).With(r, to)
	y.appeared = max(y.appeared, x.appeared)
	x.m = x.m.With(r, to)
	if len(x.m.In(from)) == 0 {
		y.version, x.version = y.version+x.version, 0
	}
	for _, c := range []*dirCopy{x, y} {
		clear(c.standing)
	}
	d.freed.Broadcast()
	d.truth = d.truth.With(r, to)
	d.busy = &r
}

// activate ends a move.
func (d *splitDir) activate() {
	d.mu.Lock()
	d.busy = nil
	d.mu.Unlock()
}

func (d *splitDir) move(r shard.Range, to base.SubtreeID) { d.handOff(r, to); d.activate() }

// randomMove moves a random range: it is split off, or joins another fragment.
func (d *splitDir) randomMove(n func(int) int) (r shard.Range, to base.SubtreeID) {
	d.mu.Lock()
	m := d.truth
	whole := m.Range(n(len(m)))
	d.mu.Unlock()
	const step = shard.BorderEnd / 64 // coarse, so that borders meet
	lo := whole.Lo + step*uint32(n(int((whole.Hi-whole.Lo)/step)))
	hi := lo + step*uint32(1+n(int((whole.Hi-lo)/step)))
	if lo == 0 {
		lo = step // the first names stay at home
	}
	if n(3) == 0 {
		hi = whole.Hi
	}
	if lo >= hi {
		return shard.Range{}, 0
	}
	return shard.Range{Lo: lo, Hi: hi}, splitHome + base.SubtreeID(n(int(splitCopies)))
}

// moveAtRandom moves a random range, if it is not where it shall go already.
func (d *splitDir) moveAtRandom(n func(int) int) {
	if r, to := d.randomMove(n); to != 0 && d.ownerAt(r.Lo) != to {
		d.move(r, to)
	}
}

func (d *splitDir) ownerAt(border uint32) base.SubtreeID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.truth.Of(border)
}

// create makes a name as another client does, and returns when that hears of it: not
// while a mark stands that was taken before (PROTOCOLS F3).
func (d *splitDir) create(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.busyLocked(shard.NameHash([]byte(name))) {
		d.mu.Unlock()
		time.Sleep(10 * time.Microsecond)
		d.mu.Lock()
	}
	c := d.putLocked(name)
	waits := map[uint64]bool{}
	for token := range c.standing {
		waits[token] = true
	}
	for {
		still := false
		for token := range waits {
			still = still || c.standing[token]
		}
		if !still {
			return
		}
		d.freed.Wait()
	}
}

func (d *splitDir) putLocked(name string) *dirCopy {
	h := shard.NameHash([]byte(name))
	c := d.copies[d.truth.Find(h).Subtree]
	c.appeared++
	c.version++
	d.lastIno++
	d.names[name] = &splitName{name: name, ino: 1<<44 | d.lastIno, at: h.Cookie(0), appeared: c.appeared}
	return c
}

func (d *splitDir) remove(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.names, name)
}

func (d *splitDir) busyLocked(h shard.Hash) bool { return d.busy != nil && d.busy.Contains(h.Border()) }

func (d *splitDir) answer(op *canopyv1.Op) *canopyv1.Result {
	d.before(op)
	d.asked.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	subtree := base.SubtreeID(op.Subtree)
	c := d.copies[subtree]
	if c == nil {
		return &canopyv1.Result{Error: uint32(fserr.Stale)}
	}
	h, named := hashIn(op, nil, d.ino)
	to := c.m.Home()
	if named {
		to = c.m.Find(h).Subtree
	} else if len(c.m.In(subtree)) > 0 {
		to = subtree
	}
	if to != subtree {
		d.moved.Add(1)
		return &canopyv1.Result{Error: uint32(fserr.Moved), Redirect: &canopyv1.Redirect{
			Subtree: uint64(to), Shard: uint64(shardOf(to)), Epoch: 1, Dir: uint64(d.ino), Fragments: c.m.Proto()}}
	}
	if named && !d.truth.Has(subtree, h) {
		d.t.Errorf("subtree %v answers for what it does not own", subtree)
	}
	if named && d.busyLocked(h) || !named && d.busy != nil && slices.ContainsFunc(c.m.In(subtree), func(r shard.Range) bool { return r.Contains(d.busy.Lo) }) {
		return &canopyv1.Result{Error: uint32(fserr.Frozen), RetryAfterMs: 1}
	}
	return d.serveLocked(op, subtree, c)
}

func (d *splitDir) serveLocked(op *canopyv1.Op, subtree base.SubtreeID, c *dirCopy) *canopyv1.Result {
	stale := &canopyv1.Result{Error: uint32(fserr.NotFound), DirAttr: d.attrLocked(subtree, c)}
	ok := &canopyv1.Result{DirAttr: stale.DirAttr}
	switch call := op.Call.(type) {
	case *canopyv1.Op_MarkNames:
		return d.markLocked(call.MarkNames, c, ok)
	case *canopyv1.Op_ReadDir:
		return d.listLocked(call.ReadDir, subtree, c, ok)
	case *canopyv1.Op_Create:
		if d.names[string(call.Create.Name)] == nil {
			d.putLocked(string(call.Create.Name))
		}
		ok.Attr = d.names[string(call.Create.Name)].attr(subtree)
		return ok
	case *canopyv1.Op_Unlink:
		delete(d.names, string(call.Unlink.Name))
		return ok
	case *canopyv1.Op_SetAttr:
		if len(op.Place().Name) == 0 && subtree != c.m.Home() {
			d.t.Errorf("a change of the directory at fragment %v", subtree)
		}
	}
	name := op.Name()
	if len(name) == 0 {
		return &canopyv1.Result{Attr: ok.DirAttr}
	}
	n := d.names[string(name)]
	if n == nil {
		return stale
	}
	ok.Attr = n.attr(subtree)
	if op.Place() != nil {
		ok.DirAttr = nil
	}
	return ok
}

func (n *splitName) attr(subtree base.SubtreeID) *Attr {
	return &Attr{Ino: n.ino, Mode: syscall.S_IFREG | 0o644, Nlink: 1, Version: 1, Subtree: uint64(subtree), SizeEpoch: 1, DataId: n.ino,
		Layout: &canopyv1.Layout{Pool: 1, Components: []*canopyv1.LayoutComponent{{StripeBytes: 1 << 20, StripeCount: 1}}}}
}

// attrLocked returns the directory's attributes as one fragment has them.
func (d *splitDir) attrLocked(subtree base.SubtreeID, c *dirCopy) *Attr {
	a := &Attr{Ino: uint64(d.ino), Mode: modeDir | 0o755, Nlink: 2, Version: c.version, Subtree: uint64(c.m.Home()),
		MtimeNs: int64(c.appeared), CtimeNs: int64(c.appeared), AtimeNs: 1}
	for _, n := range d.names {
		if c.m.Has(subtree, shard.HashOf(n.at)) {
			a.Size++
		}
	}
	if c.m.Split() {
		a.Fragments = c.m.Proto()
	}
	return a
}

func (d *splitDir) markLocked(call *canopyv1.MarkNamesCall, c *dirCopy, r *canopyv1.Result) *canopyv1.Result {
	if !call.Free {
		d.marks.Add(1)
		c.standing[call.Token] = true
		r.Mark = c.appeared
		if d.dropMark(call) {
			delete(c.standing, call.Token)
		}
		return r
	}
	stood := c.standing[call.Token]
	delete(c.standing, call.Token)
	d.freed.Broadcast()
	if !stood {
		return &canopyv1.Result{Error: uint32(fserr.Again)}
	}
	return r
}

func (d *splitDir) listLocked(call *canopyv1.ReadDirCall, subtree base.SubtreeID, c *dirCopy, r *canopyv1.Result) *canopyv1.Result {
	last := c.m.At(shard.HashOf(base.Cookie(call.Cookie) + 1).Border()).Last()
	if call.Last != 0 {
		last = min(last, base.Cookie(call.Last))
	}
	r.Mark, r.Eof, r.Through = call.Mark, true, uint64(last)
	if r.Mark == 0 {
		r.Mark = c.appeared
	}
	var all []*splitName
	for _, n := range d.names {
		if n.at > base.Cookie(call.Cookie) && n.at <= last && n.appeared <= r.Mark {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b *splitName) int { return int(int64(a.at) - int64(b.at)) })
	for i, n := range all {
		if most := int(call.MaxEntries); most > 0 && i == most {
			r.Eof, r.Through = false, 0
			break
		}
		e := &canopyv1.DirEntry{Name: []byte(n.name), Ino: n.ino, Type: syscall.S_IFREG, Cookie: uint64(n.at)}
		if call.Plus {
			e.Attr = n.attr(subtree)
		}
		r.Entries = append(r.Entries, e)
	}
	return r
}

// half is the upper half of all names.
var half = shard.Range{Lo: shard.BorderEnd / 2, Hi: shard.BorderEnd}

// fill makes names and returns them.
func (d *splitDir) fill(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("name-", i))
		d.create(names[i])
	}
	return names
}
