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

// flush brings everything that was written before the call to the data servers
// and reports it; with sync it is durable there first. Failures of write-back
// are not returned but remembered for the handles; the error is ctx's.
func (st *fileState) flush(ctx context.Context, sync bool) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.flushLocked(ctx, sync)
}

func (st *fileState) flushLocked(ctx context.Context, sync bool) error {
	gen := st.gen
	st.gen++
	for {
		unreported, err := st.writtenLocked(ctx, gen, sync)
		if err != nil || !unreported {
			return err
		}
		st.reportLocked()
		if err := st.waitLocked(ctx); err != nil {
			return err
		}
	}
}

// writtenLocked returns when the data servers have what was dirty up to the
// generation, durably if asked for, and no report is on its way; unreported says
// whether one is due.
func (st *fileState) writtenLocked(ctx context.Context, gen uint64, sync bool) (unreported bool, err error) {
	for {
		if st.c.ctx.Err() != nil {
			return false, fserr.NotConnected
		}
		st.checkLossLocked()
		pending, err := st.writeOlderLocked(ctx, gen)
		switch {
		case err != nil:
			return false, err
		case pending:
			err = st.waitLocked(ctx)
		case sync && (st.whole || len(st.touched) > 0):
			// Durable before it is reported: no size may promise bytes that a power
			// failure takes.
			err = st.syncLocked(ctx)
		case st.reporting:
			err = st.waitLocked(ctx)
		default:
			return st.unreported, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// flushUpToReport is flush without sync, but returns the report that is due at
// the end, for the caller to send along with something else: reported or unreport
// ends it. nil: none is due, or it was sent, as asked for by whole.
func (st *fileState) flushUpToReport(ctx context.Context, whole bool) (*canopyv1.ReportSizeCall, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if whole {
		return nil, st.flushLocked(ctx, false)
	}
	gen := st.gen
	st.gen++
	unreported, err := st.writtenLocked(ctx, gen, false)
	if err != nil || !unreported {
		return nil, err
	}
	return st.takeReportLocked(), nil
}

// writeOlderLocked starts the write-out of all dirty blocks that a flush of the
// given generation covers, and reports whether any of them is not done.
func (st *fileState) writeOlderLocked(ctx context.Context, gen uint64) (pending bool, err error) {
	for again := true; again; {
		if pending, again, err = st.startOlderLocked(ctx, gen); err != nil {
			return true, err
		}
	}
	return pending, nil
}

// startOlderLocked is one pass of writeOlderLocked. It leaves mu while it waits for a
// slot: what others write out meanwhile wakes nobody who begins to wait afterwards,
// so it asks for another pass then.
func (st *fileState) startOlderLocked(ctx context.Context, gen uint64) (pending, again bool, err error) {
	var start []int64
	for i, b := range st.blocks {
		if len(b.flight) > 0 {
			pending = pending || b.out <= gen || b.awaits(gen)
			continue
		}
		if b.awaits(gen) {
			start = append(start, i)
		}
	}
	slices.Sort(start)
	for _, i := range start {
		pending = true
		st.mu.Unlock()
		err := st.c.flusher.slot(ctx)
		st.mu.Lock()
		if err != nil {
			return true, false, err
		}
		b := st.blocks[i]
		if b != nil && st.startLocked(b) {
			continue
		}
		st.c.flusher.freeSlot()
		again = again || b == nil || len(b.flight) > 0 || !b.awaits(gen)
	}
	return pending, again, nil
}

// awaits reports whether the block has bytes to write out that a flush of the given
// generation covers.
func (b *block) awaits(gen uint64) bool { return len(b.dirty) > 0 && b.gen <= gen }

// startLocked starts the write-out of a block in a slot that the caller holds.
// It returns false if there is nothing to start.
func (st *fileState) startLocked(b *block) bool {
	if len(b.dirty) == 0 || len(b.flight) > 0 || !st.known {
		return false
	}
	b.flight, b.dirty, b.out = b.dirty, nil, b.gen
	runs := slices.Clone(b.flight)
	file := st.file
	ok := st.c.spawn(func() {
		defer st.c.flusher.freeSlot()
		st.writeOut(b, file, runs)
	})
	if !ok {
		b.dirty, b.flight = b.flight, nil
	}
	return ok
}

// writeOut sends a block's extents and takes note of the outcome.
func (st *fileState) writeOut(b *block, file data.File, runs extents) {
	var done data.Written
	var err error
	for lo := 0; lo < len(runs) && err == nil; {
		p, next := gather(runs, lo)
		var w data.Written
		w, err = st.c.data.WriteAt(st.c.ctx, file, p, runs[lo].off)
		done.AllocatedBytes += w.AllocatedBytes
		done.Acks.Merge(w.Acks)
		if err == nil {
			st.c.metrics.written.Add(float64(len(p)))
		}
		lo = next
	}
	if fserr.KindOf(err) == fserr.OldEpoch {
		st.refresh(file.SizeEpoch)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.allocated += done.AllocatedBytes
	st.answered++
	flight := b.flight
	b.flight = nil
	switch {
	case err == nil && file.SizeEpoch == st.file.SizeEpoch:
		before := b.written.bytes() + flight.bytes()
		b.written = b.written.over(flight)
		st.c.flusher.budget.release(before - b.written.bytes())
		if !st.unreported {
			st.unreported, st.since = true, time.Now()
		}
		st.acks.Merge(done.Acks)
		for _, e := range runs {
			st.touched.add(e.off, e.end())
		}
		st.touched.bound(maxTouched)
	case err == nil, fserr.KindOf(err) == fserr.OldEpoch, st.c.ctx.Err() != nil:
		// Under an epoch that has ended, or not at all: it goes out again.
		st.againLocked(b, &flight)
	default:
		lost := flight.bytes()
		st.c.flusher.budget.release(lost)
		st.c.metrics.lost.Add(float64(lost))
		st.failLocked(&fserr.Error{Kind: fserr.KindOf(err), Op: "write", Ino: st.n.ino, Err: err})
		// Some of it may lie at some server, to be deleted with the file.
		st.reached = max(st.reached, runs.end())
		if !st.unreported {
			st.unreported, st.since = true, time.Now()
		}
		st.c.logger.Error("buffered bytes could not be written", "inode", st.n.ino, "bytes", lost, "error", err)
	}
	st.settleLocked()
}

// gather returns the bytes of the extents from index lo on that follow each
// other without a gap, and the index behind them.
func gather(runs extents, lo int) ([]byte, int) {
	hi := lo + 1
	size := len(runs[lo].b)
	for hi < len(runs) && runs[hi].off == runs[hi-1].end() {
		size += len(runs[hi].b)
		hi++
	}
	if hi == lo+1 {
		return runs[lo].b, hi
	}
	p := make([]byte, 0, size)
	for _, e := range runs[lo:hi] {
		p = append(p, e.b...)
	}
	return p, hi
}

// refresh learns the new size epoch after a refusal of the given one. If the
// metadata service does not show it yet, the next try comes a little later.
func (st *fileState) refresh(refused uint64) {
	attr, err := st.c.fetchAttr(st.c.ctx, st.n)
	if err != nil {
		st.mu.Lock()
		st.giveUpLocked(err)
		st.mu.Unlock()
		return
	}
	if attr.SizeEpoch <= refused {
		_ = pause(st.c.ctx, backoff(3))
	}
}

// giveUpLocked drops everything after an error that no repetition mends: the
// file is gone, or may not grow. The handles learn of it.
func (st *fileState) giveUpLocked(err error) {
	if st.c.ctx.Err() != nil {
		return
	}
	var lost int64
	for _, b := range st.blocks {
		before := b.bytes()
		b.dirty, b.written, b.reporting = nil, nil, nil
		lost += before - b.bytes()
	}
	st.c.flusher.budget.release(lost)
	st.c.metrics.lost.Add(float64(lost))
	st.unreported, st.allocated = false, 0
	st.failLocked(&fserr.Error{Kind: fserr.KindOf(err), Op: "write", Ino: st.n.ino, Err: err})
	if !st.orphan {
		st.c.logger.Error("buffered bytes were given up", "inode", st.n.ino, "bytes", lost, "error", err)
	}
	st.settleLocked()
}

// syncLocked makes durable what the data servers acknowledged. If the file's
// policy does without, they count as they are: a crash of their machine may take
// them, and nobody is told.
func (st *fileState) syncLocked(ctx context.Context) error {
	if st.file.Layout.GetFlags()&uint32(canopyv1.LayoutFlag_LAYOUT_NO_SYNC) != 0 {
		st.touched, st.acks, st.whole = nil, nil, false
		return nil
	}
	touched, acks, whole, file := st.touched, st.acks, st.whole, st.file
	st.touched, st.acks, st.whole = nil, nil, false
	var ranges []data.Range // none: the whole file
	if !whole {
		for _, t := range touched {
			ranges = append(ranges, data.Range{Offset: t.lo, Length: t.hi - t.lo})
		}
	}
	st.mu.Unlock()
	err := st.c.data.Sync(ctx, file, acks, ranges...)
	if fserr.KindOf(err) == fserr.OldEpoch {
		st.refresh(file.SizeEpoch)
	}
	st.mu.Lock()
	lost := errors.Is(err, data.ErrLost)
	switch {
	case err == nil:
		return nil
	case fserr.KindOf(err) == fserr.OldEpoch, lost:
		err = nil // what counts is dirty again
	case ctx.Err() == nil:
		st.failLocked(&fserr.Error{Kind: fserr.KindOf(err), Op: "fsync", Ino: st.n.ino, Err: err})
		return nil
	}
	st.whole = st.whole || whole
	for _, t := range touched {
		st.touched.add(t.lo, t.hi)
	}
	st.acks.Merge(acks)
	if lost {
		st.checkLossLocked()
	}
	return err
}

// reportLocked starts a size report of all that the data servers acknowledged.
func (st *fileState) reportLocked() {
	call := st.takeReportLocked()
	if !st.c.spawn(func() { st.report(call) }) {
		st.unreportLocked(call)
	}
}

// takeReportLocked makes a report of all that the data servers acknowledged,
// which is on its way from here on.
func (st *fileState) takeReportLocked() *canopyv1.ReportSizeCall {
	var end int64
	for _, b := range st.blocks {
		if len(b.written) > 0 {
			b.reporting, b.written = b.written, nil
			end = max(end, b.reporting.end())
		}
	}
	call := &canopyv1.ReportSizeCall{SizeEpoch: st.file.SizeEpoch, Size: uint64(end),
		AllocatedBytes: st.allocated, Changed: true, KillPriv: st.killPriv, MtimeNs: st.modified, ReservedEnd: uint64(st.reached),
		AccessedNs: st.n.accessed.Load(), Refused: st.refused}
	st.reporting, st.unreported, st.allocated, st.reached, st.refused = true, false, 0, 0, false
	return call
}

// unreport takes a report back that was not taken in.
func (st *fileState) unreport(call *canopyv1.ReportSizeCall) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.unreportLocked(call)
	st.settleLocked()
}

func (st *fileState) unreportLocked(call *canopyv1.ReportSizeCall) {
	st.reporting, st.unreported, st.since = false, true, time.Now()
	st.allocated += call.AllocatedBytes
	st.reached, st.refused = max(st.reached, int64(call.ReservedEnd)), st.refused || call.Refused
	for _, b := range st.blocks {
		before := b.reporting.bytes() + b.written.bytes()
		b.written, b.reporting = b.reporting.over(b.written), nil
		st.c.flusher.budget.release(before - b.written.bytes())
	}
}

// report sends a size report. An answer OLD_EPOCH brings the new epoch, under
// which the same bytes go out and are reported again (PROTOCOLS J1).
func (st *fileState) report(call *canopyv1.ReportSizeCall) {
	call.Place = st.n.place()
	asked := time.Now()
	res, err := st.c.do(st.c.ctx, opReportSize, &canopyv1.Op{Subtree: uint64(st.n.subtreeID()), Cred: superuser,
		Call: &canopyv1.Op_ReportSize{ReportSize: call}})
	st.reported(call, res, err, asked)
}

// reported takes in what became of a report.
func (st *fileState) reported(call *canopyv1.ReportSizeCall, res *canopyv1.Result, err error, asked time.Time) {
	old := errors.Is(err, fserr.OldEpoch)
	if res != nil {
		st.n.movedTo(res.Place, res.Attr)
		if res.Attr != nil {
			st.c.cache.putAttr(res.Attr, asked)
			st.n.see(res.Attr)
		}
	}
	st.learnRoom(res, asked)
	if old && res.GetAttr().GetSizeEpoch() <= call.SizeEpoch {
		st.refresh(call.SizeEpoch)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.reporting = false
	switch {
	case err == nil:
		for _, b := range st.blocks {
			st.c.flusher.budget.release(b.reporting.bytes())
			b.reporting = nil
		}
		st.n.accessTold(call.AccessedNs)
	case old, st.c.ctx.Err() != nil:
		st.allocated += call.AllocatedBytes
		st.reached, st.refused = max(st.reached, int64(call.ReservedEnd)), st.refused || call.Refused
		if st.reached > 0 && !st.unreported {
			st.unreported, st.since = true, time.Now()
		}
		for _, b := range st.blocks {
			st.againLocked(b, &b.reporting, b.written, b.flight)
		}
	case errors.Is(err, fserr.Quota) && res.GetAttr() != nil:
		st.refusedLocked(call, res, err)
	default:
		st.giveUpLocked(err)
	}
	st.settleLocked()
}
