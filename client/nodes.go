package client

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// nodes keeps one gRPC connection per metadata node address.
type nodes struct {
	memory *wire.Memory // nil: TCP alone

	mu     sync.Mutex
	conns  map[string]*grpc.ClientConn
	closed bool
}

func newNodes(memory *wire.Memory) *nodes {
	return &nodes{memory: memory, conns: map[string]*grpc.ClientConn{}}
}

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
	options := append(wire.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(), n.memory.DialOption(),
		// A link has its own back-off and other nodes to ask; a node that is back
		// should be found at once.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.3, MaxDelay: 300 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}))
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
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

// identity returns what this process says about itself in every call.
func identity(client base.ClientID, mount string) wire.Caller {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return wire.Caller{Client: uint64(client), Host: host, PID: os.Getpid(), Mount: mount}
}
