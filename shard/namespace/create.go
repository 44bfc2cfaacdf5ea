package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// MaxTargetBytes is the longest target of a symlink.
const MaxTargetBytes = 4095

// create makes a regular file, or answers the one that is there.
func create(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetCreate()
	who := identityOf(op.Cred)
	if c.Ino != 0 {
		return nil, fserr.Invalid // no range of numbers is granted to clients
	}
	if c.Anonymous {
		return b.createAnonymous(who, c)
	}
	if isDot(c.Name) || isDotDot(c.Name) {
		return nil, existsOr(c.Exclusive, fserr.IsDir)
	}
	d, s, err := b.newInDirectory(who, base.Ino(c.Dir), c.Name)
	if err != nil {
		return nil, err
	}
	if s.found() {
		return b.createExisting(who, c, d, s.entry)
	}
	if err := who.mayAddName(d); err != nil {
		return nil, err
	}
	p, err := b.position(s, d.Ino)
	if err != nil {
		return nil, err
	}
	more, err := b.adding(d.Ino, 1, 0)
	if err != nil {
		return nil, err
	}
	n, err := b.newFile(who, d, c.Mode, c.Umask)
	if err != nil {
		return nil, err
	}
	return b.addInode(d, p, c.Name, n, more)
}

func existsOr(exclusive bool, kind fserr.Kind) error {
	if exclusive {
		return fserr.Exist
	}
	return kind
}

// createExisting answers a create whose name is there.
func (b *batch) createExisting(who identity, c *canopyv1.CreateCall, d *directory, e entry) (*canopyv1.Result, error) {
	if c.Exclusive {
		return nil, fserr.Exist
	}
	if e.Kind == schema.Directory {
		return nil, fserr.IsDir
	}
	o, err := b.objectOf(e)
	if x, ok := err.(*elsewhere); ok {
		// Its inode is in another subtree: the client asks there, and truncates there.
		return &canopyv1.Result{Attr: pointerTo(e.Ino, e.Type, x.subtree), DirAttr: b.dirAttr(d), Existed: true, Cookie: uint64(e.at)}, nil
	}
	if err != nil {
		return nil, err
	}
	if c.Truncate && o.inode.IsFile() {
		if err := who.accessObject(o, mayWrite); err != nil {
			return nil, err
		}
		if err := b.truncate(o, 0, who); err != nil {
			return nil, err
		}
		if err := b.changed(o); err != nil {
			return nil, err
		}
	}
	return b.showRoom(&canopyv1.Result{Attr: b.attr(o), DirAttr: b.dirAttr(d), Existed: true, Cookie: uint64(e.at)}, o)
}

// createAnonymous makes a file without a name, an orphan from the start; link can
// give it one unless it was made with O_EXCL.
func (b *batch) createAnonymous(who identity, c *canopyv1.CreateCall) (*canopyv1.Result, error) {
	d, err := b.directory(base.Ino(c.Dir))
	if err != nil {
		return nil, err
	}
	if err := who.mayAddName(d); err != nil {
		return nil, err
	}
	n, err := b.newFile(who, d, c.Mode, c.Umask)
	if err != nil {
		return nil, err
	}
	n.Nlink, n.Linkable = 0, !c.Exclusive
	o := &object{home: inOrphan, inode: n, sinceNS: b.nowNS}
	return &canopyv1.Result{Attr: b.attr(o), DirAttr: b.dirAttr(d), Place: o.place()}, b.save(o)
}

// newInode returns an inode made by who in d.
func (b *batch) newInode(who identity, d *directory, mode, umask uint32) *schema.Inode {
	gid, mode, acl := who.inherit(d, mode, umask)
	return &schema.Inode{
		Ino: b.newIno(), Mode: mode, Nlink: 1, UID: who.uid, GID: gid, ACL: acl, Version: 1,
		AtimeNS: b.nowNS, MtimeNS: b.nowNS, CtimeNS: b.nowNS, BtimeNS: b.nowNS,
	}
}

// newFile returns a regular file made by who in d. Its layout is fixed here, by
// the policies that hold in d.
func (b *batch) newFile(who identity, d *directory, mode, umask uint32) (*schema.Inode, error) {
	layout, err := b.layoutIn(d)
	if err != nil {
		return nil, err
	}
	n := b.newInode(who, d, schema.TypeFile|mode&modeBits, umask)
	n.DataID, n.DataVersion, n.SizeEpoch = base.DataID(n.Ino), 1, 1
	n.Layout = layout
	return n, nil
}

