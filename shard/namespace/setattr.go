package namespace

import (
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

const (
	maskMode     = uint32(canopyv1.SetAttrMask_SET_ATTR_MODE)
	maskUID      = uint32(canopyv1.SetAttrMask_SET_ATTR_UID)
	maskGID      = uint32(canopyv1.SetAttrMask_SET_ATTR_GID)
	maskSize     = uint32(canopyv1.SetAttrMask_SET_ATTR_SIZE)
	maskAtime    = uint32(canopyv1.SetAttrMask_SET_ATTR_ATIME)
	maskMtime    = uint32(canopyv1.SetAttrMask_SET_ATTR_MTIME)
	maskAtimeNow = uint32(canopyv1.SetAttrMask_SET_ATTR_ATIME_NOW)
	maskMtimeNow = uint32(canopyv1.SetAttrMask_SET_ATTR_MTIME_NOW)
	maskKillPriv = uint32(canopyv1.SetAttrMask_SET_ATTR_KILL_PRIV)
	maskAccessed = uint32(canopyv1.SetAttrMask_SET_ATTR_ACCESSED)
	maskAll      = maskAccessed<<1 - 1
)

// setAttr changes attributes: all that the mask names, or none.
func setAttr(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetSetAttr()
	who := identityOf(op.Cred)
	if c.Mask&^maskAll != 0 || c.Report != nil && (c.Mask&^maskAccessed == 0 || c.Mask&maskSize != 0) {
		return nil, fserr.Invalid
	}
	o, err := b.settable(who, c)
	if err != nil {
		return nil, err
	}
	if c.Mask&^maskAccessed == 0 {
		if c.Mask != 0 && b.accessed(o, c.AccessedNs) {
			return b.answer(o), b.write(o)
		}
		return b.answer(o), nil
	}
	if c.Report != nil {
		n, err := reportable(o, c.Report)
		if err != nil {
			return b.refusedReport(o, n), err
		}
		before := sawFile(n)
		if _, err := b.takeReport(o, n, c.Report); err != nil {
			return nil, err
		}
		if err := b.observe(o, before); err != nil {
			return nil, err
		}
	}
	if c.Mask&maskSize != 0 {
		if err := b.truncate(o, c.Size, who); err != nil {
			return nil, err
		}
	}
	if c.Mask&maskAccessed != 0 {
		b.accessed(o, c.AccessedNs)
	}
	b.setTimes(o, c)
	mode, uid, gid := o.owner()
	mode = who.chownedMode(mode, gid, c)
	if c.Mask&maskUID != 0 {
		uid = c.Uid
	}
	if c.Mask&maskGID != 0 {
		gid = c.Gid
	}
	if c.Mask&maskMode != 0 {
		mode = mode&schema.TypeMask | c.Mode&modeBits
		if !who.isRoot() && !who.inGroup(gid) {
			mode &^= setGID
		}
		if acl := o.aclOf([]byte(accessACLXattr)); *acl != nil {
			*acl = chmodACL(*acl, mode)
		}
	}
	if o.isDir() {
		o.dir.Mode, o.dir.UID, o.dir.GID = mode, uid, gid
	} else {
		o.inode.Mode, o.inode.UID, o.inode.GID = mode, uid, gid
		if c.Mask&(maskUID|maskGID|maskKillPriv) != 0 {
			if _, err := b.dropXattr(o, []byte(capabilityXattr)); err != nil {
				return nil, err
			}
		}
	}
	return b.finish(o)
}

// settable returns the object whose attributes who wants to change, and may.
func (b *batch) settable(who identity, c *canopyv1.SetAttrCall) (*object, error) {
	o, err := b.resolve(c.Place)
	if err == nil && c.Mask&^maskAccessed != 0 {
		err = b.changesAllOf(o)
	}
	if err != nil {
		return nil, err
	}
	return o, who.maySetAttr(o, c)
}

// maySetAttr checks everything that the mask names.
func (i identity) maySetAttr(o *object, c *canopyv1.SetAttrCall) error {
	mode, uid, gid := o.owner()
	owns := i.owns(uid)
	if c.Mask&maskSize != 0 {
		if _, err := o.file(); err != nil {
			return err
		}
		if c.Size > schema.MaxFileSize {
			return fserr.FileTooBig
		}
		if !c.ByHandle {
			if err := i.accessObject(o, mayWrite); err != nil {
				return err
			}
		}
	}
	if c.Mask&maskMode != 0 && !owns {
		return fserr.Permission
	}
	if c.Mask&maskUID != 0 && !i.isRoot() && (!owns || c.Uid != uid) {
		return fserr.Permission
	}
	if c.Mask&maskGID != 0 && !i.isRoot() && (!owns || c.Gid != gid && !i.inGroup(c.Gid)) {
		return fserr.Permission
	}
	if c.Mask&^maskAccessed == maskKillPriv && !c.ByHandle && !owns && i.chownedMode(mode, gid, c) != mode {
		return fserr.Permission // chown(-1, -1)
	}
	if c.Mask&(maskAtime|maskMtime) != 0 && !owns {
		return fserr.Permission
	}
	if c.Mask&(maskAtimeNow|maskMtimeNow) != 0 && !owns {
		return i.accessObject(o, mayWrite)
	}
	return nil
}

// accessEvery is after how long a read moves an atime that is newer than all changes.
const accessEvery = int64(24 * time.Hour)

// accessed moves the atime of what was read to the time at which a client says it
// was, by relatime's rule: if it is not newer than mtime and ctime, or a day old. A
// read tells late, and of the state at its time: what changed since leaves the atime
// as old as that is (it may have been set), and the next read moves it again.
// ctime stays. It reports whether the caller has to write the object.
func (b *batch) accessed(o *object, readNS int64) bool {
	atime, mtime, ctime := o.times()
	readNS = min(readNS, b.nowNS)
	due := *atime <= *mtime || *atime <= ctime || readNS-*atime >= accessEvery
	if !due || readNS < ctime || readNS == *atime {
		return false
	}
	*atime = readNS
	if o.isDir() {
		o.dir.Version++
	} else {
		o.inode.Version++
	}
	return true
}

func (b *batch) setTimes(o *object, c *canopyv1.SetAttrCall) {
	atime, mtime, _ := o.times()
	switch {
	case c.Mask&maskAtimeNow != 0:
		*atime = b.nowNS
	case c.Mask&maskAtime != 0:
		*atime = c.AtimeNs
	}
	switch {
	case c.Mask&maskMtimeNow != 0:
		*mtime = b.nowNS
	case c.Mask&maskMtime != 0:
		*mtime = c.MtimeNs
	}
}

// chownedMode returns the mode after a change of owner or group, by root too, or
// a write by somebody else: no set-user-id and no set-group-id on what can be
// executed, nor set-group-id for somebody outside the old group.
func (i identity) chownedMode(mode, oldGID uint32, c *canopyv1.SetAttrCall) uint32 {
	if mode&schema.TypeMask == schema.TypeDir || c.Mask&(maskUID|maskGID|maskKillPriv) == 0 {
		return mode
	}
	if !i.isRoot() && !i.inGroup(oldGID) {
		mode &^= setGID
	}
	return withoutPrivileges(mode)
}
