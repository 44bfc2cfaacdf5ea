// Package inspect asks a cluster's processes what they know, for operators'
// tools: the placement map, pools, each replica's state, sessions, checksums
// and fsck. It opens no session, and works as long as one node answers.
//
// Every call is bounded by Options.Timeout, so that a process that hangs shows
// as an error and does not stop the tool. A Cluster is safe for concurrent use.
package inspect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

const defaultTimeout = 5 * time.Second

// Options of a connection. The zero value is right for real clusters.
type Options struct {
	// Timeout bounds each call. Default 5 s.
	Timeout time.Duration
	// Caller is sent with each call; the cluster id is filled in.
	Caller wire.Caller
	// DialOptions are added to those of all of Canopy's connections, for tests.
	DialOptions []grpc.DialOption
}

// Cluster is what one node said of its cluster, and connections to the rest.
type Cluster struct {
	opts Options
	m    *canopyv1.PlacementMap
	from string // address that answered

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

// Connect asks the nodes at addresses, host:port[,host:port...], in turn for
// the placement map. The first answer counts.
func Connect(ctx context.Context, addresses string, opts Options) (*Cluster, error) {
	if opts.Timeout <= 0 {
		opts.Timeout = defaultTimeout
	}
	c := &Cluster{opts: opts, conns: map[string]*grpc.ClientConn{}}
	var failures []error
	for address := range strings.SplitSeq(addresses, ",") {
		address = strings.TrimSpace(address)
		if address == "" || !strings.Contains(address, ":") {
			return nil, fmt.Errorf("cluster address %q: want host:port[,host:port...] of metadata nodes", addresses)
		}
		m, err := c.mapFrom(ctx, address)
		if err == nil {
			c.m, c.from = m, address
			c.opts.Caller.Cluster = m.GetCluster()
			return c, nil
		}
		if fserr.KindOf(err) == fserr.WrongVersion {
			return nil, errors.Join(fmt.Errorf("the node at %s refuses this program: %w", address, err), c.Close())
		}
		failures = append(failures, fmt.Errorf("%s: %w", address, err))
	}
	return nil, errors.Join(fmt.Errorf("no metadata node answers (is the cluster up, and is this the address of a metadata node?): %w", errors.Join(failures...)), c.Close())
}

// Map returns the placement map: not to be changed.
func (c *Cluster) Map() *canopyv1.PlacementMap { return c.m }

// From returns the address of the node that the map is from.
func (c *Cluster) From() string { return c.from }

// Close ends all connections.
func (c *Cluster) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	c.conns = map[string]*grpc.ClientConn{}
	return errors.Join(errs...)
}

// Conn returns the connection to a process. It belongs to the Cluster.
func (c *Cluster) Conn(address string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.conns[address]; conn != nil {
		return conn, nil
	}
	options := append(wire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient(address, append(options, c.opts.DialOptions...)...)
	if err != nil {
		return nil, err
	}
	c.conns[address] = conn
	return conn, nil
}

// call runs one exchange with a process under the time-out, with the caller's
// metadata, and returns what the peer said without gRPC's decoration.
func (c *Cluster) call(ctx context.Context, address string, timeout time.Duration, do func(ctx context.Context, conn *grpc.ClientConn) error) error {
	if address == "" {
		return errors.New("it has no address")
	}
	conn, err := c.Conn(address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.opts.Caller.Context(ctx), timeout)
	defer cancel()
	return plain(do(ctx, conn))
}

// plain turns a status error into its kind and message.
func plain(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	message := s.Message()
	// "connection error: desc = \"transport: Error while dialing: dial tcp ...\"":
	// the last part says it.
	if i := strings.LastIndex(message, "desc = "); i >= 0 {
		message = strings.Trim(message[i+len("desc = "):], `"`)
		message = strings.TrimPrefix(message, "transport: Error while dialing: ")
	}
	kind := fserr.KindOf(err)
	message = strings.TrimPrefix(strings.TrimPrefix(message, kind.Error()), ": ")
	if message == "" {
		return fserr.New(kind, "", nil)
	}
	return fserr.New(kind, "", errors.New(message))
}

// kindError is an error that travelled inside a message.
func kindError(kind uint32, detail string) error {
	if kind == 0 {
		return nil
	}
	if detail == "" {
		return fserr.New(fserr.Kind(kind), "", nil)
	}
	return fserr.New(fserr.Kind(kind), "", errors.New(detail))
}

func (c *Cluster) mapFrom(ctx context.Context, address string) (m *canopyv1.PlacementMap, err error) {
	err = c.call(ctx, address, c.opts.Timeout, func(ctx context.Context, conn *grpc.ClientConn) error {
		s, err := canopyv1.NewClusterClient(conn).WatchMap(ctx, &canopyv1.WatchMapRequest{})
		if err != nil {
			return err
		}
		m, err = s.Recv()
		return err
	})
	return m, err
}

// NodeInfo returns a node of the map, nil if it has none such.
func (c *Cluster) NodeInfo(node base.NodeID) *canopyv1.NodeInfo {
	for _, n := range c.m.GetNodes() {
		if n.GetNode() == uint64(node) {
			return n
		}
	}
	return nil
}

// ShardInfo returns a shard of the map, nil if it has none such.
func (c *Cluster) ShardInfo(shard base.ShardID) *canopyv1.ShardInfo {
	for _, s := range c.m.GetShards() {
		if s.GetShard() == uint64(shard) {
			return s
		}
	}
	return nil
}

// Pools returns the pool map, from the first layout service that answers.
func (c *Cluster) Pools(ctx context.Context) (m *canopyv1.PoolMap, err error) {
	return m, c.anyLayout(ctx, func(ctx context.Context, l canopyv1.LayoutServiceClient) error {
		s, err := l.WatchPools(ctx, &canopyv1.WatchPoolsRequest{})
		if err != nil {
			return err
		}
		m, err = s.Recv()
		return err
	})
}

// StripeMap asks a layout service where a range of a file lies.
func (c *Cluster) StripeMap(ctx context.Context, req *canopyv1.StripeMapRequest) (r *canopyv1.StripeMapResponse, err error) {
	err = c.anyLayout(ctx, func(ctx context.Context, l canopyv1.LayoutServiceClient) error {
		if r, err = l.StripeMap(ctx, req); err != nil {
			return err
		}
		return kindError(r.GetError(), r.GetDetail())
	})
	return r, err
}

func (c *Cluster) anyLayout(ctx context.Context, do func(context.Context, canopyv1.LayoutServiceClient) error) error {
	var failures []error
	for _, s := range c.m.GetServices() {
		err := c.call(ctx, s.GetAddress(), c.opts.Timeout, func(ctx context.Context, conn *grpc.ClientConn) error {
			return do(ctx, canopyv1.NewLayoutServiceClient(conn))
		})
		if err == nil {
			return nil
		}
		failures = append(failures, fmt.Errorf("layout service %d at %s: %w", s.GetId(), s.GetAddress(), err))
	}
	if len(failures) == 0 {
		return errors.New("no layout service is known: start one (layoutsvc)")
	}
	return errors.Join(failures...)
}
