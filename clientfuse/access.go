package clientfuse

import (
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// The kernel leaves atime to the file system (FUSE inodes are S_NOATIME), and tells of
// no read that its page cache answers. In strict mode it asks before each read(2) for
// attributes, by the handle, as it does in an lseek to the end. For page faults and
// splice(2), and in relaxed mode, there is no such sign: so an open drops the pages if
// a read would move the atime, which is seldom, and the first read is a READ.

// movesAtime reports whether reads through this mount move atime.
func (f *fileSystem) movesAtime() bool { return !f.options.NoAtime && !f.options.ReadOnly }

func (f *fileSystem) movesAtimeBy(h *handle) bool {
	return f.movesAtime() && h.flags&unix.O_NOATIME == 0 && h.flags&syscall.O_ACCMODE != syscall.O_WRONLY
}

// readFromCache notes that a program is about to read, if it does.
func (f *fileSystem) readFromCache(c *call, fh uint64) {
	h := f.handles.get(fh)
	if h != nil && f.movesAtimeBy(h) && f.backend.AccessDue(h.node.inode) && !isSeek(systemCall(f.groups.proc, c.tid)) {
		f.backend.Accessed(h.node.inode)
	}
}

// isSeek tells whether a call is lseek(2).
func isSeek(fields []string) bool {
	return len(fields) > 0 && fields[0] == strconv.Itoa(unix.SYS_LSEEK)
}
