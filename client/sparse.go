package client

import (
	"context"
	"errors"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Modes of Allocate, those of fallocate(2).
const (
	AllocateKeepSize  uint32 = 1
	AllocatePunchHole uint32 = 2 // with AllocateKeepSize
	AllocateZeroRange uint32 = 16
)

// Allocate is fallocate(2): mode 0 reserves space for a range, so that writing
// there later does not fail for want of it, and AllocatePunchHole gives space back;
// AllocateZeroRange makes a range zeros that have space. The size grows to the
// range's end but with AllocateKeepSize. Other modes are NotSupported. What this
// client wrote before is with the data servers first; when it returns, every client
// sees the change.
func (f *File) Allocate(ctx context.Context, mode uint32, off, length int64) error {
	switch {
	case f.closed.Load() || !f.writable():
		return f.fail("fallocate", fserr.BadHandle)
	case off < 0 || length <= 0:
		return f.fail("fallocate", fserr.Invalid)
	case off > maxFileBytes-length:
		return f.fail("fallocate", fserr.FileTooBig)
	}
	switch mode {
	case 0, AllocateKeepSize, AllocatePunchHole | AllocateKeepSize, AllocateZeroRange, AllocateZeroRange | AllocateKeepSize:
	default:
		return f.fail("fallocate", fserr.NotSupported)
	}
	st := f.st
	unlock, err := st.lockSize(ctx)
	if err != nil {
		return f.fail("fallocate", err)
	}
	a := &allocating{st: st, mode: mode, at: data.Range{Offset: off, Length: length}, kill: f.cred.Uid != 0, done: make(chan struct{})}
	if !st.c.spawn(func() { defer unlock(); a.run() }) {
		unlock()
		return f.fail("fallocate", fserr.NotConnected)
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		return f.fail("fallocate", ctx.Err())
	}
	if a.err != nil {
		return f.fail("fallocate", a.err)
	}
	return nil
}

// allocating is an Allocate under way. It does not depend on its caller's context:
// what was freed and allocated has to be reported.
type allocating struct {
	st   *fileState
	mode uint32
	at   data.Range
	kill bool

	freed, allocated uint64 // not reported yet

	done chan struct{}
	err  error
}

func (a *allocating) run() {
	defer close(a.done)
	ctx := a.st.c.ctx
	for try := 0; ; try++ {
		a.err = a.once(ctx)
		if fserr.KindOf(a.err) != fserr.OldEpoch {
			return
		}
		// Another client truncated: it is done again, after that.
		if a.err = pause(ctx, backoff(try)); a.err != nil {
			return
		}
	}
}

// once writes out what was written before, so that none of it goes out again
// behind the change (PROTOCOLS J1), makes the change and reports it.
func (a *allocating) once(ctx context.Context) error {
	st := a.st
	if err := st.flush(ctx, false); err != nil {
		return err
	}
	if err := st.ensureKnown(ctx); err != nil {
		return err
	}
	if a.mode&(AllocateKeepSize|AllocatePunchHole) == 0 {
		// A quota that has no room for the size says so before space is taken.
		take, _, err := st.admit(ctx, a.at.Offset, a.at.Length)
		if err == nil && take < a.at.Length {
			err = fserr.Quota
		}
		if err != nil {
			return err
		}
	}
	st.mu.Lock()
	file := st.file
	st.mu.Unlock()
	changed, err := a.change(ctx, file)
	if fserr.KindOf(err) == fserr.OldEpoch {
		st.refresh(file.SizeEpoch)
		return err
	}
	if err != nil && !changed {
		return err
	}
	return errors.Join(err, a.report(ctx, file, err == nil))
}

// change makes the change at the data servers. changed says whether any of it may
// have been made.
func (a *allocating) change(ctx context.Context, file data.File) (changed bool, err error) {
	if a.mode&(AllocatePunchHole|AllocateZeroRange) != 0 {
		freed, acks, err := a.st.c.data.Punch(ctx, file, a.at)
		a.freed += freed
		a.touched(acks)
		if err != nil || a.mode&AllocatePunchHole != 0 {
			return true, err
		}
		changed = true
	}
	if err := a.room(ctx, file); err != nil {
		return changed, err
	}
	allocated, acks, err := a.st.c.data.Reserve(ctx, file, a.at)
	a.allocated += allocated
	a.touched(acks)
	return true, err
}

// room refuses what is more than the pool has free, before any of it is taken: a
// reservation that fails half-way keeps what it has got.
func (a *allocating) room(ctx context.Context, file data.File) error {
	_, free, err := a.st.c.data.Usage(ctx, base.PoolID(file.Layout.GetPool()))
	if err != nil || uint64(a.at.Length) <= free {
		return err
	}
	have, err := a.st.c.data.Allocated(ctx, file)
	if err == nil && uint64(a.at.Length) > free+have {
		err = fserr.NoSpace
	}
	return err
}

func (a *allocating) touched(acks data.Acks) {
	st := a.st
	st.mu.Lock()
	defer st.mu.Unlock()
	st.acks.Merge(acks)
	st.touched.add(a.at.Offset, a.at.Offset+a.at.Length)
	st.touched.bound(maxTouched)
}

// report tells the metadata service, in one operation: times, st_blocks, and the
// size that the whole change gives the file.
func (a *allocating) report(ctx context.Context, file data.File, whole bool) error {
	st := a.st
	end := uint64(a.at.Offset + a.at.Length)
	call := &canopyv1.ReportSizeCall{SizeEpoch: file.SizeEpoch, Changed: true, KillPriv: a.kill, MtimeNs: time.Now().UnixNano(),
		AllocatedBytes: a.allocated, FreedBytes: a.freed}
	if a.mode&AllocatePunchHole == 0 {
		call.ReservedEnd = end
		if whole && a.mode&AllocateKeepSize == 0 {
			call.Size = end
		}
	}
	call.Place = st.n.place()
	_, err := st.ask(ctx, opReportSize, &canopyv1.Op{Cred: superuser, Call: &canopyv1.Op_ReportSize{ReportSize: call}})
	return err
}

// SeekData returns the first offset at or behind off that has data, SeekHole the
// first that has none; the end of the file is a hole. Beyond it, and SeekData behind
// the last data, are NoDevice, as lseek(2) has it. What a hole is goes by blocks of
// 4 KiB; a range that was reserved and not written counts as data.
func (f *File) SeekData(ctx context.Context, off int64) (int64, error) {
	return f.seek(ctx, off, false)
}

// SeekHole: see SeekData.
func (f *File) SeekHole(ctx context.Context, off int64) (int64, error) { return f.seek(ctx, off, true) }

func (f *File) seek(ctx context.Context, off int64, hole bool) (int64, error) {
	if f.closed.Load() {
		return 0, f.fail("seek", fserr.BadHandle)
	}
	st := f.st
	for try := 0; ; try++ {
		if err := st.flush(ctx, false); err != nil {
			return 0, f.fail("seek", err)
		}
		if _, err := st.c.fetchAttr(ctx, st.n); err != nil {
			return 0, f.fail("seek", err)
		}
		st.mu.Lock()
		file, size := st.file, st.size
		st.mu.Unlock()
		if off < 0 || off >= size {
			return 0, f.fail("seek", fserr.NoDevice)
		}
		at, err := st.c.data.Seek(ctx, file, off, hole)
		switch {
		case fserr.KindOf(err) == fserr.OldEpoch:
			if err := pause(ctx, backoff(try)); err != nil {
				return 0, f.fail("seek", err)
			}
			continue
		case err != nil:
			return 0, f.fail("seek", err)
		case hole && (at < 0 || at >= size):
			return size, nil
		case at < 0 || at >= size:
			return 0, f.fail("seek", fserr.NoDevice)
		}
		return at, nil
	}
}

// recountTries bounds how often a count is begun anew because a write came between.
const recountTries = 3

// recount corrects st_blocks of a file with holes after a truncation, and returns
// the attributes after that: the metadata service does not know where the holes
// were. It is left at the estimate if the data servers do not answer, or others
// write meanwhile.
func (c *Client) recount(ctx context.Context, n *Inode, before, after *Attr) *Attr {
	if after.Size == 0 || before != nil && (before.Blocks == 0 || before.Blocks == (before.Size+4095)/4096*8) {
		return after
	}
	st := n.file.Load()
	for range recountTries {
		var answered uint64
		if st != nil {
			if st.flush(ctx, false) != nil {
				return after
			}
			answered = st.quiet()
		}
		attr, err := c.fetchAttr(ctx, n)
		if err != nil {
			return after
		}
		after = attr
		have, err := c.data.Allocated(ctx, fileOf(n, attr))
		if err != nil {
			return after
		}
		if st != nil && (answered == 0 || st.quiet() != answered) {
			continue
		}
		asked := time.Now()
		res, err := c.do(ctx, opReportSize, &canopyv1.Op{Subtree: uint64(n.subtreeID()), Cred: superuser,
			Call: &canopyv1.Op_ReportSize{ReportSize: &canopyv1.ReportSizeCall{Place: n.place(), SizeEpoch: attr.SizeEpoch,
				Counted: true, DataVersion: attr.DataVersion, AllocatedBytes: have}}})
		if err == nil && res.Attr != nil {
			n.movedTo(res.Place, res.Attr)
			c.cache.putAttr(res.Attr, asked)
			after = res.Attr
		}
		return after
	}
	return after
}

// quiet returns a number that changes when a write reaches the data servers; 0 if
// one is under way or not reported.
func (st *fileState) quiet() uint64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, b := range st.blocks {
		if len(b.flight) > 0 {
			return 0
		}
	}
	if st.unreported || st.reporting || st.allocated > 0 {
		return 0
	}
	return st.answered + 1
}
