package client

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	mrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

const (
	defaultWriteBuffer = 128 << 20
	defaultDialTimeout = 10 * time.Second
)

// Client is a connection to one cluster. Make it with Connect.
//
// Lock order: fileState.mu before flusher.mu, opens.mu before Inode.mu before
// Client.mu, fileLocks.mu before link.mu; all
// others are leaves. None is held over I/O.
type Client struct {
	id     base.ClientID
	caller wire.Caller
	logger *slog.Logger
	seeds  []string

	ctx    context.Context // ends when Close has flushed
	cancel context.CancelFunc
	wg     sync.WaitGroup

	routes   *routes
	nodes    *nodes
	seqs     *sequencer
	metrics  *metrics
	inodes   *inodes
	cache    *cache
	events   *events
	opens    *opens
	moves    *moves
	locates  *locates
	accesses *accesses
	flusher  *flusher
	data     DataPlane
	env      linkEnv

	lastToken  atomic.Uint64 // of waits for locks
	lastHandle atomic.Uint64 // number of the newest File

	started  time.Time
	granting atomic.Bool // a node has granted a capability
	links    sync.Map    // base.ShardID -> *link
	closed   atomic.Bool // Close was called
	mu       sync.Mutex
	closing  bool // no new links
	stopped  bool // no new goroutines
}

// Connect finds the cluster and returns when a node has answered with the
// placement map. Sessions at shards are opened on first use.
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	c, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	return c.connect(ctx, cfg)
}

func (c *Client) connect(ctx context.Context, cfg Config) (_ *Client, err error) {
	if _, ok := ctx.Deadline(); !ok {
		timeout := cfg.DialTimeout
		if timeout <= 0 {
			timeout = defaultDialTimeout
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	ready := make(chan error, 1)
	c.wg.Go(func() { c.watchMap(ready) })
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = &fserr.Error{Kind: fserr.KindOf(ctx.Err()), Op: "connect", Path: cfg.Cluster, Err: errors.New("no metadata node answered")}
	}
	if err == nil && cfg.Data == nil {
		var d *data.Data
		d, err = data.New(data.Config{LayoutServices: c.routes.layoutServices, Cluster: c.ClusterID(),
			Client: c.id, Labels: cfg.Labels, Memory: cfg.Memory, Logger: c.logger, Registerer: cfg.Registerer})
		if err == nil {
			c.data = d
		}
	}
	if err != nil {
		c.stop()
		return nil, err
	}
	c.start()
	return c, nil
}

// start starts what works in the background.
func (c *Client) start() {
	c.wg.Go(func() { c.flusher.run(c.ctx) })
	c.wg.Go(func() { c.opens.run(c.ctx) })
	c.wg.Go(func() { c.accesses.run(c.ctx) })
}

// newClient makes the parts, without any connection.
func newClient(cfg Config) (*Client, error) {
	seeds, err := parseAddresses(cfg.Cluster)
	if err != nil {
		return nil, err
	}
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, fserr.New(fserr.Internal, "connect", err)
	}
	c := &Client{
		id:     base.ClientID(max(binary.LittleEndian.Uint64(random[:]), 1)),
		logger: cfg.Logger, seeds: seeds,
		routes: newRoutes(), nodes: newNodes(cfg.Memory), seqs: newSequencer(), inodes: newInodes(), cache: newCache(cfg.Relaxed),
		locates: newLocates(), data: cfg.Data,
	}
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
	c.inodes.client, c.started = c, time.Now()
	c.caller = identity(c.id, cfg.Mount)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	limit := cfg.WriteBufferBytes
	if limit <= 0 {
		limit = defaultWriteBuffer
	}
	c.flusher = newFlusher(c, limit)
	c.events, c.opens, c.accesses, c.moves = newEvents(c), newOpens(c), newAccesses(c), newMoves(c)
	c.metrics, err = newMetrics(cfg.Registerer,
		func() float64 { return float64(c.flusher.budget.inUse()) },
		func() float64 { floor, next := c.seqs.lowest(); return float64(next - floor) })
	if err != nil {
		c.cancel()
		return nil, err
	}
	c.env = linkEnv{routes: c.routes, nodes: c.nodes, seqs: c.seqs, metrics: c.metrics, logger: c.logger,
		caller: c.caller, outgoing: c.outgoing, memory: cfg.Memory, identity: c.identity, sessionAt: c.events.sessionAt,
		sessionEnded: c.locksLost}
	return c, nil
}

func (c *Client) outgoing(ctx context.Context) context.Context {
	return c.identity().Context(ctx)
}

