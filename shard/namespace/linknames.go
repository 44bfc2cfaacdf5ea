package namespace

import (
	"slices"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/schema"
)

// namesFormat is the first format in which de-inlined inodes have their Names.
const namesFormat = 3

// namesOf returns the directory of each name of a de-inlined inode.
func (v *view) namesOf(ino base.Ino) ([]base.Ino, error) {
	b, found, err := v.r.Get(schema.NamesKey(v.id, v.subtree, ino))
	if err != nil || !found {
		return nil, err
	}
	n, err := schema.DecodeNames(b)
	return n.Dirs, err
}

// without returns dirs less one of dir.
func without(dirs []base.Ino, dir base.Ino) []base.Ino {
	i := slices.Index(dirs, dir)
	if i < 0 {
		return dirs
	}
	return slices.Delete(slices.Clone(dirs), i, i+1)
}

// changeNames takes one name in dir from a de-inlined inode's list, and adds one;
// 0 is none. A shard of an older format has no lists until the first quota is set.
func (b *batch) changeNames(ino, from, to base.Ino) error {
	if b.m.state.Format < namesFormat || from == to {
		return nil
	}
	dirs, err := b.namesOf(ino)
	if err != nil {
		return err
	}
	if from != 0 {
		dirs = without(dirs, from)
	}
	if to != 0 {
		dirs = append(dirs, to)
	}
	if len(dirs) == 0 {
		return b.w.Delete(schema.NamesKey(b.id, b.subtree, ino))
	}
	return b.set(schema.NamesKey(b.id, b.subtree, ino), &schema.Names{Dirs: dirs})
}

// listNames makes the lists in a shard of an older format, from all its names at
// once: a second for each million, before the shard's first quota.
func (b *batch) listNames() error {
	if b.m.state.Format >= namesFormat {
		return nil
	}
	var ids []base.SubtreeID
	for id := range b.m.subtrees {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if err := b.listNamesIn(id); err != nil {
			return err
		}
	}
	b.m.state.Format = schema.FormatVersion
	return nil
}

func (b *batch) listNamesIn(id base.SubtreeID) error {
	lists := map[base.Ino]*schema.Names{}
	lo, hi := schema.KindRange(b.id, id, schema.KindDentry)
	err := b.r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		if !schema.IsSelf(key) || schema.DentryKindOf(value) != schema.Link {
			return true, nil
		}
		e, err := schema.DecodeDentry(value)
		if err != nil {
			return false, err
		}
		n := lists[e.Ino]
		if n == nil {
			n = &schema.Names{}
			lists[e.Ino] = n
		}
		dir, _, _ := schema.InoOf(key)
		n.Dirs = append(n.Dirs, base.Ino(dir))
		return true, nil
	})
	if err != nil {
		return err
	}
	for ino, n := range lists {
		if err := b.set(schema.NamesKey(b.id, id, ino), n); err != nil {
			return err
		}
	}
	return nil
}
