package client

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

const (
	maxQueued    = 8192 // calls that wait in one link; a caller that finds more waits
	maxBatchOps  = 512
	maxBatchSize = 256 << 10 // bytes of names, values and such in one batch, about
)

// target is a metadata node to talk to.
type target struct {
	node    base.NodeID
	address string
}

// call is one operation on its way. What is not said to belong to its caller is
// guarded by the link's mu while the call is with the link.
type call struct {
	op   *canopyv1.Op // replaced by the caller, never changed, once it was sent
	kind opKind
	done chan struct{} // one token when result or err is set

	state  callState
	stream uint64 // number of the stream of the last send
	// sends counts how often the operation went out under its sequence number
	// without being refused: with more than zero it may have been executed.
	sends   int
	session uint64       // in which it went out; a mutation never goes out in a second one
	link    *link        // that had the call last
	shard   base.ShardID // that it is addressed to itself; 0: to op.Subtree
	hops    int          // redirects followed
	vain    int          // of them that told nothing new
	result  []byte
	err     error
}

// followsSubtree marks a call that went out to another shard before: sessions,
// floors and results moved along with the subtree (PROTOCOLS C5).
const followsSubtree = ^uint64(0)

type callState uint8

const (
	callQueued callState = iota
	callSent
	callAnswered
	callAbandoned
)

var callPool = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

// linkEnv is what a link uses of its client.
type linkEnv struct {
	routes   *routes
	nodes    *nodes
	seqs     *sequencer
	metrics  *metrics
	logger   *slog.Logger
	caller   wire.Caller
	outgoing func(context.Context) context.Context
	memory   *wire.Memory // connects to the nodes of this process; nil: none
	identity func() wire.Caller
	// sessionAt is told at which node the link's open session is now.
	sessionAt func(shard base.ShardID, at target)
	// sessionEnded is told that the session at a shard has ended.
	sessionEnded func(shard base.ShardID)
}

// link carries the operations of this client to one shard: over one stream to
// the shard's holder at a time, in batches. It owns the session at the shard.
//
// Exactly once, the client's side (PROTOCOLS C1-C4):
//   - A mutation gets its sequence number when it is sent first and keeps it
//     until it has a definite answer. When a stream breaks, everything without
//     an answer goes out again, in order, with the same numbers.
//   - A call whose caller gave up is not sent again, and its number counts as
//     answered: the floor then keeps servers from executing late copies.
//   - A session that was lost is opened anew, with a floor above every number
//     that was used under the old one. A mutation that may have been executed
//     under the old one ends with "outcome unknown"; one that was refused or
//     never sent gets a new number.
//   - Protocol kinds are no answers; the caller puts the call in again.
type link struct {
	env   linkEnv
	shard base.ShardID
	wake  chan struct{} // has a token when there may be something to do

	// sendMu is held from the taking of a batch until it was sent, so that messages
	// go out in the order in which their operations were taken. It comes before mu.
	sendMu sync.Mutex
	batch  []*canopyv1.Op // scratch of who holds sendMu

	mu     sync.Mutex
	queue  []*call
	flight map[uint64]*call // sent, unanswered, by id
	nextID uint64
	space  chan struct{} // closed when the queue has room, if somebody waits
	closed bool

	at       target             // of the present or last stream
	stream   uint64             // number of the present or last stream
	cancel   context.CancelFunc // of the present stream; nil between streams
	out      operateStream      // the present stream; nil between streams
	local    wire.LocalStream   // the same, if its node is in this process
	hint     target             // where to go next, if known
	rotation int                // position among the replicas
	failures int                // streams since the last proper answer
	hinted   base.LeaseEpoch    // lease epoch of the last map hint acted upon

	session  uint64   // counts the sessions opened; 0: none yet
	open     bool     // session stands, as far as is known
	minFloor base.Seq // numbers below were used under earlier sessions
}

func newLink(env linkEnv, shard base.ShardID) *link {
	_, _, hinted := env.routes.holderHint(shard)
	return &link{env: env, shard: shard, wake: make(chan struct{}, 1), flight: map[uint64]*call{}, hinted: hinted}
}

