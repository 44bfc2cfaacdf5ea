package placement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Store reads, watches and changes the placement map. Safe for concurrent use.
//
// Lock order: mu only; it is never held over a request.
type Store struct {
	config Config
	client *clientv3.Client
	log    *slog.Logger

	cancel    context.CancelFunc // ends the mirror
	done      chan struct{}      // closed when the mirror has ended
	reachable atomic.Bool
	current   atomic.Pointer[Map]
	data      atomic.Pointer[DataMap]
	ring      atomic.Pointer[Versioned[*canopyv1.CapabilityRing]]

	mu          sync.Mutex
	mirror      *mirror
	subscribers map[chan struct{}]struct{}
}

// Open connects to etcd, reads all records and starts watching. It fails when
// etcd does not answer within the dial time-out.
func Open(ctx context.Context, config Config) (*Store, error) {
	if len(config.Endpoints) == 0 {
		return nil, errors.New("placement: no etcd address is given")
	}
	for _, e := range config.Endpoints {
		_, port, err := net.SplitHostPort(e)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 {
			return nil, fmt.Errorf("etcd address %q: want HOST:PORT", e)
		}
	}
	if config.Prefix == "" {
		config.Prefix = DefaultPrefix
	}
	config.Prefix = strings.TrimSuffix(config.Prefix, "/")
	if config.LeaseTTL == 0 {
		config.LeaseTTL = DefaultLeaseTTL
	}
	config.LeaseTTL = max(config.LeaseTTL.Round(time.Second), time.Second)
	if config.DialTimeout == 0 {
		config.DialTimeout = DefaultDialTimeout
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            config.Endpoints,
		DialTimeout:          config.DialTimeout,
		DialKeepAliveTime:    5 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("placement: etcd at %s: %w", strings.Join(config.Endpoints, ","), err)
	}
	s := &Store{
		config:      config,
		client:      client,
		log:         config.Logger,
		done:        make(chan struct{}),
		mirror:      newMirror(config.Prefix, config.Logger),
		subscribers: map[chan struct{}]struct{}{},
	}
	s.ring.Store(new(Versioned[*canopyv1.CapabilityRing]))
	s.publishLocked(true, true)
	revision, err := s.readAll(ctx)
	if err != nil {
		client.Close()
		return nil, err
	}
	s.reachable.Store(true)
	run, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go s.watchLoop(run, revision)
	return s, nil
}

// Close ends the watch and the connection. Registrations and leaderships are
// closed by their owners before.
func (s *Store) Close() error {
	s.cancel()
	<-s.done
	return s.client.Close()
}

// Map returns the last known routing map, never nil.
func (s *Store) Map() *Map { return s.current.Load() }

// Data returns the last known records of the data path, never nil. It shows
// this Store's own successful writes at once.
func (s *Store) Data() *DataMap { return s.data.Load() }

// Reachable tells whether etcd answered lately.
func (s *Store) Reachable() bool { return s.reachable.Load() }

// Subscribe returns a channel that gets a token after Map or Data changed;
// changes that come before the token is taken are one. cancel releases it.
func (s *Store) Subscribe() (changes <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	s.mu.Lock()
	s.subscribers[c] = struct{}{}
	s.mu.Unlock()
	return c, func() {
		s.mu.Lock()
		delete(s.subscribers, c)
		s.mu.Unlock()
	}
}

// Sync makes Map and Data at least as new as etcd is at the call.
func (s *Store) Sync(ctx context.Context) error {
	_, err := s.readAll(ctx)
	return err
}

func (s *Store) key(parts ...string) string { return s.config.Prefix + "/" + strings.Join(parts, "/") }

// request runs one request with the time-out, and says in the error which etcd
// failed. The error is of kind NotReady when etcd does not answer.
func (s *Store) request(ctx context.Context, op string, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.DialTimeout)
	defer cancel()
	if err := fn(ctx); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("no answer (is it running, and reachable from here?): %w", err)
		}
		return fserr.New(fserr.NotReady, op, fmt.Errorf("etcd at %s: %w", strings.Join(s.config.Endpoints, ","), err))
	}
	return nil
}

// readAll reads every record at one revision and makes the mirror so.
func (s *Store) readAll(ctx context.Context) (revision int64, err error) {
	var answer *clientv3.GetResponse
	err = s.request(ctx, "read the placement map", func(ctx context.Context) (err error) {
		answer, err = s.client.Get(ctx, s.config.Prefix+"/", clientv3.WithPrefix())
		return err
	})
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	routing, data := s.mirror.replace(answer.Kvs, answer.Header.Revision)
	s.publishLocked(routing, data)
	return answer.Header.Revision, nil
}

// publishLocked makes what changed visible and wakes the subscribers.
func (s *Store) publishLocked(routing, data bool) {
	if routing {
		s.current.Store(s.mirror.routing())
	}
	if data {
		s.data.Store(s.mirror.dataMap())
	}
	if ring := s.mirror.ring(); ring.Revision != s.ring.Swap(&ring).Revision {
		routing = true // wakes the subscribers
	}
	if !routing && !data {
		return
	}
	for c := range s.subscribers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// wrote shows an own write in the mirror before the watch brings it.
func (s *Store) wrote(key string, value []byte, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	routing, data := s.mirror.wrote(key, value, revision)
	s.publishLocked(routing, data)
}

// jittered returns a random time in [d/2, 3d/2).
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// sleep waits a jittered d; false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(jittered(d))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// backoff doubles from a start to a limit.
type backoff struct{ next, limit time.Duration }

func newBackoff() *backoff { return &backoff{next: 50 * time.Millisecond, limit: 2 * time.Second} }

func (b *backoff) sleep(ctx context.Context) bool {
	d := b.next
	b.next = min(2*b.next, b.limit)
	return sleep(ctx, d)
}
