package namespace

import (
	"bytes"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// Limits of extended attributes, as of Linux.
const (
	MaxXattrNameBytes  = 255
	MaxXattrValueBytes = 64 << 10
	MaxXattrListBytes  = 64 << 10 // all names of an inode, those of ACLs too, each with its NUL
)

// Flags of setxattr(2).
const (
	xattrCreate  = 1
	xattrReplace = 2
)

// capabilityXattr is dropped when bytes change, as set-user-id is.
const capabilityXattr = "security.capability"

// xattrAccess checks the name space's rules: user.* as the object's permissions
// say, and only on files and directories; trusted.* by root; security.* read by
// all and written by root. Others, all of system.* but ACLs, are not supported.
func (i identity) xattrAccess(o *object, name []byte, want uint32) error {
	prefix, rest, _ := bytes.Cut(name, []byte{'.'})
	refused := fserr.NoData
	if want == mayWrite {
		refused = fserr.Permission
	}
	switch string(prefix) {
	case "user":
		mode, uid, _ := o.owner()
		kind := mode & schema.TypeMask
		if kind != schema.TypeFile && kind != schema.TypeDir {
			return refused
		}
		if kind == schema.TypeDir && mode&sticky != 0 && want == mayWrite && !i.owns(uid) {
			return fserr.Permission
		}
		if err := i.accessObject(o, want); err != nil {
			return err
		}
	case "trusted":
		if !i.isRoot() {
			return refused
		}
	case "security":
		if want == mayWrite && !i.isRoot() {
			return fserr.Permission
		}
	case "system":
		return fserr.NotSupported
	default:
		if err := i.accessObject(o, want); err != nil { // the kernel asks for it first
			return err
		}
		return fserr.NotSupported
	}
	if len(rest) == 0 {
		return fserr.Invalid
	}
	return nil
}

func checkXattrName(name []byte) error {
	if len(name) == 0 || len(name) > MaxXattrNameBytes || bytes.IndexByte(name, 0) >= 0 {
		return fserr.Range
	}
	return nil
}

func setXattr(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetSetXattr()
	if c.Flags&^(xattrCreate|xattrReplace) != 0 {
		return nil, fserr.Invalid
	}
	if err := checkXattrName(c.Name); err != nil {
		return nil, err
	}
	if isACLXattr(c.Name) {
		return b.setACL(op, c.Place, c.Name, c.Value)
	}
	if len(c.Value) > MaxXattrValueBytes {
		return nil, fserr.TooBig
	}
	o, err := b.resolve(c.Place)
	if err == nil {
		err = b.changesAllOf(o)
	}
	if err != nil {
		return nil, err
	}
	if err := identityOf(op.Cred).xattrAccess(o, c.Name, mayWrite); err != nil {
		return nil, err
	}
	key := schema.XattrKey(b.key(o), c.Name)
	old, exists, err := b.xattrValue(o, key)
	switch {
	case err != nil:
		return nil, err
	case exists && c.Flags&xattrCreate != 0:
		return nil, fserr.Exist
	case !exists && c.Flags&xattrReplace != 0:
		return nil, fserr.NoData
	case exists && bytes.Equal(old, c.Value):
		return b.answer(o), nil // as ext4: nothing changes, ctime neither
	}
	if !exists {
		names := o.xattrNames()
		if *names+uint32(len(c.Name))+1 > MaxXattrListBytes-aclNameBytes {
			return nil, fserr.NoSpace
		}
		*names += uint32(len(c.Name)) + 1
	}
	if err := b.w.Set(key, c.Value); err != nil {
		return nil, err
	}
	return b.finish(o)
}

func removeXattr(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetRemoveXattr()
	if err := checkXattrName(c.Name); err != nil {
		return nil, err
	}
	if isACLXattr(c.Name) {
		return b.setACL(op, c.Place, c.Name, nil)
	}
	o, err := b.resolve(c.Place)
	if err == nil {
		err = b.changesAllOf(o)
	}
	if err != nil {
		return nil, err
	}
	if err := identityOf(op.Cred).xattrAccess(o, c.Name, mayWrite); err != nil {
		return nil, err
	}
	found, err := b.dropXattr(o, c.Name)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fserr.NoData
	}
	return b.finish(o)
}

// finish writes a changed object and answers with its attributes.
func (b *batch) finish(o *object) (*canopyv1.Result, error) {
	if err := b.changed(o); err != nil {
		return nil, err
	}
	return b.answer(o), nil
}

// answer returns the object's attributes, and its place if it was not where it
// was addressed.
func (v *view) answer(o *object) *canopyv1.Result {
	r := &canopyv1.Result{Attr: v.attr(o)}
	if o.moved {
		r.Place = o.place()
	}
	return r
}

// xattrValue returns the value at one of o's xattr keys, valid as a Get's.
func (v *view) xattrValue(o *object, key []byte) (value []byte, found bool, err error) {
	if *o.xattrNames() == 0 {
		return nil, false, nil
	}
	return v.r.Get(key)
}

// dropXattr deletes one xattr if it is there. The object is the caller's to write.
func (b *batch) dropXattr(o *object, name []byte) (bool, error) {
	key := schema.XattrKey(b.key(o), name)
	_, found, err := b.xattrValue(o, key)
	if err != nil || !found {
		return false, err
	}
	*o.xattrNames() -= uint32(len(name)) + 1
	return true, b.w.Delete(key)
}

func getXattr(v *view, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetGetXattr()
	if err := checkXattrName(c.Name); err != nil {
		return nil, err
	}
	o, err := v.resolve(c.Place)
	if err != nil {
		return nil, err
	}
	if isACLXattr(c.Name) {
		return v.getACL(o, c.Name)
	}
	if err := identityOf(op.Cred).xattrAccess(o, c.Name, mayRead); err != nil {
		return nil, err
	}
	b, found, err := v.xattrValue(o, schema.XattrKey(v.key(o), c.Name))
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fserr.NoData
	}
	return &canopyv1.Result{Data: bytes.Clone(b)}, nil
}

// listXattr answers the names, each ended by NUL. trusted.* is shown to root only.
func listXattr(v *view, op *canopyv1.Op) (*canopyv1.Result, error) {
	o, err := v.resolve(op.GetListXattr().Place)
	if err != nil {
		return nil, err
	}
	r := &canopyv1.Result{Data: o.appendACLNames(nil)}
	if *o.xattrNames() == 0 {
		return r, nil
	}
	root := identityOf(op.Cred).isRoot()
	owner := v.key(o)
	lo, hi := schema.XattrRange(owner)
	return r, v.r.Scan(lo, hi, func(key, _ []byte) (bool, error) {
		name := schema.XattrName(owner, key)
		if root || !bytes.HasPrefix(name, []byte("trusted.")) {
			r.Data = append(append(r.Data, name...), 0)
		}
		return true, nil
	})
}
