package clientfuse

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Fallocate implements fuse.RawFileSystem. The kernel has written out what a
// mapping changed, and lets only modes through that Allocate knows.
func (f *fileSystem) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	c := f.begin(opFallocate, cancel, &in.InHeader)
	h := f.handles.get(in.Fh)
	if h == nil {
		return c.end(fuse.EBADF)
	}
	h.node.inodeChanges.begin()
	defer h.node.inodeChanges.end()
	return c.end(errno(h.file.Allocate(c, in.Mode, int64(in.Offset), int64(in.Length))))
}

// Lseek implements fuse.RawFileSystem: the kernel asks for data and holes only.
func (f *fileSystem) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	c := f.begin(opLseek, cancel, &in.InHeader)
	h := f.handles.get(in.Fh)
	if h == nil {
		return c.end(fuse.EBADF)
	}
	seek := h.file.SeekData
	switch in.Whence {
	case unix.SEEK_DATA:
	case unix.SEEK_HOLE:
		seek = h.file.SeekHole
	default:
		return c.end(fuse.EINVAL)
	}
	at, err := seek(c, int64(in.Offset))
	if err != nil {
		return c.end(errno(err))
	}
	out.Offset = uint64(at)
	return c.end(fuse.OK)
}
