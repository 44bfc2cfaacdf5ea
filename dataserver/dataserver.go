// Package dataserver serves columns: byte ranges of files on local disk, with
// replication by the primary of each placement group (PG). DESIGN.md beside this
// file tells the protocol.
package dataserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/client/data/poolmap"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/service"
)

// Config says where the bytes lie and who is who.
type Config struct {
	DataDir    string       // made if missing
	Listen     string       // gRPC, host:port; port 0 takes a free one
	HTTPListen string       // metrics, health and pprof; "" serves none
	Advertise  string       // address that others use; "": what Listen is bound to
	Memory     *wire.Memory // connects the parts of this process; nil: TCP alone
	// LayoutServices are addresses of layout services; the leader is found from
	// any of them.
	LayoutServices []string
	Labels         []string // key=value; zone, rack and host are failure domains
	// Workers bounds the requests executed at a time, those that wait for replicas
	// included; 0: 128.
	Workers int
	// QueuedBytes bounds the payload of requests in memory; 0: 128 MiB.
	QueuedBytes int64

	// RecoveryRate bounds the bytes per second that this server sends to members
	// that are recovered; 0: DefaultRecoveryRate; below 0: no bound.
	RecoveryRate int64

	// Boot is what tells the machine's boots apart, and with them whether a crash
	// took what was not synced. "": chunkstore.BootID().
	Boot string

	Clock      Clock // nil: BootClock
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
	// Ready, if set, is called once when the server has registered, with its id
	// and the addresses that are bound.
	Ready func(server uint64, address, httpAddress string)

	testHook func(*server)
	testFS   chunkstore.FS
}

// Default settings.
const (
	DefaultWorkers     = 128
	DefaultQueuedBytes = 128 << 20
	// DefaultRecoveryRate leaves a network of 1 Gbit/s half for others.
	DefaultRecoveryRate = 64 << 20
	// maxRecoveries bounds the placement groups that are recovered at a time.
	maxRecoveries = 4
)

func withDefaults(c Config) (Config, error) {
	if c.Workers == 0 {
		c.Workers = DefaultWorkers
	}
	if c.QueuedBytes == 0 {
		c.QueuedBytes = DefaultQueuedBytes
	}
	if c.RecoveryRate == 0 {
		c.RecoveryRate = DefaultRecoveryRate
	}
	if c.Clock == nil {
		c.Clock = BootClock
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Registerer == nil {
		c.Registerer = prometheus.NewRegistry()
	}
	switch {
	case c.DataDir == "":
		return c, errors.New("dataserver: no data directory is given")
	case len(c.LayoutServices) == 0:
		return c, errors.New("dataserver: no layout service is given")
	case c.Workers < 1 || c.QueuedBytes < maxWriteBytes:
		return c, fmt.Errorf("dataserver: want at least one worker and %d queued bytes, not %d and %d", maxWriteBytes, c.Workers, c.QueuedBytes)
	}
	return c, nil
}

// Run serves until ctx is done, then stops gracefully and returns nil.
func Run(ctx context.Context, config Config) (err error) {
	config, err = withDefaults(config)
	if err != nil {
		return err
	}
	store, err := chunkstore.Open(config.DataDir, chunkstore.Options{FS: config.testFS, Boot: config.Boot, Logger: config.Logger})
	if err != nil {
		return fmt.Errorf("dataserver: %w", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	memory := link.NewPool()
	front, err := service.New(service.Config{
		Name: "dataserver", Listen: config.Listen, HTTPListen: config.HTTPListen,
		Cluster: func() string { return store.Identity().Cluster }, Logger: config.Logger,
		Memory: config.Memory, Advertise: config.Advertise, Registerer: config.Registerer, Gatherer: config.Gatherer,
		Options: []grpc.ServerOption{experimental.BufferPool(memory)},
	})
	if err != nil {
		return err
	}
	s, err := newServer(config, store, front, memory)
	if err != nil {
		front.Stop(ctx)
		return err
	}
	if config.testHook != nil {
		config.testHook(s)
	}
	canopyv1.RegisterDataServer(front.GRPC(), s)
	return s.serve(ctx)
}

func newServer(config Config, store *chunkstore.Store, front *service.Server, memory mem.BufferPool) (*server, error) {
	s := &server{
		config: config, logger: config.Logger, store: store, front: front,
		lease:         &lease{clock: config.Clock},
		clients:       newIntake(config.Workers, config.QueuedBytes/2),
		replicas:      newIntake(config.Workers, config.QueuedBytes/2),
		memory:        memory,
		groups:        map[groupKey]*group{},
		retiring:      map[groupKey]*retirement{},
		recoverySlots: make(chan struct{}, maxRecoveries),
		recoveryRate:  newLimiter(config.RecoveryRate),
		scrubSlot:     make(chan struct{}, 1),
		scrubRate:     newLimiter(0),
	}
	var err error
	if s.held, err = s.heldGroups(); err != nil {
		return nil, fmt.Errorf("dataserver: %w", err)
	}
	if s.metrics, err = newMetrics(config.Registerer, s); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.watcher = poolmap.Watch(poolmap.Config{
		Addresses: func() []string { return config.LayoutServices },
		Cluster:   store.Identity().Cluster, Caller: s.caller, Logger: config.Logger,
	})
	s.guard = newGuard(config.Logger, s.metrics, func() { s.member.poke() })
	s.peers = &peers{capability: s.guard.member, watcher: s.watcher, caller: s.caller, memory: config.Memory, buffers: s.memory, links: map[base.NodeID]*link.Link{}}
	s.member = s.newMembership()
	return s, nil
}

// serve runs until ctx is done or the layout service refuses this server.
func (s *server) serve(ctx context.Context) error {
	s.front.Serve()
	s.front.Offer(localServer{s})
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(s.member.ended)
		return s.member.run(running, s.registered)
	})
	group.Go(func() error { s.follow(s.ctx); return nil })
	group.Go(func() error {
		ended := make(chan error, 1)
		group.Go(func() error { ended <- s.front.Wait(); return nil })
		select {
		case err := <-ended:
			return err
		case <-running.Done():
			return nil
		}
	})
	<-running.Done()
	s.stopping()
	s.member.leave(context.WithoutCancel(ctx))
	s.front.Stop(context.WithoutCancel(ctx))
	s.cancel()
	s.handlers.Wait()
	err := group.Wait()
	s.groupRuns.Wait()
	s.watcher.Close()
	s.peers.close()
	s.member.close()
	return err
}

// registered is called with each answer to a registration, before the lease
// counts. The answer's map, or a newer one, is adopted by then: it says which
// groups this start left, and what is known to be lost in those that it did not.
// Under the map before it would serve as what it was before it stopped.
func (s *server) registered(answer *canopyv1.RegisterServerResponse) error {
	if err := s.store.Join(answer.Cluster, base.NodeID(answer.Server)); err != nil {
		return err
	}
	if err := s.store.LossRecorded(); err != nil {
		return err
	}
	s.guard.adopt(answer.CapabilityRing)
	s.watcher.Offer(answer.Map)
	s.catchUp(s.ctx)
	s.logger.Info("registered", "cluster", answer.Cluster, "server", answer.Server, "incarnation", s.store.Identity().Incarnation,
		"lease", time.Duration(answer.LeaseMs)*time.Millisecond)
	s.front.SetServing(true)
	s.ready.Do(func() {
		if s.config.Ready != nil {
			s.config.Ready(answer.Server, s.front.Addr(), s.front.HTTPAddr())
		}
	})
	return nil
}
