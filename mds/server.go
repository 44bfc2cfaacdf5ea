package mds

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/capability"
	"github.com/canopyfs/canopy/internal/service"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/shard/raftgroup"
	"github.com/canopyfs/canopy/shard/store"
)

// Server is a running node.
//
// Lock order: Server.mu, then hosted.mu, then tenure.mu, then those of streams.
// None is held over a request, a read or a proposal.
type Server struct {
	config  Config
	log     *slog.Logger
	metrics *metrics
	dir     *dataDir
	place   *placement.Store
	cluster string
	info    *canopyv1.NodeInfo
	alive   *placement.Registration
	store   *store.Store
	host    *raftgroup.Host
	front   *service.Server
	events  *eventHub
	peers   peers
	usage   *usageCache
	signer  capability.Signer
	disk    *disk
	ownData *data.Data      // nil: the configuration's is used
	reads   chan *readBatch // to the goroutines that answer them; has no buffer
	started time.Time
	heat    atomic.Bool // what is done is counted
	// heatBatches are those of all shards: an idle shard needs none.
	heatBatches sync.Pool

	run     context.Context // ends when the node stops: its goroutines end with it
	cancel  context.CancelFunc
	tasks   errgroup.Group
	ready   chan struct{}
	failed  chan error // the first failure that must end the node
	drained atomic.Bool

	stopOnce sync.Once
	stopErr  error

	mu      sync.Mutex
	stopped bool // spawn starts nothing any more
	hosted  map[base.ShardID]*hosted
	said    map[base.ShardID]said // followMap's
	publish chan struct{}         // wakes the publisher
}

// Run runs a node until ctx is done, then drains it and closes it.
func Run(ctx context.Context, config Config) error {
	s, err := New(ctx, config)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// Run serves until ctx is done or the node fails, then drains and closes.
func (s *Server) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case err := <-s.failed:
		if errors.Is(err, errDrained) {
			break
		}
		s.log.Error("the node cannot go on", "error", err)
		s.Close()
		return err
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.Drain)
	defer cancel()
	return s.Drain(drain)
}

// Ready is closed when every shard that the map places on this node has started
// here, and the root's subtree is routed.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Node is the node's id.
func (s *Server) Node() base.NodeID { return base.NodeID(s.info.Node) }

// Cluster is the cluster's id.
func (s *Server) Cluster() string { return s.cluster }

// Addr is the address that gRPC is bound to.
func (s *Server) Addr() string { return s.front.Addr() }

// HTTPAddr is the address of metrics and pprof, "" if there is none.
func (s *Server) HTTPAddr() string { return s.front.HTTPAddr() }

// Drain moves all leases away, ends the streams and closes. A second call waits.
func (s *Server) Drain(ctx context.Context) error {
	s.stopOnce.Do(func() {
		s.drained.Store(true)
		s.front.SetServing(false)
		s.releaseAll(ctx)
		s.restAll(ctx)
		s.stopErr = s.stop(ctx)
	})
	return s.stopErr
}

// releaseAll moves the lease of every shard to another replica (PROTOCOLS B5).
func (s *Server) releaseAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, max(s.config.Drain*3/5, time.Second))
	defer cancel()
	var all sync.WaitGroup
	for _, h := range s.allHosted() {
		if !h.hasMajority() {
			continue // the release could not be committed: as when all of a cluster stops
		}
		all.Go(func() {
			if err := h.group.Release(ctx); err != nil {
				s.log.Warn("a lease could not be handed over; it runs out", "shard", h.shard, "error", err)
			}
		})
	}
	all.Wait()
}

// restsAtOnce bounds how many shards take a snapshot at the same time.
const restsAtOnce = 4

// restAll leaves logs behind that the next start reads quickly.
func (s *Server) restAll(ctx context.Context) {
	var all errgroup.Group
	all.SetLimit(restsAtOnce)
	for _, h := range s.allHosted() {
		all.Go(func() error {
			if err := h.group.Rest(ctx); err != nil {
				s.log.Warn("no snapshot before the end; the next start takes longer", "shard", h.shard, "error", err)
			}
			return nil
		})
	}
	_ = all.Wait() // none is returned
}

// Close stops at once, as a crash would as far as others can tell, but releases
// what the process holds.
func (s *Server) Close() error {
	s.stopOnce.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.drained.Store(true)
		s.stopErr = s.stop(ctx)
	})
	return s.stopErr
}

// spawn runs fn on a goroutine that the node's end waits for; false: it stops.
func (s *Server) spawn(fn func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	s.tasks.Go(func() error { fn(); return nil })
	return true
}

// stop ends everything in the order of use.
func (s *Server) stop(ctx context.Context) error {
	s.front.Stop(ctx)
	s.cancel()
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	_ = s.tasks.Wait() // tasks report to failed themselves
	var err error
	if s.host != nil {
		err = s.host.Close(context.WithoutCancel(ctx))
	}
	if s.store != nil {
		if closeErr := s.store.Close(); err == nil {
			err = closeErr
		}
	}
	if s.alive != nil {
		s.alive.Close(ctx)
	}
	s.peers.close()
	s.closeDataPlane()
	s.place.Close()
	s.dir.close()
	return err
}

// fail ends the node with an error.
func (s *Server) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

func (s *Server) lookup(id base.ShardID) *hosted {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hosted[id]
}

func (s *Server) allHosted() []*hosted {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*hosted, 0, len(s.hosted))
	for _, h := range s.hosted {
		out = append(out, h)
	}
	return out
}
