package mountopt

import (
	"log/slog"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// MaxWriteBytes is the largest READ and WRITE. One WRITE of an O_APPEND handle
// is atomic (FUSE K8).
const MaxWriteBytes = 1 << 20

// ReadAheadBytes is how far the kernel reads ahead in a file read in order, if
// this process may set it (root).
const ReadAheadBytes = 4 << 20

// maxBackground bounds the requests that no process waits for: read-ahead,
// RELEASE, asynchronous direct I/O.
const maxBackground = 128

// capabilities of FUSE K1 that go-fuse does not ask for by itself. It asks for
// PARALLEL_DIROPS, READDIRPLUS, ASYNC_READ, BIG_WRITES and MAX_PAGES.
//
// EXPLICIT_INVAL_DATA is not among them, against the letter of K1: it belongs to
// a mode in which the server recalls what the kernel keeps. Without leases it
// shows NULs where another mount appended (the page that held the old end stays
// cached) and lets rewinddir(3) show an old listing for ever; AUTO_INVAL_DATA,
// go-fuse's default, makes each read and each listing from the start ask for
// attributes that are older than the time-out, and drops pages when mtime or
// size differ: just what `strict` and `relaxed` promise.
const capabilities uint64 = fuse.CAP_ATOMIC_O_TRUNC |
	fuse.CAP_DONT_MASK |
	fuse.CAP_HANDLE_KILLPRIV_V2 |
	fuse.CAP_CACHE_SYMLINKS |
	fuse.CAP_READDIRPLUS_AUTO |
	fuse.CAP_NO_OPENDIR_SUPPORT |
	fuse.CAP_NO_EXPORT_SUPPORT |
	fuse.CAP_ASYNC_DIO |
	fuse.CAP_DIRECT_IO_ALLOW_MMAP

// refused are never negotiated: WRITEBACK_CACHE lets the kernel show a size and
// times of its own (K1), passthrough and id-mapped mounts are not served.
const refused uint64 = fuse.CAP_WRITEBACK_CACHE | fuse.CAP_PASSTHROUGH | fuse.CAP_ALLOW_IDMAP

// capabilities are those of the mount: the kernel checks by ACLs only if it was
// asked to, for it asks for the ACL of all that somebody else owns.
func (o Options) capabilities() uint64 {
	if o.ACL {
		return capabilities | fuse.CAP_POSIX_ACL
	}
	return capabilities
}

// FuseOptions returns how go-fuse is to serve such a mount, but for the mount
// itself (see Serve).
func (o Options) FuseOptions(logger *slog.Logger) *fuse.MountOptions {
	return &fuse.MountOptions{
		AllowOther:           o.AllowOther,
		MaxBackground:        maxBackground,
		MaxWrite:             MaxWriteBytes,
		Name:                 Subtype,
		ExtraCapabilities:    o.capabilities(),
		DisabledCapabilities: refused,
		DisableSplice:        true, // answers are in memory: a pipe would be a detour
		Logger:               slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}
}

// EntryTimeout is how long the kernel may keep a name, also that it is absent.
func (o Options) EntryTimeout() time.Duration { return o.Relaxed }

// AttrTimeout is how long the kernel may keep attributes.
func (o Options) AttrTimeout() time.Duration { return o.Relaxed }

// XattrStatus answers a question about an extended attribute that needs no
// server, or OK (FUSE K3): a kernel that is told EOPNOTSUPP for a label or an ACL
// asks twice in all, one that is told ENODATA asks for every file.
func (o Options) XattrStatus(name string) fuse.Status {
	switch {
	case name == AccessACL || name == DefaultACL:
		if o.ACL {
			return fuse.OK
		}
	case name != "security.selinux" && !strings.HasPrefix(name, "system."):
		return fuse.OK
	}
	return fuse.Status(syscall.EOPNOTSUPP)
}

// Names of POSIX ACLs as extended attributes.
const (
	AccessACL  = "system.posix_acl_access"
	DefaultACL = "system.posix_acl_default"
)

// OpenFlags returns the FOPEN flags for a file opened with open(2)'s flags.
// keep says that the bytes are those of the last open (K7), direct that the
// file's policy wants it opened past the page cache.
func OpenFlags(flags uint32, keep, direct bool) uint32 {
	var out uint32
	if keep {
		out |= fuse.FOPEN_KEEP_CACHE
	}
	if flags&syscall.O_ACCMODE == syscall.O_RDONLY {
		out |= fuse.FOPEN_NOFLUSH // K11: nothing was written by it
	}
	switch {
	case flags&syscall.O_APPEND != 0 && flags&syscall.O_ACCMODE != syscall.O_RDONLY:
		out |= fuse.FOPEN_DIRECT_IO // K8: the kernel's idea of the end is not the file's
	case direct || flags&syscall.O_DIRECT != 0:
		out |= fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES // K9
	}
	return out
}
