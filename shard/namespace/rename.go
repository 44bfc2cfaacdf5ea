package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// Flags of renameat2.
const (
	renameNoReplace = 1
	renameExchange  = 2
	renameWhiteout  = 4
)

// move is one rename: the name srcName of src goes to dstName of dst.
type move struct {
	who      identity
	src, dst *directory
	srcSlot  slot
	dstSlot  slot
	exchange bool
	whiteout bool    // leaves a device 0:0 under the old name, which hides what an overlay has below it
	from, to *object // what the names have; to is nil when the target is absent
}

// rename is the one implementation of all forms of rename within a subtree.
func rename(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetRename()
	if Crosses(op) {
		return nil, &elsewhere{subtree: base.SubtreeID(c.DstSubtree), ino: base.Ino(c.DstDir)}
	}
	m, err := b.prepareMove(identityOf(op.Cred), c)
	if err != nil {
		return nil, err
	}
	if m.to != nil && m.from.ino() == m.to.ino() {
		return b.moved(m, nil), nil // two names of one inode: nothing happens, as POSIX wants
	}
	if err := b.mayMove(m); err != nil {
		return nil, err
	}
	regrouped, err := b.renaming(m)
	if err != nil {
		return nil, err
	}
	if m.exchange {
		err = b.exchange(m)
	} else {
		err = b.move(m, c.DstName)
	}
	if err == nil {
		b.charge(regrouped)
		err = b.renamedNames(m)
	}
	if err != nil {
		return nil, err
	}
	return b.moved(m, m.to), nil
}

func (b *batch) moved(m *move, replaced *object) *canopyv1.Result {
	r := &canopyv1.Result{
		Attr: b.attr(m.from), DirAttr: b.dirAttr(m.src), DstDirAttr: b.dirAttr(m.dst), Cookie: uint64(m.dstSlot.at),
	}
	if replaced != nil {
		r.Replaced = b.attr(replaced)
	}
	return r
}

// prepareMove looks both names up, in the order in which Linux finds what is
// wrong.
func (b *batch) prepareMove(who identity, c *canopyv1.RenameCall) (*move, error) {
	switch c.Flags {
	case 0, renameNoReplace, renameExchange, renameWhiteout, renameWhiteout | renameNoReplace:
	default:
		return nil, fserr.Invalid
	}
	for _, name := range [][]byte{c.SrcName, c.DstName} {
		if isDot(name) || isDotDot(name) {
			return nil, fserr.Invalid
		}
	}
	m := &move{who: who, exchange: c.Flags == renameExchange, whiteout: c.Flags&renameWhiteout != 0}
	var err error
	if m.src, err = b.searchable(who, base.Ino(c.SrcDir)); err != nil {
		return nil, err
	}
	if m.dst, err = b.searchable(who, base.Ino(c.DstDir)); err != nil {
		if c.DstDir != c.SrcDir {
			err = met(err)
		}
		return nil, err
	}
	if m.srcSlot, err = b.named(m.src, c.SrcName); err != nil {
		return nil, err
	}
	if !m.srcSlot.found() {
		return nil, fserr.NotFound
	}
	if m.dstSlot, err = b.namedNew(m.dst, c.DstName); err != nil {
		return nil, met(err)
	}
	switch {
	case m.exchange && !m.dstSlot.found():
		return nil, fserr.NotFound
	case c.Flags&renameNoReplace != 0 && m.dstSlot.found():
		return nil, fserr.Exist
	}
	if m.from, err = b.objectOf(m.srcSlot.entry); err != nil {
		return nil, err
	}
	if m.dstSlot.found() {
		if m.to, err = b.objectOf(m.dstSlot.entry); err != nil {
			return nil, err
		}
		if !m.exchange {
			return m, b.removesAll(m.to)
		}
	}
	return m, nil
}

// mayMove checks cycles, permissions and types.
func (b *batch) mayMove(m *move) error {
	if m.dst.Removed {
		return fserr.NotFound // and its ancestors may be gone, too
	}
	if err := b.noCycle(m); err != nil {
		return err
	}
	if err := m.permitted(); err != nil {
		return err
	}
	if !m.exchange && m.to != nil && m.to.isDir() {
		return b.mayRemove(m.to.dir.Ino)
	}
	return nil
}

// permitted checks permissions and types, and that what is replaced is empty.
func (m *move) permitted() error {
	_, uid, _ := m.from.owner()
	if err := m.who.mayTakeName(m.src, uid); err != nil {
		return err
	}
	if m.to == nil {
		if err := m.who.mayAddName(m.dst); err != nil {
			return err
		}
	} else {
		_, uid, _ = m.to.owner()
		if err := m.who.mayTakeName(m.dst, uid); err != nil {
			return err
		}
		if !m.exchange && m.from.isDir() != m.to.isDir() {
			if m.to.isDir() {
				return fserr.IsDir
			}
			return fserr.NotDir
		}
	}
	if m.src.Ino != m.dst.Ino {
		// A directory that changes its parent has its ".." rewritten.
		if m.from.isDir() {
			if err := m.who.accessDir(m.from.dir, mayWrite); err != nil {
				return err
			}
		}
		if m.exchange && m.to.isDir() {
			if err := m.who.accessDir(m.to.dir, mayWrite); err != nil {
				return err
			}
		}
	}
	if !m.exchange && m.to != nil && m.to.isDir() && m.to.dir.Entries > 0 {
		return fserr.NotEmpty
	}
	return nil
}

