package client

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// nodes keeps one gRPC connection per metadata node address.
type nodes struct {
	mu     sync.Mutex
	conns  map[string]*grpc.ClientConn
	closed bool
}

func newNodes() *nodes { return &nodes{conns: map[string]*grpc.ClientConn{}} }

// get returns the connection to the address; it dials in the background.
func (n *nodes) get(address string) (*grpc.ClientConn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, fserr.New(fserr.NotConnected, "connect "+address, nil)
	}
	if conn := n.conns[address]; conn != nil {
		return conn, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(wire.Codec()),
			grpc.MaxCallRecvMsgSize(wire.MaxMessageBytes),
			grpc.MaxCallSendMsgSize(wire.MaxMessageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.3, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithInitialWindowSize(1<<20),
		grpc.WithInitialConnWindowSize(4<<20),
	)
	if err != nil {
		return nil, fserr.New(fserr.NotConnected, "connect "+address, err)
	}
	n.conns[address] = conn
	return conn, nil
}

func (n *nodes) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	for _, conn := range n.conns {
		conn.Close()
	}
	n.conns = nil
}

// parseAddresses splits host:port[,host:port...].
func parseAddresses(cluster string) ([]string, error) {
	var all []string
	for _, a := range strings.Split(cluster, ",") {
		a = strings.TrimSpace(a)
		if a == "" {
			continue
		}
		if i := strings.LastIndexByte(a, ':'); i <= 0 || i == len(a)-1 {
			return nil, fserr.New(fserr.Invalid, "connect", fmt.Errorf("cluster address %q is not host:port", a))
		}
		all = append(all, a)
	}
	if len(all) == 0 {
		return nil, fserr.New(fserr.Invalid, "connect", fmt.Errorf("no cluster address: want host:port[,host:port...] of metadata nodes"))
	}
	return all, nil
}

// identity is the gRPC metadata that every stream carries.
type identity struct {
	client base.ClientID
	host   string
	pid    uint32
	mount  string
}

func newIdentity(client base.ClientID, mount string) identity {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return identity{client: client, host: host, pid: uint32(os.Getpid()), mount: mount}
}

// outgoing adds the identity to ctx; cluster is empty until it is known.
func (i identity) outgoing(ctx context.Context, cluster string) context.Context {
	pairs := []string{
		"canopy-client", i.client.String(),
		"canopy-host", printable(i.host),
		"canopy-pid", strconv.FormatUint(uint64(i.pid), 10),
		"canopy-mount", printable(i.mount),
	}
	if cluster != "" {
		pairs = append(pairs, "canopy-cluster", cluster)
	}
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

// printable replaces what gRPC metadata values may not have.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}
