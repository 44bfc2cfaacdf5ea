package namespace

import (
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// txnMove is a rename over subtrees.
type txnMove struct {
	move
	srcName, dstName *txnName
}

// rename is rename over subtrees: the checks are those of batch.rename.
func (p *TxnPlan) rename() (*canopyv1.Result, error) {
	m, err := p.prepareMove()
	if err != nil {
		return nil, err
	}
	if m.to != nil && m.from.ino() == m.to.ino() {
		return p.moved(m, false), nil
	}
	if m.dst.Removed {
		return nil, fserr.NotFound
	}
	if err := p.noCycle(m); err != nil {
		return nil, err
	}
	if err := m.permitted(); err != nil {
		return nil, err
	}
	if (m.srcName.fact.Quota || m.dstName.fact.Quota) && (m.src != m.dst || m.to != nil) {
		return nil, fserr.CrossDevice // its accounts are in one subtree: who moves copies
	}
	if m.exchange {
		p.swap(m)
	} else if err := p.carry(m); err != nil {
		return nil, err
	}
	return p.moved(m, true), nil
}

// prepareMove looks both names up, in the order in which Linux finds what is wrong.
func (p *TxnPlan) prepareMove() (*txnMove, error) {
	c := p.op.GetRename()
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
	from, to := base.SubtreeID(p.op.Subtree), base.SubtreeID(c.DstSubtree)
	if to == 0 {
		to = from
	}
	to = p.holder(to, base.Ino(c.DstDir), c.DstName)
	m := &txnMove{move: move{who: p.who, exchange: c.Flags == renameExchange, whiteout: c.Flags&renameWhiteout != 0}}
	src := p.nameAsk(from, c.SrcDir, c.SrcName, true)
	dst := p.nameAsk(to, c.DstDir, c.DstName, m.exchange)
	if src == nil || dst == nil {
		return nil, errMissing
	}
	var err error
	if m.srcName, err = p.nameOf(from, c.SrcName, src); err != nil {
		return nil, err
	}
	if m.dstName, err = p.nameOf(to, c.DstName, dst); err != nil {
		return nil, err
	}
	m.src, m.dst = m.srcName.d, m.dstName.d
	if from == to && c.SrcDir == c.DstDir {
		m.dst, m.dstName.d = m.src, m.src
	}
	return m, p.operands(m, c.Flags)
}

// operands finds what the names have.
func (p *TxnPlan) operands(m *txnMove, flags uint32) error {
	if err := m.srcName.valid(); err != nil {
		return err
	}
	if m.srcName.dentry == nil {
		return fserr.NotFound
	}
	if err := m.dstName.valid(); err != nil {
		return err
	}
	found := m.dstName.dentry != nil
	switch {
	case m.exchange && !found:
		return fserr.NotFound
	case flags&renameNoReplace != 0 && found:
		return fserr.Exist
	}
	var err, toErr error
	m.from, err = p.object(m.srcName, false)
	if found {
		m.to, toErr = p.object(m.dstName, !m.exchange)
	}
	if err == nil {
		err = toErr
	}
	return err
}

// noCycle refuses a move of a directory below itself, and of what a directory is in
// over that directory. The cluster's lock of directory moves is had before the walks
// begin, and each subtree that they cross keeps its directories where they are
// (PROTOCOLS D6).
func (p *TxnPlan) noCycle(m *txnMove) error {
	if m.src.Ino == m.dst.Ino {
		return nil // also over two fragments: what is above a directory stays
	}
	toDir := m.to != nil && m.to.isDir()
	if !m.from.isDir() && !toDir {
		return nil
	}
	if f := p.ask(0, base.RootSubtree, &canopyv1.TxnWant{Kind: canopyv1.TxnWantKind_TXN_WANT_MOVE_LOCK}); f == nil {
		return errMissing
	} else if f.Error != 0 {
		return fserr.Kind(f.Error)
	}
	if m.from.isDir() {
		below, err := p.isBelow(m.dstName, m.from.ino())
		if err != nil {
			return err
		}
		if below {
			return fserr.Invalid
		}
	}
	if !toDir {
		return nil
	}
	below, err := p.isBelow(m.srcName, m.to.ino())
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

// isBelow reports whether the name's directory is ino or lies below it.
func (p *TxnPlan) isBelow(n *txnName, ino base.Ino) (bool, error) {
	subtree, dir := n.subtree, uint64(n.d.Ino)
	for range maxDepth {
		f := p.ask(0, subtree, &canopyv1.TxnWant{Kind: canopyv1.TxnWantKind_TXN_WANT_WALK, Dir: dir})
		switch {
		case f == nil:
			return false, errMissing
		case f.Error != 0:
			return false, fserr.Kind(f.Error)
		case slices.Contains(f.Path, uint64(ino)):
			return true, nil
		case f.NextSubtree == 0:
			return false, nil
		}
		subtree, dir = p.home(base.SubtreeID(f.NextSubtree), base.Ino(f.NextDir)), f.NextDir
	}
	return false, fserr.Loop
}

// carry adds the changes of a plain rename.
func (p *TxnPlan) carry(m *txnMove) error {
	leave := nameEdit(m.srcName, m.dstName, canopyv1.TxnOld_TXN_OLD_LEAVES)
	if m.whiteout {
		f := p.ask(p.shard, 0, &canopyv1.TxnWant{Kind: canopyv1.TxnWantKind_TXN_WANT_SUBTREE, Name: m.srcName.name})
		if f == nil {
			return errMissing
		}
		gid, mode, acl := p.who.inherit(m.src, schema.TypeChar, 0)
		n := &schema.Inode{Ino: base.Ino(f.Ino), Mode: mode, Nlink: 1, UID: p.who.uid, GID: gid, ACL: acl, Version: 1}
		leave.Dentry = (&schema.Dentry{Kind: schema.Embedded, Name: m.srcName.name, Ino: n.Ino, Type: schema.TypeChar, Inode: n}).Append(nil)
		leave.Made = true
	}
	old := canopyv1.TxnOld_TXN_OLD_ABSENT
	if m.to != nil {
		old = canopyv1.TxnOld_TXN_OLD_LOSES
	}
	take := nameEdit(m.dstName, nil, old)
	take.Dentry, take.Parts = renamedDentry(m.from, m.dstName.name), m.srcName.fact.Parts
	p.edit(m.srcName.subtree, leave)
	p.edit(m.dstName.subtree, take)
	if m.to != nil {
		p.lose(m.to, m.dst.Ino)
	}
	p.follow(m.from, m.srcName, m.dstName)
	return nil
}

// swap adds the changes of an exchange.
func (p *TxnPlan) swap(m *txnMove) {
	src := nameEdit(m.srcName, m.dstName, canopyv1.TxnOld_TXN_OLD_LEAVES)
	src.Dentry, src.Parts = renamedDentry(m.to, m.srcName.name), m.dstName.fact.Parts
	dst := nameEdit(m.dstName, m.srcName, canopyv1.TxnOld_TXN_OLD_LEAVES)
	dst.Dentry, dst.Parts = renamedDentry(m.from, m.dstName.name), m.srcName.fact.Parts
	p.edit(m.srcName.subtree, src)
	p.edit(m.dstName.subtree, dst)
	p.follow(m.from, m.srcName, m.dstName)
	p.follow(m.to, m.dstName, m.srcName)
}

func nameEdit(n, to *txnName, old canopyv1.TxnOld) *canopyv1.TxnEdit {
	e := &canopyv1.TxnEdit{Kind: canopyv1.TxnEditKind_TXN_EDIT_NAME, Dir: uint64(n.d.Ino), Name: n.name, Old: old}
	if to != nil {
		e.ToSubtree, e.ToDir, e.ToName = uint64(to.subtree), uint64(to.d.Ino), to.name
	}
	return e
}

// moved is the answer. The directories' attributes are not in it: other names come
// and go in them.
func (p *TxnPlan) moved(m *txnMove, changed bool) *canopyv1.Result {
	if !changed {
		v := &view{subtree: m.srcName.subtree, epoch: base.Epoch(m.srcName.fact.Epoch)}
		if m.from.home == inRecord {
			v.subtree = m.from.entry.Subtree
		}
		return &canopyv1.Result{Attr: v.attr(m.from)}
	}
	r := &canopyv1.Result{Attr: p.changedAttr(m.from, m.dstName.subtree, m.dstName.fact.Epoch, 0)}
	switch {
	case m.to == nil:
	case m.exchange:
		r.Replaced = p.changedAttr(m.to, m.srcName.subtree, m.srcName.fact.Epoch, 0)
	default:
		r.Replaced = p.changedAttr(m.to, m.dstName.subtree, m.dstName.fact.Epoch, -1)
	}
	return r
}
