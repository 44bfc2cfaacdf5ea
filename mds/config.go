// Package mds is one metadata node: it hosts replicas of shards, serves the
// Metadata, Cluster and Admin services, tracks sessions and open files, purges
// orphans, and drives the deletion of files' data.
//
// It joins what lies below: placement (the map in etcd), shard/store, shard/
// raftgroup and shard/namespace. What is replicated is decided there, in apply;
// checks here only save work (PROTOCOLS A1).
//
// cmd/mds and cmd/canopy run it; nothing else imports it.
package mds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/placement"
)

// Default settings.
const (
	DefaultSessionTimeout = 30 * time.Second
	DefaultHeartbeat      = 5 * time.Second
	DefaultOrphanGrace    = 15 * time.Second
	DefaultOutstanding    = 4096 // operations per stream without an answer (PROTOCOLS C1)
	DefaultStartTimeout   = 15 * time.Second
	DefaultCacheBytes     = 256 << 20
)

// Config configures a node. Zero values take the defaults.
type Config struct {
	DataDir    string
	Listen     string // gRPC, host:port; port 0 takes a free one
	RaftListen string // Raft, host:port; required, with a port
	HTTPListen string // metrics and pprof; "": none
	// Advertise and RaftAdvertise are the addresses that others reach, if not
	// Listen and RaftListen. The Raft address must not change for the life of
	// the data directory.
	Advertise     string
	RaftAdvertise string
	Memory        *wire.Memory // connects the parts of this process; nil: TCP alone

	Etcd           []string // etcd's client addresses
	EtcdPrefix     string   // "": placement.DefaultPrefix
	EtcdLease      time.Duration
	Node           base.NodeID // 0: what the data directory says, or a fresh one
	Labels         []string    // key=value
	Bootstrap      placement.Bootstrap
	StartTimeout   time.Duration // to reach etcd, at the start
	SessionTimeout time.Duration // a session not heard of for so long ends
	Heartbeat      time.Duration // of the events stream
	OrphanGrace    time.Duration // PROTOCOLS H2
	Outstanding    int
	LeaseDuration  time.Duration // of shards; 0: raftgroup's default
	Drain          time.Duration // a stop's deadline; 0: 5 s
	// Rebuild discards the data directory's state and lets the node join its
	// shards again under new replica ids (PROTOCOLS A6): needed when its state is
	// lost or older than what the cluster saw of it. Refused while a shard has no
	// other replica.
	Rebuild bool

	// Data deletes and cuts files' bytes. nil: the data servers that the layout
	// services of the placement map name.
	Data DataPlane
	// CacheBytes bounds what the node keeps of its store in memory; 0: DefaultCacheBytes.
	CacheBytes int64
	// DiskReserve is how many bytes stay free below DataDir: with less, the shards
	// of this node take only what frees space. 0: DefaultDiskReserve, or a quarter of
	// a small disk.
	DiskReserve uint64
	// DiskUsage returns the size of the file system below a directory and what is
	// free for this process. nil: statfs.
	DiskUsage func(dir string) (totalBytes, freeBytes uint64, err error)
	// OnDiskFailed is called when log or store cannot be written, so that the node
	// cannot go on: it should end the process. nil, and when it returns: a panic.
	OnDiskFailed func(err error)
	// DefaultLayout is the root directory's layout in a new cluster.
	DefaultLayout *canopyv1.Layout

	// NoHeat switches off that is counted what keeps shards busy (mdsctl top).
	NoHeat bool

	Version    string
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer // what /metrics shows
}

// DataPlane is what a node needs of the data path. Methods are called
// concurrently and block until done or ctx ends.
type DataPlane interface {
	// Delete removes all bytes of a data id, which lay below size. nil means that every member of every
	// placement group has confirmed (PROTOCOLS H3). A repetition is harmless.
	Delete(ctx context.Context, id base.DataID, layout *canopyv1.Layout, size uint64) error
	// Cut makes every column of a file know its cuts, durably (PROTOCOLS J1).
	Cut(ctx context.Context, id base.DataID, layout *canopyv1.Layout, sizeEpoch uint64, cuts []*canopyv1.Cut) error
	// Usage returns capacity and free bytes of a pool, as statfs shows them.
	Usage(ctx context.Context, pool base.PoolID) (totalBytes, freeBytes uint64, err error)
}

// StandardLayout is the layout of a new cluster's root: the first MiB of a file
// on one placement group, the rest in stripes of 1 MiB over three.
func StandardLayout() *canopyv1.Layout {
	return &canopyv1.Layout{Pool: 1, Components: []*canopyv1.LayoutComponent{
		{Offset: 0, StripeBytes: 1 << 20, StripeCount: 1},
		{Offset: 1 << 20, StripeBytes: 1 << 20, StripeCount: 3},
	}}
}

// withDefaults returns the configuration with defaults, or what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.StartTimeout, DefaultStartTimeout)
	set(&c.SessionTimeout, DefaultSessionTimeout)
	set(&c.Heartbeat, DefaultHeartbeat)
	set(&c.OrphanGrace, DefaultOrphanGrace)
	set(&c.Drain, 5*time.Second)
	if c.Outstanding == 0 {
		c.Outstanding = DefaultOutstanding
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = DefaultCacheBytes
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Registerer == nil {
		c.Registerer = prometheus.NewRegistry()
	}
	if c.DiskUsage == nil {
		c.DiskUsage = statfs
	}
	if c.DefaultLayout == nil {
		c.DefaultLayout = StandardLayout()
	}
	if c.RaftAdvertise == "" {
		c.RaftAdvertise = c.RaftListen
	}
	return c, c.validate()
}

func (c Config) validate() error {
	if c.DataDir == "" {
		return errors.New("mds: no data directory is given")
	}
	if len(c.Etcd) == 0 {
		return errors.New("mds: no etcd address is given")
	}
	if err := reachable("raft address", c.RaftAdvertise, false); err != nil {
		return err
	}
	address := c.Advertise
	if address == "" {
		address = c.Listen
	}
	if err := reachable("address", address, c.Advertise == ""); err != nil {
		return err
	}
	for _, d := range []time.Duration{c.SessionTimeout, c.Heartbeat, c.OrphanGrace, c.StartTimeout, c.Drain, c.LeaseDuration} {
		if d < 0 {
			return fmt.Errorf("mds: a duration of %v makes no sense", d)
		}
	}
	if c.Heartbeat > c.SessionTimeout/3 {
		return fmt.Errorf("mds: heartbeat %v is too long for a session time-out of %v: at most a third", c.Heartbeat, c.SessionTimeout)
	}
	return c.Bootstrap.Validate()
}

// reachable tells whether others can use an address.
func reachable(what, address string, anyPort bool) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "" || (port == "0" && !anyPort) {
		return fmt.Errorf("mds: %s %q: want host:port", what, address)
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		return fmt.Errorf("mds: %s %q: others cannot reach it; set the address to advertise", what, address)
	}
	return nil
}
