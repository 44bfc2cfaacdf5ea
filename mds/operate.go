package mds

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/internal/service"
	"github.com/canopyfs/canopy/shard/namespace"
	"github.com/canopyfs/canopy/shard/raftgroup"
)

// opStream is one client's stream of operations.
type opStream struct {
	server *Server
	client base.ClientID
	ctx    context.Context
	cancel context.CancelCauseFunc
	queue  *outcomeQueue
	slots  chan struct{} // batches of reads that run
	reads  sync.WaitGroup

	heard atomic.Pointer[heardIn]
}

// heardIn is a client's state in the term that was current when it was heard of.
type heardIn struct {
	term  *tenure
	state *clientState
}

// newStream makes a client's stream that lasts until ctx ends; out sends answers.
func (s *Server) newStream(ctx context.Context, client base.ClientID, out func(*canopyv1.OperateResponse) error) *opStream {
	ctx, cancel := context.WithCancelCause(ctx)
	return &opStream{
		server: s, client: client, ctx: ctx, cancel: cancel,
		queue: newOutcomeQueue(s.config.Outstanding, out),
		slots: make(chan struct{}, readBatches),
	}
}

// end ends what waits for the stream or on it.
func (st *opStream) end() {
	st.cancel(nil)
	st.server.endWaits(st)
}

// Operate serves one stream: a goroutine receives and starts operations in the
// order sent, this one sends the answers, as many as wait in one message.
func (m *metadataService) Operate(stream grpc.BidiStreamingServer[canopyv1.OperateRequest, canopyv1.OperateResponse]) error {
	s := m.server
	client := service.IdentityOf(stream.Context()).Client
	if client == 0 {
		return fserr.Status(fserr.New(fserr.Malformed, "operate", errNoClient))
	}
	st := s.newStream(stream.Context(), client, stream.Send)
	defer st.end()
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	// The receiver ends when the stream does, which is when this function
	// returns: the server waits for it.
	s.tasks.Go(func() error {
		defer st.reads.Wait()
		if err := st.receive(stream); err != nil {
			st.cancel(err)
		}
		st.queue.finish()
		return nil
	})
	defer st.queue.close()
	err := st.queue.send(st.ctx, s.front.Draining())
	if err != nil && st.ctx.Err() != nil {
		return endOfStream(context.Cause(st.ctx))
	}
	return err
}

// receive starts what comes until the stream ends; nil: the client closed it.
func (st *opStream) receive(stream grpc.BidiStreamingServer[canopyv1.OperateRequest, canopyv1.OperateResponse]) error {
	for st.queue.room() {
		request, err := stream.Recv()
		if err != nil {
			return endOfStream(err)
		}
		st.start(request, time.Now())
	}
	return nil
}

// start starts the operations of one request.
func (st *opStream) start(request *canopyv1.OperateRequest, now time.Time) {
	id := base.ShardID(request.Shard)
	h := st.server.lookup(id)
	if h != nil {
		st.touch(h)
	}
	var batch *readBatch
	for _, op := range request.Ops {
		if !st.queue.admit() {
			st.server.metrics.refused.Inc()
			st.queue.put(0, outcome{op.Id, encodeResult(&canopyv1.Result{Error: uint32(fserr.Busy), Detail: "too many operations are outstanding", RetryAfterMs: retryAfterMS()})})
			continue
		}
		kind, err := validate(op)
		if err == nil && h == nil {
			err = st.server.notHosted(id)
		}
		switch {
		case err != nil:
			st.server.metrics.failed(h, kind, fserr.KindOf(err))
			st.queue.put(1, outcome{op.Id, encodeResult(st.server.refusal(err, id, base.SubtreeID(op.Subtree)))})
		case kind.isWrite():
			st.submit(h, request.Floor, op, kind, now)
		case kind == opWaitLock || kind == opCancelWait:
			st.wait(h, op, kind, now)
		case kind == opMarkNames && !st.markFragment(h, op):
			st.queue.put(1, outcome{op.Id, encodeResult(&canopyv1.Result{Error: uint32(fserr.Busy), Detail: "too many listings begin", RetryAfterMs: retryAfterMS()})})
		default:
			if batch == nil {
				batch = &readBatch{stream: st, h: h, started: now}
			}
			batch.ops = append(batch.ops, op)
			batch.kinds = append(batch.kinds, kind)
		}
	}
	if batch != nil {
		st.read(batch)
	}
}

// notHosted is the error of a shard without a running replica here.
func (s *Server) notHosted(id base.ShardID) error {
	for _, r := range s.place.Map().Shard(id).GetReplicas() {
		if base.NodeID(r.Node) == s.Node() {
			return fserr.New(fserr.NotReady, "shard "+id.String(), nil)
		}
	}
	return fserr.New(fserr.UnknownShard, "shard "+id.String(), nil)
}

// touch keeps the client's session alive.
func (st *opStream) touch(h *hosted) {
	t := h.tenure()
	if t == nil {
		return
	}
	in := st.heard.Load()
	if in == nil || in.term != t || in.state.gone.Load() {
		in = &heardIn{t, t.client(st.client)}
		st.heard.Store(in)
	}
	t.touch(in.state)
}

