package namespace

import (
	"encoding/binary"
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// POSIX ACLs follow Linux (fs/posix_acl.c) rule by rule: programs know them by
// their xattrs, the mode always shows owner, mask and others of the access ACL.

// Names of the ACLs as extended attributes.
const (
	accessACLXattr  = "system.posix_acl_access"
	defaultACLXattr = "system.posix_acl_default"
)

// aclNameBytes is what both names take in a list of names.
const aclNameBytes = uint32(len(accessACLXattr) + len(defaultACLXattr) + 2)

// MaxACLEntries is the longest ACL: what a page holds, the most that the kernel
// hands to a mount.
const MaxACLEntries = 511

const (
	permAll    = 7
	aclVersion = 2
)

func isACLXattr(name []byte) bool {
	return string(name) == accessACLXattr || string(name) == defaultACLXattr
}

// parseACL reads the kernel's form of an ACL; no entries are no ACL.
func parseACL(b []byte) (schema.ACL, error) {
	switch {
	case len(b) == 0:
		return nil, nil
	case len(b) < 4:
		return nil, fserr.Invalid
	case binary.LittleEndian.Uint32(b) != aclVersion:
		return nil, fserr.NotSupported
	case len(b)%8 != 4:
		return nil, fserr.Invalid
	}
	b = b[4:]
	var a schema.ACL
	for ; len(b) > 0; b = b[8:] {
		perm := binary.LittleEndian.Uint16(b[2:])
		e := schema.ACLEntry{Tag: schema.ACLTag(binary.LittleEndian.Uint16(b)), Perm: uint8(min(perm, permAll+1))}
		switch e.Tag {
		case schema.ACLUser, schema.ACLGroup:
			if e.ID = binary.LittleEndian.Uint32(b[4:]); e.ID == 1<<32-1 {
				return nil, fserr.Invalid
			}
		case schema.ACLUserObj, schema.ACLGroupObj, schema.ACLMask, schema.ACLOther:
		default:
			return nil, fserr.Invalid
		}
		a = append(a, e)
	}
	return a, nil
}

// formatACL returns the kernel's form of an ACL.
func formatACL(a schema.ACL) []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+8*len(a)), aclVersion)
	for _, e := range a {
		id := e.ID
		if !e.Tag.Named() {
			id = 1<<32 - 1
		}
		b = binary.LittleEndian.AppendUint16(b, uint16(e.Tag))
		b = binary.LittleEndian.AppendUint16(b, uint16(e.Perm))
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return b
}

// checkACL refuses a list that is out of order or lacks what must be there.
func checkACL(a schema.ACL) error {
	order := [...]schema.ACLTag{schema.ACLUserObj, schema.ACLUser, schema.ACLGroupObj, schema.ACLGroup, schema.ACLMask, schema.ACLOther}
	var have [len(order)]int
	at := 0
	for _, e := range a {
		i := slices.Index(order[:], e.Tag)
		if e.Perm > permAll || i < at || have[i] > 0 && !e.Tag.Named() {
			return fserr.Invalid
		}
		at = i
		have[i]++
	}
	named := have[1]+have[3] > 0
	if have[0] == 0 || have[2] == 0 || have[5] == 0 || named && have[4] == 0 {
		return fserr.Invalid
	}
	if len(a) > MaxACLEntries {
		return fserr.NoSpace
	}
	return nil
}

// modeOfACL returns the permission bits that an access ACL stands for, and
// whether they say all of it.
func modeOfACL(a schema.ACL) (bits uint32, all bool) {
	all = true
	var group, mask uint32
	for _, e := range a {
		p := uint32(e.Perm)
		switch e.Tag {
		case schema.ACLUserObj:
			bits |= p << 6
		case schema.ACLGroupObj:
			group = p
		case schema.ACLOther:
			bits |= p
		case schema.ACLMask:
			mask, all = p, false
		default:
			all = false
		}
	}
	if hasMask(a) {
		group = mask
	}
	return bits | group<<3, all
}

func hasMask(a schema.ACL) bool {
	return slices.ContainsFunc(a, func(e schema.ACLEntry) bool { return e.Tag == schema.ACLMask })
}

// chmodACL returns an access ACL after a change of the mode: the group bits are
// the mask's, if there is one.
func chmodACL(a schema.ACL, mode uint32) schema.ACL {
	a = slices.Clone(a)
	masked := hasMask(a)
	for i, e := range a {
		switch {
		case e.Tag == schema.ACLUserObj:
			a[i].Perm = uint8(mode >> 6 & permAll)
		case e.Tag == schema.ACLMask, e.Tag == schema.ACLGroupObj && !masked:
			a[i].Perm = uint8(mode >> 3 & permAll)
		case e.Tag == schema.ACLOther:
			a[i].Perm = uint8(mode & permAll)
		}
	}
	return a
}

