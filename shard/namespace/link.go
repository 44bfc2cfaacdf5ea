package namespace

import (
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// MaxLinks is the largest link count of a file, as of ext4.
const MaxLinks = 65000

// link gives an inode one more name. The second one de-inlines it (PROTOCOLS A9).
func link(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetLink()
	who := identityOf(op.Cred)
	if Crosses(op) {
		return nil, &elsewhere{subtree: base.SubtreeID(c.DirSubtree), ino: base.Ino(c.Dir)}
	}
	o, err := b.resolve(c.Place)
	if err != nil {
		return nil, err
	}
	d, p, err := b.newName(who, base.Ino(c.Dir), c.Name)
	if err != nil {
		return nil, met(err)
	}
	switch {
	case o.isDir():
		return nil, fserr.Permission
	case o.home == inOrphan && !o.inode.Linkable:
		return nil, fserr.NotFound
	case o.inode.Nlink >= MaxLinks:
		return nil, fserr.MLink
	}
	more, err := b.linking(o, d.Ino)
	if err != nil {
		return nil, err
	}
	o.inode.Nlink++
	o.inode.CtimeNS = b.nowNS
	o.inode.Version++
	e := &schema.Dentry{Kind: schema.Link, Name: c.Name, Ino: o.inode.Ino, Type: o.inode.Mode & schema.TypeMask, Subtree: b.subtree}
	switch o.home {
	case inOrphan:
		err = b.nameAnonymous(o, d, p, e)
	case inDentry:
		err = b.deinline(o, d, p, e)
	default:
		if err = b.save(o); err == nil {
			_, err = b.appear(d, p, e)
		}
		if err == nil {
			err = b.changeNames(o.inode.Ino, 0, d.Ino)
		}
	}
	if err != nil {
		return nil, err
	}
	b.charge(more)
	r := &canopyv1.Result{Attr: b.attr(o), DirAttr: b.dirAttr(d), Cookie: uint64(p.at)}
	if o.home == inDentry || o.moved {
		r.Place = o.place()
	}
	return r, nil
}

// linking returns what a further name in dir adds to quotas, if they allow it.
func (b *batch) linking(o *object, dir base.Ino) (changes, error) {
	if len(b.sub.quotas) == 0 {
		return nil, nil
	}
	var dirs []base.Ino
	switch o.home {
	case inOrphan:
		return b.adding(dir, 1, int64(chargedBytes(o.inode)))
	case inDentry:
		dirs = []base.Ino{o.entry.dir}
	default:
		var err error
		if dirs, err = b.namesOf(o.inode.Ino); err != nil {
			return nil, err
		}
	}
	before, err := b.holders(dirs, b.quotasAbove)
	if err != nil {
		return nil, err
	}
	after, err := b.holders(append(slices.Clone(dirs), dir), b.quotasAbove)
	if err != nil {
		return nil, err
	}
	var c changes
	c.regroup(before, after, int64(o.charged))
	return c, c.check()
}

// nameAnonymous embeds an inode that was made without a name in its first dentry.
// Who has it open finds it by the relocation (PROTOCOLS H1).
func (b *batch) nameAnonymous(o *object, d *directory, p position, e *schema.Dentry) error {
	parts, err := b.takeParts(o)
	if err != nil {
		return err
	}
	if err := b.w.Delete(b.key(o)); err != nil {
		return err
	}
	o.inode.Linkable = false
	e.Kind, e.Inode, e.Subtree = schema.Embedded, o.inode, 0
	o.home, o.size, o.charged = inDentry, o.inode.SizeBytes, chargedBytes(o.inode)
	if o.entry, err = b.appear(d, p, e); err != nil {
		return err
	}
	c := b.counters()
	c.Files++
	c.Bytes += o.size
	if err := b.putParts(o, parts); err != nil {
		return err
	}
	if err := b.relocate(o.inode.Ino, d.Ino, e.Name); err != nil {
		return err
	}
	return b.locateObject(o)
}

// deinline moves an embedded inode to a record of its own, in this subtree, and
// gives it the second name e.
func (b *batch) deinline(o *object, d *directory, p position, e *schema.Dentry) error {
	parts, err := b.takeParts(o)
	if err != nil {
		return err
	}
	first := o.entry
	old := &schema.Dentry{Kind: schema.Link, Name: first.Name, Appeared: first.Appeared, Ino: first.Ino, Type: first.Type, Subtree: b.subtree}
	if err := b.set(schema.DentryKey(b.id, b.subtree, first.dir, first.at), old); err != nil {
		return err
	}
	if _, err := b.appear(d, p, e); err != nil {
		return err
	}
	o.home, o.entry = inRecord, entry{old, first.dir, first.at}
	if err := b.save(o); err != nil {
		return err
	}
	for _, dir := range []base.Ino{first.dir, d.Ino} {
		if err := b.changeNames(o.inode.Ino, 0, dir); err != nil {
			return err
		}
	}
	if err := b.putParts(o, parts); err != nil {
		return err
	}
	if err := b.relocate(o.inode.Ino, 0, nil); err != nil {
		return err
	}
	return b.locateObject(o)
}

// unlink removes a name that is no directory's.
func unlink(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetUnlink()
	who := identityOf(op.Cred)
	if isDot(c.Name) || isDotDot(c.Name) {
		return nil, fserr.IsDir
	}
	d, s, err := b.nameInDirectory(who, base.Ino(c.Dir), c.Name)
	if err != nil {
		return nil, err
	}
	if !s.found() {
		return nil, fserr.NotFound
	}
	o, err := b.objectOf(s.entry)
	if err != nil {
		return nil, err
	}
	_, uid, _ := o.owner()
	if err := who.mayTakeName(d, uid); err != nil {
		return nil, err
	}
	if o.isDir() {
		return nil, fserr.IsDir
	}
	less, err := b.losing(o)
	if err != nil {
		return nil, err
	}
	// The xattrs of an embedded inode stand behind its dentry: it moves first.
	if err := b.loseName(o); err != nil {
		return nil, err
	}
	if err := b.vanish(d, s.entry); err != nil {
		return nil, err
	}
	b.charge(less)
	return &canopyv1.Result{DirAttr: b.dirAttr(d), Replaced: b.attr(o)}, nil
}

// rmdir removes the name of an empty directory.
func rmdir(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetRmdir()
	who := identityOf(op.Cred)
	if isDot(c.Name) {
		return nil, fserr.Invalid
	}
	if isDotDot(c.Name) {
		return nil, fserr.NotEmpty
	}
	d, s, err := b.nameInDirectory(who, base.Ino(c.Dir), c.Name)
	if err != nil {
		return nil, err
	}
	if !s.found() {
		return nil, fserr.NotFound
	}
	o, err := b.objectOf(s.entry)
	if err != nil {
		return nil, err
	}
	_, uid, _ := o.owner()
	if err := who.mayTakeName(d, uid); err != nil {
		return nil, err
	}
	if !o.isDir() {
		return nil, fserr.NotDir
	}
	if err := b.removesAll(o); err != nil {
		return nil, err
	}
	if o.dir.Entries > 0 {
		return nil, fserr.NotEmpty
	}
	if err := b.mayRemove(o.dir.Ino); err != nil {
		return nil, err
	}
	less, err := b.losing(o)
	if err != nil {
		return nil, err
	}
	if err := b.loseName(o); err != nil {
		return nil, err
	}
	if err := b.vanish(d, s.entry); err != nil {
		return nil, err
	}
	b.charge(less)
	return &canopyv1.Result{DirAttr: b.dirAttr(d), Replaced: b.attr(o)}, nil
}
