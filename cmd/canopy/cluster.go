package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/cmd/internal/daemon"
	"github.com/canopyfs/canopy/dataserver"
	"github.com/canopyfs/canopy/layoutsvc"
	"github.com/canopyfs/canopy/mds"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/placement/embedded"
)

// cluster starts the parts of a plan. All parts of one process share one
// metrics registry, told apart by the label "part".
type cluster struct {
	plan     *plan
	dir      string
	logger   *slog.Logger
	stderr   io.Writer
	daemon   daemonFlags
	registry *prometheus.Registry
	parts    *parts
	memory   *wire.Memory // connects what runs in this process
	servers  []uint64     // ids of the data servers, by place in the plan; once they are ready
	etcd     []string
}

// daemonFlags are settings that children inherit.
type daemonFlags struct{ logLevel, logFormat string }

func (c *cluster) registerer(part string) prometheus.Registerer {
	return prometheus.WrapRegistererWith(prometheus.Labels{"part": part}, c.registry)
}

// address is what clients use: all metadata nodes.
func (c *cluster) address() string {
	var all []string
	for i := 1; i <= c.plan.Nodes; i++ {
		all = append(all, c.plan.Addresses[nodeRole(i)])
	}
	return strings.Join(all, ",")
}

// start starts everything and returns when it serves.
func (c *cluster) start(ctx context.Context) error {
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	var ready sync.WaitGroup
	c.servers = make([]uint64, c.plan.DataServers)
	c.startLayoutService(&ready)
	for i := 1; i <= c.plan.DataServers; i++ {
		c.startDataServer(i, &ready)
	}
	if c.plan.Nodes == 1 {
		c.startNode(&ready)
	} else if err := c.startNodeProcesses(); err != nil {
		return err
	}
	all := make(chan struct{})
	go func() { ready.Wait(); close(all) }()
	return c.parts.waitFor(ctx, all)
}

// reachEtcd tells whether an outside etcd answers.
func reachEtcd(ctx context.Context, addresses []string) error {
	s, err := placement.Open(ctx, placement.Config{Endpoints: addresses, DialTimeout: 5 * time.Second})
	if err != nil {
		return fmt.Errorf("--etcd: %w", err)
	}
	return s.Close()
}

func (c *cluster) startEtcd(ctx context.Context) error {
	c.etcd = c.plan.Etcd
	if len(c.etcd) > 0 {
		return nil
	}
	etcd, err := embedded.Start(ctx, embedded.Config{
		Dir:    filepath.Join(c.dir, "etcd"),
		Listen: c.plan.Addresses["etcd"],
		Logger: c.logger,
	})
	if err != nil {
		return err
	}
	c.etcd = []string{etcd.Address()}
	c.parts.start("etcd", func(ctx context.Context) error {
		defer etcd.Close()
		select {
		case <-ctx.Done():
			return nil
		case err := <-etcd.Err():
			return err
		}
	})
	return nil
}

func (c *cluster) startLayoutService(ready *sync.WaitGroup) {
	ready.Add(1)
	config := layoutsvc.Config{
		Listen:      c.plan.Addresses["layoutsvc"],
		HTTPListen:  c.plan.Addresses["layoutsvc.http"],
		Etcd:        c.etcd,
		WantServers: c.plan.DataServers,
		Alone:       len(c.plan.Etcd) == 0, // the data directory is locked, and etcd's with it
		Logger:      c.logger.With("part", "layoutsvc"),
		Registerer:  c.registerer("layoutsvc"),
		Gatherer:    c.registry,
		Ready:       func(string, string) { ready.Done() },
	}
	c.parts.start("layoutsvc", func(ctx context.Context) error { return layoutsvc.Run(ctx, config) })
}

func (c *cluster) startDataServer(i int, ready *sync.WaitGroup) {
	ready.Add(1)
	id := &c.servers[i-1]
	role := dataServerRole(i)
	config := dataserver.Config{
		DataDir:        filepath.Join(c.dir, role),
		Listen:         c.plan.Addresses[role],
		HTTPListen:     c.plan.Addresses[role+".http"],
		LayoutServices: []string{c.plan.Addresses["layoutsvc"]},
		Memory:         c.memory,
		Logger:         c.logger.With("part", role),
		Registerer:     c.registerer(role),
		Gatherer:       c.registry,
		Ready:          func(server uint64, _, _ string) { *id = server; ready.Done() },
	}
	c.parts.start(role, func(ctx context.Context) error { return dataserver.Run(ctx, config) })
}

func (c *cluster) bootstrap() placement.Bootstrap {
	return placement.Bootstrap{Nodes: c.plan.Nodes, Replicas: c.plan.Replicas, Shards: c.plan.Shards}
}

// startNode runs the one metadata node in this process.
func (c *cluster) startNode(ready *sync.WaitGroup) {
	ready.Add(1)
	role := nodeRole(1)
	config := mds.Config{
		DataDir:    filepath.Join(c.dir, role),
		Node:       1, // so that a directory that was lost is not taken for a new node's
		Listen:     c.plan.Addresses[role],
		RaftListen: c.plan.Addresses[role+".raft"],
		HTTPListen: c.plan.Addresses[role+".http"],
		Memory:     c.memory,
		Etcd:       c.etcd,
		Bootstrap:  c.bootstrap(),
		Version:    version(),
		Logger:     c.logger.With("part", role),
		Registerer: c.registerer(role),
		Gatherer:   c.registry,
	}
	c.parts.start(role, func(ctx context.Context) error {
		return daemon.RunMDS(ctx, config, func(*mds.Server) { ready.Done() })
	})
}

// startNodeProcesses runs each metadata node as a child that is restarted when
// it ends. Whether they are ready the client finds out.
func (c *cluster) startNodeProcesses() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this program to start the nodes: %w", err)
	}
	for i := 1; i <= c.plan.Nodes; i++ {
		role := nodeRole(i)
		node := &child{
			name: role,
			path: self,
			args: []string{
				"mds",
				"--data", filepath.Join(c.dir, role),
				"--etcd", strings.Join(c.etcd, ","),
				"--node", strconv.Itoa(i),
				"--listen", c.plan.Addresses[role],
				"--raft-listen", c.plan.Addresses[role+".raft"],
				"--http", c.plan.Addresses[role+".http"],
				"--bootstrap-nodes", strconv.Itoa(c.plan.Nodes),
				"--bootstrap-replicas", strconv.Itoa(c.plan.Replicas),
				"--bootstrap-shards", strconv.Itoa(c.plan.Shards),
				"--log-level", c.daemon.logLevel,
				"--log-format", c.daemon.logFormat,
			},
			stderr: c.stderr,
			logger: c.logger,
		}
		c.parts.start(role, node.run)
	}
	return nil
}

// startTimeout bounds the start of the whole cluster.
const startTimeout = 60 * time.Second
