package client

import (
	"context"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/fserr"
)

// maxTogether is up to how many reads are asked in one call of a node in this
// process.
const maxTogether = sendersBatch

// openLocal opens a stream to a node of this process; nil: the address is not
// one's.
func (l *link) openLocal(ctx context.Context, t target, stream uint64) (wire.LocalStream, error) {
	node, ok := wire.Local[wire.LocalMetadata](l.env.memory, t.address)
	if !ok {
		return nil, nil
	}
	return node.OperateLocal(ctx, l.env.identity(), func(r *canopyv1.OperateResponse) { l.take(stream, r) })
}

// queryLocal answers a read by a call of the node, if that is in this process and
// can do so at once, together with the reads that were posted ahead of it. The
// order of reads among others in flight does not matter, so the queue is not
// waited for.
func (l *link) queryLocal(cl *call) bool {
	l.mu.Lock()
	local := l.local
	if local == nil || !l.open || l.closed || len(l.queue) >= maxTogether {
		l.mu.Unlock()
		return false
	}
	for _, waiting := range l.queue {
		if waiting.kind.mutates() {
			l.mu.Unlock()
			return false
		}
	}
	calls := make([]*call, 0, maxTogether)
	for _, waiting := range l.queue {
		if waiting.state != callAbandoned {
			calls = append(calls, waiting)
		}
	}
	calls = append(calls, cl)
	clear(l.queue)
	l.queue = l.queue[:0]
	for _, c := range calls {
		c.state, c.stream, c.session = callSent, l.stream, l.session
		c.sends++
	}
	l.mu.Unlock()

	ops := make([]*canopyv1.Op, len(calls))
	for i, c := range calls {
		ops[i] = c.op
	}
	results, ok := local.Query(uint64(l.shard), ops)

	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range calls {
		switch {
		case c.state == callAbandoned:
		case ok:
			if !elsewhere(peekKind(results[i])) {
				l.failures, l.rotation = 0, 0
			}
			l.answerLocked(c, results[i], nil)
		case l.closed:
			l.answerLocked(c, nil, fserr.NotConnected)
		default: // it waits its turn
			c.state = callQueued
			c.sends--
			if c != cl {
				l.queue = append(l.queue, c)
			}
		}
	}
	return ok || l.closed
}

// identity is who this client is for a node in its process.
func (c *Client) identity() wire.Caller {
	caller := c.caller
	caller.Cluster = c.ClusterID()
	return caller
}

// take gives the answers of the stream to their calls. A stream that has ended
// answers nothing: its calls go out again on the next one, and only that one's
// answers say what became of them.
func (l *link) take(stream uint64, response *canopyv1.OperateResponse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stream != stream || l.out == nil {
		return
	}
	for _, o := range response.Outcomes {
		cl := l.flight[o.Id]
		if cl == nil {
			continue // its caller gave up
		}
		delete(l.flight, o.Id)
		if !elsewhere(peekKind(o.Result)) {
			l.failures, l.rotation = 0, 0
		}
		l.answerLocked(cl, o.Result, nil)
	}
}
