package mds

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// peers keeps one connection to each other node that this one speaks to.
type peers struct {
	mu     sync.Mutex
	conns  map[string]*grpc.ClientConn
	closed bool
}

func (p *peers) get(address string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errStopping
	}
	if conn := p.conns[address]; conn != nil {
		return conn, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+address, append(wire.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		// Whoever asks has its own back-off: a node that is back is found at once.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.3, MaxDelay: 300 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}))...)
	if err != nil {
		return nil, err
	}
	if p.conns == nil {
		p.conns = map[string]*grpc.ClientConn{}
	}
	p.conns[address] = conn
	return conn, nil
}

func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, conn := range p.conns {
		conn.Close()
	}
}

// peerTimeout bounds one call to another node.
const peerTimeout = 2 * time.Second

// atHolder calls local if this node holds the shard, else remote with a connection
// to the node that seems to. It tries until ctx ends while the holder changes or
// cannot be reached; then the outcome of the last try is unknown.
func (s *Server) atHolder(ctx context.Context, id base.ShardID, local func(context.Context, *tenure) error, remote func(context.Context, canopyv1.TransactionClient) error) error {
	wait := retry{next: 2 * time.Millisecond, limit: 200 * time.Millisecond}
	for {
		err := s.onceAtHolder(ctx, id, local, remote)
		switch fserr.KindOf(err) {
		case fserr.NotHolder, fserr.NotReady, fserr.UnknownShard, fserr.TimedOut, fserr.Interrupted:
		default:
			return err
		}
		if !wait.sleep(ctx) {
			return err
		}
	}
}

func (s *Server) onceAtHolder(ctx context.Context, id base.ShardID, local func(context.Context, *tenure) error, remote func(context.Context, canopyv1.TransactionClient) error) error {
	if h := s.lookup(id); h != nil {
		if t := h.tenure(); t != nil {
			return local(ctx, t)
		}
	}
	to := s.redirect(id, 0)
	if to.GetAddress() == "" {
		return fserr.New(fserr.NotReady, "holder of shard "+id.String(), nil)
	}
	conn, err := s.peers.get(to.Address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(wire.Caller{Cluster: s.cluster}.Context(ctx), peerTimeout)
	defer cancel()
	return remote(ctx, canopyv1.NewTransactionClient(conn))
}