// inheritACL returns mode and access ACL of what is made, with the wanted mode,
// in a directory with the default ACL a: each bounds the other.
func inheritACL(a schema.ACL, mode uint32) (uint32, schema.ACL) {
	a = slices.Clone(a)
	masked := hasMask(a)
	for i, e := range a {
		bits := mode
		switch {
		case e.Tag == schema.ACLUserObj:
			bits >>= 6
		case e.Tag == schema.ACLMask, e.Tag == schema.ACLGroupObj && !masked:
			bits >>= 3
		case e.Tag == schema.ACLOther:
		default:
			continue
		}
		a[i].Perm &= uint8(bits & permAll)
	}
	bits, all := modeOfACL(a)
	if all {
		a = nil
	}
	return mode&^0o777 | bits, a
}

// aclAccess checks the wanted bits by an access ACL, for somebody who is not the
// owner.
func (i identity) aclAccess(a schema.ACL, gid, want uint32) error {
	bound := uint32(permAll)
	for _, e := range a {
		if e.Tag == schema.ACLMask {
			bound = uint32(e.Perm)
		}
	}
	allowed := func(perm uint32) error {
		if want&^perm != 0 {
			return fserr.Access
		}
		return nil
	}
	inSome := false
	for _, e := range a {
		id := gid
		switch e.Tag {
		case schema.ACLUser:
			if e.ID == i.uid {
				return allowed(uint32(e.Perm) & bound)
			}
			continue
		case schema.ACLGroup:
			id = e.ID
		case schema.ACLGroupObj:
		case schema.ACLOther:
			if inSome {
				return fserr.Access
			}
			return allowed(uint32(e.Perm))
		default:
			continue
		}
		if i.inGroup(id) {
			inSome = true
			if want&^uint32(e.Perm) == 0 { // the first group that gives all, and its mask, decide
				return allowed(uint32(e.Perm) & bound)
			}
		}
	}
	return fserr.Access
}

// aclOf returns where the ACL of that name stands, nil if o cannot have it.
func (o *object) aclOf(name []byte) *schema.ACL {
	switch {
	case o.isDir() && string(name) == defaultACLXattr:
		return &o.dir.DefaultACL
	case o.isDir():
		return &o.dir.ACL
	case string(name) == accessACLXattr:
		return &o.inode.ACL
	}
	return nil
}

func (o *object) isLink() bool {
	return !o.isDir() && o.inode.Mode&schema.TypeMask == schema.TypeLink
}

// setACL sets an ACL, or removes it by an empty value.
func (b *batch) setACL(op *canopyv1.Op, place *canopyv1.Place, name, value []byte) (*canopyv1.Result, error) {
	a, err := parseACL(value)
	if err != nil {
		return nil, err
	}
	o, err := b.resolve(place)
	if err == nil {
		err = b.changesAllOf(o)
	}
	if err != nil {
		return nil, err
	}
	if o.isLink() {
		return nil, fserr.NotSupported
	}
	at := o.aclOf(name)
	if at == nil {
		if a != nil {
			return nil, fserr.Access
		}
		return b.answer(o), nil
	}
	who := identityOf(op.Cred)
	mode, uid, gid := o.owner()
	if !who.owns(uid) {
		return nil, fserr.Permission
	}
	newMode := mode
	if a != nil {
		if err := checkACL(a); err != nil {
			return nil, err
		}
		if string(name) == accessACLXattr {
			bits, all := modeOfACL(a)
			newMode = mode&^0o777 | bits
			if !who.isRoot() && !who.inGroup(gid) {
				newMode &^= setGID
			}
			if all {
				a = nil
			}
		}
	}
	if newMode == mode && slices.Equal(*at, a) {
		return b.answer(o), nil // as ext4: nothing changes, ctime neither
	}
	*at = a
	o.setMode(newMode)
	return b.finish(o)
}

func (o *object) setMode(mode uint32) {
	if o.isDir() {
		o.dir.Mode = mode
	} else {
		o.inode.Mode = mode
	}
}

// getACL answers an ACL: everybody may know it.
func (v *view) getACL(o *object, name []byte) (*canopyv1.Result, error) {
	if o.isLink() {
		return nil, fserr.NotSupported
	}
	at := o.aclOf(name)
	if at == nil || *at == nil {
		return nil, fserr.NoData
	}
	return &canopyv1.Result{Data: formatACL(*at)}, nil
}

// appendACLNames appends the names of the ACLs that there are.
func (o *object) appendACLNames(dst []byte) []byte {
	for _, name := range []string{accessACLXattr, defaultACLXattr} {
		if at := o.aclOf([]byte(name)); at != nil && *at != nil {
			dst = append(append(dst, name...), 0)
		}
	}
	return dst
}

// aclKinds returns what Attr.Acls says.
func aclKinds(access, inherited schema.ACL) uint32 {
	kinds := canopyv1.AclKind_ACL_NONE
	if access != nil {
		kinds |= canopyv1.AclKind_ACL_ACCESS
	}
	if inherited != nil {
		kinds |= canopyv1.AclKind_ACL_DEFAULT
	}
	return uint32(kinds)
}
