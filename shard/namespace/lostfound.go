package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// What nothing leads to any more gets a name in /lost+found, "#" and its inode number,
// as users of other file systems know it. The directory is made with the first of them,
// for root alone: nobody knows who might see what lies below.

const lostFoundName = "lost+found"

// mendReconnect names a directory whose header is in the subtree of "/".
func (b *batch) mendReconnect(r *canopyv1.Repair) (bool, error) {
	d, err := b.seenDir(r)
	if err != nil || d == nil || b.subtree != base.RootSubtree {
		return false, err
	}
	if named, err := b.leadsTo(d.Parent, d.Name, d.Ino); err != nil || named {
		return false, err
	}
	lost, name, err := b.nameLost(d.Ino, b.subtree)
	if err != nil || lost == nil {
		return false, err
	}
	b.reparent(d, lost.Ino, b.subtree, name)
	return true, nil
}

// mendNewName names a directory whose header is in another subtree. That the header
// says so too is another repair, of what a check then finds.
func (b *batch) mendNewName(r *canopyv1.Repair) (bool, error) {
	if b.subtree != base.RootSubtree || r.To == nil || base.SubtreeID(r.To.Subtree) == b.subtree {
		return false, nil
	}
	lost, _, err := b.nameLost(base.Ino(r.Ino), base.SubtreeID(r.To.Subtree))
	return lost != nil, err
}

// nameLost gives a directory a name in /lost+found; nil: it has it.
func (b *batch) nameLost(ino base.Ino, subtree base.SubtreeID) (*directory, []byte, error) {
	lost, err := b.lostFound()
	if err != nil || lost == nil {
		return nil, nil, err
	}
	name := []byte("#" + ino.String())
	s, err := b.find(lost, name)
	if err != nil || s.found() {
		return nil, nil, err
	}
	p, err := b.position(s, lost.Ino)
	if err != nil {
		return nil, nil, err
	}
	_, err = b.appear(lost, p, &schema.Dentry{Kind: schema.Directory, Name: name, Ino: ino, Type: schema.TypeDir, Subtree: subtree})
	return lost, name, err
}

// lostFound returns /lost+found, which is made if it is not there; nil: that name is
// something else's.
func (b *batch) lostFound() (*directory, error) {
	root, err := b.directory(b.root)
	if err != nil {
		return nil, err
	}
	s, err := b.find(root, []byte(lostFoundName))
	if err != nil {
		return nil, err
	}
	if s.found() {
		if s.Kind != schema.Directory || s.Subtree != b.subtree {
			return nil, nil
		}
		d, err := b.directory(s.Ino)
		if err != nil || d.Removed || d.split() {
			return nil, err
		}
		return d, nil
	}
	p, err := b.position(s, root.Ino)
	if err != nil {
		return nil, err
	}
	d := &directory{subtree: b.subtree, epoch: b.epoch, Header: schema.Header{
		Ino: b.newIno(), Mode: schema.TypeDir | 0o700, Version: 1,
		AtimeNS: b.nowNS, MtimeNS: b.nowNS, CtimeNS: b.nowNS, BtimeNS: b.nowNS,
		Parent: root.Ino, ParentSubtree: b.subtree, Name: []byte(lostFoundName),
		Fragments: shard.Whole(b.subtree), Appeared: 1, Layout: root.Layout,
	}}
	b.dirs[dirID{b.subtree, d.Ino}] = d
	b.touch(d)
	b.counters().Directories++
	_, err = b.appear(root, p, &schema.Dentry{Kind: schema.Directory, Name: d.Name, Ino: d.Ino, Type: schema.TypeDir, Subtree: b.subtree})
	return d, err
}
