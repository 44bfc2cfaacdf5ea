package namespace

import (
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// unlink removes a name whose inode, or directory, lies in another subtree.
func (p *TxnPlan) unlink() (*canopyv1.Result, error) {
	c := p.op.GetUnlink()
	n, o, err := p.named(c.Dir, c.Name, false)
	if err != nil {
		return nil, err
	}
	if o.isDir() {
		return nil, fserr.IsDir
	}
	p.dropName(n)
	p.lose(o, n.d.Ino)
	return &canopyv1.Result{Replaced: p.changedAttr(o, n.subtree, n.fact.Epoch, -1)}, nil
}

// rmdir removes an empty directory that is in another subtree than its name
// (PROTOCOLS D5).
func (p *TxnPlan) rmdir() (*canopyv1.Result, error) {
	c := p.op.GetRmdir()
	n, o, err := p.named(c.Dir, c.Name, true)
	if err != nil {
		return nil, err
	}
	switch {
	case !o.isDir():
		return nil, fserr.NotDir
	case o.dir.Entries > 0:
		return nil, fserr.NotEmpty
	}
	p.dropName(n)
	p.lose(o, n.d.Ino)
	return &canopyv1.Result{Replaced: p.changedAttr(o, n.subtree, n.fact.Epoch, -1)}, nil
}

// named finds a name that who wants to take away, and what it has.
func (p *TxnPlan) named(dir uint64, name []byte, closing bool) (*txnName, *object, error) {
	subtree := base.SubtreeID(p.op.Subtree)
	n, err := p.nameOf(subtree, name, p.nameAsk(subtree, dir, name, false))
	if err == nil {
		err = n.valid()
	}
	if err != nil {
		return nil, nil, err
	}
	if n.dentry == nil {
		return nil, nil, fserr.NotFound
	}
	o, err := p.object(n, closing)
	if err != nil {
		return nil, nil, err
	}
	_, uid, _ := o.owner()
	return n, o, p.who.mayTakeName(n.d, uid)
}

func (p *TxnPlan) dropName(n *txnName) {
	p.edit(n.subtree, &canopyv1.TxnEdit{Kind: canopyv1.TxnEditKind_TXN_EDIT_NAME, Dir: uint64(n.d.Ino), Name: n.name, Old: canopyv1.TxnOld_TXN_OLD_LOSES})
}

// newName checks that a name may be made, as batch.newName does.
func (p *TxnPlan) newName(subtree base.SubtreeID, name []byte, f *canopyv1.TxnFact) (*txnName, error) {
	if isDot(name) || isDotDot(name) {
		return nil, fserr.Exist
	}
	n, err := p.nameOf(subtree, name, f)
	if err == nil {
		err = n.valid()
	}
	if err != nil {
		return nil, err
	}
	if n.dentry != nil {
		return nil, fserr.Exist
	}
	return n, p.who.mayAddName(n.d)
}

func (p *TxnPlan) addName(n *txnName, e *schema.Dentry) {
	p.edit(n.subtree, &canopyv1.TxnEdit{Kind: canopyv1.TxnEditKind_TXN_EDIT_NAME, Dir: uint64(n.d.Ino), Name: n.name, Dentry: e.Append(nil)})
}

// link gives an inode a name in another subtree. Its record stays where it is
// (PROTOCOLS A9).
func (p *TxnPlan) link() (*canopyv1.Result, error) {
	c := p.op.GetLink()
	home, subtree := base.SubtreeID(p.op.Subtree), base.SubtreeID(c.DirSubtree)
	if subtree == 0 {
		subtree = home
	}
	subtree = p.holder(subtree, base.Ino(c.Dir), c.Name)
	at := p.ask(0, home, &canopyv1.TxnWant{Kind: canopyv1.TxnWantKind_TXN_WANT_PLACE, Place: c.Place})
	dst := p.nameAsk(subtree, c.Dir, c.Name, false)
	switch {
	case at == nil || dst == nil:
		return nil, errMissing
	case at.Error != 0:
		return nil, fserr.Kind(at.Error)
	}
	n, err := p.newName(subtree, c.Name, dst)
	if err != nil {
		return nil, err
	}
	if len(at.Header) > 0 {
		return nil, fserr.Permission
	}
	i, err := schema.DecodeInode(at.Inode)
	switch {
	case err != nil:
		return nil, err
	case at.Anonymous && !i.Linkable:
		return nil, fserr.NotFound
	case i.Nlink >= MaxLinks:
		return nil, fserr.MLink
	case at.Quota || dst.Quota:
		return nil, fserr.CrossDevice
	}
	e := &schema.Dentry{Kind: schema.Link, Name: c.Name, Ino: i.Ino, Type: i.Mode & schema.TypeMask, Subtree: home}
	p.edit(home, &canopyv1.TxnEdit{Kind: canopyv1.TxnEditKind_TXN_EDIT_PLACE, Place: at.Place, Parent: c.Dir})
	p.addName(n, e)
	o := &object{home: inRecord, inode: i, entry: entry{Dentry: e}}
	return &canopyv1.Result{Attr: p.changedAttr(o, home, at.Epoch, 1), Place: &canopyv1.Place{Ino: uint64(i.Ino)}}, nil
}

// placed reports whether a new directory of d starts a subtree: an elsewhere then.
func (b *batch) placed(d *directory) error {
	r, err := b.resolvePolicy(d)
	if err != nil || r == nil || !r.Spread && (r.Pin == 0 || base.ShardID(r.Pin) == b.id) {
		return err
	}
	above, err := b.quotasAbove(d.Ino)
	if err != nil || len(above) > 0 {
		return err // a quota counts one subtree: what it bounds stays in it
	}
	return &elsewhere{ino: d.Ino}
}

// mkdir makes a directory that is the root of a subtree of its own.
func (p *TxnPlan) mkdir() (*canopyv1.Result, error) {
	c := p.op.GetMkdir()
	subtree := base.SubtreeID(p.op.Subtree)
	f := p.nameAsk(subtree, c.Dir, c.Name, false)
	if f == nil {
		return nil, errMissing
	}
	n, err := p.newName(subtree, c.Name, f)
	if err != nil {
		return nil, err
	}
	if f.Quota || !f.Spread && f.Pin == 0 {
		return nil, fserr.Busy // what it was to do by has changed: it starts again
	}
	at := p.choose(f.Spread, base.ShardID(f.Pin), n.d.Ino, c.Name)
	made := p.ask(at, 0, &canopyv1.TxnWant{Kind: canopyv1.TxnWantKind_TXN_WANT_SUBTREE})
	if made == nil {
		return nil, errMissing
	}
	gid, mode, acl := p.who.inherit(n.d, schema.TypeDir|c.Mode&(modeBits&^(setUID|setGID)), c.Umask)
	id := base.SubtreeID(made.Subtree)
	h := schema.Header{
		Ino: base.Ino(made.Ino), Mode: mode, UID: p.who.uid, GID: gid, Version: 1,
		Parent: n.d.Ino, ParentSubtree: subtree, Name: slices.Clone(c.Name),
		Fragments: shard.Whole(id), Appeared: 1, Layout: n.d.Layout, ACL: acl, DefaultACL: n.d.DefaultACL,
	}
	p.addName(n, &schema.Dentry{Kind: schema.Directory, Name: c.Name, Ino: h.Ino, Type: schema.TypeDir, Subtree: id})
	p.edits = append(p.edits, TxnEdits{Shard: at, Subtree: id, Edits: []*canopyv1.TxnEdit{
		{Kind: canopyv1.TxnEditKind_TXN_EDIT_SUBTREE, Header: h.Append(nil), Policy: f.Policy}}})
	v := &view{subtree: id, epoch: 1}
	return &canopyv1.Result{
		Attr:     v.dirAttr(&directory{Header: h, subtree: id}),
		Redirect: &canopyv1.Redirect{Subtree: uint64(id), Shard: uint64(at), Epoch: 1},
	}, nil
}
