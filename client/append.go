package client

import (
	"context"
	"errors"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Append writes p at the end of the file, in a range that no other append of
// any client gets (PROTOCOLS J2), and returns where. The bytes are visible to
// every client when it returns, and durable with O_SYNC or O_DSYNC.
func (f *File) Append(ctx context.Context, p []byte) (off int64, err error) {
	if f.closed.Load() || !f.writable() {
		return 0, f.fail("append", fserr.BadHandle)
	}
	if len(p) == 0 {
		return 0, nil
	}
	for try := 0; ; try++ {
		off, err := f.st.append(ctx, p, f.synchronous())
		if fserr.KindOf(err) != fserr.OldEpoch {
			if err != nil {
				err = f.fail("append", err)
			}
			return off, err
		}
		// A truncation came in between: the reservation went with it.
		if err := pause(ctx, time.Duration(min(try, 1))*backoff(try)); err != nil {
			return 0, f.fail("append", err)
		}
	}
}

// append reserves a range at the end, writes it and fills it in (PROTOCOLS J2).
// An error OldEpoch means that the reservation is void.
func (st *fileState) append(ctx context.Context, p []byte, sync bool) (int64, error) {
	// What this client has written counts as being there: the server has to know
	// of it before it says where the end is.
	if err := st.flush(ctx, sync); err != nil {
		return 0, err
	}
	if err := st.ensureKnown(ctx); err != nil {
		return 0, err
	}
	res, err := st.ask(ctx, opReserveAppend, &canopyv1.Op{Call: &canopyv1.Op_ReserveAppend{
		ReserveAppend: &canopyv1.ReserveAppendCall{Place: st.n.place(), Length: uint64(len(p))}}})
	if err != nil {
		return 0, err
	}
	off := int64(res.Offset)
	st.mu.Lock()
	file := st.file
	st.mu.Unlock()
	if res.Attr != nil && res.Attr.SizeEpoch != file.SizeEpoch {
		return 0, fserr.OldEpoch // another one has begun since the reservation
	}
	if _, err := st.c.data.WriteAt(ctx, file, p, off); err != nil {
		return 0, st.refused(err, file.SizeEpoch)
	}
	st.c.metrics.written.Add(float64(len(p)))
	if sync {
		if err := st.c.data.Sync(ctx, file, data.Range{Offset: off, Length: int64(len(p))}); err != nil {
			return 0, st.refused(err, file.SizeEpoch)
		}
	} else {
		st.mu.Lock()
		st.touched.add(off, off+int64(len(p)))
		st.touched.bound(maxTouched)
		st.mu.Unlock()
	}
	_, err = st.ask(ctx, opFillAppend, &canopyv1.Op{Call: &canopyv1.Op_FillAppend{FillAppend: &canopyv1.FillAppendCall{
		Place: st.n.place(), Offset: uint64(off), Length: uint64(len(p)), SizeEpoch: file.SizeEpoch}}})
	return off, err
}

// refused learns the new epoch if that is why the data servers refused.
func (st *fileState) refused(err error, epoch uint64) error {
	if fserr.KindOf(err) == fserr.OldEpoch {
		st.refresh(epoch)
	}
	return err
}

// ask sends an operation on behalf of a handle and takes the attributes that
// its answer carries.
func (st *fileState) ask(ctx context.Context, kind opKind, op *canopyv1.Op) (*canopyv1.Result, error) {
	asked := time.Now()
	op.Subtree, op.Cred = uint64(st.n.subtreeID()), superuser
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
