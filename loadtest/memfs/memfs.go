// Package memfs is a FUSE file system that answers every request from memory:
// the most that a file system in user space, written with go-fuse, can do on a
// machine. It asks the kernel for the same flags, gives the same time-outs and
// answers questions for extended attributes as Canopy's mount does, so that
// what separates the two is what Canopy does behind the kernel's back.
//
// Lock order: directories by inode number, then the node that is named.
package memfs

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/canopyfs/canopy/clientfuse/mountopt"
)

const shards = 64

// FS is the file system. Make it with New.
type FS struct {
	fuse.RawFileSystem
	opts  mountopt.Options
	next  atomic.Uint64
	table [shards]struct {
		mu    sync.RWMutex
		nodes map[uint64]*node
	}
}

// New returns an empty file system that behaves as a mount with the options.
func New(opts mountopt.Options) *FS {
	fs := &FS{RawFileSystem: fuse.NewDefaultRawFileSystem(), opts: opts}
	for i := range fs.table {
		fs.table[i].nodes = map[uint64]*node{}
	}
	fs.next.Store(fuse.FUSE_ROOT_ID - 1)
	root := fs.newNode(syscall.S_IFDIR|0o755, fuse.Owner{Uid: uint32(syscall.Geteuid()), Gid: uint32(syscall.Getegid())})
	root.dir.parent = root
	root.attr.Nlink = 2
	return fs
}

// String names the file system for the kernel.
func (fs *FS) String() string { return "memfs" }

// node is one inode.
type node struct {
	ino  uint64 // never changes
	kind uint32 // S_IFMT bits of the mode; never change

	mu     sync.RWMutex
	attr   fuse.Attr
	data   []byte // of a file; the target of a symbolic link
	xattrs map[string][]byte
	dir    *directory // of a directory

	lookups atomic.Int64 // what the kernel was told of and has not forgotten
}

// directory is the names of a directory, in the order in which they were made.
// A removed name leaves a slot without a node until the next tidying.
type directory struct {
	parent *node
	byName map[string]*slot
	slots  []*slot
	dead   int
	cookie uint64
}

type slot struct {
	cookie uint64
	name   string
	node   *node
}

func (fs *FS) newNode(mode uint32, owner fuse.Owner) *node {
	n := &node{ino: fs.next.Add(1), kind: mode & syscall.S_IFMT}
	n.attr.Ino = n.ino
	n.attr.Mode = mode
	n.attr.Nlink = 1
	n.attr.Owner = owner
	n.attr.Blksize = 4096
	now := time.Now()
	n.attr.SetTimes(&now, &now, &now)
	if n.kind == syscall.S_IFDIR {
		n.dir = &directory{byName: map[string]*slot{}, cookie: 2}
		n.attr.Nlink = 2
	}
	t := &fs.table[n.ino%shards]
	t.mu.Lock()
	t.nodes[n.ino] = n
	t.mu.Unlock()
	return n
}

// node returns the node of a number that the kernel got from here.
func (fs *FS) node(id uint64) *node {
	t := &fs.table[id%shards]
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.nodes[id]
}

// directory returns the node of a directory, nil with a status of something else.
func (fs *FS) directory(id uint64) (*node, fuse.Status) {
	n := fs.node(id)
	switch {
	case n == nil:
		return nil, fuse.Status(syscall.ESTALE)
	case n.dir == nil:
		return nil, fuse.ENOTDIR
	}
	return n, fuse.OK
}

// Forget drops a node that has no name and that the kernel does not know.
func (fs *FS) Forget(nodeid, nlookup uint64) {
	n := fs.node(nodeid)
	if n == nil || n.lookups.Add(-int64(nlookup)) > 0 {
		return
	}
	n.mu.RLock()
	gone := n.attr.Nlink == 0
	n.mu.RUnlock()
	if gone {
		t := &fs.table[nodeid%shards]
		t.mu.Lock()
		delete(t.nodes, nodeid)
		t.mu.Unlock()
	}
}

// answer fills in what the kernel is told of a node.
func (fs *FS) answer(n *node, out *fuse.EntryOut) {
	n.lookups.Add(1)
	n.mu.RLock()
	out.NodeId = n.ino
	out.Generation = 1
	out.Attr = n.attr
	n.mu.RUnlock()
	out.SetEntryTimeout(fs.opts.EntryTimeout())
	out.SetAttrTimeout(fs.opts.AttrTimeout())
}

// Lookup finds a name.
func (fs *FS) Lookup(_ <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	d, st := fs.directory(header.NodeId)
	if !st.Ok() {
		return st
	}
	d.mu.RLock()
	s := d.dir.byName[name]
	d.mu.RUnlock()
	if s == nil {
		if absent := fs.opts.EntryTimeout(); absent > 0 {
			out.SetEntryTimeout(absent)
			return fuse.OK // node id 0: the kernel keeps that it is absent
		}
		return fuse.ENOENT
	}
	fs.answer(s.node, out)
	return fuse.OK
}

// GetAttr answers a node's attributes.
func (fs *FS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := fs.node(in.NodeId)
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	n.mu.RLock()
	out.Attr = n.attr
	n.mu.RUnlock()
	out.SetTimeout(fs.opts.AttrTimeout())
	return fuse.OK
}

// SetAttr changes a node's attributes.
func (fs *FS) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := fs.node(in.NodeId)
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if mode, ok := in.GetMode(); ok {
		n.attr.Mode = n.attr.Mode&syscall.S_IFMT | mode
	}
	if uid, ok := in.GetUID(); ok {
		n.attr.Uid = uid
	}
	if gid, ok := in.GetGID(); ok {
		n.attr.Gid = gid
	}
	if size, ok := in.GetSize(); ok {
		if size > maxFileBytes {
			return fuse.Status(syscall.EFBIG)
		}
		n.resizeLocked(size)
		n.attr.SetTimes(nil, &now, nil)
	}
	if t, ok := in.GetATime(); ok {
		n.attr.SetTimes(&t, nil, nil)
	}
	if t, ok := in.GetMTime(); ok {
		n.attr.SetTimes(nil, &t, nil)
	}
	n.attr.SetTimes(nil, nil, &now)
	out.Attr = n.attr
	out.SetTimeout(fs.opts.AttrTimeout())
	return fuse.OK
}

// StatFs answers a size that is large enough for any test.
func (fs *FS) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	const blocks = 1 << 28
	out.Blocks, out.Bfree, out.Bavail = blocks, blocks, blocks
	out.Files, out.Ffree = blocks, blocks
	out.Bsize, out.Frsize, out.NameLen = 4096, 4096, maxNameBytes
	return fuse.OK
}
