package poolmap

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
)

// Config says where maps come from.
type Config struct {
	// Addresses of layout services as known now; asked before each connection.
	Addresses func() []string
	Cluster   string // refuse maps of another; "" accepts any
	Caller    func() wire.Caller
	Logger    *slog.Logger
}

// Back-off between attempts to reach a layout service.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 2 * time.Second
)

// Watcher keeps the newest map. Safe for concurrent use.
type Watcher struct {
	config Config
	cancel context.CancelFunc
	done   chan struct{}
	kick   chan struct{}

	mu      sync.Mutex
	current *Map
	changed chan struct{} // closed at the next change
}

// Watch starts a Watcher.
func Watch(config Config) *Watcher {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watcher{config: config, cancel: cancel, done: make(chan struct{}), kick: make(chan struct{}, 1), changed: make(chan struct{})}
	go w.run(ctx)
	return w
}

// Close ends the watch and waits for its end.
func (w *Watcher) Close() {
	w.cancel()
	<-w.done
}

// Current returns the newest map, nil before the first.
func (w *Watcher) Current() *Map {
	m, _ := w.Next()
	return m
}

// Next returns the newest map (nil before the first), and a channel that is
// closed when there is a newer one.
func (w *Watcher) Next() (*Map, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current, w.changed
}

// Wait returns the newest map as soon as it satisfies the condition.
func (w *Watcher) Wait(ctx context.Context, ok func(*Map) bool) (*Map, error) {
	for {
		m, changed := w.Next()
		if m != nil && ok(m) {
			return m, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Offer takes a map that came another way. It reports whether it is newer.
func (w *Watcher) Offer(message *canopyv1.PoolMap) bool {
	if message == nil || w.config.Cluster != "" && message.Cluster != "" && message.Cluster != w.config.Cluster {
		return false
	}
	m := New(message)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current != nil && m.Revision() <= w.current.Revision() {
		return false
	}
	w.current = m
	close(w.changed)
	w.changed = make(chan struct{})
	return true
}

// Kick makes the watcher go to another layout service: the present one seems to
// be behind.
func (w *Watcher) Kick() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

func (w *Watcher) run(ctx context.Context) {
	defer close(w.done)
	delay := retryMin
	for at := 0; ctx.Err() == nil; at++ {
		if addresses := w.config.Addresses(); len(addresses) > 0 {
			started := time.Now()
			err := w.follow(ctx, addresses[at%len(addresses)])
			if ctx.Err() != nil {
				return
			}
			w.config.Logger.Debug("pool map stream ended", "address", addresses[at%len(addresses)], "error", err)
			if time.Since(started) > retryMax {
				delay = retryMin
			}
		}
		select {
		case <-time.After(delay/2 + rand.N(delay)):
			delay = min(2*delay, retryMax)
		case <-ctx.Done():
		}
	}
}

// follow streams maps from one layout service until it fails or Kick.
func (w *Watcher) follow(ctx context.Context, address string) error {
	options := append(wire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(w.config.Caller().Context(ctx))
	var kicker sync.WaitGroup
	defer kicker.Wait()
	defer cancel()
	kicker.Go(func() {
		select {
		case <-w.kick:
			cancel()
		case <-ctx.Done():
		}
	})
	request := &canopyv1.WatchPoolsRequest{}
	if m := w.Current(); m != nil {
		request.HaveRevision = m.Revision()
	}
	stream, err := canopyv1.NewLayoutServiceClient(conn).WatchPools(ctx, request)
	if err != nil {
		return err
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		w.Offer(message)
	}
}