// addInode gives a new inode its name: one key holds both. more is what quotas are
// charged.
func (b *batch) addInode(d *directory, p position, name []byte, n *schema.Inode, more changes) (*canopyv1.Result, error) {
	e := &schema.Dentry{Kind: schema.Embedded, Name: name, Ino: n.Ino, Type: n.Mode & schema.TypeMask, Inode: n}
	at, err := b.appear(d, p, e)
	if err != nil {
		return nil, err
	}
	b.counters().Files++
	b.charge(more)
	r := &canopyv1.Result{Attr: b.inodeAttr(n), DirAttr: b.dirAttr(d), Cookie: uint64(p.at)}
	return b.showRoom(r, &object{home: inDentry, inode: n, entry: at})
}

func mkdir(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetMkdir()
	who := identityOf(op.Cred)
	if c.Ino != 0 {
		return nil, fserr.Invalid
	}
	d, p, err := b.newName(who, base.Ino(c.Dir), c.Name)
	if err != nil {
		return nil, err
	}
	if err := b.placed(d); err != nil {
		return nil, err
	}
	more, err := b.adding(d.Ino, 1, 0)
	if err != nil {
		return nil, err
	}
	gid, mode, acl := who.inherit(d, schema.TypeDir|c.Mode&(modeBits&^(setUID|setGID)), c.Umask)
	child := &directory{subtree: b.subtree, epoch: b.epoch, Header: schema.Header{
		Ino: b.newIno(), Mode: mode, UID: who.uid, GID: gid, Version: 1,
		AtimeNS: b.nowNS, MtimeNS: b.nowNS, CtimeNS: b.nowNS, BtimeNS: b.nowNS,
		Parent: d.Ino, ParentSubtree: d.subtree, Name: append([]byte(nil), c.Name...),
		Fragments: shard.Whole(b.subtree), Appeared: 1, Layout: d.Layout,
		ACL: acl, DefaultACL: d.DefaultACL,
	}}
	e := &schema.Dentry{Kind: schema.Directory, Name: c.Name, Ino: child.Ino, Type: schema.TypeDir, Subtree: b.subtree}
	if _, err := b.appear(d, p, e); err != nil {
		return nil, err
	}
	b.dirs[dirID{b.subtree, child.Ino}] = child
	b.touch(child)
	b.counters().Directories++
	b.charge(more)
	if err := b.memberMade(d.Ino, child.Ino); err != nil {
		return nil, err
	}
	return &canopyv1.Result{Attr: b.dirAttr(child), DirAttr: b.dirAttr(d), Cookie: uint64(p.at)}, nil
}

func mknod(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetMknod()
	who := identityOf(op.Cred)
	if c.Ino != 0 {
		return nil, fserr.Invalid
	}
	kind := c.Mode & schema.TypeMask
	switch kind {
	case 0, schema.TypeFile, schema.TypeFIFO, schema.TypeSocket, schema.TypeChar, schema.TypeBlock:
	case schema.TypeDir:
		return nil, fserr.Permission
	default:
		return nil, fserr.Invalid
	}
	d, p, err := b.newName(who, base.Ino(c.Dir), c.Name)
	if err != nil {
		return nil, err
	}
	device := kind == schema.TypeChar || kind == schema.TypeBlock
	if device && !who.isRoot() {
		return nil, fserr.Permission
	}
	more, err := b.adding(d.Ino, 1, 0)
	if err != nil {
		return nil, err
	}
	if kind == 0 || kind == schema.TypeFile {
		n, err := b.newFile(who, d, c.Mode, c.Umask)
		if err != nil {
			return nil, err
		}
		return b.addInode(d, p, c.Name, n, more)
	}
	n := b.newInode(who, d, kind|c.Mode&modeBits, c.Umask)
	if device {
		n.Rdev = c.Rdev
	}
	return b.addInode(d, p, c.Name, n, more)
}

func symlink(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetSymlink()
	who := identityOf(op.Cred)
	switch {
	case c.Ino != 0:
		return nil, fserr.Invalid
	case len(c.Target) == 0:
		return nil, fserr.NotFound
	case len(c.Target) > MaxTargetBytes:
		return nil, fserr.NameTooLong
	}
	d, p, err := b.newName(who, base.Ino(c.Dir), c.Name)
	if err != nil {
		return nil, err
	}
	more, err := b.adding(d.Ino, 1, 0)
	if err != nil {
		return nil, err
	}
	n := b.newInode(who, d, schema.TypeLink|0o777, 0)
	n.Target, n.SizeBytes = c.Target, uint64(len(c.Target))
	return b.addInode(d, p, c.Name, n, more)
}
