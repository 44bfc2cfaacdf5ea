package client

import (
	"context"
	"errors"
	"math"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

const (
	// roomAge is how old the room that quotas leave may be: others use it too.
	roomAge = time.Second
	// roomShare: while all that this client has buffered stays below this part of the
	// room, a write is buffered without a question.
	roomShare = 4
)

// room is what quotas leave for a file, as the metadata service last said.
type room struct {
	bytes int64 // math.MaxInt64: no quota bounds it
	at    time.Time
}

// learnRoom takes the room that an answer carried.
func (st *fileState) learnRoom(res *canopyv1.Result, asked time.Time) {
	if res == nil || res.RoomBytes == nil {
		return
	}
	st.mu.Lock()
	st.room = room{int64(min(*res.RoomBytes, math.MaxInt64)), asked}
	st.mu.Unlock()
}

// ampleLocked reports whether the file can grow to end without coming near a bound.
func (st *fileState) ampleLocked(end int64) bool {
	if !st.quotas || end <= st.size {
		return true
	}
	if time.Since(st.room.at) >= roomAge {
		return false
	}
	return st.room.bytes == math.MaxInt64 || st.c.flusher.budget.inUse()+end-st.size <= st.room.bytes/roomShare
}

// admit says how much of a write of n bytes at off quotas allow: all of it, the
// first part, or kind Quota. through: near a bound it has to be reported before the
// write returns, so that the program learns in time.
func (st *fileState) admit(ctx context.Context, off, n int64) (take int64, through bool, err error) {
	st.mu.Lock()
	ample := st.ampleLocked(off + n)
	st.mu.Unlock()
	if ample {
		return n, false, nil
	}
	if err := st.askRoom(ctx); err != nil {
		return 0, false, err
	}
	st.mu.Lock()
	ample = st.ampleLocked(off + n)
	st.mu.Unlock()
	if ample {
		return n, false, nil
	}
	// What this client has buffered, here and in other files, comes first. Who wrote
	// it hears of failures.
	if err := st.c.Flush(ctx, false); err != nil && ctx.Err() != nil {
		return 0, false, ctx.Err()
	}
	if err := st.askRoom(ctx); err != nil {
		return 0, false, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if end := st.size + min(st.room.bytes, math.MaxInt64-st.size); off+n > end {
		n = end - off
	}
	if n <= 0 {
		return 0, false, fserr.Quota
	}
	return n, true, nil
}

// askRoom asks for the room, and for the file's attributes with it.
func (st *fileState) askRoom(ctx context.Context) error {
	asked := time.Now()
	res, err := st.c.getQuota(ctx, st.n)
	if err == nil {
		st.learnRoom(res, asked)
	}
	return err
}

// writeThrough reports what was buffered near a bound, n bytes at off, and returns
// how much of it quotas took after all: others may have been faster.
func (f *File) writeThrough(ctx context.Context, off, n int64, sync bool) (int64, error) {
	st := f.st
	st.mu.Lock()
	errs := st.errs
	st.mu.Unlock()
	if err := st.flush(ctx, sync); err != nil {
		return 0, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.errs == errs || !errors.Is(st.lastErr, fserr.Quota) {
		return n, nil // another failure is told by fsync and close, as ever
	}
	f.seen.Store(st.errs)
	if n = min(n, st.size-off); n <= 0 {
		return 0, fserr.Quota
	}
	return n, nil
}

// refusedLocked follows a report that a quota refused: bytes that fit are kept and
// reported again, the rest is lost, and the handles learn of it. What lies at data
// servers of it is cut off by the next report (PROTOCOLS J1).
func (st *fileState) refusedLocked(call *canopyv1.ReportSizeCall, res *canopyv1.Result, err error) {
	size := int64(res.GetAttr().GetSize())
	limit := size + min(int64(min(res.GetRoomBytes(), math.MaxInt64)), math.MaxInt64-size)
	var lost int64
	reached := max(st.reached, int64(call.ReservedEnd))
	for _, b := range st.blocks {
		before := b.bytes()
		reached = max(reached, b.reporting.end(), b.written.end())
		b.reporting.cut(limit)
		b.written.cut(limit)
		b.dirty.cut(limit)
		lost += before - b.bytes()
		before = b.bytes()
		b.written, b.reporting = b.reporting.over(b.written), nil
		st.c.flusher.budget.release(before - b.bytes())
	}
	st.c.flusher.budget.release(lost)
	st.c.metrics.lost.Add(float64(lost))
	st.allocated += call.AllocatedBytes
	st.reached, st.refused = reached, true
	st.unreported, st.since = true, time.Now()
	st.failLocked(&fserr.Error{Kind: fserr.Quota, Op: "write", Ino: st.n.ino, Err: err})
	st.c.logger.Warn("a quota refused buffered bytes", "inode", st.n.ino, "bytes", lost)
}