// noCycle refuses a move of a directory below itself (PROTOCOLS D6). The move is
// local only if both walks up end at the root of the one subtree and no transaction
// keeps its directories where they are: then no other shard can move a directory in
// between. Else it is elsewhere's: a transaction.
func (b *batch) noCycle(m *move) error {
	if m.src == m.dst {
		return nil
	}
	if m.from.isDir() || m.exchange && m.to.isDir() {
		if err := b.mayMoveHere(m); err != nil {
			return err
		}
	}
	if m.from.isDir() {
		below, err := b.isBelow(m.dst, m.from.ino())
		if err != nil {
			return err
		}
		if below {
			return fserr.Invalid
		}
	}
	if m.to == nil || !m.to.isDir() {
		return nil
	}
	below, err := b.isBelow(m.src, m.to.ino())
	switch {
	case err != nil:
		return err
	case below && m.exchange:
		return fserr.Invalid
	case below:
		return fserr.NotEmpty
	}
	return nil
}

// maxDepth bounds a walk up. A path of PATH_MAX bytes has at most half as many
// parts, but programs can go deeper step by step.
const maxDepth = 1 << 20

// isBelow reports whether d is ino or lies below it.
func (b *batch) isBelow(d *directory, ino base.Ino) (bool, error) {
	for range maxDepth {
		if d.Ino == ino {
			return true, nil
		}
		if d.Ino == b.root {
			return false, nil
		}
		up, err := b.directoryIn(d.ParentSubtree, d.Parent)
		if err == nil && !up.isHome() && up.Ino != b.root {
			err = b.atHome(up) // a copy, which does not know its parent
		}
		if err != nil {
			return false, met(err)
		}
		d = up
	}
	return false, fserr.Loop
}

// move does a plain rename.
func (b *batch) move(m *move, dstName []byte) error {
	var p position
	var err error
	if m.to == nil {
		if p, err = b.position(m.dstSlot, m.dst.Ino); err != nil {
			return err
		}
	}
	parts, err := b.takeEmbeddedParts(m.from)
	if err != nil {
		return err
	}
	if m.to != nil {
		if err := b.loseName(m.to); err != nil {
			return err
		}
	}
	if err := b.leave(m); err != nil {
		return err
	}
	e := renamed(m.srcSlot.Dentry, dstName)
	b.bump(m.from)
	if m.to != nil {
		m.from.entry, err = b.replace(m.dst, m.dstSlot.entry, e)
	} else {
		m.from.entry, err = b.appear(m.dst, p, e)
	}
	if err != nil {
		return err
	}
	m.dstSlot.entry = m.from.entry
	return b.settle(m.from, m.dst, dstName, parts)
}

// leave takes the old name away, or gives it to a whiteout. Like everybody who
// may rename, its maker needs no permission for a device of this kind.
func (b *batch) leave(m *move) error {
	if !m.whiteout {
		return b.vanish(m.src, m.srcSlot.entry)
	}
	n := b.newInode(m.who, m.src, schema.TypeChar, 0)
	e := &schema.Dentry{Kind: schema.Embedded, Name: m.srcSlot.Name, Ino: n.Ino, Type: schema.TypeChar, Inode: n}
	b.counters().Files++
	_, err := b.replace(m.src, m.srcSlot.entry, e)
	return err
}

// exchange swaps what two names have. Each name keeps its place and age.
func (b *batch) exchange(m *move) error {
	fromParts, err := b.takeEmbeddedParts(m.from)
	if err != nil {
		return err
	}
	toParts, err := b.takeEmbeddedParts(m.to)
	if err != nil {
		return err
	}
	srcName, dstName := m.srcSlot.Name, m.dstSlot.Name
	b.bump(m.from)
	b.bump(m.to)
	from, to := renamed(m.srcSlot.Dentry, dstName), renamed(m.dstSlot.Dentry, srcName)
	srcEntry, dstEntry := m.srcSlot.entry, m.dstSlot.entry
	if m.from.entry, err = b.replace(m.dst, dstEntry, from); err != nil {
		return err
	}
	if m.to.entry, err = b.replace(m.src, srcEntry, to); err != nil {
		return err
	}
	if err := b.settle(m.from, m.dst, dstName, fromParts); err != nil {
		return err
	}
	return b.settle(m.to, m.src, srcName, toParts)
}

// renamed returns a dentry under a new name for what old names.
func renamed(old *schema.Dentry, name []byte) *schema.Dentry {
	e := *old
	e.Name = name
	return &e
}

// bump moves ctime and version of what is about to be renamed.
func (b *batch) bump(o *object) {
	if o.isDir() {
		return // by settle
	}
	o.inode.CtimeNS = b.nowNS
	o.inode.Version++
}

// settle ends the move of o, whose new dentry is written: an embedded inode leaves
// a relocation (PROTOCOLS H1), a directory's header names its new parent.
func (b *batch) settle(o *object, d *directory, name []byte, parts []part) error {
	switch o.home {
	case inHeader:
		if o.dir.Parent != d.Ino {
			b.directoryMoved()
		}
		o.dir.Parent, o.dir.ParentSubtree = d.Ino, d.subtree
		o.dir.Name = append([]byte(nil), name...)
		return b.changed(o)
	case inDentry:
		if err := b.putParts(o, parts); err != nil {
			return err
		}
		if err := b.relocate(o.inode.Ino, d.Ino, name); err != nil {
			return err
		}
		return b.locateObject(o)
	}
	return b.save(o)
}

// takeEmbeddedParts takes the parts that stand behind a dentry; those of other
// objects stay where they are.
func (b *batch) takeEmbeddedParts(o *object) ([]part, error) {
	if o.home != inDentry {
		return nil, nil
	}
	return b.takeParts(o)
}
