package floor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/loadtest/child"
	"github.com/canopyfs/canopy/loadtest/hist"
	"github.com/canopyfs/canopy/loadtest/proc"
)

// maxBatch bounds the operations of one message, as the client library does.
const maxBatch = 512

// ServeStream answers every operation of an Operate stream with a result of
// the size of a real one, without looking at it, until in ends. It says its
// address on out. It is what a process of its own runs.
func ServeStream(ctx context.Context, in io.Reader, out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := grpc.NewServer(wire.ServerOptions()...)
	canopyv1.RegisterMetadataServer(s, &echo{result: typicalResult()})
	served := make(chan struct{})
	var serveErr error
	go func() { defer close(served); serveErr = s.Serve(l) }()
	err = child.Ready(ctx, l.Addr().String(), in, out, served)
	s.Stop()
	<-served
	return errors.Join(err, serveErr)
}

type echo struct {
	canopyv1.UnimplementedMetadataServer
	result []byte
}

func (e *echo) Operate(stream grpc.BidiStreamingServer[canopyv1.OperateRequest, canopyv1.OperateResponse]) error {
	for {
		req, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		answer := &canopyv1.OperateResponse{Outcomes: make([]*canopyv1.Outcome, len(req.Ops))}
		for i, op := range req.Ops {
			answer.Outcomes[i] = &canopyv1.Outcome{Id: op.Id, Result: e.result}
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

// typicalResult is the answer to a lookup: the attributes of a file and of its
// directory.
func typicalResult() []byte {
	now := time.Now().UnixNano()
	attr := func(mode uint32) *canopyv1.Attr {
		return &canopyv1.Attr{
			Ino: 1<<44 + 123456, Mode: mode, Nlink: 1, Uid: 1000, Gid: 1000,
			AtimeNs: now, MtimeNs: now, CtimeNs: now, BtimeNs: now, Version: 1 << 20, Subtree: 1, Epoch: 1,
			Layout: &canopyv1.Layout{Pool: 1, Components: []*canopyv1.LayoutComponent{
				{StripeBytes: 1 << 20, StripeCount: 1}, {Offset: 1 << 20, StripeBytes: 1 << 20, StripeCount: 3},
			}},
		}
	}
	dir := attr(0o40755)
	dir.Layout = nil
	b, err := (&canopyv1.Result{Attr: attr(0o100644), DirAttr: dir}).MarshalVT()
	if err != nil {
		return make([]byte, 200) // a message of scalars always marshals
	}
	return b
}

// lookup is the operation of one caller.
func lookup(id uint64) *canopyv1.Op {
	return &canopyv1.Op{
		Id: id, Subtree: 1, Epoch: 1, Cred: &canopyv1.Credential{Uid: 1000, Gid: 1000},
		Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: 1<<44 + 77, Name: []byte("f.0001.0000001")}},
	}
}

// RecordBytes is the size of what a create puts into a shard's log.
func RecordBytes() int {
	return (&canopyv1.Command{Client: 1 << 60, Floor: 1 << 20, Op: &canopyv1.Op{
		Id: 1 << 20, Seq: 1 << 20, Subtree: 1, Epoch: 1, Cred: &canopyv1.Credential{Uid: 1000, Gid: 1000},
		Call: &canopyv1.Op_Create{Create: &canopyv1.CreateCall{Dir: 1<<44 + 77, Name: []byte("f.0001.0000001"), Mode: 0o644, Exclusive: true}},
	}}).SizeVT()
}

// StreamOptions of a measurement.
type StreamOptions struct {
	Callers          int // each has one operation outstanding
	Warmup, Duration time.Duration
	Spawn            func(ctx context.Context) *exec.Cmd // runs ServeStream
}

// Stream measures one bidirectional stream to a server in a process of its
// own: what waits when the stream is free goes out as one message.
func Stream(ctx context.Context, o StreamOptions) (*Result, error) {
	server, err := child.Start(o.Spawn(ctx))
	if err != nil {
		return nil, fmt.Errorf("echo server: %w", err)
	}
	r, err := stream(ctx, o, server)
	return r, errors.Join(err, server.Close())
}

func stream(ctx context.Context, o StreamOptions, server *child.Process) (*Result, error) {
	conn, err := grpc.NewClient(server.Line, append(wire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := canopyv1.NewMetadataClient(conn).Operate(ctx)
	if err != nil {
		return nil, err
	}
	d := newDriver(o.Callers, s)
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return d.send(running) })
	g.Go(func() error { return d.receive() })
	var callers sync.WaitGroup
	for i := range o.Callers {
		callers.Go(func() { d.call(running, i) })
	}
	sleep(running, o.Warmup)
	before, cpu := d.ops.Load(), proc.Self()
	serverBefore, err1 := proc.CPU("/proc", server.Pid())
	messages, start := d.messages.Load(), time.Now()
	d.measuring.Store(true)
	sleep(running, o.Duration)
	d.measuring.Store(false)
	r := &Result{Ops: d.ops.Load() - before, Seconds: time.Since(start).Seconds(), ClientCPU: proc.Self() - cpu}
	serverAfter, err2 := proc.CPU("/proc", server.Pid())
	r.ServerCPU = serverAfter - serverBefore
	r.OpsPerMessage = float64(r.Ops) / float64(max(d.messages.Load()-messages, 1))
	d.stop.Store(true)
	callers.Wait()
	close(d.queue)
	err = g.Wait()
	r.Hist = hist.New()
	for _, h := range d.hists {
		r.Hist.Merge(h)
	}
	return r, errors.Join(err, err1, err2)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// driver is the client's end: callers, one sender, one receiver.
type driver struct {
	stream    grpc.BidiStreamingClient[canopyv1.OperateRequest, canopyv1.OperateResponse]
	queue     chan *canopyv1.Op // as long as there are callers
	answers   []chan struct{}   // by caller
	hists     []*hist.Histogram
	ops       atomic.Int64
	messages  atomic.Int64
	measuring atomic.Bool
	stop      atomic.Bool
}

func newDriver(callers int, s grpc.BidiStreamingClient[canopyv1.OperateRequest, canopyv1.OperateResponse]) *driver {
	d := &driver{stream: s, queue: make(chan *canopyv1.Op, callers)}
	for range callers {
		d.answers = append(d.answers, make(chan struct{}, 1))
		d.hists = append(d.hists, hist.New())
	}
	return d
}

func (d *driver) call(ctx context.Context, i int) {
	for !d.stop.Load() && ctx.Err() == nil {
		start := time.Now()
		d.queue <- lookup(uint64(i) + 1)
		select {
		case <-d.answers[i]:
		case <-ctx.Done():
			return
		}
		d.ops.Add(1)
		if d.measuring.Load() {
			d.hists[i].Record(time.Since(start))
		}
	}
}

func (d *driver) send(ctx context.Context) error {
	batch := make([]*canopyv1.Op, 0, maxBatch)
	for {
		select {
		case op, ok := <-d.queue:
			if !ok {
				return d.stream.CloseSend()
			}
			batch = append(batch[:0], op)
		case <-ctx.Done():
			return ctx.Err()
		}
		// Callers that were answered by one message get to ask before the next one
		// goes out: as in the client library, larger messages are worth more than
		// the microseconds.
		batch = d.drain(batch)
		runtime.Gosched()
		batch = d.drain(batch)
		d.messages.Add(1)
		if err := d.stream.Send(&canopyv1.OperateRequest{Shard: 1, Floor: 1, Ops: batch}); err != nil {
			return fmt.Errorf("stream: %w", err)
		}
	}
}

// drain adds what waits.
func (d *driver) drain(batch []*canopyv1.Op) []*canopyv1.Op {
	for len(batch) < maxBatch {
		select {
		case op, ok := <-d.queue:
			if !ok {
				return batch
			}
			batch = append(batch, op)
		default:
			return batch
		}
	}
	return batch
}

func (d *driver) receive() error {
	for {
		answer, err := d.stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("stream: %w", err)
		}
		for _, o := range answer.Outcomes {
			var result canopyv1.Result
			if err := result.UnmarshalVT(o.Result); err != nil {
				return err
			}
			d.answers[o.Id-1] <- struct{}{}
		}
	}
}
