package memfs

import (
	"sort"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// The listing positions of "." and "..".
const (
	cookieDot    = 1
	cookieDotDot = 2
)

// OpenDir answers ENOSYS, so that the kernel does not ask again (FUSE K1).
func (fs *FS) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.ENOSYS }

// ReadDir lists names behind in.Offset.
func (fs *FS) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return fs.list(in, func(e fuse.DirEntry, _ *node) bool { return out.AddDirEntry(e) })
}

// ReadDirPlus lists names with attributes, which count as lookups.
func (fs *FS) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return fs.list(in, func(e fuse.DirEntry, n *node) bool {
		entry := out.AddDirLookupEntry(e)
		if entry != nil && n != nil {
			fs.answer(n, entry)
		}
		return entry != nil
	})
}

// list gives the entries behind in.Offset to add until it refuses one. "." and
// ".." come without a node: the kernel does not look them up.
func (fs *FS) list(in *fuse.ReadIn, add func(fuse.DirEntry, *node) bool) fuse.Status {
	d, st := fs.directory(in.NodeId)
	if !st.Ok() {
		return st
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	dots := []fuse.DirEntry{
		{Name: ".", Ino: d.ino, Mode: syscall.S_IFDIR, Off: cookieDot},
		{Name: "..", Ino: d.dir.parent.ino, Mode: syscall.S_IFDIR, Off: cookieDotDot},
	}
	for _, e := range dots {
		if e.Off > in.Offset && !add(e, nil) {
			return fuse.OK
		}
	}
	slots := d.dir.slots
	first := sort.Search(len(slots), func(i int) bool { return slots[i].cookie > in.Offset })
	for _, s := range slots[first:] {
		if s.node == nil {
			continue
		}
		if !add(fuse.DirEntry{Name: s.name, Ino: s.node.ino, Mode: s.node.kind, Off: s.cookie}, s.node) {
			return fuse.OK
		}
	}
	return fuse.OK
}
