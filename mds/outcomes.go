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
	limit int                                   // outstanding operations
	out   func(*canopyv1.OperateResponse) error // sends; under sendMu
	wake  chan struct{}                         // something to send, or finished
	// atOnce: out never blocks, so that whoever puts an answer sends it.
	atOnce bool

	sendMu   sync.Mutex // of who sends; before mu
	slab     []canopyv1.Outcome
	response canopyv1.OperateResponse

	mu          sync.Mutex
	free        sync.Cond // room, or closed
	items       []outcome
	bytes       int
	outstanding int  // accepted, not yet answered
	last        bool // no more requests come
	closed      bool // nobody sends any more
}

// newOutcomeQueue returns a queue that sends with out, which has encoded a
// message when it returns.
func newOutcomeQueue(limit int, out func(*canopyv1.OperateResponse) error) *outcomeQueue {
	q := &outcomeQueue{limit: limit, out: out, wake: make(chan struct{}, 1)}
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
	if q.atOnce {
		q.deliver(admitted, answers...)
		return
	}
	q.add(admitted, answers)
	q.signal()
}

// deliver adds answers and sends what waits, unless somebody is sending. It can
// block while the client does not take its answers: for the goroutine that
// receives its requests alone.
func (q *outcomeQueue) deliver(admitted int, answers ...outcome) {
	q.add(admitted, answers)
	if !q.sendMu.TryLock() {
		q.signal()
		return
	}
	_, _, err := q.sendSome()
	q.sendMu.Unlock()
	if q.waiting() || err != nil { // a broken stream ends by its sender
		q.signal()
	}
}

func (q *outcomeQueue) waiting() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) > 0 || q.last
}

func (q *outcomeQueue) add(admitted int, answers []outcome) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.outstanding -= admitted
	if !q.closed {
		for _, a := range answers {
			q.items = append(q.items, a)
			q.bytes += len(a.result)
		}
	}
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

// sendSome sends one message of answers, if there are any; done tells that
// nothing more will come. The caller holds sendMu.
func (q *outcomeQueue) sendSome() (sent, done bool, err error) {
	if q.slab, done = q.take(q.slab); len(q.slab) == 0 {
		return false, done, nil
	}
	r := &q.response
	r.Outcomes = r.Outcomes[:0]
	for i := range q.slab {
		r.Outcomes = append(r.Outcomes, &q.slab[i])
	}
	return true, false, q.out(r)
}

// sendAll sends what there is.
func (q *outcomeQueue) sendAll() (done bool, err error) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	for sent := true; sent && err == nil; {
		sent, done, err = q.sendSome()
	}
	return done, err
}

// send sends answers until nothing more will come, the stream breaks, or stop is
// closed; then what is already there is still sent.
func (q *outcomeQueue) send(ctx context.Context, stop <-chan struct{}) error {
	for {
		stopping := false
		select {
		case <-q.wake:
		case <-ctx.Done():
			return ctx.Err()
		case <-stop:
			stopping = true
		}
		done, err := q.sendAll()
		switch {
		case err != nil:
			return err
		case stopping:
			return fserr.New(fserr.NotReady, "operate", errStopping)
		case done:
			return nil
		}
	}
}
