package client

import (
	"context"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// FS is the path interface: paths are slash separated and start at the root,
// with or without a leading slash. Symbolic links are followed as the kernel
// does, 40 at most. Errors are *fs.PathError that wrap kinds of package fserr.
type FS struct {
	c    *Client
	cred Cred
}

// Open opens a file for reading. Directories are read with ReadDir.
func (s *FS) Open(ctx context.Context, path string) (*File, error) {
	return s.OpenFile(ctx, path, os.O_RDONLY, 0)
}

// Create makes or truncates a file with mode 0666 and opens it for reading and
// writing. No umask is applied.
func (s *FS) Create(ctx context.Context, path string) (*File, error) {
	return s.OpenFile(ctx, path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// OpenFile opens a file with the flags of package os; perm counts if it is made.
func (s *FS) OpenFile(ctx context.Context, path string, flag int, perm fs.FileMode) (*File, error) {
	f, err := s.open(ctx, path, uint32(flag), perm)
	if err != nil {
		return nil, failed("open", path, err)
	}
	return f, nil
}

func (s *FS) open(ctx context.Context, path string, flags uint32, perm fs.FileMode) (*File, error) {
	for links := 0; links <= maxLinks; links++ {
		if flags&syscall.O_CREAT != 0 {
			f, err := s.createNew(ctx, path, flags, perm)
			if err == nil || flags&syscall.O_EXCL != 0 || fserr.KindOf(err) != fserr.Exist {
				return f, err
			}
		}
		f, err := s.openExisting(ctx, path, flags)
		if flags&syscall.O_CREAT == 0 || fserr.KindOf(err) != fserr.NotFound {
			return f, err
		}
		// It was removed meanwhile, or it is a link to what is not there yet.
		if target, err := s.readlink(ctx, path); err == nil {
			path = join(path, target)
		}
	}
	return nil, fserr.Loop
}

func (s *FS) createNew(ctx context.Context, path string, flags uint32, perm fs.FileMode) (*File, error) {
	dir, name, err := s.parent(ctx, path)
	if err != nil {
		return nil, err
	}
	defer dir.Release()
	made, err := s.c.Create(ctx, s.cred, dir, name, modeBits(perm), flags|syscall.O_EXCL)
	if err != nil {
		return nil, err
	}
	made.Inode.Release()
	return made.File, nil
}

func (s *FS) openExisting(ctx context.Context, path string, flags uint32) (*File, error) {
	n, attr, err := s.walk(ctx, path, flags&syscall.O_NOFOLLOW == 0)
	if err != nil {
		return nil, err
	}
	defer n.Release()
	switch attr.Mode & modeType {
	case modeDir:
		return nil, fserr.IsDir
	case modeLink:
		return nil, fserr.Loop
	case syscall.S_IFREG:
	default:
		return nil, fserr.NotSupported
	}
	if s.cred.UID != 0 {
		mask := [...]uint32{syscall.O_RDONLY: 4, syscall.O_WRONLY: 2, syscall.O_RDWR: 6, syscall.O_ACCMODE: 6}[flags&syscall.O_ACCMODE]
		if err := s.c.Access(ctx, s.cred, n, mask); err != nil {
			return nil, err
		}
	}
	return s.c.Open(ctx, s.cred, n, flags)
}

// Walk returns the inode of path, with a reference, and its attributes. With
// follow = false a symbolic link at the end is not followed.
func (s *FS) Walk(ctx context.Context, path string, follow bool) (*Inode, *Attr, error) {
	n, attr, err := s.walk(ctx, path, follow)
	if err != nil {
		return nil, nil, failed("walk", path, err)
	}
	return n, attr, nil
}

// Stat returns the attributes of what path leads to; Sys is the *Attr.
func (s *FS) Stat(ctx context.Context, path string) (fs.FileInfo, error) {
	return s.stat(ctx, "stat", path, true)
}

// Lstat is Stat that does not follow a symbolic link at the end.
func (s *FS) Lstat(ctx context.Context, path string) (fs.FileInfo, error) {
	return s.stat(ctx, "lstat", path, false)
}

func (s *FS) stat(ctx context.Context, op, path string, follow bool) (fs.FileInfo, error) {
	n, attr, err := s.walk(ctx, path, follow)
	if err != nil {
		return nil, failed(op, path, err)
	}
	n.Release()
	return fileInfo{baseName(path), attr}, nil
}

// ReadDir returns the entries of a directory, sorted by name, with attributes.
func (s *FS) ReadDir(ctx context.Context, path string) ([]fs.DirEntry, error) {
	var all []fs.DirEntry
	err := s.within(ctx, path, true, func(n *Inode) error {
		req := ReadDirRequest{Plus: true}
		for {
			page, err := s.c.ReadDir(ctx, s.cred, n, req)
			if err != nil {
				return err
			}
			for _, e := range page.Entries {
				all = append(all, dirEntry{e})
				req.Cookie = e.Cookie
			}
			if page.EOF || len(page.Entries) == 0 {
				return nil
			}
			req.Mark = page.Mark
		}
	})
	if err != nil {
		return nil, failed("readdir", path, err)
	}
	slices.SortFunc(all, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return all, nil
}

// ReadFile returns the bytes of a file.
func (s *FS) ReadFile(ctx context.Context, path string) ([]byte, error) {
	f, err := s.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	defer f.Close(ctx)
	attr, err := s.c.GetAttr(ctx, s.cred, f.Inode())
	if err != nil {
		return nil, failed("read", path, err)
	}
	p := make([]byte, attr.Size+1)
	n := 0
	for {
		got, err := f.ReadAt(ctx, p[n:], int64(n))
		if err != nil {
			return nil, failed("read", path, err)
		}
		n += got
		if n < len(p) {
			return p[:n], nil
		}
		p = append(p, make([]byte, len(p))...)
	}
}

// WriteFile makes or truncates a file and writes data to it.
func (s *FS) WriteFile(ctx context.Context, path string, data []byte, perm fs.FileMode) error {
	f, err := s.OpenFile(ctx, path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(ctx, data, 0)
	if closeErr := f.Close(ctx); err == nil {
		err = closeErr
	}
	return failed("write", path, err)
}

// Readlink returns the target of a symbolic link.
func (s *FS) Readlink(ctx context.Context, path string) (string, error) {
	target, err := s.readlink(ctx, path)
	return target, failed("readlink", path, err)
}

func (s *FS) readlink(ctx context.Context, path string) (target string, err error) {
	err = s.within(ctx, path, false, func(n *Inode) error {
		target, err = s.c.Readlink(ctx, s.cred, n)
		return err
	})
	return target, err
}

// Chmod changes the permission bits.
func (s *FS) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	return s.setAttr(ctx, "chmod", path, SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_MODE, Mode: modeBits(mode)})
}

// Chown changes owner and group; -1 leaves one as it is.
func (s *FS) Chown(ctx context.Context, path string, uid, gid int) error {
	set := SetAttr{UID: uint32(uid), GID: uint32(gid)}
	if uid >= 0 {
		set.Mask |= canopyv1.SetAttrMask_SET_ATTR_UID
	}
	if gid >= 0 {
		set.Mask |= canopyv1.SetAttrMask_SET_ATTR_GID
	}
	return s.setAttr(ctx, "chown", path, set)
}

// Chtimes changes access and modification time; a zero time leaves one as it is.
func (s *FS) Chtimes(ctx context.Context, path string, atime, mtime time.Time) error {
	var set SetAttr
	if !atime.IsZero() {
		set.Mask |= canopyv1.SetAttrMask_SET_ATTR_ATIME
		set.AtimeNS = atime.UnixNano()
	}
	if !mtime.IsZero() {
		set.Mask |= canopyv1.SetAttrMask_SET_ATTR_MTIME
		set.MtimeNS = mtime.UnixNano()
	}
	return s.setAttr(ctx, "chtimes", path, set)
}

// Truncate changes the size of a file.
func (s *FS) Truncate(ctx context.Context, path string, size int64) error {
	if size < 0 {
		return failed("truncate", path, fserr.Invalid)
	}
	return s.setAttr(ctx, "truncate", path, SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_SIZE, Size: uint64(size)})
}

func (s *FS) setAttr(ctx context.Context, op, path string, set SetAttr) error {
	return failed(op, path, s.within(ctx, path, true, func(n *Inode) error {
		_, err := s.c.SetAttr(ctx, s.cred, n, set)
		return err
	}))
}

// GetXattr returns the value of an extended attribute.
func (s *FS) GetXattr(ctx context.Context, path, name string) (value []byte, err error) {
	err = s.within(ctx, path, true, func(n *Inode) error {
		value, err = s.c.GetXattr(ctx, s.cred, n, name)
		return err
	})
	return value, failed("getxattr", path, err)
}

// SetXattr sets an extended attribute.
func (s *FS) SetXattr(ctx context.Context, path, name string, value []byte) error {
	return failed("setxattr", path, s.within(ctx, path, true, func(n *Inode) error {
		return s.c.SetXattr(ctx, s.cred, n, name, value, 0)
	}))
}

// ListXattr returns the names of the extended attributes.
func (s *FS) ListXattr(ctx context.Context, path string) (names []string, err error) {
	err = s.within(ctx, path, true, func(n *Inode) error {
		names, err = s.c.ListXattr(ctx, s.cred, n)
		return err
	})
	return names, failed("listxattr", path, err)
}

// RemoveXattr removes an extended attribute.
func (s *FS) RemoveXattr(ctx context.Context, path, name string) error {
	return failed("removexattr", path, s.within(ctx, path, true, func(n *Inode) error {
		return s.c.RemoveXattr(ctx, s.cred, n, name)
	}))
}

// within calls fn with the inode of path.
func (s *FS) within(ctx context.Context, path string, follow bool, fn func(*Inode) error) error {
	n, _, err := s.walk(ctx, path, follow)
	if err != nil {
		return err
	}
	defer n.Release()
	return fn(n)
}

// failed makes err a *fs.PathError; nil stays nil. What wraps no cause is told
// by its kind alone.
func failed(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*fserr.Error); ok && e.Err == nil {
		err = e.Kind
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}
