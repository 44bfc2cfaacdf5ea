package mds

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/canopyfs/canopy/internal/fserr"
)

// errTermOver is the cause of the answer to a request that was executed, and whose client
// must not be told yet: the next holder tells it.
var errTermOver = errors.New("the term as holder ended before the answer might be given")

// inherited are the decisions that a term found, of terms before it: not all participants
// have confirmed them. Their coordinators withheld the answers until they had (PROTOCOLS
// F3), and went; the clients ask again here. So what is sent again is answered when the
// participants have confirmed, or when no mark stands any more that was there when the last
// of these decisions was taken, which was before this term.
type inherited struct {
	found chan []<-chan struct{} // for each decision: closed when all have confirmed it

	mu    sync.Mutex
	over  bool // answers may be given
	ended bool // the term is over
	held  []func(tell bool)
}

func newInherited() *inherited { return &inherited{found: make(chan []<-chan struct{}, 1)} }

// await ends when answers may be given, or ctx, the term's.
func (x *inherited) await(ctx context.Context) {
	timer := time.NewTimer(splitPatience)
	defer timer.Stop()
	var open []<-chan struct{}
	ended := false
	select {
	case open = <-x.found:
	case <-timer.C:
	case <-ctx.Done():
		ended = true
	}
wait:
	for _, confirmed := range open {
		select {
		case <-confirmed:
		case <-timer.C:
			break wait
		case <-ctx.Done():
			ended = true
			break wait
		}
	}
	x.mu.Lock()
	x.over, x.ended = !ended, ended
	held := x.held
	x.held = nil
	x.mu.Unlock()
	for _, give := range held {
		give(!ended)
	}
}

// hold calls give when the answer to what was sent again may be given: tell is false if
// the term has ended before. give does not block.
func (x *inherited) hold(give func(tell bool)) {
	x.mu.Lock()
	if !x.over && !x.ended {
		x.held = append(x.held, give) // no more than streams let be outstanding
		x.mu.Unlock()
		return
	}
	tell := x.over
	x.mu.Unlock()
	give(tell)
}

// finish queues the answer. What can have been decided in an earlier term waits for what
// that term left (see inherited).
func (w *pendingWrite) finish(result []byte, err error) {
	if err != nil || !w.spans || !w.op.Again || errorOf(result) != fserr.OK {
		w.give(result, err)
		return
	}
	later := fserr.New(fserr.NotReady, "transaction", errTermOver)
	t := w.h.tenure()
	if _, epoch, _ := w.h.group.Holder(); t == nil || t.epoch != epoch {
		w.give(nil, later) // the term has not begun here, or is over
		return
	}
	t.inherited.hold(func(tell bool) {
		if !tell {
			w.give(nil, later)
			return
		}
		w.give(result, nil)
	})
}
