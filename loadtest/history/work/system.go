// Package work makes histories: clients of the library and of mounts that all use the
// same few names at once, so that whatever an answer can get wrong shows.
//
// The names lie in a few directories, which are never renamed: splitting, moving and
// merging these is what somebody else does meanwhile. In them are groups of names,
// of files or of directories, which clients create, look up, link, rename and remove
// until a group's history is long enough to check and the next group begins; names that
// are made once, renamed once and removed once, for listings; logs that records are appended to; and
// registers, the extended attributes of files and of the directories themselves.
package work

import (
	"context"
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/loadtest/history"
)

// System is one way to the directories of a run, which it knows by their positions in
// the header. Calls that change something end by their context only if ByLibrary.
// All methods are safe for concurrent use. An inode number of 0 means that it was not seen.
type System interface {
	Via() string

	Create(ctx context.Context, dir int, name string) (ino uint64, err error)
	Mkdir(ctx context.Context, dir int, name string) (ino uint64, err error)
	// Stat answers links = 0 if it does not know them as of the moment at which it
	// looked the name up.
	Stat(ctx context.Context, dir int, name string) (ino, links uint64, err error)
	// Hold returns a handle of what the name leads to, which the caller closes.
	Hold(ctx context.Context, dir int, name string) (Handle, error)
	Unlink(ctx context.Context, dir int, name string) error
	Rmdir(ctx context.Context, dir int, name string) error
	Rename(ctx context.Context, dir int, name string, toDir int, toName string, flags uint) error

	// The name "" stands for the directory itself.
	SetXattr(ctx context.Context, dir int, name, attr, value string) error
	GetXattr(ctx context.Context, dir int, name, attr string) (string, error)
	RemoveXattr(ctx context.Context, dir int, name, attr string) error

	Append(ctx context.Context, dir int, name string, record []byte) error
	Read(ctx context.Context, dir int, name string) ([]byte, error)
	// List lists a directory, about page names at a time; 0: as many as come.
	List(ctx context.Context, dir, page int) ([]history.Entry, error)

	// RemoveAll removes the run's directory with all that is in it.
	RemoveAll(ctx context.Context, h *history.Header) error
	Close(ctx context.Context) error
}

// Handle is an inode, whatever its names are by now.
type Handle interface {
	Ino() uint64
	Links(ctx context.Context) (uint64, error)
	Link(ctx context.Context, dir int, name string) error
	// Create and Unlink are for the one file of a directory.
	Create(ctx context.Context, name string) error
	Unlink(ctx context.Context, name string) error
	Close()
}

// Flags of Rename, as rename(2) has them.
const (
	noReplace uint = unix.RENAME_NOREPLACE
	exchange  uint = unix.RENAME_EXCHANGE
)

const (
	fileMode = 0o644
	dirMode  = 0o755
)

// outcome tells how an operation ended: done, refused with an errno that says that
// nothing was changed, or unknown, with what was said.
func outcome(err error) (out, said string) {
	if err == nil {
		return history.Done, ""
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		errno = fserr.KindOf(err).Errno()
	}
	switch errno {
	case unix.EIO, unix.EINTR, unix.EAGAIN, unix.ETIMEDOUT, unix.ENOTCONN, unix.ECONNABORTED:
		return history.Unknown, err.Error()
	}
	return unix.ErrnoName(errno), ""
}
