package client

import (
	"cmp"
	"context"
	"math"
	"sync/atomic"
	"syscall"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/capability"
	"github.com/canopyfs/canopy/internal/fserr"
)

// File is an open regular file. Handles of one client on one inode share
// buffers: each sees the others' writes at once.
type File struct {
	st     *fileState
	flags  uint32
	cred   *canopyv1.Credential // of who opened it
	seen   atomic.Uint64
	closed atomic.Bool

	number   uint64      // of the handle, among all of the client
	lockLost atomic.Bool // a lock that was taken through it is gone
}

// Open opens the regular file n. It checks no permission (a kernel with
// default_permissions or FS does, or call Access) and asks nobody, but with
// O_TRUNC, which sets the size to 0 as SetAttr with the handle does.
func (c *Client) Open(ctx context.Context, cred Cred, n *Inode, flags uint32) (*File, error) {
	if n.isDir {
		return nil, &fserr.Error{Kind: fserr.IsDir, Op: "open", Ino: n.ino}
	}
	if c.closed.Load() {
		return nil, fserr.New(fserr.NotConnected, "open", nil)
	}
	n.Hold()
	st := c.state(n)
	n.mu.Lock()
	n.handles++
	first := n.handles == 1
	n.mu.Unlock()
	if first {
		c.opens.opened(n)
	}
	f := &File{st: st, flags: flags, cred: cred.wire(), number: c.lastHandle.Add(1)}
	st.mu.Lock()
	f.seen.Store(st.errs)
	st.mu.Unlock()
	if n.granted.Load() == nil && c.granting.Load() {
		// A listing showed it. What the first read or write needs is on its way when
		// that comes (PROTOCOLS J4).
		n.ask(c, f.rights())
	}
	if flags&syscall.O_TRUNC != 0 && f.writable() {
		if _, err := c.SetAttr(ctx, cred, n, SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_SIZE, Handle: f}); err != nil {
			f.abandon()
			return nil, err
		}
	}
	return f, nil
}

// Inode returns the file's inode; the reference is the handle's.
func (f *File) Inode() *Inode { return f.st.n }

// Flags returns the flags that the file was opened with.
func (f *File) Flags() uint32 { return f.flags }

func (f *File) writable() bool { return f.flags&syscall.O_ACCMODE != syscall.O_RDONLY }
func (f *File) readable() bool { return f.flags&syscall.O_ACCMODE != syscall.O_WRONLY }

// rights are those that the handle needs at the data servers.
func (f *File) rights() (r capability.Rights) {
	if f.readable() {
		r |= capability.Read
	}
	if f.writable() {
		r |= capability.Write
	}
	return r
}

// synchronous reports whether every write has to be durable when it returns.
func (f *File) synchronous() bool { return f.flags&(syscall.O_SYNC|syscall.O_DSYNC) != 0 }

func (f *File) fail(op string, err error) error {
	if e, ok := err.(*fserr.Error); ok && e.Op != "" {
		return err
	}
	e := &fserr.Error{Kind: fserr.KindOf(err), Op: op, Ino: f.st.n.ino}
	if _, bare := err.(fserr.Kind); !bare {
		e.Err = err
	}
	return e
}

// maxFileBytes is the largest size of a file, as the metadata service has it.
const maxFileBytes = math.MaxInt64

// farBytes is where a data server's file system may have no files as large as the
// column would have to be (ext4: 16 TiB). What is written beyond goes out at once,
// so that the write itself says so, and no close does later.
const farBytes = 8 << 40

// WriteAt writes p at off; with O_APPEND off does not count, and it is Append.
// Unless the file was opened with O_SYNC or O_DSYNC the bytes are buffered when
// it returns; p may be re-used then. A write that waited for memory when ctx ended
// answers how much it took. So does one that a quota has no room for, with kind Quota;
// near a bound the bytes are reported before it returns.
func (f *File) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	switch {
	case f.closed.Load() || !f.writable():
		return 0, f.fail("write", fserr.BadHandle)
	case f.lockLost.Load():
		return 0, f.fail("write", errLockLost)
	case off < 0:
		return 0, f.fail("write", fserr.Invalid)
	case f.flags&syscall.O_APPEND != 0:
		_, err := f.Append(ctx, p)
		if err != nil {
			return 0, err
		}
		return len(p), nil
	case off > maxFileBytes-int64(len(p)):
		return 0, f.fail("write", fserr.FileTooBig)
	case len(p) == 0:
		return 0, nil
	}
	st := f.st
	if err := st.ensureKnown(ctx); err != nil {
		return 0, f.fail("write", err)
	}
	take, through, err := st.admit(ctx, off, int64(len(p)))
	if err != nil {
		return 0, f.fail("write", err)
	}
	done, err := f.bufferAll(ctx, p[:take], off)
	switch {
	case err != nil:
		return done, err
	case through:
		if kept, err := f.writeThrough(ctx, off, take, f.synchronous()); err != nil || kept < int64(len(p)) {
			return int(kept), f.fail("write", cmp.Or(err, error(fserr.Quota)))
		}
	case f.synchronous():
		return done, f.Fsync(ctx)
	case off+int64(done) > farBytes:
		if err := f.push(ctx, "write", false); err != nil {
			return 0, err
		}
	}
	return done, nil
}

