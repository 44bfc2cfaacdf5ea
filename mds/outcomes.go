package mds

import (
	"context"
	"sync"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

const (
	// answerBytes is about how much goes into one message. A single outcome can be
	// larger (a page of a listing), but not above the message limit.
	answerBytes = 256 << 10
	// queueBytes and twice the outstanding limit of outcomes that wait for the
	// client stop the reading of its requests.
	queueBytes = 16 << 20
)

// outcome is the answer to one operation.
type outcome struct {
	id     uint64
	result []byte
}

// outcomeQueue holds the answers that wait to be sent on one stream, and counts
// the operations without one. put never blocks; the reader of requests waits in
// room while the client does not take its answers.
type outcomeQueue struct {
	limit int           // outstanding operations
	wake  chan struct{} // something to send, or finished

	mu          sync.Mutex
	free        sync.Cond // room, or closed
	items       []outcome
	bytes       int
	outstanding int  // accepted, not yet answered
	last        bool // no more requests come
	closed      bool // nobody sends any more
}

func newOutcomeQueue(limit int) *outcomeQueue {
	q := &outcomeQueue{limit: limit, wake: make(chan struct{}, 1)}
	q.free.L = &q.mu
	return q
}

// admit counts an operation in; false: too many are outstanding.
func (q *outcomeQueue) admit() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.outstanding >= q.limit {
		return false
	}
	q.outstanding++
	return true
}

// put adds answers, of which admitted were counted in.
func (q *outcomeQueue) put(admitted int, answers ...outcome) {
	q.mu.Lock()
	q.outstanding -= admitted
	if !q.closed {
		for _, a := range answers {
			q.items = append(q.items, a)
			q.bytes += len(a.result)
		}
	}
	q.mu.Unlock()
	q.signal()
}

func (q *outcomeQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// room waits until the client has taken enough answers; false: the stream ended.
func (q *outcomeQueue) room() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed && (q.bytes > queueBytes || len(q.items) > 2*q.limit) {
		q.free.Wait()
	}
	return !q.closed
}

// take moves about answerBytes of answers into buffer, which it returns; done
// tells that nothing more will come.
func (q *outcomeQueue) take(buffer []canopyv1.Outcome) (out []canopyv1.Outcome, done bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	out = buffer[:0]
	bytes, n := 0, 0
	for n < len(q.items) && (n == 0 || bytes+len(q.items[n].result) <= answerBytes) {
		bytes += len(q.items[n].result)
		n++
	}
	for _, a := range q.items[:n] {
		out = append(out, canopyv1.Outcome{Id: a.id, Result: a.result})
	}
	left := copy(q.items, q.items[n:])
	clear(q.items[left:])
	q.items = q.items[:left]
	q.bytes -= bytes
	q.free.Broadcast()
	return out, n == 0 && q.last && q.outstanding == 0
}

// finish says that no more requests come.
func (q *outcomeQueue) finish() {
	q.mu.Lock()
	q.last = true
	q.mu.Unlock()
	q.signal()
}

// close drops what waits and what comes later.
func (q *outcomeQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.items, q.bytes = nil, 0
	q.mu.Unlock()
	q.free.Broadcast()
}

// send sends answers until nothing more will come, the stream breaks, or stop is
// closed; then what is already there is still sent.
func (q *outcomeQueue) send(ctx context.Context, stop <-chan struct{}, send func(*canopyv1.OperateResponse) error) error {
	var slab []canopyv1.Outcome
	response := &canopyv1.OperateResponse{}
	for stopping := false; ; {
		if !stopping {
			select {
			case <-q.wake:
			case <-ctx.Done():
				return ctx.Err()
			case <-stop:
				stopping = true
			}
		}
		for {
			var done bool
			if slab, done = q.take(slab); len(slab) == 0 {
				if stopping {
					return fserr.New(fserr.NotReady, "operate", errStopping)
				}
				if done {
					return nil
				}
				break
			}
			response.Outcomes = response.Outcomes[:0]
			for i := range slab {
				response.Outcomes = append(response.Outcomes, &slab[i])
			}
			if err := send(response); err != nil { // encodes before it returns: the slab is free again
				return err
			}
		}
	}
}
