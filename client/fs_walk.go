package client

import (
	"context"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/canopyfs/canopy/internal/fserr"
)

// maxLinks is how many symbolic links a walk follows, as the kernel does.
const maxLinks = 40

// components splits a path; empty ones and "." are dropped, ".." stays.
func components(path string) []string {
	var all []string
	for _, c := range strings.Split(path, "/") {
		if c != "" && c != "." {
			all = append(all, c)
		}
	}
	return all
}

// baseName is the last component, "/" for the root.
func baseName(path string) string {
	all := components(path)
	if len(all) == 0 {
		return "/"
	}
	return all[len(all)-1]
}

// parentPath is the path without its last component.
func parentPath(path string) string {
	all := components(path)
	if len(all) == 0 {
		return "/"
	}
	return strings.Join(all[:len(all)-1], "/")
}

// join returns where a link at path with the given target leads.
func join(path, target string) string {
	if strings.HasPrefix(target, "/") {
		return target
	}
	return parentPath(path) + "/" + target
}

// walk resolves a path from the root. ".." is the directory that was walked
// through, which is also right behind symbolic links.
func (s *FS) walk(ctx context.Context, path string, follow bool) (*Inode, *Attr, error) {
	if path == "" {
		return nil, nil, fserr.NotFound
	}
	stack := []*Inode{s.c.Root()}
	defer func() {
		for _, n := range stack {
			n.Release()
		}
	}()
	links := 0
	mustBeDir := strings.HasSuffix(path, "/")
	for rest := components(path); len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		dir := stack[len(stack)-1]
		if name == ".." {
			if len(stack) > 1 {
				dir.Release()
				stack = stack[:len(stack)-1]
			}
			continue
		}
		n, attr, _, err := s.c.Lookup(ctx, s.cred, dir, name)
		if err != nil {
			return nil, nil, err
		}
		last := len(rest) == 0 && !mustBeDir
		switch {
		case attr.Mode&modeType == modeLink && (follow || !last):
			target, err := s.c.Readlink(ctx, s.cred, n)
			n.Release()
			if err != nil {
				return nil, nil, err
			}
			if links++; links > maxLinks {
				return nil, nil, fserr.Loop
			}
			if strings.HasPrefix(target, "/") {
				for _, d := range stack[1:] {
					d.Release()
				}
				stack = stack[:1]
			}
			rest = append(components(target), rest...)
		case last:
			return n, attr, nil
		case !n.IsDir():
			n.Release()
			return nil, nil, fserr.NotDir
		default:
			stack = append(stack, n)
		}
	}
	top := stack[len(stack)-1]
	attr, err := s.c.GetAttr(ctx, s.cred, top)
	if err != nil {
		return nil, nil, err
	}
	top.Hold()
	return top, attr, nil
}

// parent resolves all but the last component of path.
func (s *FS) parent(ctx context.Context, path string) (dir *Inode, name string, err error) {
	if path == "" {
		return nil, "", fserr.NotFound
	}
	name = baseName(path)
	if name == "/" || name == ".." {
		return nil, "", fserr.Invalid
	}
	dir, _, err = s.walk(ctx, parentPath(path)+"/", true)
	if err != nil {
		return nil, "", err
	}
	return dir, name, nil
}

func (s *FS) inParent(ctx context.Context, path string, fn func(dir *Inode, name string) error) error {
	dir, name, err := s.parent(ctx, path)
	if err != nil {
		return err
	}
	defer dir.Release()
	return fn(dir, name)
}

// modeBits converts permission bits of package fs to those of st_mode.
func modeBits(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	if mode&fs.ModeSetuid != 0 {
		bits |= syscall.S_ISUID
	}
	if mode&fs.ModeSetgid != 0 {
		bits |= syscall.S_ISGID
	}
	if mode&fs.ModeSticky != 0 {
		bits |= syscall.S_ISVTX
	}
	return bits
}

// fileMode converts st_mode to the mode of package fs.
func fileMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	switch mode & modeType {
	case modeDir:
		m |= fs.ModeDir
	case modeLink:
		m |= fs.ModeSymlink
	case syscall.S_IFIFO:
		m |= fs.ModeNamedPipe
	case syscall.S_IFSOCK:
		m |= fs.ModeSocket
	case syscall.S_IFBLK:
		m |= fs.ModeDevice
	case syscall.S_IFCHR:
		m |= fs.ModeDevice | fs.ModeCharDevice
	}
	if mode&syscall.S_ISUID != 0 {
		m |= fs.ModeSetuid
	}
	if mode&syscall.S_ISGID != 0 {
		m |= fs.ModeSetgid
	}
	if mode&syscall.S_ISVTX != 0 {
		m |= fs.ModeSticky
	}
	return m
}

// fileInfo is an fs.FileInfo.
type fileInfo struct {
	name string
	attr *Attr
}

func (i fileInfo) Name() string       { return i.name }
func (i fileInfo) Size() int64        { return int64(i.attr.Size) }
func (i fileInfo) Mode() fs.FileMode  { return fileMode(i.attr.Mode) }
func (i fileInfo) ModTime() time.Time { return time.Unix(0, i.attr.MtimeNs) }
func (i fileInfo) IsDir() bool        { return i.attr.Mode&modeType == modeDir }
func (i fileInfo) Sys() any           { return i.attr }

// dirEntry is an fs.DirEntry of a listing with attributes.
type dirEntry struct{ e *DirEntry }

func (d dirEntry) Name() string      { return string(d.e.Name) }
func (d dirEntry) IsDir() bool       { return d.e.Type == modeDir }
func (d dirEntry) Type() fs.FileMode { return fileMode(d.e.Type).Type() }

// Info returns the attributes that the listing carried.
func (d dirEntry) Info() (fs.FileInfo, error) {
	if d.e.Attr == nil {
		return nil, fserr.NotFound
	}
	return fileInfo{d.Name(), d.e.Attr}, nil
}
