package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

var (
	errSessionLost = fserr.New(fserr.TimedOut, "", errors.New("the session was lost after the request was sent"))
	errStreamEnded = errors.New("the stream ended")
)

// run is the link's writer: it keeps a stream while there is something to do or
// a session to keep. It returns when ctx ends; all calls have ended then.
func (l *link) run(ctx context.Context) {
	defer l.shut(fserr.NotConnected)
	for {
		for !l.busy() {
			select {
			case <-l.wake:
			case <-ctx.Done():
				return
			}
		}
		if pause(ctx, l.delay()) != nil {
			return
		}
		l.serve(ctx)
		if ctx.Err() != nil {
			return
		}
	}
}

// busy reports whether a stream is wanted.
func (l *link) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) > 0 || len(l.flight) > 0 || l.session > 0
}

// delay is how long to wait before the next stream: nothing at first, so that a
// redirect costs a hop only, then longer.
func (l *link) delay() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.failures == 0:
		return 0
	case l.failures <= 2:
		return rand.N(2 * time.Millisecond)
	}
	return backoff(l.failures - 3)
}

// next chooses the node for the next stream: where a redirect or a newer map
// points, the last one if it was fine, else the replicas in turn.
func (l *link) next() (target, bool) {
	node, address, _ := l.env.routes.holderHint(l.shard)
	replicas := l.env.routes.replicas(l.shard)
	if address != "" {
		replicas = append([]target{{node, address}}, replicas...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.hint; t.address != "" {
		l.hint = target{}
		return t, true
	}
	if l.failures == 0 && l.at.address != "" {
		return l.at, true
	}
	if len(replicas) == 0 {
		return target{}, false
	}
	t := replicas[l.rotation%len(replicas)]
	l.rotation++
	return t, true
}

func (l *link) failed() {
	l.mu.Lock()
	l.failures++
	l.mu.Unlock()
}

// serve opens one stream and works on it until it ends.
func (l *link) serve(ctx context.Context) {
	t, ok := l.next()
	if !ok {
		l.failed()
		return
	}
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.mu.Lock()
	l.stream++
	number, failures := l.stream, l.failures
	l.mu.Unlock()
	stream, local, err := l.dial(sctx, t, number)
	if err != nil {
		l.env.logger.Debug("no stream to shard", "shard", l.shard, "node", t.node, "address", t.address, "error", err)
		l.failed()
		return
	}
	l.mu.Lock()
	l.at, l.cancel, l.out, l.local = t, cancel, stream, local
	open := l.open
	l.mu.Unlock()
	if open {
		l.env.sessionAt(l.shard, t)
	}

	readerDone := make(chan struct{})
	go func() {
		defer close(readerDone)
		l.read(number, stream)
		cancel()
	}()
	err = l.write(sctx, stream)
	cancel()
	<-readerDone

	l.sendMu.Lock() // a caller that sends on the ended stream comes back first
	l.mu.Lock()
	l.cancel, l.out, l.local = nil, nil, nil
	l.requeueLocked()
	if l.failures == failures && ctx.Err() == nil {
		l.failures++ // nobody said why; the last node is tried again after the others
	}
	l.mu.Unlock()
	l.sendMu.Unlock()
	l.env.logger.Debug("stream to shard ended", "shard", l.shard, "node", t.node, "stream", number, "error", err)
}

// dial opens a stream to the node; local is the same if the node is in this
// process, else nil.
func (l *link) dial(ctx context.Context, t target, number uint64) (stream operateStream, local wire.LocalStream, err error) {
	if local, err = l.openLocal(ctx, t, number); local != nil || err != nil {
		return local, local, err
	}
	conn, err := l.env.nodes.get(t.address)
	if err != nil {
		return nil, nil, err
	}
	stream, err = canopyv1.NewMetadataClient(conn).Operate(l.env.outgoing(ctx))
	return stream, nil, err
}

// read matches outcomes to calls until the stream ends.
func (l *link) read(number uint64, stream operateStream) {
	for {
		response, err := stream.Recv()
		if err != nil {
			return
		}
		l.take(number, response)
	}
}

// ensureSession opens the session if it is not (PROTOCOLS C3): nothing else is
// sent before the shard has answered.
func (l *link) ensureSession(ctx context.Context, stream operateStream) error {
	l.mu.Lock()
	open, wanted := l.open, len(l.queue) > 0 || l.session > 0
	l.mu.Unlock()
	if open || !wanted {
		return nil
	}
	for attempt := 0; ; attempt++ {
		result, err := l.ask(ctx, stream, &canopyv1.Op{Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{
			Host: l.env.caller.Host, Pid: uint32(l.env.caller.PID), Mount: l.env.caller.Mount}}}, opOpenSession)
		if err != nil {
			return err
		}
		kind := fserr.Kind(result.Error)
		switch {
		case kind == fserr.OK:
			l.mu.Lock()
			l.session++
			l.open = true
			at := l.at
			l.mu.Unlock()
			l.env.sessionAt(l.shard, at)
			return nil
		case elsewhere(kind):
			l.redirect(l.streamNumber(), result.Redirect)
			return errStreamEnded
		case kind.IsProtocol() && kind != fserr.WrongCluster && kind != fserr.Malformed, kind == fserr.TimedOut:
			l.env.metrics.retried(kind)
			if err := pause(ctx, retryAfter(result, attempt)); err != nil {
				return err
			}
		default:
			l.failed()
			l.failQueued(&fserr.Error{Kind: kind, Op: opOpenSession.String(), Err: detail(result)})
			return errStreamEnded
		}
	}
}

func (l *link) streamNumber() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stream
}

