package raftgroup

import (
	"context"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// Group is one replica of one shard. Its methods are safe for concurrent use.
type Group struct{}

// Shard returns the group's shard.
func (g *Group) Shard() base.ShardID { return 0 }

// Replica returns which replica of the shard this is.
func (g *Group) Replica() base.ReplicaID { return 0 }

// Submit queues a command, which must not be changed any more, and calls done
// once with its result or error: before Submit returns if it is refused at once,
// else on a goroutine of the group, which it must not block.
//
//	NotHolder  this replica does not lead; the command was not executed
//	Busy       too many commands wait; not executed
//	NotReady   the group stops, or no leader is known; not executed
//	TimedOut   the outcome is unknown
func (g *Group) Submit(command []byte, done func(result []byte, err error)) {
	done(nil, fserr.Internal)
}

// Propose submits a command and waits. If ctx ends first its outcome is unknown.
func (g *Group) Propose(ctx context.Context, command []byte) ([]byte, error) {
	return nil, fserr.Internal
}

// Read calls fn with a snapshot of the state and returns nil only if this
// replica held the lease after fn returned (PROTOCOLS B4): what fn read is then
// current, and only then may it be answered. fn can run more than once. The
// lease is acquired or renewed on demand if this replica leads the shard;
// NotHolder otherwise. An error of fn is returned as it is, if the lease held.
func (g *Group) Read(ctx context.Context, fn func(r shard.Reader) error) error {
	return fserr.Internal
}

// Holder says who should serve the shard as far as this replica knows: the
// lease's holder, or the Raft leader while there is none; 0: unknown. It is a
// hint. self says that this replica serves.
func (g *Group) Holder() (node base.NodeID, epoch base.LeaseEpoch, self bool) { return 0, 0, false }

// Release drains: it moves the Raft leadership to another replica if there is
// one, stops answering, finishes what is in flight and releases the lease
// (PROTOCOLS B5). The group does not acquire the lease again until Resume.
func (g *Group) Release(ctx context.Context) error { return fserr.Internal }

// Resume ends what Release began.
func (g *Group) Resume() {}

// Status returns the present state.
func (g *Group) Status() Status { return Status{} }

// ProposeChecksum puts an entry into the log at which every replica computes its
// checksum, and returns the token under which they keep it, and its log index.
func (g *Group) ProposeChecksum(ctx context.Context) (token, index uint64, err error) {
	return 0, 0, fserr.Internal
}

// ReplicaChecksum waits until this replica has computed the token's checksum. The
// last few are kept; NotFound for one that was dropped.
func (g *Group) ReplicaChecksum(ctx context.Context, token uint64) (Checksum, error) {
	return Checksum{}, fserr.Internal
}

// AddReplica adds a replica to the shard's membership; its node starts it with
// Join. RemoveReplica removes one.
func (g *Group) AddReplica(ctx context.Context, id base.ReplicaID, m Member) error {
	return fserr.Internal
}

// RemoveReplica removes a replica from the shard's membership.
func (g *Group) RemoveReplica(ctx context.Context, id base.ReplicaID) error { return fserr.Internal }
