package client

// opKind names an operation for errors and metrics.
type opKind uint8

const (
	opLookup opKind = iota
	opGetAttr
	opReadlink
	opReadDir
	opGetXattr
	opListXattr
	opStatFS
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
	opKinds // how many there are
)

var opNames = [opKinds]string{
	"lookup", "getattr", "readlink", "readdir", "getxattr", "listxattr", "statfs", "access", "parent",
	"get_lock", "wait_lock", "cancel_wait", "get_quota", "list_quotas", "get_policy", "locate", "mark_names",
	"create", "mkdir", "mknod", "symlink", "link", "unlink", "rmdir", "rename", "setattr", "setxattr",
	"removexattr", "report_size", "reserve_append", "fill_append", "set_lock", "drop_locks", "set_quota", "set_policy", "open_session", "close_session",
}

func (k opKind) String() string { return opNames[k] }

// mutates reports whether operations of the kind carry a sequence number.
func (k opKind) mutates() bool { return k >= opCreate }
