package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// applyHandler is the table of operations that change the namespace: nil for any
// other. A handler returns a result, or an fserr.Kind and then changed nothing.
func applyHandler(op *canopyv1.Op) func(*batch, *canopyv1.Op) (*canopyv1.Result, error) {
	switch op.Call.(type) {
	case *canopyv1.Op_Create:
		return create
	case *canopyv1.Op_Mkdir:
		return mkdir
	case *canopyv1.Op_Mknod:
		return mknod
	case *canopyv1.Op_Symlink:
		return symlink
	case *canopyv1.Op_Link:
		return link
	case *canopyv1.Op_Unlink:
		return unlink
	case *canopyv1.Op_Rmdir:
		return rmdir
	case *canopyv1.Op_Rename:
		return rename
	case *canopyv1.Op_SetAttr:
		return setAttr
	case *canopyv1.Op_SetXattr:
		return setXattr
	case *canopyv1.Op_RemoveXattr:
		return removeXattr
	case *canopyv1.Op_ReportSize:
		return reportSize
	case *canopyv1.Op_ReserveAppend:
		return reserveAppend
	case *canopyv1.Op_FillAppend:
		return fillAppend
	case *canopyv1.Op_SetLock:
		return setLock
	case *canopyv1.Op_DropLocks:
		return dropLocks
	case *canopyv1.Op_SetQuota:
		return setQuota
	case *canopyv1.Op_SetPolicy:
		return setPolicy
	}
	return nil
}

// queryHandler is the table of reads: nil for any other operation.
func queryHandler(op *canopyv1.Op) func(*view, *canopyv1.Op) (*canopyv1.Result, error) {
	switch op.Call.(type) {
	case *canopyv1.Op_Lookup:
		return lookup
	case *canopyv1.Op_GetAttr:
		return getAttr
	case *canopyv1.Op_Readlink:
		return readlink
	case *canopyv1.Op_ReadDir:
		return readDir
	case *canopyv1.Op_GetXattr:
		return getXattr
	case *canopyv1.Op_ListXattr:
		return listXattr
	case *canopyv1.Op_StatFs:
		return statFS
	case *canopyv1.Op_Access:
		return access
	case *canopyv1.Op_Parent:
		return parent
	case *canopyv1.Op_MarkNames:
		return markNames
	case *canopyv1.Op_GetLock:
		return getLock
	case *canopyv1.Op_GetQuota:
		return getQuota
	case *canopyv1.Op_ListQuotas:
		return listQuotas
	case *canopyv1.Op_GetPolicy:
		return getPolicy
	}
	return nil
}

// IsRead reports whether op changes nothing: Query answers it, but for waits for
// locks, and whether marks stand, which only the holder knows. All others go through Apply.
func IsRead(op *canopyv1.Op) bool {
	switch op.GetCall().(type) {
	case *canopyv1.Op_WaitLock, *canopyv1.Op_CancelWait, *canopyv1.Op_Locate:
		return true
	}
	return op != nil && queryHandler(op) != nil
}