// ask sends one operation of the link itself on the stream and waits for the
// answer. Its floor also covers the numbers of earlier sessions, so that no
// late copy of their requests runs in a new one. It is sent once; a repeat of
// opening or closing a session is a new request, since both are idempotent.
func (l *link) ask(ctx context.Context, stream operateStream, op *canopyv1.Op, kind opKind) (*canopyv1.Result, error) {
	var seq base.Seq
	for seq == 0 {
		if seq = l.env.seqs.acquire(l); seq == 0 {
			l.endLostCalls()
			select {
			case <-l.wake:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	defer l.env.seqs.release(seq)
	cl := &call{op: op, kind: kind, done: make(chan struct{}, 1), state: callSent}
	floor, _ := l.env.seqs.lowest()
	l.mu.Lock()
	l.nextID++
	op.Id, op.Seq = l.nextID, uint64(seq)
	l.flight[op.Id] = cl
	floor = max(floor, l.minFloor)
	l.mu.Unlock()
	defer l.abandon(cl)
	l.sendMu.Lock()
	err := stream.Send(&canopyv1.OperateRequest{Shard: uint64(l.shard), Floor: uint64(floor), Ops: []*canopyv1.Op{op}})
	l.sendMu.Unlock()
	if err != nil {
		return nil, errStreamEnded
	}
	select {
	case <-cl.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if cl.err != nil {
		return nil, cl.err
	}
	result := new(canopyv1.Result)
	if err := result.UnmarshalVT(cl.result); err != nil {
		return nil, fserr.New(fserr.Malformed, kind.String(), err)
	}
	return result, nil
}

// endLostCalls ends the queued mutations of a session that is gone, whose
// numbers may be what a new session waits for.
func (l *link) endLostCalls() {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := l.queue[:0]
	for _, cl := range l.queue {
		if !l.open && cl.state == callQueued && cl.kind.mutates() && cl.op.Seq != 0 && cl.sends > 0 {
			l.answerLocked(cl, nil, errSessionLost)
			continue
		}
		rest = append(rest, cl)
	}
	clear(l.queue[len(rest):])
	l.queue = rest
}

// closeSession ends the session at the shard, once, if there is one.
func (l *link) closeSession(ctx context.Context) {
	if _, open := l.where(); !open {
		return
	}
	cl := &call{kind: opCloseSession, done: make(chan struct{}, 1),
		op: &canopyv1.Op{Call: &canopyv1.Op_CloseSession{CloseSession: &canopyv1.CloseSessionCall{}}}}
	if l.submit(ctx, cl) == nil {
		l.env.seqs.release(base.Seq(cl.op.Seq))
	}
}

// elsewhere reports whether the kind says that another node has to be asked.
func elsewhere(k fserr.Kind) bool { return k == fserr.NotHolder || k == fserr.UnknownShard }

// peekKind reads the kind of an encoded result: field 1, which is encoded first
// and left out when it is OK.
func peekKind(result []byte) fserr.Kind {
	if len(result) < 2 || result[0] != 0x08 {
		return fserr.OK
	}
	kind := uint32(result[1] & 0x7f)
	if result[1] >= 0x80 && len(result) > 2 {
		kind |= uint32(result[2]&0x7f) << 7
	}
	return fserr.Kind(kind)
}
