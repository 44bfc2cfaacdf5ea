package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// A range of a directory's names moves by itself (DESIGN 6): into a subtree that is
// new, which splits the directory, or into one that has names of it already, which
// merges. Names move with their inodes; directories that they name stay where they are.

// isMove reports whether m is what c begins.
func isMove(m *schema.Move, c *canopyv1.MoveCommand) bool {
	same := m.Root == base.Ino(c.Dir) && m.To == base.ShardID(c.ToShard) && m.Names == shard.Range{Lo: c.Lo, Hi: c.Hi}
	return same && (c.Into == 0 && !m.Join || m.Join && m.Into == base.SubtreeID(c.Into))
}

// namesBegin begins to move a range of names.
func (b *batch) namesBegin(c *canopyv1.MoveCommand) (*canopyv1.Result, error) {
	s, names := b.sub, shard.Range{Lo: c.Lo, Hi: c.Hi}
	if names.Lo >= names.Hi || names.Hi > shard.BorderEnd {
		return nil, fserr.Malformed
	}
	d, err := b.copyOf(base.Ino(c.Dir))
	if err != nil {
		return nil, err
	}
	into := base.SubtreeID(c.Into)
	switch {
	case d == nil:
		return refuse(fserr.Stale, "the subtree knows no such directory")
	case d.Removed:
		return nil, fserr.NotFound
	case names.Lo == 0: // home keeps them: a directory's name tells where its home is
		return refuse(fserr.Invalid, "a directory's first names stay in its own subtree")
	case into == s.id:
		return refuse(fserr.Invalid, "they are in that subtree")
	case !ownsRange(d.Fragments, s.id, names):
		return refuse(fserr.Moved, "not all of the names are in the subtree")
	case into == 0 && len(d.Fragments.With(names, base.SubtreeID(base.NewIno(b.id, uint64(b.m.state.NextSubtree))))) > shard.MaxFragments:
		return refuse(fserr.NotSupported, "the directory has as many fragments as there can be")
	}
	if why, err := b.quotaNear(d); err != nil {
		return nil, err
	} else if why != "" {
		return refuse(fserr.NotSupported, why)
	}
	m := &schema.Move{Phase: schema.MoveWalking, Into: into, Epoch: s.Epoch, Root: d.Ino, To: base.ShardID(c.ToShard),
		StartNS: b.nowNS, Names: names, Join: into != 0}
	if !m.Join {
		m.Into, m.Epoch = base.SubtreeID(base.NewIno(b.id, b.nextID())), 1
	}
	m.Attempt = b.nextID()
	s.move = m
	return b.saveMove()
}

// ownsRange reports whether all of r lies in one range that the map has in subtree.
func ownsRange(m shard.FragmentMap, subtree base.SubtreeID, r shard.Range) bool {
	for _, have := range m.In(subtree) {
		if have.Lo <= r.Lo && r.Hi <= have.Hi {
			return true
		}
	}
	return false
}

// copyOf returns the subtree's copy of a directory's header, whatever names it owns;
// nil: it has none.
func (b *batch) copyOf(dir base.Ino) (*directory, error) {
	d, err := b.headerIn(b.subtree, dir)
	if err == fserr.Stale {
		return nil, nil
	}
	return d, err
}

// inNames reports whether a file is at a name that a range has.
func (v *view) inNames(p *canopyv1.Place, dir base.Ino, names shard.Range) bool {
	return base.Ino(p.Dir) == dir && names.Contains(v.hash(p.Name).Border())
}

// namesKey reports whether a change of key's row is sent again: names and relocations,
// and results, which where names join others are looked for at the end. All else comes
// with the last batches.
func namesKey(m *schema.Move, key []byte) bool {
	switch schema.KindOf(key) {
	case schema.KindDentry:
		return isName(key, m.Root, m.Names)
	case schema.KindRelocation:
		return true
	case schema.KindResults:
		return !m.Join
	}
	return false
}

// isName reports whether key is of a dentry in a range of a directory's names.
func isName(key []byte, dir base.Ino, names shard.Range) bool {
	in, at, ok := schema.InoOf(key)
	return ok && base.Ino(in) == dir && names.Contains(shard.HashOf(base.Cookie(at)).Border())
}

