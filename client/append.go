package client

import (
	"context"
	"errors"
	"slices"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Append writes p at the end of the file, in a range that no other append of
// any client gets (PROTOCOLS J2), and returns where. The bytes are visible to
// every client when it returns, and durable with O_SYNC or O_DSYNC. When ctx
// ends after it began, the append completes in the background.
func (f *File) Append(ctx context.Context, p []byte) (off int64, err error) {
	if f.closed.Load() || !f.writable() {
		return 0, f.fail("append", fserr.BadHandle)
	}
	if f.lockLost.Load() {
		return 0, f.fail("append", errLockLost)
	}
	if len(p) == 0 {
		return 0, nil
	}
	// What this client has written counts as being there: the server has to know
	// of it before it says where the end is.
	st := f.st
	if err := st.flush(ctx, f.synchronous()); err != nil {
		return 0, f.fail("append", err)
	}
	if err := st.ensureKnown(ctx); err != nil {
		return 0, f.fail("append", err)
	}
	a := &appending{st: st, p: slices.Clone(p), cred: f.cred, sync: f.synchronous(), done: make(chan struct{})}
	if !st.c.spawn(a.run) {
		return 0, f.fail("append", fserr.NotConnected)
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		return 0, f.fail("append", ctx.Err())
	}
	if a.err != nil {
		return 0, f.fail("append", a.err)
	}
	return a.off, nil
}

// appending is an append under way. It does not depend on its caller's context:
// a reservation that is never filled would hold back the appends of everybody.
type appending struct {
	st   *fileState
	p    []byte
	cred *canopyv1.Credential
	sync bool

	done chan struct{}
	off  int64
	err  error
}

func (a *appending) run() {
	defer close(a.done)
	for try := 0; ; try++ {
		a.off, a.err = a.once(a.st.c.ctx)
		if fserr.KindOf(a.err) != fserr.OldEpoch {
			return
		}
		// A truncation came in between: the reservation went with it.
		if err := pause(a.st.c.ctx, backoff(try)); err != nil {
			a.err = err
			return
		}
	}
}

// once reserves a range at the end, writes it and fills it in. An error OldEpoch
// means that the reservation is void.
func (a *appending) once(ctx context.Context) (int64, error) {
	st := a.st
	length := int64(len(a.p))
	res, err := st.ask(ctx, opReserveAppend, &canopyv1.Op{Cred: a.cred, Call: &canopyv1.Op_ReserveAppend{
		ReserveAppend: &canopyv1.ReserveAppendCall{Place: st.n.place(), Length: uint64(length)}}})
	if err != nil {
		return 0, err
	}
	off := int64(res.Offset)
	st.mu.Lock()
	file := st.file
	st.mu.Unlock()
	if res.Attr == nil || res.Attr.SizeEpoch != file.SizeEpoch {
		return 0, fserr.OldEpoch // another one has begun since the reservation
	}
	w, err := a.write(ctx, file, off)
	if fserr.KindOf(err) == fserr.OldEpoch {
		st.refresh(file.SizeEpoch)
		return 0, err
	}
	if err == nil {
		st.c.metrics.written.Add(float64(length))
		if !a.sync {
			st.mu.Lock()
			st.acks.Merge(w.Acks)
			st.touched.add(off, off+length)
			st.touched.bound(maxTouched)
			st.mu.Unlock()
		}
	} else if ctx.Err() == nil {
		st.c.logger.Error("an append failed and left zeros", "inode", st.n.ino, "offset", off, "bytes", length, "error", err)
	}
	// A range that could not be written is filled too, with zeros: what others
	// append behind it must become visible.
	_, fillErr := st.ask(ctx, opFillAppend, &canopyv1.Op{Cred: a.cred, Call: &canopyv1.Op_FillAppend{FillAppend: &canopyv1.FillAppendCall{
		Place: st.n.place(), Offset: uint64(off), Length: uint64(length), SizeEpoch: file.SizeEpoch, AllocatedBytes: w.AllocatedBytes}}})
	if err == nil {
		err = fillErr
	}
	return off, err
}

// write writes the bytes, and makes them durable if the handle asks for it; what
// a crash takes in between is written again.
func (a *appending) write(ctx context.Context, file data.File, off int64) (done data.Written, err error) {
	for {
		w, err := a.st.c.data.WriteAt(ctx, file, a.p, off)
		done.AllocatedBytes += w.AllocatedBytes
		done.Acks = w.Acks
		if err != nil || !a.sync {
			return done, err
		}
		err = a.st.c.data.Sync(ctx, file, w.Acks, data.Range{Offset: off, Length: int64(len(a.p))})
		if !errors.Is(err, data.ErrLost) {
			return done, err
		}
	}
}

// ask sends an operation on behalf of a handle and takes the attributes that
// its answer carries.
func (st *fileState) ask(ctx context.Context, kind opKind, op *canopyv1.Op) (*canopyv1.Result, error) {
	asked := time.Now()
	op.Subtree = uint64(st.n.subtreeID())
	res, err := st.c.do(ctx, kind, op)
	if res.GetAttr() != nil && (err == nil || errors.Is(err, fserr.OldEpoch)) {
		st.n.movedTo(res.Place, res.Attr)
		st.n.see(res.Attr)
		st.c.cache.putAttr(res.Attr, asked)
	} else {
		st.c.cache.dropAttr(st.n.ino)
	}
	return res, err
}
