// Package fserr is the one place for Canopy's error kinds: their fixed numbers
// on the wire, and what errno and gRPC code each becomes at the edges.
//
// Kinds are append-only; a number is never re-used. Use errors.Is(err,
// fserr.NotFound) to ask for a kind; never compare text.
package fserr

import (
	"syscall"

	"google.golang.org/grpc/codes"
)

// Kind is the class of a failure. The zero Kind means success. A Kind is an
// error itself, so that errors.Is(err, fserr.NotFound) works.
type Kind uint32

// The kinds. Append only.
const (
	OK           Kind = 0
	NotFound     Kind = 1  // a name that is not there
	Exist        Kind = 2  // a name that is there already
	Stale        Kind = 3  // an inode number that is gone (ESTALE, so that the kernel looks up again)
	NotDir       Kind = 4  // a directory was needed
	IsDir        Kind = 5  // a directory was given where none may be
	NotEmpty     Kind = 6  // rmdir or rename over a directory with entries
	Permission   Kind = 7  // EPERM: the operation is not allowed to this user or on this object
	Access       Kind = 8  // EACCES: permission bits deny it
	Invalid      Kind = 9  // an argument makes no sense
	NameTooLong  Kind = 10 // a name above 255 bytes, a path or symlink target above 4,095
	NoSpace      Kind = 11
	Quota        Kind = 12
	NoData       Kind = 13 // no such xattr
	Range        Kind = 14 // a buffer too small for an xattr
	TooBig       Kind = 15 // an xattr or argument too large (E2BIG)
	FileTooBig   Kind = 16 // beyond the largest file size (EFBIG)
	MLink        Kind = 17 // too many links
	NotSupported Kind = 18
	ReadOnly     Kind = 19
	CrossDevice  Kind = 20
	IO           Kind = 21 // bytes are lost or damaged
	BadHandle    Kind = 22
	Interrupted  Kind = 23
	Loop         Kind = 24
	Deadlock     Kind = 25
	WouldBlock   Kind = 26
	NoDevice     Kind = 27
	TextBusy     Kind = 28
	Again        Kind = 29
	Overflow     Kind = 30
	TimedOut     Kind = 31 // a deadline passed; the outcome is unknown
	NotConnected Kind = 32 // the client is closed or was never connected
	NoLocks      Kind = 33 // no more file locks (ENOLCK)
	Internal     Kind = 63 // a bug: the operation was refused and nothing was changed

	// The kinds below are answers of the protocol. They are no results: they are
	// never stored under a session (PROTOCOLS C4), and a client library retries
	// them; no user of a mount ever sees one.
	Busy           Kind = 64 // admission control: try again after the stated time
	NotHolder      Kind = 65 // this replica does not hold the shard's lease; a hint may say who does
	Moved          Kind = 66 // another shard owns the subtree now; the redirect says which
	Frozen         Kind = 67 // the subtree is about to be handed off
	Locked         Kind = 68 // met a transaction's intent
	SessionExpired Kind = 69 // the client's session is unknown here or ended (PROTOCOLS C3)
	BelowFloor     Kind = 70 // the client itself said that this request was answered (PROTOCOLS C2)
	UnknownShard   Kind = 71 // this node hosts no replica of the shard
	OldEpoch       Kind = 72 // a data request under an epoch that ended (PROTOCOLS J1, J3)
	Fenced         Kind = 73 // a newer incarnation of the same client wrote (PROTOCOLS J3)
	NotReady       Kind = 74 // the server is starting, stopping or recovering
	WrongCluster   Kind = 75 // the request is for another cluster
	Malformed      Kind = 76 // a message that cannot be decoded or breaks the protocol
	NoCapability   Kind = 77 // a data server was shown no capability that allows the call (PROTOCOLS J4)
	WrongVersion   Kind = 78 // the caller speaks a version of the protocol that the server does not
	CrossSubtree   Kind = 85 // the operation touches several subtrees: it takes a transaction (PROTOCOLS D)
)

type row struct {
	name  string
	errno syscall.Errno
	code  codes.Code
}

