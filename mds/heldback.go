package mds

import (
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/migrate"
)

const (
	// maxHeldBack bounds the operations that a shard's holder holds back; of more than
	// that the clients are told to come again.
	maxHeldBack = 1 << 13
	// heldBackLimit is how long one is held back: a little longer than a freeze lasts.
	heldBackLimit = migrate.FreezeLimit + 500*time.Millisecond
)

// heldBack are operations that wait at the front for their subtree's freeze to end, or
// for its arrival (PROTOCOLS E4, DESIGN 6: they wait, they do not fail). Apply would refuse
// them, each in an entry of the log, and the clients would come back later than they could.
type heldBack struct {
	mu    sync.Mutex
	of    map[<-chan struct{}][]func(over bool)
	count int
}

// hold calls again once over is closed, or with over false after a time in which it was
// not; false: too many wait. again does not block.
func (x *heldBack) hold(s *Server, over <-chan struct{}, again func(over bool)) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.count >= maxHeldBack {
		return false
	}
	if x.of == nil {
		x.of = map[<-chan struct{}][]func(bool){}
	}
	if x.of[over] == nil && !s.spawn(func() { x.await(s, over) }) {
		return false
	}
	x.of[over] = append(x.of[over], again)
	x.count++
	s.metrics.heldBack.Inc()
	return true
}

func (x *heldBack) await(s *Server, over <-chan struct{}) {
	timer := time.NewTimer(heldBackLimit)
	defer timer.Stop()
	ended := false
	select {
	case <-over:
		ended = true
	case <-timer.C:
	case <-s.run.Done():
	}
	x.mu.Lock()
	waiting := x.of[over]
	delete(x.of, over)
	x.count -= len(waiting)
	x.mu.Unlock()
	for _, again := range waiting {
		again(ended)
	}
}

// holdBack keeps a write from the log while its subtree stands still; false: nothing holds
// it up.
func (st *opStream) holdBack(h *hosted, floor uint64, op *canopyv1.Op, kind opType, started time.Time) bool {
	over := h.machine.Standstill(op)
	if over != nil {
		st.holdUntil(over, h, floor, op, kind, started)
	}
	return over != nil
}

func (st *opStream) holdUntil(over <-chan struct{}, h *hosted, floor uint64, op *canopyv1.Op, kind opType, started time.Time) {
	if !h.heldBack.hold(st.server, over, func(over bool) {
		if !over || st.ctx.Err() != nil {
			st.refuseFrozen(h, op, kind, started)
			return
		}
		st.submit(h, floor, op, kind, started)
	}) {
		st.refuseFrozen(h, op, kind, started)
	}
}

func (st *opStream) refuseFrozen(h *hosted, op *canopyv1.Op, kind opType, started time.Time) {
	h.metrics.observe(kind, fserr.Frozen, time.Since(started))
	result := &canopyv1.Result{Error: uint32(fserr.Frozen), RetryAfterMs: retryAfterMS()}
	st.queue.put(1, outcome{op.Id, encodeResult(result)})
}

// metStandstill holds back a write that Apply refused because its subtree stands still: it
// was on its way when that began. false: the refusal is for the client.
func (w *pendingWrite) metStandstill(result []byte, refusal fserr.Kind) bool {
	switch {
	case refusal != fserr.Frozen && refusal != fserr.Moved, w.subtree == base.ShardMeta, time.Since(w.started) > heldBackLimit:
		return false
	case refusal == fserr.Moved:
		r := new(canopyv1.Result)
		if r.UnmarshalVT(result) != nil || !comes(w.op, r) {
			return false
		}
	}
	if w.stream.holdBack(w.h, w.floor, w.op, w.kind, w.started) {
		return true
	}
	over := make(chan struct{}) // it has ended since
	close(over)
	w.stream.holdUntil(over, w.h, w.floor, w.op, w.kind, w.started)
	return true
}

// comes reports whether an operation was refused because its subtree was handed off to this
// shard, as the client has heard, and did not answer yet: nobody else is named.
func comes(op *canopyv1.Op, refusal *canopyv1.Result) bool {
	to := refusal.Redirect
	return fserr.Kind(refusal.Error) == fserr.Moved && to.GetSubtree() == op.Subtree && to.Shard == 0 && to.Epoch > 0 && op.Epoch >= to.Epoch
}

// readArrived answers a read of a subtree that comes, apart from its batch; false: too many
// wait.
func (st *opStream) readArrived(b *readBatch, i int) bool {
	over := b.h.machine.Standstill(b.ops[i])
	if over == nil { // it has come since
		st.readLater(b, i)
		return true
	}
	return b.h.heldBack.hold(st.server, over, func(over bool) {
		if !over {
			st.refuseFrozen(b.h, b.ops[i], b.kinds[i], b.started)
			return
		}
		st.readLater(b, i)
	})
}
