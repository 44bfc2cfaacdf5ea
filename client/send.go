package client

import (
	"context"
	"runtime"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// operateStream is a stream of operations to a node: canopyv1.Metadata_OperateClient,
// or a wire.LocalStream.
type operateStream interface {
	Send(*canopyv1.OperateRequest) error
	Recv() (*canopyv1.OperateResponse, error)
}

// sendersOwn: with fewer operations on their way a caller sends its own, which
// saves a change of goroutine. With more the writer sends, in larger batches.
const sendersOwn = 2

// sendersBatch is up to how many operations a caller sends: its own, and what it
// posted ahead of it.
const sendersBatch = 8

// write sends what is queued, in batches, until the stream ends.
func (l *link) write(ctx context.Context, stream operateStream) error {
	for {
		if err := l.ensureSession(ctx, stream); err != nil {
			return err
		}
		l.sendMu.Lock()
		sent, err := l.sendBatch()
		l.sendMu.Unlock()
		if err != nil {
			return err
		}
		if sent {
			continue
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		// Callers that became runnable together queue their calls before this
		// goroutine runs on, and one batch takes them all.
		runtime.Gosched()
	}
}

// sendNow sends what is queued unless somebody else is sending. False: the
// writer has to.
func (l *link) sendNow() bool {
	if !l.sendMu.TryLock() {
		return false
	}
	defer l.sendMu.Unlock()
	sent, err := l.sendBatch()
	// A stream that is broken ends by its reader, and what was taken goes again.
	return sent || err != nil
}

// sendBatch sends one batch on the present stream; false: there is none, or
// nothing to send. The caller holds sendMu.
func (l *link) sendBatch() (sent bool, err error) {
	l.mu.Lock()
	stream := l.out
	if stream == nil || !l.open {
		l.mu.Unlock()
		return false, nil
	}
	l.batch = l.takeLocked(l.batch[:0])
	l.mu.Unlock()
	n := len(l.batch)
	if n == 0 {
		return false, nil
	}
	floor, _ := l.env.seqs.lowest()
	err = stream.Send(&canopyv1.OperateRequest{Shard: uint64(l.shard), Floor: uint64(floor), Ops: l.batch})
	l.env.metrics.batch.Observe(float64(n))
	clear(l.batch)
	if err != nil {
		return false, errStreamEnded
	}
	return true, nil
}

// takeLocked moves calls from the queue to the batch and marks them as sent on
// the present stream.
func (l *link) takeLocked(batch []*canopyv1.Op) []*canopyv1.Op {
	rest, size := l.queue[:0], 0
	full := false // no more sequence numbers, or the batch is large enough
	numbers := true
	for _, cl := range l.queue {
		switch {
		case cl.state == callAbandoned:
			continue
		case full || !numbers && cl.kind.mutates() && cl.op.Seq == 0:
			rest = append(rest, cl)
			continue
		case cl.kind.mutates() && !l.admitLocked(cl):
			if cl.state != callAnswered {
				numbers = false
				rest = append(rest, cl)
			}
			continue
		}
		if !cl.kind.mutates() {
			cl.session = l.session
		}
		if cl.sends > 0 && cl.kind.mutates() && !cl.op.Again {
			op := cl.op
			cl.op = &canopyv1.Op{Id: op.Id, Seq: op.Seq, Subtree: op.Subtree, Epoch: op.Epoch, Cred: op.Cred, Call: op.Call, Again: true}
		}
		cl.state, cl.stream = callSent, l.stream
		cl.sends++
		l.flight[cl.op.Id] = cl
		batch = append(batch, cl.op)
		size += weight(cl.op)
		full = len(batch) >= maxBatchOps || size >= maxBatchSize
	}
	clear(l.queue[len(rest):])
	l.queue = rest
	if l.space != nil && len(l.queue) < maxQueued {
		close(l.space)
		l.space = nil
	}
	return batch
}

// admitLocked prepares a mutation for a send in the present session. It returns
// false when the call was ended instead, or has to wait for a number.
func (l *link) admitLocked(cl *call) bool {
	if cl.session == followsSubtree {
		cl.session = l.session
	}
	if cl.op.Seq != 0 && cl.session != l.session {
		if cl.sends > 0 {
			// PROTOCOLS C3: it may have run in the session that was lost; in the new
			// one nothing would stop it from running again.
			l.answerLocked(cl, nil, errSessionLost)
			return false
		}
		l.env.seqs.release(base.Seq(cl.op.Seq))
		cl.op.Seq = 0
	}
	if cl.op.Seq == 0 {
		seq := l.env.seqs.acquire(l)
		if seq == 0 {
			return false
		}
		cl.op.Seq, cl.session = uint64(seq), l.session
	}
	return true
}

// weight is the size of an operation's variable part, about.
func weight(op *canopyv1.Op) int {
	switch c := op.Call.(type) {
	case *canopyv1.Op_SetXattr:
		return 128 + len(c.SetXattr.Value)
	case *canopyv1.Op_Symlink:
		return 128 + len(c.Symlink.Target)
	}
	return 128
}
