package namespace

import (
	"slices"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// regrouping is what a rename does to the accounts: it takes what moves from those
// above the old place and gives it to those above the new one.
type regrouping struct {
	*batch
	changes
	trees []movedTree        // directories that move, with what is in them
	links map[base.Ino]int64 // bytes of the inodes with records that have names in them, or that move themselves
}

type movedTree struct {
	*tree
	from, to []*quota
}

// renaming returns what a rename adds to quotas, if they allow it. A large
// directory that no account counts gets one first, a tally: the answer is Busy
// until the holder has counted it. One that shares inodes with other directories
// cannot go between quotas as a whole (CrossDevice): who moves it copies.
func (b *batch) renaming(m *move) (changes, error) {
	if len(b.sub.quotas) == 0 {
		return nil, nil
	}
	src, err := b.quotasAbove(m.src.Ino)
	if err != nil {
		return nil, err
	}
	dst, err := b.quotasAbove(m.dst.Ino)
	if err != nil {
		return nil, err
	}
	g := &regrouping{batch: b, links: map[base.Ino]int64{}}
	if m.whiteout {
		g.addAll(src, 1, 0)
	}
	if sameAbove(src, dst) {
		if !m.exchange && m.to != nil {
			lost, err := b.losing(m.to)
			if err != nil {
				return nil, err
			}
			for _, x := range lost {
				g.add(x.q, x.inodes, x.bytes, x.crossing)
			}
		}
		return g.changes, g.check()
	}
	if err := g.take(m.from, src, dst); err != nil {
		return nil, err
	}
	switch {
	case m.to == nil:
	case m.exchange:
		err = g.take(m.to, dst, src)
	case m.to.home == inRecord:
		g.links[m.to.inode.Ino] = int64(m.to.charged)
	default:
		g.addAll(dst, -1, -int64(m.to.charged))
	}
	if err != nil {
		return nil, err
	}
	for ino, bytes := range g.links {
		if err := g.link(m, ino, bytes); err != nil {
			return nil, err
		}
	}
	return g.changes, g.check()
}

// take moves an object from the accounts above its old place to others.
func (g *regrouping) take(o *object, from, to []*quota) error {
	switch o.home {
	case inRecord:
		g.links[o.inode.Ino] = int64(o.charged)
		return nil
	case inHeader:
		return g.takeTree(o.dir, from, to)
	}
	g.addAll(from, -1, -int64(o.charged))
	g.addAll(to, 1, int64(o.charged))
	return nil
}

func (g *regrouping) takeTree(d *directory, from, to []*quota) error {
	q := g.sub.quotas[d.Ino]
	inodes, bytes := int64(1), int64(0)
	if q != nil && q.Counted && q.Usage.Crossing == 0 {
		inodes += q.Usage.Inodes
		bytes += q.Usage.Bytes
	} else {
		t, err := g.countTree(d.Ino, g.m.cfg.CountNow)
		switch {
		case err != nil:
			return err
		case !t.whole && q != nil && q.Counted:
			return fserr.CrossDevice
		case !t.whole && q != nil:
			return fserr.Busy
		case !t.whole:
			return g.tally(d.Ino)
		}
		inodes += t.inodes
		bytes += t.bytes
		g.trees = append(g.trees, movedTree{t, from, to})
		for ino, size := range t.links {
			g.links[ino] = size
		}
	}
	g.addAll(from, -inodes, -bytes)
	g.addAll(to, inodes, bytes)
	return nil
}

// tally opens an account that has no bounds. It is the one change that an
// operation makes which is answered Busy.
func (g *regrouping) tally(dir base.Ino) error {
	q, err := g.openAccount(dir)
	if err != nil {
		return err
	}
	q.Tally = true
	return fserr.Busy
}

// link regroups an inode by all its names, before and after the rename.
func (g *regrouping) link(m *move, ino base.Ino, bytes int64) error {
	dirs, err := g.namesOf(ino)
	if err != nil {
		return err
	}
	before, err := g.holders(dirs, g.quotasAbove)
	if err != nil {
		return err
	}
	moved := slices.Clone(dirs)
	replace := func(o *object, from, to base.Ino) {
		if o == nil || o.home != inRecord || o.inode.Ino != ino {
			return
		}
		moved = without(moved, from)
		if to != 0 {
			moved = append(moved, to)
		}
	}
	replace(m.from, m.src.Ino, m.dst.Ino)
	if m.exchange {
		replace(m.to, m.dst.Ino, m.src.Ino)
	} else {
		replace(m.to, m.dst.Ino, 0)
	}
	after, err := g.holders(moved, g.aboveThen)
	g.regroup(before, after, bytes)
	return err
}

// aboveThen is quotasAbove as it is after the rename.
func (g *regrouping) aboveThen(dir base.Ino) ([]*quota, error) {
	above, err := g.quotasAbove(dir)
	if err != nil {
		return nil, err
	}
	for _, t := range g.trees {
		if t.dirs[dir] {
			inner := above[:len(above)-len(t.from)]
			return append(slices.Clone(inner), t.to...), nil
		}
	}
	return above, nil
}

// renamedNames keeps the lists of names of what moved, and forgets where quotas
// held if a directory went between them. A tally has done its work.
func (b *batch) renamedNames(m *move) error {
	if m.src == m.dst {
		return nil
	}
	if err := b.movedName(m.from, m.src, m.dst); err != nil {
		return err
	}
	if m.exchange {
		return b.movedName(m.to, m.dst, m.src)
	}
	return nil
}

func (b *batch) movedName(o *object, from, to *directory) error {
	switch {
	case o.home == inRecord:
		return b.changeNames(o.inode.Ino, from.Ino, to.Ino)
	case o.home != inHeader || len(b.sub.quotas) == 0:
		return nil
	}
	src, err := b.quotasAbove(from.Ino)
	if err != nil {
		return err
	}
	dst, err := b.quotasAbove(to.Ino)
	if err != nil || sameAbove(src, dst) {
		return err
	}
	clear(b.sub.above)
	if q := b.sub.quotas[o.dir.Ino]; q != nil && q.Tally {
		return b.dropQuota(q.dir)
	}
	return nil
}