// Close writes out all buffered bytes, closes the sessions and ends all
// streams; operations that still wait end with kind NotConnected. ctx bounds
// how long it tries; bytes that could not be written are an error.
func (c *Client) Close(ctx context.Context) error {
	if !c.closed.CompareAndSwap(false, true) {
		return nil
	}
	err := c.Flush(ctx, false)
	c.accesses.tell(ctx, maxAccesses)
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.closeSessions(ctx)
	c.stop()
	if n := c.flusher.budget.inUse(); n > 0 && err == nil {
		err = fserr.New(fserr.IO, "close", fmt.Errorf("%d bytes could not be written", n))
	}
	return err
}

// farewell bounds how long Close tries to end sessions: servers end those that
// are silent.
const farewell = 3 * time.Second

func (c *Client) closeSessions(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	var wg sync.WaitGroup
	c.links.Range(func(_, l any) bool {
		wg.Go(func() { l.(*link).closeSession(ctx) })
		return true
	})
	wg.Wait()
}

// spawn runs fn on a goroutine that stop waits for; false if it has begun to.
func (c *Client) spawn(fn func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return false
	}
	c.wg.Go(fn)
	return true
}

// stop ends all goroutines and connections.
func (c *Client) stop() {
	c.mu.Lock()
	c.closing, c.stopped = true, true
	c.mu.Unlock()
	c.cancel()
	c.wg.Wait()
	c.links.Range(func(_, l any) bool { l.(*link).shut(fserr.NotConnected); return true })
	if c.data != nil {
		if err := c.data.Close(); err != nil {
			c.logger.Warn("closing the data path", "error", err)
		}
	}
	c.nodes.close()
}

// ID returns the client's random id.
func (c *Client) ID() base.ClientID { return c.id }

// ClusterID returns the id of the cluster.
func (c *Client) ClusterID() string { return c.Map().GetCluster() }

// Map returns the last placement map: shared, not to be changed.
func (c *Client) Map() *canopyv1.PlacementMap { return c.routes.placement() }

// NodeConn returns the connection to a metadata node, for the Cluster and Admin
// services. It belongs to the client.
func (c *Client) NodeConn(node base.NodeID) (*grpc.ClientConn, error) {
	address := c.routes.addressOf(node)
	if address == "" {
		return nil, fserr.New(fserr.NotFound, "connect", fmt.Errorf("the placement map has no node %s", node))
	}
	return c.nodes.get(address)
}

// Root returns the root directory. It needs no Release.
func (c *Client) Root() *Inode { return c.inodes.root }

// FS returns the path interface for cred.
func (c *Client) FS(cred Cred) *FS { return &FS{c: c, cred: cred} }

// watchMap keeps a map stream to some node until the client ends. ready gets
// nil at the first map, or the error that makes waiting useless.
func (c *Client) watchMap(ready chan<- error) {
	first := true
	for attempt := 0; c.ctx.Err() == nil; attempt++ {
		addresses := c.routes.addresses()
		if len(addresses) == 0 {
			addresses = append(addresses, c.seeds...)
		}
		mrand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
		if attempt > 0 {
			addresses = append(addresses, c.seeds...)
		}
		for _, address := range addresses {
			err := c.watchMapAt(address, func() {
				attempt = 0
				if first {
					ready <- nil
					first = false
				}
			})
			c.logger.Debug("the map stream ended", "address", address, "error", err)
			if first && fserr.KindOf(err) == fserr.WrongVersion {
				ready <- err
				return
			}
			if c.ctx.Err() != nil {
				return
			}
		}
		if pause(c.ctx, 4*backoff(attempt)) != nil {
			return
		}
	}
}

// mapSilence is how long a node may take to send a first map before the next
// one is asked.
const mapSilence = 3 * time.Second

func (c *Client) watchMapAt(address string, installed func()) error {
	conn, err := c.nodes.get(address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	silence := time.AfterFunc(mapSilence, cancel)
	defer silence.Stop()
	stream, err := canopyv1.NewClusterClient(conn).WatchMap(c.outgoing(ctx), &canopyv1.WatchMapRequest{})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		silence.Stop()
		ok, foreign, moved := c.routes.install(m)
		c.moves.published(moved)
		if foreign {
			c.logger.Error("a node of another cluster answered", "address", address, "cluster", m.Cluster)
			return fserr.WrongCluster
		}
		installed()
		if ok {
			c.links.Range(func(_, l any) bool { l.(*link).mapChanged(); return true })
		}
	}
}
