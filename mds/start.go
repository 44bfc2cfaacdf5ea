package mds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/service"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/shard/heat"
	"github.com/canopyfs/canopy/shard/raftgroup"
	"github.com/canopyfs/canopy/shard/store"
)

// New starts a node: it locks the data directory, registers in etcd, opens the
// store and the Raft log, binds its addresses and starts serving. It returns
// before the shards are up: see Ready. ctx bounds the start alone.
func New(ctx context.Context, config Config) (*Server, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		config:  config,
		log:     config.Logger,
		reads:   make(chan *readBatch),
		started: time.Now(),
		ready:   make(chan struct{}),
		failed:  make(chan error, 1),
		hosted:  map[base.ShardID]*hosted{},
		said:    map[base.ShardID]said{},
		publish: make(chan struct{}, 1),
		events:  newEventHub(),
	}
	s.heat.Store(!config.NoHeat)
	s.heatBatches.New = func() any { return new(heat.Batch) }
	s.run, s.cancel = context.WithCancel(context.Background())
	if s.dir, err = openDataDir(config.DataDir); err != nil {
		s.cancel()
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		s.abandon()
		return nil, err
	}
	s.serve()
	return s, nil
}

// abandon closes what a failed start opened.
func (s *Server) abandon() {
	closed, cancel := context.WithCancel(context.Background())
	cancel()
	s.cancel()
	if s.front != nil {
		s.front.Stop(closed)
	}
	if s.host != nil {
		_ = s.host.Close(context.Background()) // the start's error is what counts
	}
	if s.store != nil {
		_ = s.store.Close()
	}
	s.closeDataPlane()
	if s.place != nil {
		s.place.Close()
	}
	s.dir.close()
}

// start does all that can fail.
func (s *Server) start(ctx context.Context) (err error) {
	if !s.config.Rebuild {
		if err := s.dir.damaged(); err != nil {
			return err
		}
	}
	s.disk = &disk{path: s.dir.path, usage: s.config.DiskUsage, reserve: s.config.DiskReserve}
	if err := s.disk.startable(); err != nil {
		return err
	}
	if s.metrics, err = newMetrics(s.config.Registerer); err != nil {
		return err
	}
	s.place, err = placement.Open(ctx, placement.Config{
		Endpoints:   s.config.Etcd,
		Prefix:      s.config.EtcdPrefix,
		LeaseTTL:    s.config.EtcdLease,
		DialTimeout: s.config.StartTimeout,
		Logger:      s.log,
	})
	if err != nil {
		return err
	}
	if s.cluster, err = s.place.EnsureCluster(ctx); err != nil {
		return err
	}
	if have := s.dir.node.Cluster; have != "" && have != s.cluster {
		return fmt.Errorf("mds: data directory %s belongs to cluster %s, but etcd has cluster %s", s.dir.path, have, s.cluster)
	}
	s.front, err = service.New(service.Config{
		Name:       "mds",
		Listen:     s.config.Listen,
		HTTPListen: s.config.HTTPListen,
		Memory:     s.config.Memory,
		Advertise:  s.config.Advertise,
		Cluster:    func() string { return s.cluster },
		Logger:     s.log,
		Registerer: s.config.Registerer,
		Gatherer:   s.config.Gatherer,
	})
	if err != nil {
		return err
	}
	if err := free(ctx, cmp.Or(s.config.RaftListen, s.config.RaftAdvertise)); err != nil {
		return err
	}
	if err := s.register(ctx); err != nil {
		return err
	}
	if err := s.openDataPlane(); err != nil {
		return err
	}
	return s.openState()
}

// free tells whether the Raft address can be had. Dragonboat takes it later, when
// the node is registered under it for ever.
func free(ctx context.Context, address string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("mds: raft address %s is in use by another process: stop it or choose another address", address)
	}
	if err != nil {
		return fmt.Errorf("mds: raft address: %w", err)
	}
	return l.Close()
}

