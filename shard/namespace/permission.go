package namespace

import (
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// Bits of access(2).
const (
	mayExec  = 1
	mayWrite = 2
	mayRead  = 4
)

// Mode bits beside the nine of permission.
const (
	setUID    = 0o4000
	setGID    = 0o2000
	sticky    = 0o1000
	execAll   = 0o111
	execGroup = 0o010
	groupAll  = 0o070
	modeBits  = 0o7777
)

// nobody is for whom an operation without a credential is checked.
const nobody = 65534

// identity is for whom an operation runs. It passes permission checks as root
// does on Linux when uid is 0.
type identity struct {
	uid, gid uint32
	groups   []uint32
}

func identityOf(c *canopyv1.Credential) identity {
	if c == nil {
		return identity{uid: nobody, gid: nobody}
	}
	return identity{c.Uid, c.Gid, c.Groups}
}

func (i identity) isRoot() bool            { return i.uid == 0 }
func (i identity) inGroup(gid uint32) bool { return i.gid == gid || slices.Contains(i.groups, gid) }

// owns reports whether i may do what only the owner may.
func (i identity) owns(uid uint32) bool { return i.isRoot() || i.uid == uid }

// access checks the wanted bits (mayRead, mayWrite, mayExec) as Linux does: of an
// ACL whose mask is empty only the mode counts.
func (i identity) access(mode, uid, gid uint32, acl schema.ACL, want uint32) error {
	if i.isRoot() {
		if want&mayExec != 0 && mode&schema.TypeMask != schema.TypeDir && mode&execAll == 0 {
			return fserr.Access
		}
		return nil
	}
	bits := mode
	switch {
	case i.uid == uid:
		bits >>= 6
	case acl != nil && mode&groupAll != 0:
		return i.aclAccess(acl, gid, want)
	case i.inGroup(gid):
		bits >>= 3
	}
	if want&^bits != 0 {
		return fserr.Access
	}
	return nil
}

func (i identity) accessObject(o *object, want uint32) error {
	mode, uid, gid := o.owner()
	return i.access(mode, uid, gid, *o.aclOf([]byte(accessACLXattr)), want)
}

// dataRights returns what i may do with the bytes of a regular file, as DataRight
// bits (PROTOCOLS J4); of anything else 0.
func (i identity) dataRights(o *object) (rights canopyv1.DataRight) {
	if o.isDir() || !o.inode.IsFile() {
		return 0
	}
	if i.accessObject(o, mayRead) == nil {
		rights |= canopyv1.DataRight_DATA_RIGHT_READ
	}
	if i.accessObject(o, mayWrite) == nil {
		rights |= canopyv1.DataRight_DATA_RIGHT_WRITE
	}
	return rights
}

func (i identity) accessDir(d *directory, want uint32) error {
	return i.access(d.Mode, d.UID, d.GID, d.ACL, want)
}

// mayAddName checks that i may make a name in d. A removed directory has none.
func (i identity) mayAddName(d *directory) error {
	if d.Removed {
		return fserr.NotFound
	}
	return i.accessDir(d, mayWrite|mayExec)
}

// mayTakeName checks that i may remove or replace the name of an inode of owner
// uid in d: in a sticky directory only the owner of either may.
func (i identity) mayTakeName(d *directory, uid uint32) error {
	if err := i.accessDir(d, mayWrite|mayExec); err != nil {
		return err
	}
	if d.Mode&sticky != 0 && !i.owns(d.UID) && !i.owns(uid) {
		return fserr.Permission
	}
	return nil
}

// inherit returns group, mode and access ACL of something new in d with the wanted
// mode: a set-group-id directory hands on its group, and the bit to directories; a
// default ACL takes the place of the umask. In Linux's order: the set-group-id bit
// first, by the mode as it was asked for.
func (i identity) inherit(d *directory, mode, umask uint32) (gid, newMode uint32, acl schema.ACL) {
	gid = i.gid
	if d.Mode&setGID != 0 {
		gid = d.GID
		switch {
		case mode&schema.TypeMask == schema.TypeDir:
			mode |= setGID
		case mode&(setGID|execGroup) == setGID|execGroup && !i.isRoot() && !i.inGroup(d.GID):
			mode &^= setGID
		}
	}
	switch {
	case mode&schema.TypeMask == schema.TypeLink:
	case d.DefaultACL != nil:
		mode, acl = inheritACL(d.DefaultACL, mode)
	default:
		mode &^= umask & 0o777
	}
	return gid, mode, acl
}

// withoutPrivileges returns mode as a write by a user without CAP_FSETID leaves
// it: no set-user-id, and no set-group-id where that means execution.
func withoutPrivileges(mode uint32) uint32 {
	mode &^= setUID
	if mode&execGroup != 0 {
		mode &^= setGID
	}
	return mode
}
