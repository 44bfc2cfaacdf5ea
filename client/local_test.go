package client

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
)

// TestWithinTheProcess: the rules of exactly once hold towards a node in the same
// process, whose streams have neither messages nor buffers.
func TestWithinTheProcess(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"ResendAfterExecution":       TestResendAfterExecution,
		"ResendInOrder":              TestResendInOrder,
		"OutstandingBoundAndFloor":   TestOutstandingBoundAndFloor,
		"AbandonedIsNotResent":       TestAbandonedIsNotResent,
		"SessionExpiredBeforeSend":   TestSessionExpiredBeforeSend,
		"SessionExpiredAfterSend":    TestSessionExpiredAfterSend,
		"NewSessionFloor":            TestNewSessionFloor,
		"ProtocolKindsAreRetried":    TestProtocolKindsAreRetried,
		"BusyAfterResendStaysUnsure": TestBusyAfterResendStaysUnsure,
		"MovedSubtreeKeepsTheNumber": TestMovedSubtreeKeepsTheNumber,
	} {
		t.Run(name, test)
	}
}

// TestLateAnswers: what a stream answers after its end counts for nothing. Its
// operations go out again on the next stream, and a refusal by the last one
// would let what the next one executes run twice.
func TestLateAnswers(t *testing.T) {
	cl := &call{op: &canopyv1.Op{Id: 7}, kind: opUnlink, done: make(chan struct{}, 1), state: callSent}
	l := &link{wake: make(chan struct{}, 1), flight: map[uint64]*call{7: cl}, stream: 2, out: &localFake{}}
	answer := &canopyv1.OperateResponse{Outcomes: []*canopyv1.Outcome{{Id: 7}}}
	l.take(1, answer)
	if len(cl.done) != 0 || l.flight[7] != cl {
		t.Error("an answer of the stream before was taken")
	}
	l.out = nil
	l.take(2, answer)
	if len(cl.done) != 0 {
		t.Error("an answer was taken between streams")
	}
	l.out = &localFake{}
	l.take(2, answer)
	if len(cl.done) != 1 {
		t.Error("an answer of the present stream was not taken")
	}
}

// TestQueryFallsBack: a read that the node cannot answer at once is sent, with
// those that were posted ahead of it, and a mutation that waits is not overtaken
// by taking the queue.
func TestQueryFallsBack(t *testing.T) {
	stream := &localFake{}
	l := &link{wake: make(chan struct{}, 1), flight: map[uint64]*call{}, stream: 1, out: stream, local: stream, open: true}
	read := func() *call {
		return &call{op: &canopyv1.Op{}, kind: opLookup, done: make(chan struct{}, 1)}
	}
	ahead, gone, cl := read(), read(), read()
	l.post([]*call{ahead, gone})
	l.withdraw([]*call{gone})
	if l.queryLocal(cl) {
		t.Fatal("answered by a node that cannot")
	}
	if len(l.queue) != 1 || l.queue[0] != ahead || ahead.state != callQueued || cl.state != callQueued {
		t.Errorf("queue %v", l.queue)
	}
	stream.answers = [][]byte{{1}, {2}}
	if !l.queryLocal(cl) || len(cl.done) != 1 || string(cl.result) != "\x02" || string(ahead.result) != "\x01" || len(l.queue) != 0 {
		t.Errorf("%q and %q, queue %v", ahead.result, cl.result, l.queue)
	}
	l.queue = []*call{{op: &canopyv1.Op{}, kind: opUnlink}}
	if cl = read(); l.queryLocal(cl) || len(l.queue) != 1 {
		t.Error("a queue with a mutation was taken")
	}
}

// fakeLocal is a node of the fake cluster as its process reaches it.
type fakeLocal struct {
	node     *fakeNode
	listener net.Listener
	ctx      context.Context // ends when the node is stopped
	cancel   context.CancelFunc
	streams  *sync.WaitGroup
}

// offer makes the node reachable within the process, if the fake is for that.
func (n *fakeNode) offer() {
	if n.c.memory == nil {
		return
	}
	n.local = fakeLocal{node: n, listener: n.c.memory.Listen(n.address), streams: &sync.WaitGroup{}}
	n.local.ctx, n.local.cancel = context.WithCancel(context.Background())
	n.c.memory.Offer(n.address, n.local)
	server, local := n.server, n.local
	local.streams.Go(func() { _ = server.Serve(local.listener) })
}

func (n *fakeNode) withdraw() {
	if n.local.cancel != nil {
		n.local.listener.Close()
		n.local.cancel()
		n.server.Stop()
		n.local.streams.Wait()
	}
}

// OperateLocal runs the fake's handler of the rpc over channels.
func (f fakeLocal) OperateLocal(ctx context.Context, caller wire.Caller, deliver func(*canopyv1.OperateResponse)) (wire.LocalStream, error) {
	md, _ := metadata.FromOutgoingContext(caller.Context(ctx))
	ctx, cancel := context.WithCancel(metadata.NewIncomingContext(ctx, md))
	s := &localFake{fakeLocal: f, ctx: ctx, deliver: deliver, requests: make(chan *canopyv1.OperateRequest, 64), ended: make(chan struct{}), client: caller.Client}
	f.streams.Add(2)
	go func() {
		defer f.streams.Done()
		select {
		case <-f.ctx.Done():
			cancel()
		case <-s.ended:
		}
	}()
	go func() {
		defer f.streams.Done()
		defer close(s.ended)
		defer cancel()
		_ = f.node.Operate(localServerStream{localFake: s})
	}()
	return s, nil
}

// localFake is both ends of a stream of the fake within the process.
type localFake struct {
	fakeLocal
	ctx      context.Context
	client   uint64
	deliver  func(*canopyv1.OperateResponse)
	requests chan *canopyv1.OperateRequest
	ended    chan struct{}
	answers  [][]byte // what Query answers, if not nil; without a node
}

func (s *localFake) Send(r *canopyv1.OperateRequest) error {
	mine := &canopyv1.OperateRequest{Shard: r.Shard, Floor: r.Floor, Ops: slices.Clone(r.Ops)}
	select {
	case s.requests <- mine:
		return nil
	case <-s.ended:
		return io.EOF
	}
}

func (s *localFake) Recv() (*canopyv1.OperateResponse, error) {
	<-s.ended
	return nil, io.EOF
}

func (s *localFake) Query(shard uint64, ops []*canopyv1.Op) ([][]byte, bool) {
	if s.node == nil {
		return s.answers, s.answers != nil
	}
	s.node.c.mu.Lock()
	hooked := s.node.c.hook != nil || s.node.c.after != nil
	s.node.c.mu.Unlock()
	if hooked || s.ctx.Err() != nil {
		return nil, false
	}
	var results [][]byte
	for _, op := range ops {
		result, _ := s.node.operate(s.client, &canopyv1.OperateRequest{Shard: shard}, op)
		b, err := result.MarshalVT()
		if err != nil {
			return nil, false
		}
		results = append(results, b)
	}
	return results, true
}

// localServerStream is the server's end.
type localServerStream struct {
	grpc.ServerStream // nil: what is not overridden is not used
	*localFake
}

func (s localServerStream) Context() context.Context { return s.ctx }

func (s localServerStream) Recv() (*canopyv1.OperateRequest, error) {
	select {
	case r := <-s.requests:
		return r, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

func (s localServerStream) Send(r *canopyv1.OperateResponse) error {
	if s.ctx.Err() != nil {
		return errors.New("the stream has ended")
	}
	s.deliver(r)
	return nil
}