// pendingWrite is a write that was given to the group.
type pendingWrite struct {
	stream  *opStream
	h       *hosted
	id      uint64
	subtree base.SubtreeID
	kind    opType
	started time.Time
	ino     base.Ino // of a lock
	token   uint64   // of a try for a lock
	adds    base.Ino // the directory that gets a name
	about   writeHeat
	op      *canopyv1.Op
	floor   uint64
	spans   bool // it can be a transaction over subtrees
}

// submit gives a write to the group. Submits of one stream are in order.
func (st *opStream) submit(h *hosted, floor uint64, op *canopyv1.Op, kind opType, now time.Time) {
	w := &pendingWrite{stream: st, h: h, id: op.Id, subtree: base.SubtreeID(op.Subtree), kind: kind, started: now, adds: addsTo(op),
		op: op, floor: floor, spans: namespace.TxnCall(op)}
	if h.counting() != nil {
		w.about.note(op)
	}
	if t := h.tenure(); w.spans && t != nil && t.txns.joins(txnRequest{st.client, op.Seq}, w) {
		return
	}
	if st.holdBack(h, floor, op, kind, now) || st.locking(w, op) {
		return
	}
	command := canopyv1.Command{Client: uint64(st.client), Floor: floor, Op: op}
	if !room(h.room.Load()).takes(kind, op) {
		if !op.Again {
			w.finish(nil, fserr.New(fserr.NoSpace, "shard "+h.shard.String(), errors.New(h.readOnly())))
			return
		}
		command.AnsweredOnly = true // what became of the first copy is in the log
	}
	if w.spans && !command.AnsweredOnly && namespace.Crosses(op) {
		w.transact() // what the log would say is known
		return
	}
	encoded, err := command.MarshalVT()
	if err != nil {
		w.finish(nil, fserr.New(fserr.Malformed, "encode", err))
		return
	}
	h.group.SubmitTimed(encoded, w.applied)
}

// applied queues the answer, unless the operation turned out to touch several
// subtrees. It runs on the group's goroutine and does not block.
func (w *pendingWrite) applied(result []byte, err error, took raftgroup.Timing) {
	w.about.queue, w.about.apply = took.Queue, took.Apply
	kind := fserr.OK
	if err == nil {
		kind = errorOf(result)
	}
	switch {
	case kind == fserr.CrossSubtree && w.spans:
		w.transact()
		return
	case kind == fserr.CrossSubtree:
		result = encodeResult(&canopyv1.Result{Error: uint32(fserr.CrossDevice)})
	case w.metStandstill(result, kind):
		return
	}
	w.finish(result, err)
}

// give queues the answer, which may be held back.
func (w *pendingWrite) give(result []byte, err error) {
	s := w.stream.server
	kind := fserr.OK
	switch {
	case err != nil:
		kind = fserr.KindOf(err)
		result = encodeResult(s.refusal(err, w.h.shard, w.subtree))
	default:
		if kind = errorOf(result); kind == fserr.Moved {
			result = s.addRedirect(result, w.h.shard, w.subtree)
		}
		if w.kind == opCreate && kind == fserr.OK {
			result = w.stream.grantCreated(result)
		}
		w.tell(kind)
		w.unlocked(kind)
	}
	took := time.Since(w.started)
	w.h.metrics.observe(w.kind, kind, took)
	w.heat(kind, took)
	answer := outcome{w.id, result}
	if t := w.h.tenure(); w.adds != 0 && kind == fserr.OK && t != nil && t.marks.active.Load() > 0 &&
		t.marks.hold(func() { w.stream.queue.put(1, answer) }, fragment{w.subtree, w.adds}) {
		return
	}
	w.stream.queue.put(1, answer)
}

// tell lets the term's workers know what happened.
func (w *pendingWrite) tell(kind fserr.Kind) {
	t := w.h.tenure()
	if t != nil && kind == fserr.Busy && w.kind == opRename {
		t.activity.Add(1) // it may have begun a tally
	}
	if t == nil || kind != fserr.OK {
		return
	}
	switch w.kind {
	case opOpenSession:
		t.sessionOpened(w.stream.client)
	case opCloseSession:
		t.sessionClosed(w.stream.client)
	case opUnlink, opRmdir, opRename, opLink, opSetAttr, opCreate, opReportSize, opSetQuota:
		t.activity.Add(1)
	}
}

// encodeResult encodes an answer.
func encodeResult(r *canopyv1.Result) []byte {
	b, err := r.MarshalVT()
	if err != nil { // it cannot: all fields are bytes and numbers
		b, _ = (&canopyv1.Result{Error: uint32(fserr.Internal)}).MarshalVT()
	}
	return b
}

// errorOf returns the error kind of an encoded result without decoding the rest:
// the error is the first field, and left out if it is zero.
func errorOf(result []byte) fserr.Kind {
	const errorTag = 1 << 3 // field 1, varint
	if len(result) < 2 || result[0] != errorTag {
		return fserr.OK
	}
	kind, shift := uint64(0), 0
	for _, b := range result[1:] {
		kind |= uint64(b&0x7f) << shift
		if shift += 7; b < 0x80 || shift > 28 {
			break
		}
	}
	return fserr.Kind(kind)
}

// addRedirect completes an encoded answer of kind Moved.
func (s *Server) addRedirect(encoded []byte, id base.ShardID, subtree base.SubtreeID) []byte {
	var result canopyv1.Result
	if err := result.UnmarshalVT(encoded); err != nil {
		return encoded
	}
	result.Redirect = s.moved(result.Redirect, id, subtree)
	return encodeResult(&result)
}
