package memfs

import (
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// The flags of renameat2.
const (
	renameNoReplace = 1
	renameExchange  = 2
)

// Rename moves a name, replacing what has the new one.
func (fs *FS) Rename(_ <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	from, st := fs.directory(in.NodeId)
	if !st.Ok() {
		return st
	}
	to, st := fs.directory(in.Newdir)
	if !st.Ok() {
		return st
	}
	if len(newName) > maxNameBytes {
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	lockBoth(from, to)
	defer unlockBoth(from, to)
	src, dst := from.dir.byName[oldName], to.dir.byName[newName]
	switch {
	case src == nil, in.Flags == renameExchange && dst == nil:
		return fuse.ENOENT
	case dst != nil && in.Flags == renameNoReplace:
		return fuse.Status(syscall.EEXIST)
	case in.Flags == renameExchange:
		exchangeLocked(from, to, src, dst)
		return fuse.OK
	case dst != nil && dst.node == src.node:
		return fuse.OK
	}
	return moveLocked(from, to, src, dst, newName)
}

func lockBoth(a, b *node) {
	switch {
	case a == b:
		a.mu.Lock()
	case a.ino < b.ino:
		a.mu.Lock()
		b.mu.Lock()
	default:
		b.mu.Lock()
		a.mu.Lock()
	}
}

func unlockBoth(a, b *node) {
	a.mu.Unlock()
	if a != b {
		b.mu.Unlock()
	}
}

func exchangeLocked(from, to *node, src, dst *slot) {
	src.node, dst.node = dst.node, src.node
	for _, x := range []struct {
		d *node
		s *slot
	}{{from, src}, {to, dst}} {
		x.s.node.moved(from, to, x.d)
	}
	if a, b := src.node.dir != nil, dst.node.dir != nil; from != to && a != b {
		if a {
			from.attr.Nlink++
			to.attr.Nlink--
		} else {
			from.attr.Nlink--
			to.attr.Nlink++
		}
	}
}

func moveLocked(from, to *node, src, dst *slot, newName string) fuse.Status {
	now := time.Now()
	n := src.node
	if dst != nil {
		// The kernel holds both inodes; a directory replaced is locked after its
		// parents, as it is below them.
		old := dst.node
		if old != from && old != to {
			old.mu.Lock()
			defer old.mu.Unlock()
		}
		switch {
		case n.dir == nil && old.dir != nil:
			return fuse.Status(syscall.EISDIR)
		case n.dir != nil && old.dir == nil:
			return fuse.ENOTDIR
		case old.dir != nil && len(old.dir.byName) > 0:
			return fuse.Status(syscall.ENOTEMPTY)
		}
		to.removeLocked(dst, now)
		old.dropLinkLocked(now)
	}
	from.removeLocked(src, now)
	to.addLocked(newName, n, now)
	n.moved(from, to, to)
	return fuse.OK
}

// moved tells n, whose locks of the parents from and to are held, that it is
// in parent now.
func (n *node) moved(from, to, parent *node) {
	if n != from && n != to {
		n.mu.Lock()
		defer n.mu.Unlock()
	}
	if n.dir != nil {
		n.dir.parent = parent
	}
	now := time.Now()
	n.attr.SetTimes(nil, nil, &now)
}
