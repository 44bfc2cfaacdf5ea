// Package layoutsvc owns pools and placement groups: it keeps the data servers'
// registrations and leases, changes PG epochs and in-sync sets, and streams the
// pool map. Several instances may run; one is the leader by election in etcd,
// which alone grants leases and changes records. Every instance answers reads.
// Records are the authority and change by compare-and-set (PROTOCOLS J3).
package layoutsvc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/capability"
	"github.com/canopyfs/canopy/internal/service"
	"github.com/canopyfs/canopy/placement"
)

// Config says where to listen and what cluster to make.
type Config struct {
	Listen     string   // gRPC, host:port; port 0 takes a free one
	HTTPListen string   // metrics, health and pprof; "" serves none
	Etcd       []string // endpoints
	Prefix     string   // of the keys in etcd; "": placement.DefaultPrefix
	Advertise  string   // address that others use; "": what Listen is bound to
	// Alone says that nobody else can be running at this address: etcd and this
	// service are of one process. What a process that died left of its lead ends at
	// once then.
	Alone bool

	// The pool is made once, when WantServers data servers have registered. 0: 3.
	WantServers int
	// Replicas of the pool; 0: 2, or 1 if WantServers is 1.
	Replicas int
	// PGs of the pool; 0: 32.
	PGs int
	// ServerLease is how long a data server serves after its last heartbeat. 0:
	// 3 s.
	ServerLease time.Duration
	// RebuildAfter is how long a data server must be gone before its placement
	// groups are rebuilt on others. 0: 10 min; below 0: never.
	RebuildAfter time.Duration
	// KeyPeriod is the unit of time by which capabilities end (PROTOCOLS J4): a
	// capability is valid for one to two of them. 0: capability.DefaultPeriod.
	KeyPeriod time.Duration
	// KeyRotation is when a key of capabilities is replaced. 0: DefaultKeyRotation;
	// below 0: never.
	KeyRotation time.Duration

	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
	// Ready, if set, is called once with the addresses that are bound.
	Ready func(address, httpAddress string)
}

// Default settings.
const (
	DefaultWantServers = 3
	DefaultPGs         = 32
	DefaultServerLease = 3 * time.Second
	DefaultPool        = base.PoolID(1)
	// DefaultRebuildAfter outlasts the restart of a machine.
	DefaultRebuildAfter = 10 * time.Minute
	// leaseMargin is what the leader waits beyond a server's lease: for the drift
	// of clocks, and for an old leader that learns late of its end.
	leaseMargin = time.Second
)

func withDefaults(c Config) (Config, error) {
	if c.WantServers == 0 {
		c.WantServers = DefaultWantServers
	}
	if c.Replicas == 0 {
		c.Replicas = min(2, c.WantServers)
	}
	if c.PGs == 0 {
		c.PGs = DefaultPGs
	}
	if c.ServerLease == 0 {
		c.ServerLease = DefaultServerLease
	}
	if c.RebuildAfter == 0 {
		c.RebuildAfter = DefaultRebuildAfter
	}
	if c.KeyPeriod == 0 {
		c.KeyPeriod = capability.DefaultPeriod
	}
	if c.KeyRotation == 0 {
		c.KeyRotation = DefaultKeyRotation
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Registerer == nil {
		c.Registerer = prometheus.NewRegistry()
	}
	switch {
	case len(c.Etcd) == 0:
		return c, errors.New("layoutsvc: no etcd endpoint is given")
	case c.WantServers < 1 || c.Replicas < 1 || c.PGs < 1:
		return c, fmt.Errorf("layoutsvc: servers (%d), replicas (%d) and placement groups (%d) must be positive", c.WantServers, c.Replicas, c.PGs)
	case c.Replicas > c.WantServers:
		return c, fmt.Errorf("layoutsvc: %d replicas need as many data servers, not %d", c.Replicas, c.WantServers)
	case c.ServerLease < 500*time.Millisecond:
		return c, fmt.Errorf("layoutsvc: a data server's lease of %v is too short: the least is 500ms", c.ServerLease)
	case c.KeyPeriod < time.Second || c.KeyPeriod > capability.MaxPeriod:
		return c, fmt.Errorf("layoutsvc: a period of capabilities of %v: want 1s to %v", c.KeyPeriod, capability.MaxPeriod)
	case c.KeyRotation > 0 && c.KeyRotation < leastRotation(c.KeyPeriod):
		return c, fmt.Errorf("layoutsvc: keys of capabilities that are replaced every %v: the least is %v", c.KeyRotation, leastRotation(c.KeyPeriod))
	}
	return c, nil
}

// instance is one running layout service.
type instance struct {
	canopyv1.UnimplementedLayoutServiceServer
	config   Config
	logger   *slog.Logger
	store    *placement.Store
	front    *service.Server
	address  string
	metrics  *metrics
	draining <-chan struct{}

	mu   sync.Mutex
	term *term // nil while this instance does not lead
}

// Run serves until ctx is done, then stops gracefully and returns nil.
func Run(ctx context.Context, config Config) (err error) {
	config, err = withDefaults(config)
	if err != nil {
		return err
	}
	store, err := placement.Open(ctx, placement.Config{Endpoints: config.Etcd, Prefix: config.Prefix, Logger: config.Logger})
	if err != nil {
		return fmt.Errorf("layoutsvc: %w", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	cluster, err := store.EnsureCluster(ctx)
	if err != nil {
		return fmt.Errorf("layoutsvc: %w", err)
	}
	front, err := service.New(service.Config{
		Name: "layoutsvc", Listen: config.Listen, HTTPListen: config.HTTPListen,
		Cluster: func() string { return cluster }, Logger: config.Logger,
		Registerer: config.Registerer, Gatherer: config.Gatherer,
	})
	if err != nil {
		return err
	}
	s := &instance{config: config, logger: config.Logger, store: store, front: front, address: config.Advertise, draining: front.Draining()}
	if s.address == "" {
		s.address = front.Addr()
	}
	if s.metrics, err = newMetrics(config.Registerer, s); err != nil {
		front.Stop(ctx)
		return err
	}
	if config.Alone {
		if err := store.EndLeadership(ctx, placement.LayoutService, s.address); err != nil {
			front.Stop(ctx)
			return fmt.Errorf("layoutsvc: %w", err)
		}
	}
	canopyv1.RegisterLayoutServiceServer(front.GRPC(), s)
	return s.serve(ctx)
}

// serve runs the front, the announcement in etcd and the election.
func (s *instance) serve(ctx context.Context) error {
	id, err := s.store.AllocateID(ctx, placement.LayoutService)
	if err != nil {
		s.front.Stop(ctx)
		return fmt.Errorf("layoutsvc: %w", err)
	}
	host, _ := os.Hostname()
	info := &canopyv1.ServiceInfo{
		Kind: placement.LayoutService, Id: id, Address: s.address, HttpAddress: s.front.HTTPAddr(),
		Pid: uint32(os.Getpid()), Host: host,
	}
	registration := s.store.RegisterService(info)
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return s.campaign(running, registration, info) })
	s.front.Serve()
	s.front.SetServing(true)
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
	if s.config.Ready != nil {
		s.config.Ready(s.front.Addr(), s.front.HTTPAddr())
	}
	<-running.Done()
	s.front.Stop(context.WithoutCancel(ctx))
	err = group.Wait()
	registration.Close(context.WithoutCancel(ctx))
	return err
}
