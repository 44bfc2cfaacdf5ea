package client

import (
	"context"
	"io/fs"
	"time"

	"github.com/canopyfs/canopy/internal/fserr"
)

// FS is the path interface: paths are slash separated and start at the root,
// with or without a leading slash. Symbolic links are followed as the kernel
// does, 40 at most. Errors are *fs.PathError that wrap kinds of package fserr.
type FS struct {
	c    *Client
	cred Cred
}

func (s *FS) refused(op, path string) error {
	return &fs.PathError{Op: op, Path: path, Err: fserr.Internal}
}

// Open opens a file for reading.
func (s *FS) Open(ctx context.Context, path string) (*File, error) {
	return nil, s.refused("open", path)
}

// Create makes or truncates a file with mode 0666 and opens it for reading and writing.
func (s *FS) Create(ctx context.Context, path string) (*File, error) {
	return nil, s.refused("open", path)
}

// OpenFile opens a file with the flags of package os; perm counts if it is made.
func (s *FS) OpenFile(ctx context.Context, path string, flag int, perm fs.FileMode) (*File, error) {
	return nil, s.refused("open", path)
}

// Walk returns the inode of path, with a reference, and its attributes. With
// follow = false a symbolic link at the end is not followed.
func (s *FS) Walk(ctx context.Context, path string, follow bool) (*Inode, *Attr, error) {
	return nil, nil, s.refused("walk", path)
}

// Stat returns the attributes of what path leads to.
func (s *FS) Stat(ctx context.Context, path string) (fs.FileInfo, error) {
	return nil, s.refused("stat", path)
}

// Lstat is Stat that does not follow a symbolic link at the end.
func (s *FS) Lstat(ctx context.Context, path string) (fs.FileInfo, error) {
	return nil, s.refused("lstat", path)
}

// Mkdir makes a directory.
func (s *FS) Mkdir(ctx context.Context, path string, perm fs.FileMode) error {
	return s.refused("mkdir", path)
}

// MkdirAll makes a directory and what of its parents is missing.
func (s *FS) MkdirAll(ctx context.Context, path string, perm fs.FileMode) error {
	return s.refused("mkdir", path)
}

// Remove removes a name or an empty directory.
func (s *FS) Remove(ctx context.Context, path string) error { return s.refused("remove", path) }

// RemoveAll removes path and all below it; what is not there is no error.
func (s *FS) RemoveAll(ctx context.Context, path string) error { return s.refused("remove", path) }

// Rename moves oldpath to newpath, replacing what is there.
func (s *FS) Rename(ctx context.Context, oldpath, newpath string) error {
	return s.refused("rename", oldpath)
}

// ReadDir returns the entries of a directory, sorted by name, with attributes.
func (s *FS) ReadDir(ctx context.Context, path string) ([]fs.DirEntry, error) {
	return nil, s.refused("readdir", path)
}

// ReadFile returns the bytes of a file.
func (s *FS) ReadFile(ctx context.Context, path string) ([]byte, error) {
	return nil, s.refused("open", path)
}

// WriteFile makes or truncates a file and writes data to it.
func (s *FS) WriteFile(ctx context.Context, path string, data []byte, perm fs.FileMode) error {
	return s.refused("open", path)
}

// Symlink makes a symbolic link.
func (s *FS) Symlink(ctx context.Context, target, path string) error {
	return s.refused("symlink", path)
}

// Readlink returns the target of a symbolic link.
func (s *FS) Readlink(ctx context.Context, path string) (string, error) {
	return "", s.refused("readlink", path)
}

// Link makes a further name of a file.
func (s *FS) Link(ctx context.Context, oldpath, newpath string) error {
	return s.refused("link", oldpath)
}

// Chmod changes the permission bits.
func (s *FS) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	return s.refused("chmod", path)
}

// Chown changes owner and group; -1 leaves one as it is.
func (s *FS) Chown(ctx context.Context, path string, uid, gid int) error {
	return s.refused("chown", path)
}

// Chtimes changes access and modification time; a zero time leaves one as it is.
func (s *FS) Chtimes(ctx context.Context, path string, atime, mtime time.Time) error {
	return s.refused("chtimes", path)
}

// Truncate changes the size of a file.
func (s *FS) Truncate(ctx context.Context, path string, size int64) error {
	return s.refused("truncate", path)
}

// GetXattr returns the value of an extended attribute.
func (s *FS) GetXattr(ctx context.Context, path, name string) ([]byte, error) {
	return nil, s.refused("getxattr", path)
}

// SetXattr sets an extended attribute.
func (s *FS) SetXattr(ctx context.Context, path, name string, value []byte) error {
	return s.refused("setxattr", path)
}

// ListXattr returns the names of the extended attributes.
func (s *FS) ListXattr(ctx context.Context, path string) ([]string, error) {
	return nil, s.refused("listxattr", path)
}

// RemoveXattr removes an extended attribute.
func (s *FS) RemoveXattr(ctx context.Context, path, name string) error {
	return s.refused("removexattr", path)
}
