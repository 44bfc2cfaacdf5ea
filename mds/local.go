package mds

import (
	"context"
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// localNode is the node as the other parts of its process reach it: what crosses
// no network needs no messages, no buffers, and for a quick read no other
// goroutine. Streams are the same as those that come over gRPC.
type localNode struct{ server *Server }

// OperateLocal implements wire.LocalMetadata.
func (n localNode) OperateLocal(ctx context.Context, caller wire.Caller, deliver func(*canopyv1.OperateResponse)) (wire.LocalStream, error) {
	s := n.server
	if caller.Client == 0 {
		return nil, fserr.New(fserr.Malformed, "operate", errNoClient)
	}
	if caller.Cluster != "" && caller.Cluster != s.cluster {
		return nil, &fserr.Error{Kind: fserr.WrongCluster, Op: "operate", Path: "cluster " + caller.Cluster}
	}
	l := &localStream{ended: make(chan struct{})}
	l.st = s.newStream(ctx, base.ClientID(caller.Client), func(r *canopyv1.OperateResponse) error { deliver(r); return nil })
	l.st.queue.atOnce = true
	if !s.spawn(l.run) {
		return nil, fserr.New(fserr.NotReady, "operate", errStopping)
	}
	return l, nil
}

// localStream is a stream within the process.
type localStream struct {
	st    *opStream
	ended chan struct{} // closed when run has returned, with err set
	err   error

	mu     sync.RWMutex // shared by those who use the stream; its end waits for them
	closed bool
}

// run keeps the stream until its client or the node ends it, and waits for what
// runs in it: afterwards nothing of the node is used.
func (l *localStream) run() {
	defer close(l.ended)
	st := l.st
	st.server.metrics.streams.Inc()
	defer st.server.metrics.streams.Dec()
	l.err = st.queue.send(st.ctx, st.server.front.Draining())
	st.end() // who waits in Send comes back
	st.queue.close()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	st.reads.Wait()
}

// Send implements wire.LocalStream.
func (l *localStream) Send(request *canopyv1.OperateRequest) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed || !l.st.queue.room() {
		return fserr.New(fserr.NotReady, "operate", errStopping)
	}
	l.st.start(request, time.Now())
	return nil
}

// Recv implements wire.LocalStream.
func (l *localStream) Recv() (*canopyv1.OperateResponse, error) {
	<-l.ended
	if l.err == nil {
		return nil, fserr.New(fserr.NotReady, "operate", errStopping)
	}
	return nil, l.err
}

// Query implements wire.LocalStream.
func (l *localStream) Query(shard uint64, ops []*canopyv1.Op) (results [][]byte, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	h := l.st.server.lookup(base.ShardID(shard))
	if l.closed || h == nil {
		return nil, false
	}
	b := &readBatch{stream: l.st, h: h, ops: ops, kinds: make([]opType, len(ops)), started: time.Now(), inline: true}
	for i, op := range ops {
		var err error
		if b.kinds[i], err = validate(op); err != nil || b.kinds[i].isWrite() {
			return nil, false
		}
	}
	if !b.quick() {
		return nil, false
	}
	l.st.touch(h)
	answers := l.st.runReads(l.st.ctx, b)
	results = make([][]byte, len(answers))
	for i := range answers {
		results[i] = answers[i].result
	}
	return results, true
}
