// Package target is what a load is put on: a directory of any mounted file
// system, or Canopy's namespace by its client library. Both do the same
// operations, each the way its users do: a mount by whole paths and system
// calls, the library by a directory's inode and a name.
package target

import (
	"context"
	"errors"
	"io/fs"
)

// Target is a root directory below which a load works.
type Target interface {
	// Dir opens the directory rel below the root ("" is the root), which exists.
	Dir(ctx context.Context, rel string) (Dir, error)
	// MkdirAll makes rel and what of its parents is missing.
	MkdirAll(ctx context.Context, rel string) error
	// RemoveAll removes rel and all below it; what is not there is no error.
	RemoveAll(ctx context.Context, rel string) error
	// Describe says in words what it is, for a report.
	Describe() string
	Close(ctx context.Context) error
}

// Dir does operations on names of one directory. All methods are safe for
// concurrent use. An error of Create and the like for which Unknown is false
// means that nothing was changed.
type Dir interface {
	Mkdir(ctx context.Context, name string) error
	Rmdir(ctx context.Context, name string) error
	// Create makes a new, empty file (O_EXCL) and closes it.
	Create(ctx context.Context, name string) error
	Stat(ctx context.Context, name string) error
	// Open opens a file for reading and closes it.
	Open(ctx context.Context, name string) error
	Rename(ctx context.Context, from, to string) error
	Unlink(ctx context.Context, name string) error
	// List lists the directory from the start and calls visit for each name but
	// "." and "..", with its inode number. It returns how many there were.
	List(ctx context.Context, visit func(name string, ino uint64)) (int, error)
	// ListAttrs does what `ls -l` does: a listing with every name's attributes.
	ListAttrs(ctx context.Context) (int, error)
	Close() error
}

// Unknown reports whether a failed mutation may have been done all the same:
// anything but a refusal that a file system gives in words of its own.
func Unknown(err error) bool {
	return err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrPermission)
}