var table = map[Kind]row{
	OK:             {"ok", 0, codes.OK},
	NotFound:       {"no such file or directory", syscall.ENOENT, codes.NotFound},
	Exist:          {"file exists", syscall.EEXIST, codes.AlreadyExists},
	Stale:          {"stale file handle", syscall.ESTALE, codes.NotFound},
	NotDir:         {"not a directory", syscall.ENOTDIR, codes.FailedPrecondition},
	IsDir:          {"is a directory", syscall.EISDIR, codes.FailedPrecondition},
	NotEmpty:       {"directory not empty", syscall.ENOTEMPTY, codes.FailedPrecondition},
	Permission:     {"operation not permitted", syscall.EPERM, codes.PermissionDenied},
	Access:         {"permission denied", syscall.EACCES, codes.PermissionDenied},
	Invalid:        {"invalid argument", syscall.EINVAL, codes.InvalidArgument},
	NameTooLong:    {"file name too long", syscall.ENAMETOOLONG, codes.InvalidArgument},
	NoSpace:        {"no space left", syscall.ENOSPC, codes.ResourceExhausted},
	Quota:          {"quota exceeded", syscall.EDQUOT, codes.ResourceExhausted},
	NoData:         {"no such attribute", syscall.ENODATA, codes.NotFound},
	Range:          {"result does not fit", syscall.ERANGE, codes.OutOfRange},
	TooBig:         {"argument too large", syscall.E2BIG, codes.InvalidArgument},
	FileTooBig:     {"file too large", syscall.EFBIG, codes.OutOfRange},
	MLink:          {"too many links", syscall.EMLINK, codes.FailedPrecondition},
	NotSupported:   {"operation not supported", syscall.EOPNOTSUPP, codes.Unimplemented},
	ReadOnly:       {"read-only file system", syscall.EROFS, codes.FailedPrecondition},
	CrossDevice:    {"cross-device link", syscall.EXDEV, codes.FailedPrecondition},
	IO:             {"input/output error", syscall.EIO, codes.DataLoss},
	BadHandle:      {"bad file handle", syscall.EBADF, codes.InvalidArgument},
	Interrupted:    {"interrupted", syscall.EINTR, codes.Canceled},
	Loop:           {"too many symbolic links", syscall.ELOOP, codes.FailedPrecondition},
	Deadlock:       {"deadlock avoided", syscall.EDEADLK, codes.Aborted},
	WouldBlock:     {"would block", syscall.EWOULDBLOCK, codes.FailedPrecondition},
	NoDevice:       {"no such device or address", syscall.ENXIO, codes.FailedPrecondition},
	TextBusy:       {"text file busy", syscall.ETXTBSY, codes.FailedPrecondition},
	Again:          {"try again", syscall.EAGAIN, codes.Unavailable},
	Overflow:       {"value too large", syscall.EOVERFLOW, codes.OutOfRange},
	TimedOut:       {"timed out, outcome unknown", syscall.ETIMEDOUT, codes.DeadlineExceeded},
	NotConnected:   {"not connected", syscall.ENOTCONN, codes.Unavailable},
	NoLocks:        {"no locks available", syscall.ENOLCK, codes.ResourceExhausted},
	Internal:       {"internal error", syscall.EIO, codes.Internal},
	Busy:           {"busy", syscall.EAGAIN, codes.ResourceExhausted},
	NotHolder:      {"not the holder of the shard", syscall.EAGAIN, codes.Unavailable},
	Moved:          {"subtree is owned elsewhere", syscall.EAGAIN, codes.FailedPrecondition},
	Frozen:         {"subtree is being handed off", syscall.EAGAIN, codes.Unavailable},
	Locked:         {"locked by a transaction", syscall.EAGAIN, codes.Aborted},
	SessionExpired: {"session expired", syscall.EIO, codes.Unauthenticated},
	BelowFloor:     {"request was answered before", syscall.EIO, codes.FailedPrecondition},
	UnknownShard:   {"no replica of the shard here", syscall.EAGAIN, codes.Unavailable},
	OldEpoch:       {"old epoch", syscall.EAGAIN, codes.FailedPrecondition},
	Fenced:         {"fenced by a newer incarnation", syscall.EIO, codes.PermissionDenied},
	NotReady:       {"not ready", syscall.EAGAIN, codes.Unavailable},
	WrongCluster:   {"wrong cluster", syscall.EIO, codes.FailedPrecondition},
	WrongVersion:   {"wrong version", syscall.EPROTO, codes.FailedPrecondition},
	NoCapability:   {"no capability", syscall.EACCES, codes.PermissionDenied},
	CrossSubtree:   {"several subtrees", syscall.EXDEV, codes.FailedPrecondition},
	Malformed:      {"malformed message", syscall.EIO, codes.InvalidArgument},
}

// Error returns the kind in words.
func (k Kind) Error() string {
	if r, ok := table[k]; ok {
		return r.name
	}
	return "unknown error kind " + uitoa(uint32(k))
}

// Errno returns what a mount answers for the kind: EIO for an unknown one.
func (k Kind) Errno() syscall.Errno {
	if r, ok := table[k]; ok {
		return r.errno
	}
	return syscall.EIO
}

// Code returns the gRPC code of the kind.
func (k Kind) Code() codes.Code {
	if r, ok := table[k]; ok {
		return r.code
	}
	return codes.Unknown
}

// IsProtocol reports whether the kind is an answer of the protocol and no
// result: it is never stored, and client libraries act on it themselves.
func (k Kind) IsProtocol() bool { return k >= Busy }

func uitoa(v uint32) string {
	var b [10]byte
	i := len(b)
	for {
		i--
		b[i] = byte('0' + v%10)
		if v /= 10; v == 0 {
			return string(b[i:])
		}
	}
}
