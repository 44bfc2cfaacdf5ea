package mds

import (
	"context"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// wait starts or ends a wait for a lock. It does not block: the answer comes from
// the term's table of waits.
func (st *opStream) wait(h *hosted, op *canopyv1.Op, kind opType, now time.Time) {
	t := h.tenure()
	switch {
	case kind == opCancelWait:
		if t != nil {
			t.locks.cancel(waitID{st.client, op.GetCancelWait().Token})
		}
		st.queue.put(1, outcome{op.Id, encodeResult(&canopyv1.Result{})})
	case t != nil && h.group.Serving():
		t.locks.register(st, op, now)
	default:
		st.server.tasks.Go(func() error { st.waitForTerm(h, op, now); return nil })
	}
}

// waitForTerm starts a wait at a node that is not, or not yet, the holder.
func (st *opStream) waitForTerm(h *hosted, op *canopyv1.Op, now time.Time) {
	ctx, cancel := context.WithTimeout(st.ctx, readTimeout)
	defer cancel()
	err := h.group.Read(ctx, func(shard.Reader) error { return nil })
	switch t := h.tenure(); {
	case err != nil:
		st.queue.put(1, outcome{op.Id, encodeResult(st.server.refusal(err, h.shard, base.SubtreeID(op.Subtree)))})
	case t == nil: // the term is about to begin
		st.queue.put(1, outcome{op.Id, encodeResult(&canopyv1.Result{Error: uint32(fserr.Busy), RetryAfterMs: retryAfterMS()})})
	default:
		t.locks.register(st, op, now)
	}
}

// endWaits forgets the waits of a stream that ended: its client asks anew.
func (s *Server) endWaits(st *opStream) {
	for _, h := range s.allHosted() {
		if t := h.tenure(); t != nil {
			t.locks.remove(func(w *lockWait) bool { return w.stream == st })
		}
	}
}

// locking looks at a write that has to do with locks. True: it was answered, since
// others who wait for the lock go first.
func (st *opStream) locking(w *pendingWrite, op *canopyv1.Op) bool {
	switch c := op.Call.(type) {
	case *canopyv1.Op_DropLocks:
		w.ino = base.Ino(c.DropLocks.Place.Ino)
	case *canopyv1.Op_SetLock:
		w.ino, w.token = base.Ino(c.SetLock.Place.Ino), c.SetLock.Token
		if t := w.h.tenure(); t != nil && !c.SetLock.Unlock && t.locks.refuses(st.client, c.SetLock) {
			w.h.metrics.observe(w.kind, fserr.WouldBlock, time.Since(w.started))
			st.queue.put(1, outcome{w.id, encodeResult(&canopyv1.Result{Error: uint32(fserr.WouldBlock)})})
			return true
		}
	}
	return false
}

// unlocked tells those who wait that locks may have been given back.
func (w *pendingWrite) unlocked(kind fserr.Kind) {
	t := w.h.tenure()
	if t == nil || w.ino == 0 {
		return
	}
	t.locks.tried(waitID{w.stream.client, w.token}, w.ino, kind == fserr.OK)
}
