package clientfuse

import (
	"strconv"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/client"
)

// lockRequest translates a request. The kernel's owner is a process for fcntl
// locks and an open file for flock and the locks of open file descriptions.
func lockRequest(in *fuse.LkIn) (client.LockRequest, bool) {
	r := client.LockRequest{Flock: in.LkFlags&fuse.FUSE_LK_FLOCK != 0, Owner: in.Owner, Start: in.Lk.Start, Last: in.Lk.End, PID: in.Lk.Pid}
	switch in.Lk.Typ {
	case unix.F_RDLCK:
		r.Type = client.LockShared
	case unix.F_WRLCK:
		r.Type = client.LockExclusive
	case unix.F_UNLCK:
		r.Type = client.Unlock
	default:
		return r, false
	}
	return r, true
}

// GetLk implements fuse.RawFileSystem: fcntl with F_GETLK.
func (f *fileSystem) GetLk(cancel <-chan struct{}, in *fuse.LkIn, out *fuse.LkOut) fuse.Status {
	c := f.begin(opGetLk, cancel, &in.InHeader)
	h := f.handles.get(in.Fh)
	r, ok := lockRequest(in)
	switch {
	case h == nil:
		return c.end(fuse.EBADF)
	case !ok:
		return c.end(fuse.EINVAL)
	}
	held, err := h.file.GetLock(c, r)
	if err != nil {
		return c.end(errno(err))
	}
	out.Lk = in.Lk
	if held == nil {
		out.Lk.Typ = unix.F_UNLCK
		return c.end(fuse.OK)
	}
	out.Lk = fuse.FileLock{Start: held.Start, End: held.Last, Typ: unix.F_RDLCK, Pid: held.PID}
	if held.Exclusive {
		out.Lk.Typ = unix.F_WRLCK
	}
	return c.end(fuse.OK)
}

// SetLk implements fuse.RawFileSystem: flock and fcntl that do not wait.
func (f *fileSystem) SetLk(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return f.setLock(f.begin(opSetLk, cancel, &in.InHeader), in, false)
}

// SetLkw implements fuse.RawFileSystem: flock and fcntl that wait. A signal ends
// the wait (K12).
func (f *fileSystem) SetLkw(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return f.setLock(f.begin(opSetLkw, cancel, &in.InHeader), in, true)
}

func (f *fileSystem) setLock(c *call, in *fuse.LkIn, wait bool) fuse.Status {
	h := f.handles.get(in.Fh)
	r, ok := lockRequest(in)
	switch {
	case h == nil:
		return c.end(fuse.EBADF)
	case !ok:
		return c.end(fuse.EINVAL)
	}
	if wait {
		r.Wait, r.Interrupt = true, c.interrupted
		r.Detect = func() bool { return !r.Flock && waitsInFcntl(f.groups.proc, c.tid) }
	}
	return c.end(errno(h.file.SetLock(c, r)))
}

// waitsInFcntl reports whether the thread is in fcntl(F_SETLKW): then its process
// owns the lock, and dead-locks count. The request looks the same for the lock of
// an open file description (F_OFD_SETLKW), which any thread may give back: for
// those Linux knows no dead-lock, so neither does the mount. Of a thread of
// another pid namespace nothing is known.
func waitsInFcntl(proc string, tid uint32) bool {
	return isSetLkw(systemCall(proc, tid))
}

// isSetLkw looks at the fields of a /proc/*/syscall.
func isSetLkw(fields []string) bool {
	if len(fields) < 3 || fields[0] != strconv.Itoa(unix.SYS_FCNTL) {
		return false
	}
	cmd, err := strconv.ParseUint(fields[2], 0, 64)
	return err == nil && cmd == unix.F_SETLKW
}
