package dataserver

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/internal/fserr"
)

// maxStreamRequests bounds the requests of one stream that are not answered yet;
// beyond it the stream is not read, so that its client feels it.
const maxStreamRequests = 512

// intake is the bound on what one kind of caller may have in memory here, and
// on the workers for it. Requests of primaries have one of their own: a worker
// that waits for a replica must never keep that replica's requests out.
type intake struct {
	bytes   *weighted
	workers chan struct{}
}

func newIntake(workers int, bytes int64) *intake {
	return &intake{bytes: newWeighted(bytes), workers: make(chan struct{}, workers)}
}

// Access implements the service. One goroutine reads requests, one sends
// answers, each request is executed by one of its own, of which a bounded number
// runs at a time.
func (s *server) Access(stream grpc.BidiStreamingServer[canopyv1.DataRequest, canopyv1.DataResponse]) error {
	if !s.enter() {
		return fserr.New(fserr.NotReady, "data", errors.New("this server is stopping"))
	}
	defer s.leave()
	a := &access{
		s: s, stream: stream, ctx: stream.Context(),
		answers: make(chan answer, maxStreamRequests),
		slots:   make(chan struct{}, maxStreamRequests),
		sent:    make(chan struct{}),
	}
	go a.send()
	err := a.receive()
	a.running.Wait()
	close(a.answers)
	<-a.sent
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// access is one stream.
type access struct {
	s       *server
	stream  grpc.BidiStreamingServer[canopyv1.DataRequest, canopyv1.DataResponse]
	ctx     context.Context
	slots   chan struct{}
	answers chan answer
	running sync.WaitGroup
	sent    chan struct{}
}

type answer struct {
	response *link.Response
	release  func()
}

func (a *access) send() {
	defer close(a.sent)
	broken := false
	for x := range a.answers {
		if !broken {
			broken = a.stream.SendMsg(x.response) != nil
		}
		x.response.Free()
		x.release()
	}
}

// receive reads requests until the stream or the server ends.
func (a *access) receive() error {
	requests := make(chan *link.Request)
	failed := make(chan error, 1)
	go func() {
		for {
			r := &link.Request{}
			if err := a.stream.RecvMsg(r); err != nil {
				failed <- err
				return
			}
			select {
			case requests <- r:
			case <-a.ctx.Done():
				r.Free()
				failed <- a.ctx.Err()
				return
			}
		}
	}()
	for {
		select {
		case r := <-requests:
			if err := a.start(r); err != nil {
				return err
			}
		case err := <-failed:
			return err
		case <-a.s.front.Draining():
			return fserr.New(fserr.NotReady, "data", errors.New("this server is stopping"))
		}
	}
}

// intakeOf returns what a request is counted in, and how many bytes it may need.
func (s *server) intakeOf(r *link.Request) (in *intake, size int64) {
	in = s.clients
	if r.FromPrimary {
		in = s.replicas
	}
	size = int64(r.Payload.Len()) + 512
	if read := r.GetRead(); read != nil {
		size += int64(min(read.Length, maxReadBytes))
	}
	return in, size
}

// start takes what the request needs, and executes it in a goroutine.
func (a *access) start(r *link.Request) error {
	in, size := a.s.intakeOf(r)
	select {
	case a.slots <- struct{}{}:
	case <-a.ctx.Done():
		r.Free()
		return a.ctx.Err()
	}
	if err := in.bytes.acquire(a.ctx, size); err != nil {
		r.Free()
		return err
	}
	a.s.metrics.queued.Inc()
	a.running.Add(1)
	go func() {
		defer a.running.Done()
		release := func() {
			in.bytes.release(size)
			<-a.slots
			a.s.metrics.queued.Dec()
		}
		a.answers <- answer{a.s.work(a.ctx, a.s.ctx, in, r), release}
	}()
	return nil
}

// work executes a request under ctx when a worker is free. The stream's end does
// not cut a change that runs: replicas must stay equal. What still waits is
// dropped with its stream, since its client sends it again.
func (s *server) work(stream, ctx context.Context, in *intake, r *link.Request) *link.Response {
	defer r.Free()
	select {
	case in.workers <- struct{}{}:
		defer func() { <-in.workers }()
	case <-stream.Done():
		return refusal(r, stream.Err())
	}
	if stream.Err() != nil {
		return refusal(r, stream.Err())
	}
	started := time.Now()
	var response *link.Response
	err := s.guard.allow(stream, r)
	if err == nil {
		response, err = s.execute(ctx, r)
	}
	name := callName(r)
	kind := fserr.KindOf(err)
	s.metrics.observe(name, kind, r, response, time.Since(started))
	if err != nil {
		response.Free()
		return refusal(r, err)
	}
	response.Id = r.Id
	return response
}

// refusal is the answer to a request that failed.
func refusal(r *link.Request, err error) *link.Response {
	response := &canopyv1.DataResponse{Id: r.Id, Error: uint32(fserr.KindOf(err)), Detail: err.Error()}
	var epoch *epochError
	if errors.As(err, &epoch) {
		response.PgEpoch = epoch.have
	}
	return &link.Response{DataResponse: response}
}

// parts returns the payload's memory, valid as long as the payload is.
func parts(payload mem.BufferSlice) [][]byte {
	out := make([][]byte, 0, len(payload))
	for _, b := range payload {
		if p := b.ReadOnlyData(); len(p) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// weighted is a counting semaphore; a weight above its size takes all of it.
type weighted struct {
	mu      sync.Mutex
	size    int64
	used    int64
	changed chan struct{}
}

func newWeighted(size int64) *weighted { return &weighted{size: size, changed: make(chan struct{})} }

func (w *weighted) acquire(ctx context.Context, n int64) error {
	n = min(n, w.size)
	for {
		w.mu.Lock()
		if w.used+n <= w.size {
			w.used += n
			w.mu.Unlock()
			return nil
		}
		changed := w.changed
		w.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *weighted) release(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.used -= min(n, w.size)
	close(w.changed)
	w.changed = make(chan struct{})
}
