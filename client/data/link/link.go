package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Config says to whom a Link speaks.
type Config struct {
	Address string
	Caller  func() wire.Caller // who calls; asked for each stream
	Logger  *slog.Logger
	Memory  *wire.Memory // connects to a server of this process; nil: TCP alone
	// Buffers is where what is received lies; nil: gRPC's own pool, which clears
	// each buffer before it is filled.
	Buffers mem.BufferPool
	// QueuedRequests bounds what waits to be sent; 0: 64.
	QueuedRequests int
}

// Link is a connection to one data server with one stream, which is opened on
// demand and again after it broke. Safe for concurrent use.
type Link struct {
	config Config
	conn   *grpc.ClientConn

	mu        sync.Mutex
	stream    *stream // nil: none, or broken
	judged    *stream // the last one that broke, as far as is known
	failures  int     // streams in a row that never answered
	notBefore time.Time
	closed    bool
	wg        sync.WaitGroup // goroutines of streams
}

// Pauses between streams that never answered, such as those to a server that is
// stopping or starting: each halved or more by chance, so that a server's peers do
// not come back together.
const (
	reopenMin = 20 * time.Millisecond
	reopenMax = 500 * time.Millisecond
)

// ErrBroken is the cause of a NotReady error when the connection failed while
// the request was under way: it may or may not have been executed.
var ErrBroken = errors.New("connection to the data server is broken")

// New returns a Link; it connects on first use.
func New(config Config) (*Link, error) {
	if config.QueuedRequests == 0 {
		config.QueuedRequests = 64
	}
	options := append(wire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()), config.Memory.DialOption())
	if config.Buffers != nil {
		options = append(options, experimental.WithBufferPool(config.Buffers))
	}
	conn, err := grpc.NewClient("passthrough:///"+config.Address, options...)
	if err != nil {
		return nil, fserr.New(fserr.Invalid, "dial", fmt.Errorf("%q: %w", config.Address, err))
	}
	return &Link{config: config, conn: conn}, nil
}

// Address returns whom the link speaks to.
func (l *Link) Address() string { return l.config.Address }

// Conn returns the connection, for calls beside the stream.
func (l *Link) Conn() *grpc.ClientConn { return l.conn }

// Close ends all calls and waits for the link's goroutines.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	if l.stream != nil {
		l.stream.cancel()
	}
	l.mu.Unlock()
	err := l.conn.Close()
	l.wg.Wait()
	return err
}

// Do sends a request and waits for its answer. It sets the request's id and
// takes over one reference to its payload. The caller frees the response. An
// error is a failure of the connection (kind NotReady, cause ErrBroken) or of
// the context; what the server answered is in the response, an error kind too.
func (l *Link) Do(ctx context.Context, request *Request) (*Response, error) {
	if server, ok := wire.Local[Local](l.config.Memory, l.config.Address); ok {
		return l.doLocal(ctx, server, request)
	}
	s, err := l.open()
	if err != nil {
		request.Free()
		return nil, err
	}
	c := &call{request: request, done: make(chan *Response, 1)}
	if err := s.submit(ctx, c); err != nil {
		return nil, err
	}
	select {
	case response, ok := <-c.done:
		if !ok {
			return nil, s.broken()
		}
		return response, nil
	case <-ctx.Done():
		s.abandon(c)
		return nil, ctx.Err()
	}
}

// open returns the stream that works, or a new one. After streams that never
// answered it fails for a while: whoever tries again must not cost the server a
// stream each time.
func (l *Link) open() (*stream, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fserr.New(fserr.NotConnected, "data", nil)
	}
	if l.stream != nil && !l.stream.isBroken() {
		return l.stream, nil
	}
	if l.stream != nil && l.stream != l.judged {
		l.judgeLocked(l.stream)
	}
	if l.stream != nil && time.Now().Before(l.notBefore) {
		return nil, l.stream.broken()
	}
	ctx, cancel := context.WithCancel(l.config.Caller().Context(context.Background()))
	s := &stream{
		address: l.config.Address,
		ctx:     ctx,
		cancel:  cancel,
		queue:   make(chan *call, l.config.QueuedRequests),
		pending: map[uint64]*call{},
	}
	l.stream = s
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		s.run(canopyv1.NewDataClient(l.conn))
	}()
	return s, nil
}

