package mds

import (
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Bounds on what comes from outside. Apply checks what matters (PROTOCOLS A1);
// these keep nonsense out of the log.
const (
	maxNameBytes   = 255
	maxTargetBytes = 4095
	maxXattrBytes  = 64 << 10
	maxGroups      = 1 << 16
	maxPageBytes   = 1 << 20 // of a listing
	maxHostBytes   = 255
)

// opType numbers the calls, for tables.
type opType uint8

const (
	opUnknown opType = iota
	opLookup
	opGetAttr
	opReadlink
	opReadDir
	opGetXattr
	opListXattr
	opStatFs
	opAccess
	opParent
	opGetLock
	opWaitLock
	opCancelWait
	opGetQuota
	opListQuotas
	opGetPolicy
	opLocate
	opMarkNames
	opCreate
	opMkdir
	opMknod
	opSymlink
	opLink
	opUnlink
	opRmdir
	opRename
	opSetAttr
	opSetXattr
	opRemoveXattr
	opReportSize
	opReserveAppend
	opFillAppend
	opSetLock
	opDropLocks
	opSetQuota
	opSetPolicy
	opOpenSession
	opCloseSession
	opTypes
)

// firstWrite is the first type that changes something.
const firstWrite = opCreate

var opNames = [opTypes]string{
	"unknown", "lookup", "getattr", "readlink", "readdir", "getxattr", "listxattr", "statfs", "access", "parent",
	"get_lock", "wait_lock", "cancel_wait", "get_quota", "list_quotas", "get_policy", "locate", "mark_names",
	"create", "mkdir", "mknod", "symlink", "link", "unlink", "rmdir", "rename", "setattr", "setxattr", "removexattr",
	"report_size", "reserve_append", "fill_append", "set_lock", "drop_locks", "set_quota", "set_policy", "open_session", "close_session",
}

func (t opType) String() string { return opNames[t] }

// isWrite tells whether the call goes through the log.
func (t opType) isWrite() bool { return t >= firstWrite }

// malformed is the answer to a message that breaks the protocol.
func malformed(format string, args ...any) error {
	return fserr.New(fserr.Malformed, "request", fmt.Errorf(format, args...))
}

// validate checks one operation from outside and returns its type.
func validate(op *canopyv1.Op) (opType, error) {
	kind, err := validateCall(op)
	if err != nil {
		return kind, err
	}
	switch {
	case kind == opUnknown:
		return kind, malformed("no call that this node knows")
	case op.Id == 0:
		return kind, malformed("%v without an id", kind)
	case kind.isWrite() && op.Seq == 0:
		return kind, malformed("%v without a sequence number", kind)
	case !kind.isWrite() && op.Seq != 0:
		return kind, malformed("%v with a sequence number", kind)
	case (op.Subtree == 0) != (kind == opOpenSession || kind == opCloseSession || kind == opLocate):
		return kind, malformed("%v in subtree %d", kind, op.Subtree)
	case len(op.GetCred().GetGroups()) > maxGroups:
		return kind, malformed("%d groups", len(op.Cred.Groups))
	}
	return kind, nil
}

// checkName bounds names that an operation makes or looks for.
func checkName(names ...[]byte) error {
	for _, name := range names {
		if len(name) > maxNameBytes {
			return fserr.NameTooLong
		}
	}
	return nil
}

func validPlace(p *canopyv1.Place) bool {
	return p != nil && len(p.Name) <= maxNameBytes && (p.Ino != 0 || (p.Dir != 0 && len(p.Name) > 0))
}

func checkPlace(p *canopyv1.Place) error {
	if !validPlace(p) {
		return malformed("a place without inode or name")
	}
	return nil
}

// validateCall finds the call's type and checks its operands.
func validateCall(op *canopyv1.Op) (opType, error) {
	switch c := op.GetCall().(type) {
	case *canopyv1.Op_Lookup:
		return opLookup, checkName(c.Lookup.GetName())
	case *canopyv1.Op_GetAttr:
		return opGetAttr, checkPlace(c.GetAttr.GetPlace())
	case *canopyv1.Op_Readlink:
		return opReadlink, checkPlace(c.Readlink.GetPlace())
	case *canopyv1.Op_ReadDir:
		return opReadDir, validateReadDir(c.ReadDir)
	case *canopyv1.Op_GetXattr:
		return opGetXattr, checkPlace(c.GetXattr.GetPlace())
	case *canopyv1.Op_ListXattr:
		return opListXattr, checkPlace(c.ListXattr.GetPlace())
	case *canopyv1.Op_StatFs:
		if p := c.StatFs.GetPlace(); p != nil {
			return opStatFs, checkPlace(p)
		}
		return opStatFs, nil
	case *canopyv1.Op_Access:
		return opAccess, checkPlace(c.Access.GetPlace())
	case *canopyv1.Op_Parent:
		return opParent, nil
	case *canopyv1.Op_GetLock:
		return opGetLock, checkPlace(c.GetLock.GetPlace())
	case *canopyv1.Op_WaitLock:
		return opWaitLock, checkLock(c.WaitLock.GetPlace(), c.WaitLock.GetLock())
	case *canopyv1.Op_CancelWait:
		return opCancelWait, nil
	case *canopyv1.Op_GetQuota:
		return opGetQuota, checkPlace(c.GetQuota.GetPlace())
	case *canopyv1.Op_ListQuotas:
		return opListQuotas, nil
	case *canopyv1.Op_GetPolicy:
		return opGetPolicy, nil
	case *canopyv1.Op_Locate:
		if c.Locate.GetIno() == 0 {
			return opLocate, malformed("nothing to locate")
		}
		return opLocate, nil
	case *canopyv1.Op_MarkNames:
		if c.MarkNames.GetDir() == 0 || c.MarkNames.GetToken() == 0 {
			return opMarkNames, malformed("a mark without directory or token")
		}
		return opMarkNames, nil
	case *canopyv1.Op_OpenSession:
		return opOpenSession, validateOpenSession(c.OpenSession)
	case *canopyv1.Op_CloseSession:
		return opCloseSession, nil
	}
	return validateWrite(op)
}

func validateWrite(op *canopyv1.Op) (opType, error) {
	switch c := op.GetCall().(type) {
	case *canopyv1.Op_Create:
		return opCreate, checkName(c.Create.GetName())
	case *canopyv1.Op_Mkdir:
		return opMkdir, checkName(c.Mkdir.GetName())
	case *canopyv1.Op_Mknod:
		return opMknod, checkName(c.Mknod.GetName())
	case *canopyv1.Op_Symlink:
		if len(c.Symlink.GetTarget()) > maxTargetBytes {
			return opSymlink, fserr.NameTooLong
		}
		return opSymlink, checkName(c.Symlink.GetName())
	case *canopyv1.Op_Link:
		if err := checkPlace(c.Link.GetPlace()); err != nil {
			return opLink, err
		}
		return opLink, checkName(c.Link.GetName())
	case *canopyv1.Op_Unlink:
		return opUnlink, checkName(c.Unlink.GetName())
	case *canopyv1.Op_Rmdir:
		return opRmdir, checkName(c.Rmdir.GetName())
	case *canopyv1.Op_Rename:
		return opRename, checkName(c.Rename.GetSrcName(), c.Rename.GetDstName())
	case *canopyv1.Op_SetAttr:
		return opSetAttr, checkPlace(c.SetAttr.GetPlace())
	case *canopyv1.Op_SetXattr:
		if len(c.SetXattr.GetName()) > maxNameBytes {
			return opSetXattr, fserr.Range
		}
		if len(c.SetXattr.GetValue()) > maxXattrBytes {
			return opSetXattr, fserr.TooBig
		}
		return opSetXattr, checkPlace(c.SetXattr.GetPlace())
	case *canopyv1.Op_RemoveXattr:
		if len(c.RemoveXattr.GetName()) > maxNameBytes {
			return opRemoveXattr, fserr.Range
		}
		return opRemoveXattr, checkPlace(c.RemoveXattr.GetPlace())
	case *canopyv1.Op_ReportSize:
		return opReportSize, checkPlace(c.ReportSize.GetPlace())
	case *canopyv1.Op_ReserveAppend:
		return opReserveAppend, checkPlace(c.ReserveAppend.GetPlace())
	case *canopyv1.Op_FillAppend:
		return opFillAppend, checkPlace(c.FillAppend.GetPlace())
	case *canopyv1.Op_SetLock:
		return opSetLock, checkLock(c.SetLock.GetPlace(), c.SetLock.GetLock())
	case *canopyv1.Op_DropLocks:
		return opDropLocks, checkPlace(c.DropLocks.GetPlace())
	case *canopyv1.Op_SetQuota:
		return opSetQuota, nil
	case *canopyv1.Op_SetPolicy:
		if c.SetPolicy.GetDir() == 0 {
			return opSetPolicy, malformed("a policy without a directory")
		}
		return opSetPolicy, nil
	}
	return opUnknown, nil
}

// checkLock wants a lock of a file that is named by its number.
func checkLock(p *canopyv1.Place, l *canopyv1.Lock) error {
	if p.GetIno() == 0 || l == nil {
		return malformed("a lock without an inode")
	}
	return checkPlace(p)
}

// validateReadDir bounds a page, so that an answer fits a message.
func validateReadDir(c *canopyv1.ReadDirCall) error {
	if c == nil {
		return malformed("an empty call")
	}
	if c.MaxBytes == 0 || c.MaxBytes > maxPageBytes {
		c.MaxBytes = maxPageBytes
	}
	return nil
}

func validateOpenSession(c *canopyv1.OpenSessionCall) error {
	if len(c.GetHost()) > maxHostBytes || len(c.GetMount()) > maxTargetBytes {
		return malformed("a session's host or mount of %d and %d bytes", len(c.GetHost()), len(c.GetMount()))
	}
	return nil
}
