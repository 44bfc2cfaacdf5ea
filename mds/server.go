package mds

import (
	"context"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Server is a running node.
type Server struct{}

// New starts a node: it locks the data directory, registers in etcd, opens the
// store and the Raft log, binds its addresses and starts serving. It returns
// before the shards are up: see Ready.
func New(ctx context.Context, config Config) (*Server, error) { return nil, fserr.Internal }

// Run runs a node until ctx is done, then drains it and closes it.
func Run(ctx context.Context, config Config) error { return fserr.Internal }

// Run serves until ctx is done, then drains and closes.
func (s *Server) Run(ctx context.Context) error { return fserr.Internal }

// Ready is closed when every shard that the map places on this node has started
// here, and the root's subtree has been created.
func (s *Server) Ready() <-chan struct{} { return nil }

// Node is the node's id.
func (s *Server) Node() base.NodeID { return 0 }

// Cluster is the cluster's id.
func (s *Server) Cluster() string { return "" }

// Addr is the address that gRPC is bound to, HTTPAddr that of HTTP ("": none).
func (s *Server) Addr() string { return "" }

// HTTPAddr is the address of metrics and pprof, "" if there is none.
func (s *Server) HTTPAddr() string { return "" }

// Drain moves all leases away, ends the streams and closes. A second call waits.
func (s *Server) Drain(ctx context.Context) error { return fserr.Internal }

// Close stops at once, as a crash would as far as others can tell, but releases
// what the process holds.
func (s *Server) Close() error { return fserr.Internal }