// bufferAll copies p into the file's blocks, a piece at a time as memory allows, and
// returns how much it took.
func (f *File) bufferAll(ctx context.Context, p []byte, off int64) (int, error) {
	st := f.st
	flusher := st.c.flusher
	step := int(min(4*blockBytes, max(flusher.budget.limit/4, 4096)))
	done := 0
	for done < len(p) {
		piece := p[done:min(done+step, len(p))]
		if err := flusher.budget.acquire(ctx, int64(len(piece)), flusher.poke); err != nil {
			return done, f.fail("write", err)
		}
		if st.c.ctx.Err() != nil {
			flusher.budget.release(int64(len(piece)))
			return done, f.fail("write", fserr.NotConnected)
		}
		st.buffer(piece, off+int64(done), f.cred.Uid != 0)
		done += len(piece)
	}
	return done, nil
}

// buffer copies p into blocks; len(p) bytes of the budget are the caller's and
// become the blocks', as far as they hold more bytes than before.
func (st *fileState) buffer(p []byte, off int64, kill bool) {
	now := time.Now()
	spare := int64(len(p))
	st.mu.Lock()
	defer st.mu.Unlock()
	st.listLocked()
	st.modified = now.UnixNano()
	st.killPriv = st.killPriv || kill
	for len(p) > 0 {
		i := off / blockBytes
		limit := blockEnd(i)
		n := int(min(int64(len(p)), limit-off))
		b := st.blocks[i]
		if b == nil {
			b = &block{}
			if st.blocks == nil {
				st.blocks = map[int64]*block{}
			}
			st.blocks[i] = b
		}
		if len(b.dirty) == 0 {
			b.gen, b.since = st.gen, now
		}
		before := b.dirty.bytes()
		b.dirty.write(off, p[:n], limit)
		after := b.dirty.bytes()
		spare -= after - before
		if after == blockBytes && len(b.flight) == 0 && st.c.flusher.trySlot() && !st.startLocked(b) {
			st.c.flusher.freeSlot()
		}
		p, off = p[n:], off+int64(n)
	}
	st.c.flusher.budget.release(spare)
}

// takeError returns the newest failure of write-back that this handle has not
// answered yet.
func (f *File) takeError() error {
	f.st.mu.Lock()
	defer f.st.mu.Unlock()
	if f.seen.Swap(f.st.errs) == f.st.errs {
		return nil
	}
	return f.st.lastErr
}

// Flush is what close(2) does for each descriptor: all bytes written to the
// file by this client are visible to every client when it returns. It reports
// failed background writes. On a handle opened for reading it only does that.
func (f *File) Flush(ctx context.Context) error {
	if f.closed.Load() {
		return f.fail("flush", fserr.BadHandle)
	}
	return f.push(ctx, "flush", false)
}

func (f *File) push(ctx context.Context, op string, sync bool) error {
	if f.writable() || sync {
		if err := f.st.flush(ctx, sync); err != nil {
			return f.fail(op, err)
		}
	}
	return f.takeError()
}

// Fsync does what Flush does, and makes the bytes durable on all in-sync
// replicas before their size is reported. Where the policy of the file says so it
// does only what Flush does.
func (f *File) Fsync(ctx context.Context) error {
	if f.closed.Load() {
		return f.fail("fsync", fserr.BadHandle)
	}
	return f.push(ctx, "fsync", true)
}

// Direct reports whether the policy of the file wants reads and writes to go past
// caches, so that many of its writers do not wait for each other (FUSE K9).
func (f *File) Direct() bool { return f.st.layoutFlag(canopyv1.LayoutFlag_LAYOUT_DIRECT) }

// Truncate sets the size of the file, which must be open for writing.
func (f *File) Truncate(ctx context.Context, size uint64) error {
	if f.closed.Load() || !f.writable() {
		return f.fail("truncate", fserr.BadHandle)
	}
	_, err := f.st.c.SetAttr(ctx, Cred{}, f.st.n, SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_SIZE, Size: size, Handle: f})
	return err
}

// Close flushes and gives the handle up, whatever it returns. Bytes of a file
// that has no name any more are dropped with its last handle.
func (f *File) Close(ctx context.Context) error {
	if f.closed.Swap(true) {
		return f.fail("close", fserr.BadHandle)
	}
	defer f.release()
	err := f.closeData(ctx)
	if dropErr := f.dropLocks(ctx); err == nil && dropErr != nil {
		err = f.fail("close", dropErr)
	}
	return err
}

// closeData flushes what the handle has written, or drops it with the file.
func (f *File) closeData(ctx context.Context) error {
	st := f.st
	st.mu.Lock()
	orphan := st.orphan
	st.mu.Unlock()
	if orphan {
		st.n.mu.Lock()
		last := st.n.handles == 1
		st.n.mu.Unlock()
		if last {
			st.discard()
			return f.takeError()
		}
	}
	return f.push(ctx, "close", false)
}

// abandon gives up a handle that was never handed out.
func (f *File) abandon() {
	if !f.closed.Swap(true) {
		f.release()
	}
}

func (f *File) release() {
	n := f.st.n
	n.mu.Lock()
	n.handles--
	last := n.handles == 0
	n.mu.Unlock()
	if last {
		f.st.c.opens.closed(n)
	}
	n.Release()
}
