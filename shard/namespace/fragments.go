package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// A split directory has a header in the subtree of each of its fragments. Such a copy
// says which names lie in its subtree; what it says of the others is a hint. Home is
// the first fragment's: it has the directory's parent, and never changes by a split or
// a merge. A husk is what stays where a fragment was: a copy that no names lie in.

// split reports whether the directory has more than one fragment.
func (d *directory) split() bool { return len(d.Fragments) > 1 }

// isHome reports whether the header is the one with the directory's parent.
func (d *directory) isHome() bool { return d.Fragments[0].Subtree == d.subtree }

// isHusk reports whether none of the directory's names lie in the header's subtree.
func (d *directory) isHusk() bool {
	for _, f := range d.Fragments {
		if f.Subtree == d.subtree {
			return false
		}
	}
	return true
}

// splitOff is where a name of a split directory is, by one of its headers.
type splitOff struct {
	fragments shard.FragmentMap
	hash      func([]byte) shard.Hash
}

// atHome returns the elsewhere of what the directory's home alone can tell.
func (v *view) atHome(d *directory) *elsewhere {
	return &elsewhere{subtree: d.Fragments.Home(), ino: d.Ino, split: &splitOff{d.Fragments, v.hash}}
}

// named returns err, of a directory that a name was looked for in, as that of the name.
func named(err error, name []byte) error {
	e, ok := err.(*elsewhere)
	if !ok || e.split == nil {
		return err
	}
	at := *e
	at.subtree = e.split.holder(name)
	return &at
}

// holder returns the subtree that holds a name; without one, home.
func (s *splitOff) holder(name []byte) base.SubtreeID {
	if len(name) == 0 || isDot(name) || isDotDot(name) {
		return s.fragments.Home()
	}
	return s.fragments.Find(s.hash(name)).Subtree
}

// holderOf returns the subtree that holds what op addresses in the directory: a name,
// a position, or the directory itself.
func (s *splitOff) holderOf(op *canopyv1.Op) base.SubtreeID {
	if c := op.GetReadDir(); c != nil {
		return s.fragments.Find(shard.HashOf(nextPosition(c.Cookie))).Subtree
	}
	return s.holder(op.Name())
}

// owns returns an elsewhere if the name lies in another fragment of d (PROTOCOLS A1).
func (v *view) owns(d *directory, name []byte) error {
	if !d.split() || d.Fragments.Has(v.subtree, v.hash(name)) {
		return nil
	}
	return named(v.atHome(d), name)
}

// met returns err of what an operation met that is addressed by something else: no
// redirect of the client would help.
func met(err error) error {
	e, ok := err.(*elsewhere)
	if !ok || e.place != nil {
		return err
	}
	m := *e
	m.met = true
	return &m
}

// changesAll returns what an operation that changes a directory's attributes has to
// give way with, if the directory is split: they are the same in all fragments, so that
// a transaction over all changes them, which home coordinates (PROTOCOLS F1). nil: it
// may go on, here alone or under the decision of such a transaction.
func (b *batch) changesAll(d *directory) error {
	switch {
	case !d.split(), b.deciding && d.isHome():
		return nil
	case d.isHome():
		return met(b.atHome(d))
	}
	return b.atHome(d)
}

// changesAllOf is changesAll for an object that was addressed.
func (b *batch) changesAllOf(o *object) error {
	if !o.isDir() {
		return nil
	}
	err := b.changesAll(o.dir)
	if e, ok := err.(*elsewhere); ok && !e.met {
		return e.at(&canopyv1.Place{Ino: uint64(o.dir.Ino)})
	}
	return err
}

// removesAll returns an elsewhere if o is a split directory, which a transaction over
// all fragments removes (PROTOCOLS D5).
func (v *view) removesAll(o *object) error {
	if !o.isDir() || !o.dir.split() {
		return nil
	}
	return met(v.atHome(o.dir))
}
