package mds

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/namespace"
	"github.com/canopyfs/canopy/shard/schema"
	"github.com/canopyfs/canopy/shard/txn"
)

const (
	// txnPatience is how long a request's transactions are tried again after
	// conflicts before the client is asked to come back.
	txnPatience = 10 * time.Second
	// commitPatience is how long the answer waits until all have committed, so that
	// what the client does next meets no lock. The decision stands, whatever becomes
	// of the wait.
	commitPatience = 200 * time.Millisecond
	// splitPatience is commitPatience where names of split directories change. It is
	// longer than a mark stands: a participant that has not confirmed by then has no
	// listing that began before (PROTOCOLS F3).
	splitPatience = markDeadline + 200*time.Millisecond
	// forgetAfter keeps the entry that forgets a decision out of the way of what the
	// client does next.
	forgetAfter = 20 * time.Millisecond
)

// txnTable are the transactions that a term coordinates.
type txnTable struct {
	active atomic.Int32 // requests; read without the lock

	mu       sync.Mutex
	last     uint64
	running  map[schema.TxnID]bool // until aborted, or confirmed by all (PROTOCOLS D1)
	requests map[txnRequest][]*pendingWrite
}

// txnRequest is a client's request that a transaction runs.
type txnRequest struct {
	client base.ClientID
	seq    uint64
}

func newTxnTable() *txnTable {
	return &txnTable{running: map[schema.TxnID]bool{}, requests: map[txnRequest][]*pendingWrite{}}
}

// begin gives a transaction its id.
func (x *txnTable) begin(shard base.ShardID, epoch base.LeaseEpoch) schema.TxnID {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last++
	t := schema.TxnID{Shard: shard, Epoch: epoch, Number: x.last}
	x.running[t] = true
	return t
}

func (x *txnTable) end(t schema.TxnID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.running, t)
}

func (x *txnTable) runs(t schema.TxnID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.running[t]
}

// join adds a request to those that run; first: nobody runs it yet, so that the
// caller does (PROTOCOLS C4).
func (x *txnTable) join(r txnRequest, w *pendingWrite) (first bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	waiting, ok := x.requests[r]
	x.requests[r] = append(waiting, w)
	if !ok {
		x.active.Add(1)
	}
	return !ok
}

