package clientfuse

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Open implements fuse.RawFileSystem. The kernel has checked permissions, by the
// mode alone if the mount shows no ACLs: then the server checks those. That a
// handle appends is this side's business: what comes through its mapping does not.
func (f *fileSystem) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	c := f.begin(opOpen, cancel, &in.InHeader)
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return c.end(estale)
	}
	if !f.options.ACL && n.acls.Load() != 0 {
		if s := f.mayOpen(c, n.inode, in.Flags); !s.Ok() {
			return c.end(s)
		}
	}
	if in.Mode&fuse.OPEN_KILL_SUIDGID != 0 {
		if s := f.killPrivilege(c, n, client.Cred{}, nil); !s.Ok() {
			return c.end(s)
		}
	}
	if in.Flags&syscall.O_TRUNC != 0 {
		n.inodeChanges.begin()
		defer n.inodeChanges.end()
	}
	opened, err := f.backend.Open(c, c.cred(), n.inode, in.Flags&^syscall.O_APPEND)
	if err != nil {
		return c.end(errno(err))
	}
	f.opened(n, opened, in.Flags, out)
	return c.end(fuse.OK)
}

// opened numbers a handle and says how the kernel is to use it.
func (f *fileSystem) opened(n *node, o file, flags uint32, out *fuse.OpenOut) {
	writable := flags&syscall.O_ACCMODE != syscall.O_RDONLY
	h := &handle{file: o, node: n, flags: flags, append: writable && flags&syscall.O_APPEND != 0}
	if writable {
		n.writers.Add(1)
	}
	// K7: what the kernel kept of the last open is good if the bytes are the same.
	version := n.data.Load() + 1
	keep := flags&syscall.O_TRUNC == 0 && n.cached.Swap(version) == version &&
		!(f.movesAtimeBy(h) && f.backend.AccessDue(n.inode))
	out.Fh = f.handles.add(h)
	out.OpenFlags = mountopt.OpenFlags(flags, keep, o.Direct())
	if o.HasLocks() {
		out.OpenFlags &^= fuse.FOPEN_NOFLUSH // K10: its close gives locks back
	}
}

// Release implements fuse.RawFileSystem. FLUSH has told the process what it had
// to know; nobody waits for this.
func (f *fileSystem) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	c := f.begin(opRelease, cancel, &in.InHeader)
	h := f.handles.remove(in.Fh)
	if h == nil {
		c.end(fuse.EBADF)
		return
	}
	if h.flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		h.node.inodeChanges.begin()
		h.node.writers.Add(-1)
		defer h.node.inodeChanges.end()
	}
	err := h.file.Close(c)
	if err != nil {
		f.logger.Warn("closing a file", "ino", h.node.id, "error", err)
	}
	c.end(errno(err))
}

// Read implements fuse.RawFileSystem.
func (f *fileSystem) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	c := f.begin(opRead, cancel, &in.InHeader)
	h := f.handles.get(in.Fh)
	if h == nil {
		return nil, c.end(fuse.EBADF)
	}
	n, err := h.file.ReadAt(c, buf, int64(in.Offset))
	if err != nil {
		return nil, c.end(errno(err))
	}
	if f.movesAtimeBy(h) {
		f.backend.Accessed(h.node.inode)
	}
	return fuse.ReadResultData(buf[:n]), c.end(fuse.OK)
}

// Writev implements fuse.RawFileSystem: go-fuse asks it first.
func (f *fileSystem) Writev(cancel <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	c := f.begin(opWrite, cancel, &in.InHeader)
	h := f.handles.get(in.Fh)
	if h == nil {
		return 0, c.end(fuse.EBADF)
	}
	if in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0 {
		if s := f.killPrivilege(c, h.node, c.cred(), h.file); !s.Ok() {
			return 0, c.end(s)
		}
	}
	var written uint32
	for _, p := range data {
		n, err := h.write(c, p, int64(in.Offset)+int64(written), in.WriteFlags)
		written += uint32(n)
		if err != nil {
			if written > 0 && fserr.KindOf(err) != fserr.IO {
				break // a short write; the next one meets the error again
			}
			return written, c.end(errno(err))
		}
	}
	return written, c.end(fuse.OK)
}

// write writes at off, or at the end if the file is open for appending: the
// kernel chose off by a size that may be old (K8). What comes from the page
// cache (a shared mapping) has its place whatever the flags are.
func (h *handle) write(c *call, p []byte, off int64, flags uint32) (int, error) {
	if h.append && flags&fuse.WRITE_CACHE == 0 {
		if _, err := h.file.Append(c, p); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	return h.file.WriteAt(c, p, off)
}

// killPrivilege clears setuid and setgid of a file that a user other than the
// superuser changes. The kernel asks for it with every such write; only a file
// that has the bits needs it, and setgid without execution (which it is not for)
// only from who is not of the group.
func (f *fileSystem) killPrivilege(c *call, n *node, cred client.Cred, handle file) fuse.Status {
	mode := n.mode.Load()
	setgid := mode&(syscall.S_ISGID|syscall.S_IXGRP) == syscall.S_ISGID|syscall.S_IXGRP ||
		mode&syscall.S_ISGID != 0 && cred.UID != 0 && !cred.InGroup(n.gid.Load())
	if mode&syscall.S_ISUID == 0 && !setgid {
		return fuse.OK
	}
	n.inodeChanges.begin()
	defer n.inodeChanges.end()
	set := client.SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_KILL_PRIV}
	a, err := f.backend.SetAttr(c, cred, n.inode, set, handle)
	if err != nil {
		return errno(err)
	}
	n.saw(a)
	return fuse.OK
}

// Flush implements fuse.RawFileSystem: close(2) of a descriptor.
func (f *fileSystem) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	c := f.begin(opFlush, cancel, &in.InHeader)
	h := f.handles.get(in.Fh)
	if h == nil {
		return c.end(fuse.EBADF)
	}
	var err error
	if h.flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		err = h.file.Flush(c)
	}
	// K10: whatever became of the bytes, the process gives its locks back.
	if lockErr := h.file.UnlockOwner(c, in.LockOwner); err == nil {
		err = lockErr
	}
	return c.end(errno(err))
}

// Fsync implements fuse.RawFileSystem.
func (f *fileSystem) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	c := f.begin(opFsync, cancel, &in.InHeader)
	h := f.handles.get(in.Fh)
	if h == nil {
		return c.end(fuse.EBADF)
	}
	return c.end(errno(h.file.Fsync(c)))
}
