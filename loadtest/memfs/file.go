package memfs

import (
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/canopyfs/canopy/clientfuse/mountopt"
)

// maxFileBytes bounds a file: its bytes are in memory.
const maxFileBytes = 8 << 30

func (n *node) resizeLocked(size uint64) {
	if old := uint64(len(n.data)); size > old {
		n.data = slices.Grow(n.data, int(size-old))[:size]
		clear(n.data[old:])
	}
	n.data = n.data[:size]
	n.attr.Size = size
	n.attr.Blocks = (size + 511) / 512
}

func (n *node) truncate() {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.resizeLocked(0)
	n.attr.SetTimes(nil, &now, &now)
}

// openFlags: the bytes change by this mount alone, so the kernel may keep them.
func openFlags(flags uint32) uint32 { return mountopt.OpenFlags(flags, true, false) }

// Open opens a file.
func (fs *FS) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n := fs.node(in.NodeId)
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	if in.Flags&syscall.O_TRUNC != 0 {
		n.truncate()
	}
	out.OpenFlags = openFlags(in.Flags)
	return fuse.OK
}

// Read returns bytes of a file.
func (fs *FS) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	n := fs.node(in.NodeId)
	if n == nil {
		return nil, fuse.Status(syscall.ESTALE)
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if in.Offset >= uint64(len(n.data)) {
		return fuse.ReadResultData(nil), fuse.OK
	}
	return fuse.ReadResultData(buf[:copy(buf, n.data[in.Offset:])]), fuse.OK
}

// Write stores bytes of a file.
func (fs *FS) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	n := fs.node(in.NodeId)
	if n == nil {
		return 0, fuse.Status(syscall.ESTALE)
	}
	end := in.Offset + uint64(len(data))
	if end > maxFileBytes || end < in.Offset {
		return 0, fuse.Status(syscall.EFBIG)
	}
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if end > uint64(len(n.data)) {
		n.resizeLocked(end)
	}
	copy(n.data[in.Offset:], data)
	n.attr.SetTimes(nil, &now, &now)
	return uint32(len(data)), fuse.OK
}

// Flush has nothing to do.
func (fs *FS) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }

// Fsync has nothing to do.
func (fs *FS) Fsync(<-chan struct{}, *fuse.FsyncIn) fuse.Status { return fuse.OK }

// FsyncDir has nothing to do.
func (fs *FS) FsyncDir(<-chan struct{}, *fuse.FsyncIn) fuse.Status { return fuse.OK }

// GetXAttr answers with what was set, else as Canopy's mount does.
func (fs *FS) GetXAttr(_ <-chan struct{}, header *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	n := fs.node(header.NodeId)
	if n == nil {
		return 0, fuse.Status(syscall.ESTALE)
	}
	n.mu.RLock()
	value, ok := n.xattrs[name]
	n.mu.RUnlock()
	if !ok {
		if st := fs.opts.XattrStatus(name); !st.Ok() {
			return 0, st
		}
		return 0, fuse.ENOATTR
	}
	return give(value, dest)
}

func give(value, dest []byte) (uint32, fuse.Status) {
	if len(dest) > 0 && len(value) > len(dest) {
		return uint32(len(value)), fuse.ERANGE
	}
	copy(dest, value)
	return uint32(len(value)), fuse.OK
}

// ListXAttr lists the names that were set.
func (fs *FS) ListXAttr(_ <-chan struct{}, header *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	n := fs.node(header.NodeId)
	if n == nil {
		return 0, fuse.Status(syscall.ESTALE)
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	var all strings.Builder
	for name := range n.xattrs {
		all.WriteString(name + "\x00")
	}
	return give([]byte(all.String()), dest)
}

// SetXAttr sets an extended attribute.
func (fs *FS) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, name string, data []byte) fuse.Status {
	n := fs.node(in.NodeId)
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.xattrs == nil {
		n.xattrs = map[string][]byte{}
	}
	n.xattrs[name] = slices.Clone(data)
	return fuse.OK
}

// RemoveXAttr removes an extended attribute.
func (fs *FS) RemoveXAttr(_ <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	n := fs.node(header.NodeId)
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.xattrs[name]; !ok {
		return fuse.ENOATTR
	}
	delete(n.xattrs, name)
	return fuse.OK
}
