package client

import (
	"context"
	"io/fs"
	"sync"

	"github.com/canopyfs/canopy/internal/fserr"
)

// Mkdir makes a directory.
func (s *FS) Mkdir(ctx context.Context, path string, perm fs.FileMode) error {
	return failed("mkdir", path, s.mkdir(ctx, path, perm))
}

func (s *FS) mkdir(ctx context.Context, path string, perm fs.FileMode) error {
	if len(components(path)) == 0 {
		return fserr.Exist
	}
	return s.inParent(ctx, path, func(dir *Inode, name string) error {
		n, _, _, err := s.c.Mkdir(ctx, s.cred, dir, name, modeBits(perm))
		if err == nil {
			n.Release()
		}
		return err
	})
}

// MkdirAll makes a directory and what of its parents is missing.
func (s *FS) MkdirAll(ctx context.Context, path string, perm fs.FileMode) error {
	return failed("mkdir", path, s.mkdirAll(ctx, path, perm))
}

func (s *FS) mkdirAll(ctx context.Context, path string, perm fs.FileMode) error {
	if baseName(path) == ".." { // is there when its directory is
		return s.mkdirAll(ctx, parentPath(path), perm)
	}
	err := s.mkdir(ctx, path, perm)
	switch fserr.KindOf(err) {
	case fserr.NotFound:
		if err := s.mkdirAll(ctx, parentPath(path), perm); err != nil {
			return err
		}
		err = s.mkdir(ctx, path, perm)
	case fserr.OK:
		return nil
	}
	if fserr.KindOf(err) == fserr.Exist {
		n, _, walkErr := s.walk(ctx, path, true)
		if walkErr != nil {
			return err
		}
		defer n.Release()
		if n.IsDir() {
			return nil
		}
		return fserr.NotDir
	}
	return err
}

// Symlink makes a symbolic link.
func (s *FS) Symlink(ctx context.Context, target, path string) error {
	return failed("symlink", path, s.inParent(ctx, path, func(dir *Inode, name string) error {
		n, _, _, err := s.c.Symlink(ctx, s.cred, dir, name, target)
		if err == nil {
			n.Release()
		}
		return err
	}))
}

// Link makes a further name of a file. A symbolic link at the end of oldpath is
// linked itself.
func (s *FS) Link(ctx context.Context, oldpath, newpath string) error {
	return failed("link", oldpath, s.within(ctx, oldpath, false, func(n *Inode) error {
		return s.inParent(ctx, newpath, func(dir *Inode, name string) error {
			_, _, err := s.c.Link(ctx, s.cred, n, dir, name)
			return err
		})
	}))
}

// Rename moves oldpath to newpath, replacing what is there.
func (s *FS) Rename(ctx context.Context, oldpath, newpath string) error {
	return failed("rename", oldpath, s.inParent(ctx, oldpath, func(from *Inode, oldname string) error {
		return s.inParent(ctx, newpath, func(to *Inode, newname string) error {
			_, _, err := s.c.Rename(ctx, s.cred, from, oldname, to, newname, 0)
			return err
		})
	}))
}

// Remove removes a name or an empty directory.
func (s *FS) Remove(ctx context.Context, path string) error {
	return failed("remove", path, s.inParent(ctx, path, func(dir *Inode, name string) error {
		_, err := s.c.Unlink(ctx, s.cred, dir, name)
		switch fserr.KindOf(err) {
		case fserr.IsDir, fserr.Permission: // unlink(2) of a directory; POSIX says EPERM
			if _, rmErr := s.c.Rmdir(ctx, s.cred, dir, name); fserr.KindOf(rmErr) != fserr.NotDir {
				err = rmErr
			}
		}
		return err
	}))
}

// RemoveAll removes path and all below it; what is not there is no error.
func (s *FS) RemoveAll(ctx context.Context, path string) error {
	err := s.inParent(ctx, path, func(dir *Inode, name string) error {
		n, _, _, err := s.c.Lookup(ctx, s.cred, dir, name)
		if err != nil {
			return err
		}
		defer n.Release()
		return s.removeTree(ctx, dir, name, n)
	})
	if fserr.KindOf(err) == fserr.NotFound {
		return nil
	}
	return failed("remove", path, err)
}

// removeFanOut is how many names of one page RemoveAll removes at a time.
const removeFanOut = 32

// removeTree removes name, which is n, in dir. What appears meanwhile is removed
// too, for a number of rounds.
func (s *FS) removeTree(ctx context.Context, dir *Inode, name string, n *Inode) error {
	if !n.IsDir() {
		_, err := s.c.Unlink(ctx, s.cred, dir, name)
		return gone(err)
	}
	for round := 0; ; round++ {
		if err := s.empty(ctx, n); err != nil {
			return err
		}
		_, err := s.c.Rmdir(ctx, s.cred, dir, name)
		if fserr.KindOf(err) != fserr.NotEmpty || round == 8 {
			return gone(err)
		}
	}
}

func gone(err error) error {
	if fserr.KindOf(err) == fserr.NotFound {
		return nil
	}
	return err
}

// empty removes all that is in dir: files many at a time, directories one by one
// so that depth does not multiply the number of goroutines. It is one listing, so that
// marks are taken once.
func (s *FS) empty(ctx context.Context, dir *Inode) error {
	req := ReadDirRequest{MaxEntries: 1024}
	for {
		page, err := s.c.ReadDir(ctx, s.cred, dir, req)
		if err != nil {
			return err
		}
		var files []string
		for _, e := range page.Entries {
			if e.Type != modeDir {
				files = append(files, string(e.Name))
				continue
			}
			n := s.c.InodeOf(dir, e)
			err := s.removeTree(ctx, dir, string(e.Name), n)
			n.Release()
			if err != nil {
				return err
			}
		}
		if err := s.unlinkAll(ctx, dir, files); err != nil {
			return err
		}
		if page.EOF || len(page.Entries) == 0 {
			return nil
		}
		req.Cookie, req.Mark = page.Entries[len(page.Entries)-1].Cookie, page.Mark
	}
}

func (s *FS) unlinkAll(ctx context.Context, dir *Inode, names []string) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	next := 0
	for range min(removeFanOut, len(names)) {
		wg.Go(func() {
			for {
				mu.Lock()
				if first != nil || next == len(names) {
					mu.Unlock()
					return
				}
				name := names[next]
				next++
				mu.Unlock()
				_, err := s.c.Unlink(ctx, s.cred, dir, name)
				if err = gone(err); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return first
}
