package dataserver

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/client/data/poolmap"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/service"
)

// server is one running data server.
type server struct {
	canopyv1.UnimplementedDataServer
	config   Config
	logger   *slog.Logger
	store    *chunkstore.Store
	front    *service.Server
	watcher  *poolmap.Watcher
	member   *membership
	peers    *peers
	lease    *lease
	guard    *guard
	metrics  *metrics
	clients  *intake
	replicas *intake
	memory   mem.BufferPool // of payloads read from disk

	// ctx ends after the front has stopped; changes run under it, not under
	// their streams.
	ctx    context.Context
	cancel context.CancelFunc
	ready  sync.Once

	recoverySlots chan struct{}
	recoveryRate  *rate.Limiter
	scrubSlot     chan struct{}
	scrubRate     *rate.Limiter
	adopting      sync.Mutex    // serialises catchUp
	adopted       atomic.Uint64 // revision of the map that is served by
	groupRuns     sync.WaitGroup

	mu       sync.Mutex
	groups   map[groupKey]*group
	held     map[groupKey]bool        // groups that have, or may have, columns here
	retiring map[groupKey]*retirement // groups whose columns are being removed
	stopped  bool
	handlers sync.WaitGroup // Access streams; added under mu
}

type groupKey struct {
	pool base.PoolID
	pg   base.PGID
}

// caller says who this server is when it calls others.
func (s *server) caller() wire.Caller {
	return wire.Caller{Cluster: s.store.Identity().Cluster, Host: hostName(), PID: os.Getpid()}
}

func (s *server) newMembership() *membership {
	usage := func() (uint64, uint64) {
		total, free, err := s.store.Usage()
		if err != nil {
			s.logger.Warn("usage of the disk", "error", err)
		}
		return total, free
	}
	address := s.config.Advertise
	if address == "" {
		address = s.front.Addr()
	}
	return &membership{
		addresses: s.config.LayoutServices, caller: s.caller, lease: s.lease, logger: s.logger,
		usage: usage, adopted: s.adopted.Load,
		offer: func(m *canopyv1.PoolMap) {
			s.watcher.Offer(m)
			s.catchUp(s.ctx)
		},
		ring:  s.guard.version,
		adopt: s.guard.adopt,
		wake:  make(chan struct{}, 1),
		ended: make(chan struct{}),
		conns: map[string]*grpc.ClientConn{},
		request: func() *canopyv1.RegisterServerRequest {
			id := s.store.Identity()
			total, free := usage()
			return &canopyv1.RegisterServerRequest{
				Cluster: id.Cluster, Server: id.Server, Incarnation: id.Incarnation,
				Address: address, HttpAddress: s.front.HTTPAddr(), Labels: s.config.Labels,
				TotalBytes: total, FreeBytes: free, Pid: uint32(os.Getpid()), Host: hostName(),
				LostUnsynced: s.store.LostUnsynced(),
			}
		},
	}
}

// enter counts a handler in, unless the server is stopping.
func (s *server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	s.handlers.Add(1)
	return true
}

func (s *server) leave() { s.handlers.Done() }

// inBackground runs something that ends with the server's context, which is
// waited for when the server stops. It does nothing if it stops already.
func (s *server) inBackground(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.groupRuns.Go(do)
	}
}

func (s *server) stopping() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
}

// group returns this server's part in the key's placement group, nil if it has
// none.
func (s *server) group(key chunkstore.Key) *group {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.groups[groupKey{key.Pool, key.PG}]
}

// follow adopts pool maps as they come, and tells the layout service at once: a
// leaving member's confirmation may be waited for.
func (s *server) follow(ctx context.Context) {
	for {
		_, changed := s.watcher.Next()
		s.catchUp(ctx)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// catchUp adopts the newest map, once the server knows who it is.
func (s *server) catchUp(ctx context.Context) {
	s.adopting.Lock()
	defer s.adopting.Unlock()
	m := s.watcher.Current()
	if m == nil || s.member.id() == 0 || m.Revision() <= s.adopted.Load() {
		return
	}
	s.adopt(ctx, m)
	s.adopted.Store(m.Revision())
	s.member.poke()
}

func (s *server) adopt(ctx context.Context, m *poolmap.Map) {
	self := uint64(s.member.id())
	inSync := true
	for _, pool := range m.Message().Pools {
		for _, pg := range pool.Pgs {
			if len(pg.InSync) == 0 {
				continue
			}
			if !slices.Contains(pg.Members, self) {
				s.dismiss(groupKey{base.PoolID(pool.Pool), base.PGID(pg.Pg)}, pg, int(pool.Replicas))
				continue
			}
			inSync = inSync && slices.Contains(pg.InSync, self) && len(pg.InSync) > 1
			s.adoptGroup(ctx, base.PoolID(pool.Pool), pg)
		}
	}
	if inSync && s.store.Suspect() {
		// Everything here was compared with another member's since the crash.
		if err := s.store.Trust(); err != nil {
			s.logger.Warn("the end of suspicion could not be recorded", "error", err)
		}
	}
}

func (s *server) adoptGroup(ctx context.Context, pool base.PoolID, pg *canopyv1.PlacementGroup) {
	key := groupKey{pool, base.PGID(pg.Pg)}
	s.reinstate(key)
	s.mu.Lock()
	s.held[key] = true
	g := s.groups[key]
	if g == nil {
		g = newGroup(s, pool, pg)
		s.groups[key] = g
		s.groupRuns.Go(func() { g.run(ctx) })
		s.groupRuns.Go(func() { g.scrubs(ctx) })
	}
	s.mu.Unlock()
	g.adopt(pg)
}

func primaryOf(pg *canopyv1.PlacementGroup) base.NodeID { return poolmap.Primary(pg) }

func pgSelf(g *group) base.NodeID { return base.NodeID(g.self()) }