// joins is join for a request that may run already: false if it does not.
func (x *txnTable) joins(r txnRequest, w *pendingWrite) bool {
	if x.active.Load() == 0 {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	waiting, ok := x.requests[r]
	if ok {
		x.requests[r] = append(waiting, w)
	}
	return ok
}

// answered returns who waits for a request.
func (x *txnTable) answered(r txnRequest) []*pendingWrite {
	x.mu.Lock()
	defer x.mu.Unlock()
	waiting := x.requests[r]
	delete(x.requests, r)
	x.active.Add(-1)
	return waiting
}

// transact runs an operation over several subtrees and answers all who asked for
// it. It does not block.
func (w *pendingWrite) transact() {
	s, t := w.stream.server, w.h.tenure()
	if t == nil {
		w.finish(nil, fserr.New(fserr.NotReady, "transaction", nil))
		return
	}
	key := txnRequest{w.stream.client, w.op.Seq}
	if !t.txns.join(key, w) {
		return
	}
	started := s.spawn(func() {
		ctx, cancel := context.WithTimeout(t.ctx, txnPatience)
		defer cancel()
		result, conflict, err := t.transact(ctx, w.op, &canopyv1.TxnRequest{Client: uint64(key.client), Seq: key.seq, Floor: w.floor, Subtree: w.op.Subtree})
		for _, waiting := range t.txns.answered(key) {
			waiting.about.conflict = conflict
			waiting.finish(result, err)
		}
	})
	if !started {
		for _, waiting := range t.txns.answered(key) {
			waiting.finish(nil, fserr.New(fserr.NotReady, "transaction", errStopping))
		}
	}
}

// transact tries until there is a result, an error that the client has to deal
// with, or no time left; conflict is what passed until the last try began. The first
// try's age counts (PROTOCOLS D2).
func (t *tenure) transact(ctx context.Context, op *canopyv1.Op, request *canopyv1.TxnRequest) (result []byte, conflict time.Duration, err error) {
	began, forwards := time.Now(), namespace.TxnForwards{}
	for try := 0; ; try++ {
		if try > 0 {
			conflict = time.Since(began)
		}
		x := &transaction{t: t, op: op, request: request, forwards: forwards}
		result, err := x.run(ctx)
		t.h.server.metrics.txns.WithLabelValues(outcomeText(err)).Inc()
		if err == nil || errors.Is(err, errTermOver) {
			return result, conflict, err
		}
		switch fserr.KindOf(err) {
		case fserr.Locked, fserr.Frozen, fserr.Busy, fserr.NotReady, fserr.NotHolder, fserr.UnknownShard, fserr.Moved:
		default:
			return nil, conflict, err
		}
		if x.unknown() {
			return nil, conflict, fserr.New(fserr.NotReady, "transaction", err) // the next holder knows, or the log
		}
		var again *addressed
		if errors.As(err, &again) {
			return encodeResult(again.result), conflict, nil
		}
		if !pause(ctx, txn.Backoff(try, time.Since(began))) {
			return nil, time.Since(began), fserr.New(fserr.Busy, "transaction", err)
		}
	}
}

func outcomeText(err error) string {
	if err == nil || errors.Is(err, errTermOver) {
		return "decided"
	}
	if fserr.KindOf(err) == fserr.Locked {
		return "conflict"
	}
	return "failed"
}

// addressed is the error of an operation whose own directory has moved: the client
// is told.
type addressed struct{ result *canopyv1.Result }

func (*addressed) Error() string   { return "the directory has moved" }
func (*addressed) Is(e error) bool { return e == fserr.Moved }
func (a *addressed) Unwrap() error { return fserr.Moved }

// transaction is one try.
type transaction struct {
	t        *tenure
	op       *canopyv1.Op
	request  *canopyv1.TxnRequest
	c        *txn.Coordinator
	plan     *namespace.TxnPlan
	forwards namespace.TxnForwards // learned by redirects

	mu     sync.Mutex
	timeNS int64 // the latest that a participant told (PROTOCOLS A3)
	stored []byte
}

func (x *transaction) unknown() bool { return x.c != nil && x.c.State() == txn.Unknown }

// run tries once. Without an error the transaction is decided.
func (x *transaction) run(ctx context.Context) ([]byte, error) {
	x.c = txn.New(x.t.txns.begin(x.t.h.shard, x.t.epoch))
	verdict, err := x.prepare(ctx)
	if err != nil || x.stored != nil {
		x.abort(x.c.Abort())
		return x.stored, err
	}
	return x.decide(ctx, verdict)
}

// prepare asks until there is a verdict.
func (x *transaction) prepare(ctx context.Context) (*namespace.TxnVerdict, error) {
	x.plan = namespace.NewTxnPlan(x.op, x.t.h.shard, x.forwards, x.t.h.server.chooseShard(x.t.h.shard))
	for first := true; ; first = false {
		asks, verdict, err := x.plan.Step()
		if err != nil {
			return nil, fserr.New(fserr.Internal, "transaction", err)
		}
		if verdict != nil {
			if verdict.Kind.IsProtocol() {
				return nil, verdict.Kind
			}
			return verdict, nil
		}
		if err := x.askAll(ctx, asks, first); err != nil || x.stored != nil {
			return nil, err
		}
	}
}

// askAll sends one prepare to each subtree that is asked something, all at once.
func (x *transaction) askAll(ctx context.Context, asks []namespace.TxnAsk, first bool) error {
	type group struct {
		to   txn.Participant
		asks []namespace.TxnAsk
		err  error
		got  *canopyv1.Result
	}
	var groups []*group
	for _, a := range asks {
		to := txn.Participant{Shard: a.Shard, Subtree: a.Subtree}
		if to.Shard == 0 {
			to.Shard = x.shardOf(a.Subtree)
		}
		i := slices.IndexFunc(groups, func(g *group) bool { return g.to == to })
		if i < 0 {
			i = len(groups)
			groups = append(groups, &group{to: to})
		}
		groups[i].asks = append(groups[i].asks, a)
	}
	var all sync.WaitGroup
	for i, g := range groups {
		x.c.Ask(g.to)
		run := func() { g.got, g.err = x.ask(ctx, g.to, g.asks, first && g.to.Subtree == base.SubtreeID(x.op.Subtree)) }
		if i == len(groups)-1 {
			run() // on this goroutine: with one participant there is no other
			continue
		}
		all.Go(run)
	}
	all.Wait()
	if x.stored != nil {
		return nil // it was answered before: nothing else counts
	}
	var failed error
	for _, g := range groups {
		switch {
		case g.err != nil:
			// Conflicts count before what made the others give up.
			if failed == nil || fserr.KindOf(g.err) == fserr.Locked {
				failed = g.err
			}
		default:
			for i, a := range g.asks {
				x.plan.Tell(a, g.got.Facts[i])
			}
		}
	}
	return failed
}

// ask prepares in one subtree. The request is looked up where its result lies, before
// anything is done for it (PROTOCOLS C2).
func (x *transaction) ask(ctx context.Context, to txn.Participant, asks []namespace.TxnAsk, request bool) (*canopyv1.Result, error) {
	c := &canopyv1.TxnPrepareCommand{Txn: x.c.ID.Proto(), Subtree: uint64(to.Subtree)}
	x.mu.Lock()
	c.TimeNs = x.timeNS
	x.mu.Unlock()
	for _, a := range asks {
		c.Wants = append(c.Wants, a.Want)
	}
	if request {
		c.Request = x.request
	}
	r, err := x.t.h.server.tell(ctx, to.Shard, &canopyv1.Command{Own: &canopyv1.Command_TxnPrepare{TxnPrepare: c}})
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.timeNS = max(x.timeNS, r.TimeNs)
	switch kind := fserr.Kind(r.Error); {
	case kind == fserr.Moved:
		return nil, x.redirected(to, r)
	case kind != fserr.OK:
		return nil, kind
	case r.Stored != nil:
		x.stored = r.Stored
		return r, nil
	case len(r.Facts) != len(asks):
		return nil, fserr.Malformed
	}
	return r, nil
}

// redirected takes in that a subtree, or a directory, is elsewhere by now. The next
// try asks there, unless the operation itself names it: then the client is told.
func (x *transaction) redirected(to txn.Participant, r *canopyv1.Result) error {
	red, own := r.Redirect, uint64(to.Subtree) == x.op.Subtree
	if r.Place != nil && own {
		return &addressed{r} // of a link: where the file is by now
	}
	if red.GetDir() == 0 || red.GetSubtree() == uint64(to.Subtree) {
		if own {
			return &addressed{r}
		}
		if at := base.ShardID(red.GetShard()); at != 0 && at != to.Shard {
			x.t.txnRoutes.learn(to.Subtree, at)
		} else {
			x.t.txnRoutes.learn(to.Subtree, 0)
		}
		return fserr.Moved
	}
	x.t.txnRoutes.learn(base.SubtreeID(red.Subtree), base.ShardID(red.Shard))
	if own && x.plan.Addressed(red) {
		return &addressed{r}
	}
	x.forwards.Learn(to.Subtree, red)
	return fserr.Moved
}

// shardOf returns the shard that owns a subtree, as far as is known.
func (x *transaction) shardOf(id base.SubtreeID) base.ShardID {
	if uint64(id) == x.op.Subtree {
		return x.t.h.shard
	}
	return x.t.txnRoutes.shardOf(x.t.h.server, id)
}

// txnRoutes is where redirects said that subtrees are.
type txnRoutes struct {
	mu sync.Mutex
	at map[base.SubtreeID]base.ShardID
}

func (r *txnRoutes) learn(id base.SubtreeID, at base.ShardID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == nil || len(r.at) > 1<<16 {
		r.at = map[base.SubtreeID]base.ShardID{}
	}
	r.at[id] = at // 0: what the map says
}

func (r *txnRoutes) shardOf(s *Server, id base.SubtreeID) base.ShardID {
	r.mu.Lock()
	at := r.at[id]
	r.mu.Unlock()
	if at != 0 {
		return at
	}
	if route := s.place.Map().Route(id); route != nil {
		return base.ShardID(route.Shard)
	}
	// One that was made a moment ago is where it was made.
	return max(base.Ino(id).Shard(), 1)
}

// chooseShard picks the shard of a new subtree: the pinned one, or one of those that
// seem well, always the same for the same name.
func (s *Server) chooseShard(own base.ShardID) func(spread bool, pin base.ShardID, dir base.Ino, name []byte) base.ShardID {
	return func(spread bool, pin base.ShardID, dir base.Ino, name []byte) base.ShardID {
		m := s.place.Map()
		if !spread {
			if m.Shard(pin) == nil {
				return own
			}
			return pin
		}
		var fit []base.ShardID
		for _, info := range m.Shards() {
			if n := m.Node(base.NodeID(info.HolderNode)); n.GetAlive() && !n.GetDiskFull() {
				fit = append(fit, base.ShardID(info.Shard))
			}
		}
		if len(fit) == 0 {
			return own
		}
		slices.Sort(fit)
		h := fnv.New64a()
		h.Write([]byte(dir.String())) // never fails
		h.Write(name)
		return fit[h.Sum64()%uint64(len(fit))]
	}
}
