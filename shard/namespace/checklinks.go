package namespace

import (
	"cmp"
	"slices"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/edge"
	"github.com/canopyfs/canopy/shard/schema"
)

// linkName is a name of a de-inlined inode.
type linkName struct{ ino, dir base.Ino }

// linkNames are the names of the inodes of one part of all, as many parts as are
// needed for each to be small. The first part is gathered with the walk through all
// names, each other one by a further walk.
type linkNames struct {
	all         []linkName
	parts, part uint64 // a power of two; which of them this is
}

// maxLinkNames is how many names are kept at once, 16 bytes each. An inode's own names
// are never divided.
const (
	maxLinkNames = 1 << 19
	maxLinkParts = 1 << 16
)

func (l *linkNames) has(ino base.Ino) bool {
	return l.parts <= 1 || uint64(ino)*0x9e3779b97f4a7c15>>40&(l.parts-1) == l.part
}

func (l *linkNames) add(ino, dir base.Ino) { l.addBounded(ino, dir, maxLinkNames) }

func (l *linkNames) addBounded(ino, dir base.Ino, bound int) {
	if !l.has(ino) {
		return
	}
	l.all = append(l.all, linkName{ino, dir})
	for len(l.all) > bound && l.part == 0 && l.parts < maxLinkParts {
		l.parts = max(2*l.parts, 2)
		l.all = slices.DeleteFunc(l.all, func(n linkName) bool { return !l.has(n.ino) })
	}
}

// checkLinks compares de-inlined inodes with their names and the lists of them.
func (c *checker) checkLinks() error {
	b, found, err := c.r.Get(schema.ShardKey(c.id))
	if err != nil || !found {
		return err
	}
	state, err := schema.DecodeShardState(b)
	if err != nil {
		return err
	}
	c.lists = state.Format >= namesFormat // the first quota makes them
	for {
		if err := c.checkPart(); err != nil {
			return err
		}
		if c.links.part++; c.links.part >= c.links.parts {
			break
		}
		if err := c.gatherLinks(); err != nil {
			return err
		}
	}
	return c.checkLists()
}

// gatherLinks walks through all names for those of the next part.
func (c *checker) gatherLinks() error {
	c.links.all = c.links.all[:0]
	var d *checkedDir
	last := base.Ino(0)
	return c.each(schema.KindDentry, func(key, value []byte) error {
		if !schema.IsSelf(key) || schema.DentryKindOf(value) != schema.Link {
			return nil
		}
		e, err := schema.DecodeDentry(value)
		if err != nil || e.Subtree != c.subtree || !c.links.has(e.Ino) {
			return err
		}
		number, at, _ := schema.InoOf(key)
		if dir := base.Ino(number); dir != last {
			h, err := c.header(dir)
			if err != nil {
				return err
			}
			last, d = dir, nil
			if h != nil {
				d = &checkedDir{directory: h}
			}
		}
		if d == nil {
			return nil // carved out, or said already
		}
		ignored, err := c.ignores(d, last, base.Cookie(at))
		if err == nil && !ignored {
			c.links.add(e.Ino, last)
		}
		return err
	})
}

// checkPart compares the records of the present part with their names.
func (c *checker) checkPart() error {
	names := c.links.all
	slices.SortFunc(names, func(a, b linkName) int { return cmp.Or(cmp.Compare(a.ino, b.ino), cmp.Compare(a.dir, b.dir)) })
	missing := func(until base.Ino) {
		for len(names) > 0 && names[0].ino < until {
			n := ofIno(names)
			c.problem("2", names[0].ino, "%d names refer to it, but it has no record", n)
			names = names[n:]
		}
	}
	err := c.eachOwner(schema.KindInode, func(_, value []byte) (belongings, error) {
		n, err := schema.DecodeInode(value)
		if err != nil {
			return belongings{}, err
		}
		if c.links.part == 0 {
			c.file(n)
		}
		if !c.links.has(n.Ino) {
			return belongingsOf(n), nil
		}
		missing(n.Ino)
		var dirs []base.Ino
		for len(names) > 0 && names[0].ino == n.Ino {
			dirs, names = append(dirs, names[0].dir), names[1:]
		}
		return belongingsOf(n), c.checkRecord(n, dirs)
	})
	missing(^base.Ino(0))
	return err
}

// ofIno counts the names at the start that are the same inode's.
func ofIno(names []linkName) int {
	n := 1
	for n < len(names) && names[n].ino == names[0].ino {
		n++
	}
	return n
}

// checkRecord compares a record with its names in the subtree, in directories dirs, and
// tells what must be in others.
func (c *checker) checkRecord(n *schema.Inode, dirs []base.Ino) error {
	var listed []base.Ino
	if c.lists {
		all, err := c.namesOf(n.Ino)
		if err != nil {
			return err
		}
		listed = slices.Clone(all)
		wrong := false
		for _, dir := range dirs {
			wrong = wrong || !slices.Contains(listed, dir)
			listed = without(listed, dir)
		}
		if wrong {
			c.repairable(c.relist(n, dirs), "3", n.Ino, "its names are in directories %v, they are listed in %v", dirs, all)
		}
	}
	elsewhere := int64(n.Nlink) - int64(len(dirs))
	if elsewhere == 0 && len(listed) == 0 {
		return nil
	}
	return c.edge(edge.Edge{Kind: edge.Record, Ino: n.Ino, Count: elsewhere, Listed: listed, Lists: c.lists,
		Epoch: c.epoch, Version: n.Version, Links: n.Nlink})
}

// checkLists holds that each list of names is a record's.
func (c *checker) checkLists() error {
	return c.each(schema.KindNames, func(key, value []byte) error {
		if _, err := schema.DecodeNames(value); err != nil {
			return err
		}
		number, _, _ := schema.InoOf(key)
		_, there, err := c.r.Get(schema.InodeKey(c.id, c.subtree, base.Ino(number)))
		if err == nil && !there {
			c.repairable(c.dropRow(key, value), "3", base.Ino(number), "its names are listed, but it has no record")
		}
		return err
	})
}