// namesHandOff hands a range of names off: from here on this subtree's copy of the
// directory says that they are elsewhere. If they are not here any more, the
// directory was removed meanwhile, and there is nothing to move.
func (b *batch) namesHandOff(c *canopyv1.MoveCommand) (*canopyv1.Result, error) {
	s, m := b.sub, b.sub.move
	d, err := b.copyOf(m.Root)
	if err != nil {
		return nil, err
	}
	if d == nil || d.Removed || !ownsRange(d.Fragments, s.id, m.Names) {
		return b.moveCancel(nil)
	}
	m.Phase, m.Batches, s.State = schema.MoveHandedOff, c.Batches, schema.Active
	b.m.moved.Add(1)
	b.m.recordings.set(s.id, nil)
	b.record()
	d.Fragments = d.Fragments.With(m.Names, m.Into)
	d.Entries -= c.Counts.GetEntries()
	d.Subdirs -= c.Counts.GetSubdirs()
	if d.Displaced -= c.Counts.GetDisplaced(); d.Displaced == 0 {
		d.MaxProbe = 0
	}
	if len(d.Fragments.In(s.id)) == 0 {
		d.Version = 0 // who takes the names takes it along: the sum over the fragments never falls
	}
	b.touch(d)
	if err := b.noteSplit(d); err != nil {
		return nil, err
	}
	n := b.counters()
	n.Files -= c.Counts.GetFiles()
	n.Bytes -= c.Counts.GetBytes()
	if err := b.dropRows(func(p *canopyv1.Place) bool { return b.inNames(p, m.Root, m.Names) }); err != nil {
		return nil, err
	}
	s.Hidden++
	return b.saveMove()
}

// noteSplit notes of a directory whose names have moved whether it is split.
func (b *batch) noteSplit(d *directory) error {
	key := schema.SplitKey(b.id, b.subtree, d.Ino)
	if d.split() {
		return b.set(key, schema.Empty{})
	}
	return b.w.Delete(key)
}

// namesClean deletes the names that were handed off. They are one range of keys
// (PROTOCOLS A8).
func (b *batch) namesClean() (*canopyv1.Result, error) {
	s, m := b.sub, b.sub.move
	if m.Cleaned != 0 {
		return b.moveResult(), nil
	}
	if err := b.deleteNames(m.Root, m.Names); err != nil {
		return nil, err
	}
	m.Cleaned = m.Root
	s.Hidden--
	return b.saveMove()
}

func (b *batch) deleteNames(dir base.Ino, names shard.Range) error {
	lo, hi := schema.DentryRange(b.id, b.subtree, dir, names.First(), names.Last())
	return b.w.DeleteRange(lo, hi)
}

// splitHeader writes the header that a new fragment begins with: the attributes of
// the one that its names came from, and counts of what came.
func (b *batch) splitHeader(id base.SubtreeID, i *schema.Import) error {
	h, err := schema.DecodeHeader(i.Header)
	if err != nil {
		return err
	}
	if !givesAll(h.Fragments, i.Names) {
		h.Version = 0 // the source keeps its own, and stat adds them
	}
	h.Fragments = h.Fragments.With(i.Names, id)
	h.Entries, h.Subdirs, h.Displaced = i.Dir.Entries, i.Dir.Subdirs, i.Dir.Displaced
	if h.Displaced == 0 {
		h.MaxProbe = 0
	}
	return b.set(schema.HeaderKey(b.id, id, h.Ino), h)
}

// ownerOf returns the subtree that had a range before it moved.
func ownerOf(m shard.FragmentMap, names shard.Range) base.SubtreeID {
	return m.Find(shard.Hash(names.Lo) << shard.FullBits).Subtree
}

// givesAll reports whether the source of a range, whose map is given, keeps no other
// names of the directory.
func givesAll(m shard.FragmentMap, names shard.Range) bool {
	all := m.In(ownerOf(m, names))
	return len(all) == 1 && all[0] == names
}