// poke wakes the writer.
func (l *link) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// submit sends the call and waits for its answer or for ctx. Without error
// cl.result is the encoded result. After an error of ctx the call must not be
// used again.
func (l *link) submit(ctx context.Context, cl *call) error {
	l.mu.Lock()
	for len(l.queue) >= maxQueued && !l.closed {
		if l.space == nil {
			l.space = make(chan struct{})
		}
		space := l.space
		l.mu.Unlock()
		select {
		case <-space:
		case <-ctx.Done():
			return ctx.Err()
		}
		l.mu.Lock()
	}
	if l.closed {
		l.mu.Unlock()
		return fserr.NotConnected
	}
	if cl.link != l && cl.link != nil {
		cl.session = followsSubtree
	}
	l.nextID++
	cl.link, cl.op.Id = l, l.nextID
	cl.state, cl.result, cl.err = callQueued, nil, nil
	if l.local != nil && !cl.kind.mutates() {
		l.mu.Unlock()
		if l.queryLocal(cl) {
			<-cl.done
			return cl.err
		}
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return fserr.NotConnected
		}
	}
	l.queue = append(l.queue, cl)
	alone := len(l.queue) <= sendersBatch && len(l.flight) < sendersOwn && l.open && l.out != nil
	l.mu.Unlock()
	if !alone || !l.sendNow() {
		l.poke()
	}
	select {
	case <-cl.done:
		return cl.err
	case <-ctx.Done():
		if l.abandon(cl) {
			return ctx.Err()
		}
		<-cl.done
		return cl.err
	}
}

// abandon takes the call back unless it is answered already.
func (l *link) abandon(cl *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch cl.state {
	case callAnswered:
		return false
	case callSent:
		delete(l.flight, cl.op.Id)
	}
	cl.state = callAbandoned // the writer drops it from the queue
	return true
}

// answerLocked ends the call with a result or an error.
func (l *link) answerLocked(cl *call, result []byte, err error) {
	cl.state, cl.result, cl.err = callAnswered, result, err
	cl.done <- struct{}{}
}

// requeueLocked puts all unanswered calls back in front of the queue, in the
// order in which they were sent first (PROTOCOLS C1).
func (l *link) requeueLocked() {
	if len(l.flight) == 0 {
		return
	}
	again := make([]*call, 0, len(l.flight)+len(l.queue))
	for _, cl := range l.flight {
		cl.state = callQueued
		again = append(again, cl)
	}
	clear(l.flight)
	slices.SortFunc(again, func(a, b *call) int { return cmpUint64(a.op.Id, b.op.Id) })
	l.env.metrics.resent.Add(float64(len(again)))
	l.queue = append(again, l.queue...)
}

func cmpUint64(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// redirect says that the answer on the stream was "not here": the link goes to
// the node that red names, or on to the next replica, and takes everything that
// is unanswered along. A stream that has ended already is left alone.
func (l *link) redirect(stream uint64, red *canopyv1.Redirect) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if stream != l.stream || l.cancel == nil {
		return
	}
	l.failures++
	l.hint = target{}
	if red != nil && red.Address != "" && red.Shard == uint64(l.shard) {
		l.hint = target{base.NodeID(red.Node), red.Address}
	}
	l.cancel()
}

// mapChanged follows a newer hint of the placement map: a holder that died
// without a word is left, and a link without work finds the new one.
func (l *link) mapChanged() {
	node, address, epoch := l.env.routes.holderHint(l.shard)
	l.mu.Lock()
	if epoch <= l.hinted {
		l.mu.Unlock()
		return
	}
	l.hinted = epoch
	if address != "" && node != l.at.node {
		l.hint = target{node, address}
		if l.cancel != nil {
			l.cancel()
		}
	}
	l.mu.Unlock()
	l.poke()
}

// sessionLost notes that the given session has ended at the shard; 0 means the
// present one. The writer opens a new one before it sends anything else.
func (l *link) sessionLost(session uint64) {
	l.mu.Lock()
	ended := l.open && (session == 0 || session == l.session)
	if ended {
		l.open = false
		_, l.minFloor = l.env.seqs.lowest()
	}
	l.mu.Unlock()
	if ended {
		l.env.sessionEnded(l.shard)
	}
	l.poke()
}

// inSession is the session in which an operation was answered.
type inSession struct {
	link    *link
	number  uint64
	subtree base.SubtreeID // who answered
}

// stands reports whether it has not ended, as far as is known.
func (s inSession) stands() bool {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return s.link.open && s.link.session == s.number
}

// where returns the node of the present or last stream, and whether the session
// stands.
func (l *link) where() (at target, open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at, l.open
}

// shut ends the link: all calls end with err, new ones are refused.
func (l *link) shut(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.requeueLocked()
	for _, cl := range l.queue {
		if cl.state == callQueued {
			l.answerLocked(cl, nil, err)
		}
	}
	l.queue = nil
	if l.space != nil {
		close(l.space)
		l.space = nil
	}
}

// failQueued ends the calls that wait, because of a refusal that trying again
// does not change.
func (l *link) failQueued(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, cl := range l.queue {
		if cl.state == callQueued {
			l.answerLocked(cl, nil, err)
		}
	}
	l.queue = nil
}
