package raftgroup

import (
	"context"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Host is one node's end of all its shards.
type Host struct{}

// NewHost opens the Raft log and listens. A directory or port in use is an
// error that says so.
func NewHost(cfg Config) (*Host, error) { return nil, fserr.Internal }

// Start starts a replica and returns when it has applied what its log holds as
// committed. A state that is older than the log says is an error (PROTOCOLS A6).
func (h *Host) Start(ctx context.Context, rc ReplicaConfig) (*Group, error) {
	return nil, fserr.Internal
}

// Group returns the running replica of a shard, nil if there is none.
func (h *Host) Group(shard base.ShardID) *Group { return nil }

// Groups returns the running replicas, in the order of their shards.
func (h *Host) Groups() []*Group { return nil }

// Stop stops the replica of a shard. Waiting commands fail with NotReady, those
// in flight with TimedOut.
func (h *Host) Stop(ctx context.Context, shard base.ShardID) error { return fserr.Internal }

// Remove stops the replica for good and removes its log and state. It must have
// left the shard's membership.
func (h *Host) Remove(ctx context.Context, shard base.ShardID) error { return fserr.Internal }

// Close releases nothing: it stops all replicas and the host. For a drain call
// Release on the groups first.
func (h *Host) Close(ctx context.Context) error { return fserr.Internal }