// judgeLocked decides when the next stream may be opened after one that broke.
func (l *Link) judgeLocked(s *stream) {
	l.judged = s
	if s.answered.Load() {
		l.failures, l.notBefore = 0, time.Time{}
		return
	}
	pause := min(reopenMin<<min(l.failures, 8), reopenMax)
	l.failures++
	l.notBefore = time.Now().Add(pause/2 + rand.N(pause/2))
}

// call is one request under way.
type call struct {
	request *Request
	id      uint64
	done    chan *Response // one response, or closed when the stream broke
}

// stream is one life of a Link's stream.
type stream struct {
	address string
	ctx     context.Context
	cancel  context.CancelFunc
	queue   chan *call

	answered atomic.Bool // the server has answered a request

	mu      sync.Mutex
	pending map[uint64]*call // nil once broken
	nextID  uint64
	cause   error
}

func (s *stream) isBroken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending == nil
}

func (s *stream) broken() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fserr.New(fserr.NotReady, "data server "+s.address, errors.Join(ErrBroken, s.cause))
}

// submit registers the call and queues it.
func (s *stream) submit(ctx context.Context, c *call) error {
	s.mu.Lock()
	if s.pending == nil {
		s.mu.Unlock()
		c.request.Free()
		return s.broken()
	}
	s.nextID++
	c.id = s.nextID
	c.request.Id = c.id
	s.pending[c.id] = c
	s.mu.Unlock()
	select {
	case s.queue <- c:
		return nil
	case <-s.ctx.Done():
		// run closes c.done, or has.
		return nil
	case <-ctx.Done():
		s.abandon(c)
		c.request.Free()
		return ctx.Err()
	}
}

// abandon forgets a call; its answer is dropped when it comes.
func (s *stream) abandon(c *call) {
	s.mu.Lock()
	delete(s.pending, c.id)
	s.mu.Unlock()
	select {
	case response := <-c.done:
		response.Free()
	default:
	}
}

// take returns the call that waits for the id, nil if nobody does any more.
func (s *stream) take(id uint64) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.pending[id]
	delete(s.pending, id)
	return c
}

func (s *stream) waits(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending[c.id] == c
}

// run opens the stream, sends what is queued, and ends when the stream breaks.
func (s *stream) run(client canopyv1.DataClient) {
	rpc, err := client.Access(s.ctx)
	if err != nil {
		s.fail(err)
		return
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		s.receive(rpc)
	}()
	defer func() {
		<-received
		s.drop()
	}()
	for {
		select {
		case c := <-s.queue:
			if !s.waits(c) {
				c.request.Free()
				continue
			}
			err := rpc.SendMsg(c.request)
			c.request.Free()
			if err != nil {
				// The reason is what receive gets.
				return
			}
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *stream) receive(rpc canopyv1.Data_AccessClient) {
	for {
		response := &Response{}
		if err := rpc.RecvMsg(response); err != nil {
			s.fail(err)
			return
		}
		s.answered.Store(true)
		if c := s.take(response.Id); c != nil {
			c.done <- response
		} else {
			response.Free()
		}
	}
}

// fail marks the stream broken and tells all who wait.
func (s *stream) fail(cause error) {
	s.mu.Lock()
	pending := s.pending
	s.pending, s.cause = nil, cause
	s.mu.Unlock()
	s.cancel()
	for _, c := range pending {
		close(c.done)
	}
}

// drop frees what was queued and never sent.
func (s *stream) drop() {
	for {
		select {
		case c := <-s.queue:
			c.request.Free()
		default:
			return
		}
	}
}