// register makes this process the node's one running instance (PROTOCOLS A6).
func (s *Server) register(ctx context.Context) error {
	id := s.dir.node.Node
	if id != 0 && s.config.Node != 0 && id != s.config.Node {
		return fmt.Errorf("mds: data directory %s belongs to node %v, not to node %v", s.dir.path, id, s.config.Node)
	}
	if id == 0 {
		id = s.config.Node
	}
	for fresh := id == 0; fresh; fresh = s.place.Map().Node(id) != nil { // ids may have been given by hand
		var err error
		if id, err = s.place.AllocateNode(ctx); err != nil {
			return err
		}
	}
	if have := s.dir.node.RaftAddress; have != "" && have != s.config.RaftAdvertise {
		return fmt.Errorf("mds: node %v is known to its peers by the raft address %s, which cannot be changed to %s", id, have, s.config.RaftAdvertise)
	}
	stored := s.dir.node.Incarnation
	if s.config.Rebuild {
		if err := s.rebuild(ctx, id); err != nil {
			return err
		}
		stored = max(stored, s.place.Map().Node(id).GetIncarnation())
	}
	s.info = s.nodeInfo(id)
	err := s.place.ClaimNode(ctx, s.info, stored, func(incarnation uint64) error {
		n := &s.dir.node
		n.Cluster, n.Node, n.Incarnation, n.RaftAddress = s.cluster, id, incarnation, s.config.RaftAdvertise
		return s.dir.save()
	})
	if errors.Is(err, placement.ErrAmnesia) {
		return fmt.Errorf("mds: %w; %s", err, s.dir.rebuildHint(id))
	}
	return err
}

func (s *Server) nodeInfo(id base.NodeID) *canopyv1.NodeInfo {
	host, _ := os.Hostname() // for people only
	address := s.config.Advertise
	if address == "" {
		address = s.front.Addr()
	}
	return &canopyv1.NodeInfo{
		Node:        uint64(id),
		Address:     address,
		RaftAddress: s.config.RaftAdvertise,
		HttpAddress: s.front.HTTPAddr(),
		Pid:         uint32(os.Getpid()),
		Host:        host,
		Labels:      s.config.Labels,
	}
}

// openState opens the store and the Raft log.
func (s *Server) openState() (err error) {
	s.store, err = store.Open(store.Options{
		Dir:     filepath.Join(s.dir.path, storeDir),
		Cluster: s.cluster,
		Node:    s.Node(),
		// Single values that are read again and again take a quarter of the memory.
		CacheBytes:      s.config.CacheBytes * 3 / 4,
		ValueCacheBytes: s.config.CacheBytes / 4,
		Logger:          s.log,
		Registerer:      s.config.Registerer,
		OnFatal:         s.config.OnDiskFailed,
	})
	if err != nil {
		return err
	}
	if err := s.dir.checkStore(s.store.Incarnation()); err != nil {
		return err
	}
	listen := s.config.RaftListen
	if listen == s.config.RaftAdvertise {
		listen = ""
	}
	s.host, err = raftgroup.NewHost(raftgroup.Config{
		Dir:             filepath.Join(s.dir.path, raftDir),
		RaftAddress:     s.config.RaftAdvertise,
		ListenAddress:   listen,
		Node:            s.Node(),
		Cluster:         s.cluster,
		Store:           s.store,
		Logger:          s.log,
		Registerer:      s.config.Registerer,
		LeaseDuration:   s.config.LeaseDuration,
		OnHolderChange:  s.onHolderChange,
		OnReplicaFailed: s.onReplicaFailed,
		OnDiskFailed:    s.config.OnDiskFailed,
	})
	if err != nil {
		return err
	}
	return s.config.Registerer.Register(&stateCollector{server: s})
}

// serve starts the goroutines of a node whose state is open.
func (s *Server) serve() {
	canopyv1.RegisterMetadataServer(s.front.GRPC(), &metadataService{server: s})
	canopyv1.RegisterTransactionServer(s.front.GRPC(), &transactionService{server: s})
	canopyv1.RegisterClusterServer(s.front.GRPC(), &clusterService{server: s})
	canopyv1.RegisterAdminServer(s.front.GRPC(), &adminService{server: s})
	canopyv1.RegisterMigrationServer(s.front.GRPC(), &migrationService{server: s})
	s.usage = newUsageCache(s.config.Data)
	s.alive = s.place.KeepNodeAlive(s.info)
	s.takeKeys(time.Now())
	s.tasks.Go(func() error { s.followKeys(s.run); return nil })
	s.tasks.Go(func() error { s.watchDisk(s.run); return nil })
	s.tasks.Go(func() error { s.followMap(s.run); return nil })
	s.tasks.Go(func() error { s.publishLoop(s.run); return nil })
	s.tasks.Go(func() error { s.usage.loop(s.run, s.config.DefaultLayout); return nil })
	s.startReaders()
	s.front.Serve()
	s.front.Offer(localNode{s})
	s.front.SetServing(true)
	s.tasks.Go(func() error {
		if err := s.front.Wait(); err != nil {
			s.fail(err)
		}
		return nil
	})
	s.log.Info("node started", "node", s.Node(), "cluster", s.cluster, "address", s.info.Address,
		"raft", s.info.RaftAddress, "incarnation", s.info.Incarnation)
}
