package memfs

import (
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

const maxNameBytes = 255

// add gives n the name in d, whose lock is held.
func (d *node) addLocked(name string, n *node, now time.Time) {
	d.dir.cookie++
	s := &slot{cookie: d.dir.cookie, name: name, node: n}
	d.dir.byName[name] = s
	d.dir.slots = append(d.dir.slots, s)
	d.attr.SetTimes(nil, &now, &now)
	if n.dir != nil {
		d.attr.Nlink++
	}
}

// removeLocked takes a name out of d.
func (d *node) removeLocked(s *slot, now time.Time) {
	delete(d.dir.byName, s.name)
	if s.node.dir != nil {
		d.attr.Nlink--
	}
	s.node = nil
	d.attr.SetTimes(nil, &now, &now)
	d.dir.dead++
	if d.dir.dead <= 64 || d.dir.dead <= len(d.dir.slots)/2 {
		return
	}
	live := make([]*slot, 0, len(d.dir.slots)-d.dir.dead)
	for _, s := range d.dir.slots {
		if s.node != nil {
			live = append(live, s)
		}
	}
	d.dir.slots, d.dir.dead = live, 0
}

// make adds a new node under a name. existing is what had the name, with EEXIST.
func (fs *FS) make(header *fuse.InHeader, name string, mode, umask uint32, fill func(*node)) (made, existing *node, st fuse.Status) {
	d, st := fs.directory(header.NodeId)
	if !st.Ok() {
		return nil, nil, st
	}
	if len(name) > maxNameBytes {
		return nil, nil, fuse.Status(syscall.ENAMETOOLONG)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.dir.byName[name]; s != nil {
		return nil, s.node, fuse.Status(syscall.EEXIST)
	}
	if d.attr.Nlink == 0 {
		return nil, nil, fuse.ENOENT
	}
	owner := header.Owner
	mode &^= umask
	if d.attr.Mode&syscall.S_ISGID != 0 {
		owner.Gid = d.attr.Gid
		if mode&syscall.S_IFMT == syscall.S_IFDIR {
			mode |= syscall.S_ISGID
		}
	}
	n := fs.newNode(mode, owner)
	if n.dir != nil {
		n.dir.parent = d
	}
	if fill != nil {
		fill(n)
	}
	d.addLocked(name, n, time.Now())
	return n, nil, fuse.OK
}

// Mkdir makes a directory.
func (fs *FS) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	n, _, st := fs.make(&in.InHeader, name, in.Mode&0o7777|syscall.S_IFDIR, in.Umask, nil)
	if st.Ok() {
		fs.answer(n, out)
	}
	return st
}

// Mknod makes a special or regular file.
func (fs *FS) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	n, _, st := fs.make(&in.InHeader, name, in.Mode, in.Umask, func(n *node) { n.attr.Rdev = in.Rdev })
	if st.Ok() {
		fs.answer(n, out)
	}
	return st
}

// Symlink makes a symbolic link.
func (fs *FS) Symlink(_ <-chan struct{}, header *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	n, _, st := fs.make(header, name, syscall.S_IFLNK|0o777, 0, func(n *node) {
		n.data = []byte(target)
		n.attr.Size = uint64(len(target))
	})
	if st.Ok() {
		fs.answer(n, out)
	}
	return st
}

// Readlink returns the target of a symbolic link.
func (fs *FS) Readlink(_ <-chan struct{}, header *fuse.InHeader) ([]byte, fuse.Status) {
	n := fs.node(header.NodeId)
	if n == nil {
		return nil, fuse.Status(syscall.ESTALE)
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.data, fuse.OK
}

// Create makes and opens a file, or opens the one that has the name.
func (fs *FS) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	n, existing, st := fs.make(&in.InHeader, name, in.Mode&0o7777|syscall.S_IFREG, in.Umask, nil)
	if existing != nil && in.Flags&syscall.O_EXCL == 0 {
		n, st = existing, fuse.OK
		if in.Flags&syscall.O_TRUNC != 0 {
			n.truncate()
		}
	}
	if !st.Ok() {
		return st
	}
	fs.answer(n, &out.EntryOut)
	out.OpenFlags = openFlags(in.Flags)
	return fuse.OK
}

// Link gives a file a further name.
func (fs *FS) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	d, st := fs.directory(in.NodeId)
	n := fs.node(in.Oldnodeid)
	switch {
	case !st.Ok():
		return st
	case n == nil:
		return fuse.Status(syscall.ESTALE)
	case n.dir != nil:
		return fuse.EPERM
	}
	now := time.Now()
	d.mu.Lock()
	if d.dir.byName[name] != nil {
		d.mu.Unlock()
		return fuse.Status(syscall.EEXIST)
	}
	d.addLocked(name, n, now)
	n.mu.Lock()
	n.attr.Nlink++
	n.attr.SetTimes(nil, nil, &now)
	n.mu.Unlock()
	d.mu.Unlock()
	fs.answer(n, out)
	return fuse.OK
}

// Unlink removes a name that is no directory's.
func (fs *FS) Unlink(_ <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	return fs.remove(header, name, false)
}

// Rmdir removes an empty directory.
func (fs *FS) Rmdir(_ <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	return fs.remove(header, name, true)
}

func (fs *FS) remove(header *fuse.InHeader, name string, dir bool) fuse.Status {
	d, st := fs.directory(header.NodeId)
	if !st.Ok() {
		return st
	}
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.dir.byName[name]
	if s == nil {
		return fuse.ENOENT
	}
	n := s.node
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case dir && n.dir == nil:
		return fuse.ENOTDIR
	case !dir && n.dir != nil:
		return fuse.Status(syscall.EISDIR)
	case dir && len(n.dir.byName) > 0:
		return fuse.Status(syscall.ENOTEMPTY)
	}
	d.removeLocked(s, now)
	n.dropLinkLocked(now)
	return fuse.OK
}

func (n *node) dropLinkLocked(now time.Time) {
	n.attr.SetTimes(nil, nil, &now)
	if n.dir != nil {
		n.attr.Nlink = 0
		return
	}
	n.attr.Nlink--
}
