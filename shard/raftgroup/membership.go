package raftgroup

import (
	"context"
	"errors"

	"github.com/lni/dragonboat/v4"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// How a replica joins a running shard:
//
//	AddLearner   it gets the log, or a snapshot, and has no vote: as long as it is
//	             behind, neither commits nor elections depend on it
//	AddReplica   it gets a vote, once it has caught up
//	RemoveReplica
//
// A replica that joined as a learner starts as one for ever: Dragonboat gives it its
// vote when it reads that in the log, or in the log's snapshot. To start a learner as
// a voter panics.
//
// Each is one entry of the log; a repetition is refused (Invalid) and changes
// nothing. Dragonboat keeps one membership change in flight: the caller makes one
// after the other.

// Membership is who is in a shard's Raft group, with Raft addresses.
type Membership struct {
	Voters, Learners map[base.ReplicaID]string
}

// Membership asks for the shard's present membership, by a round trip to a
// majority.
func (g *Group) Membership(ctx context.Context) (Membership, error) {
	m, err := g.host.nh.SyncGetShardMembership(ctx, uint64(g.cfg.Shard))
	if err != nil {
		return Membership{}, fserr.New(changeKind(err), "read the membership", err)
	}
	return Membership{Voters: byReplica(m.Nodes), Learners: byReplica(m.NonVotings)}, nil
}

func byReplica(addresses map[uint64]string) map[base.ReplicaID]string {
	out := make(map[base.ReplicaID]string, len(addresses))
	for id, address := range addresses {
		out[base.ReplicaID(id)] = address
	}
	return out
}

// AddLearner adds a replica without a vote to the shard's membership; its node
// starts it with Join and Learner.
func (g *Group) AddLearner(ctx context.Context, id base.ReplicaID, m Member) error {
	if err := g.host.nh.SyncRequestAddNonVoting(ctx, uint64(g.cfg.Shard), uint64(id), m.RaftAddress, 0); err != nil {
		return fserr.New(changeKind(err), "add learner", err)
	}
	return nil
}

// AddReplica gives a learner a vote, or adds a replica that has one at once; its
// node starts it with Join.
func (g *Group) AddReplica(ctx context.Context, id base.ReplicaID, m Member) error {
	err := g.host.nh.SyncRequestAddReplica(ctx, uint64(g.cfg.Shard), uint64(id), m.RaftAddress, 0)
	if err != nil {
		return fserr.New(changeKind(err), "add replica", err)
	}
	return nil
}

// RemoveReplica removes a replica, or a learner, from the shard's membership.
func (g *Group) RemoveReplica(ctx context.Context, id base.ReplicaID) error {
	if err := g.host.nh.SyncRequestDeleteReplica(ctx, uint64(g.cfg.Shard), uint64(id), 0); err != nil {
		return fserr.New(changeKind(err), "remove replica", err)
	}
	return nil
}

func changeKind(err error) fserr.Kind {
	switch {
	case errors.Is(err, dragonboat.ErrRejected):
		return fserr.Invalid
	case errors.Is(err, dragonboat.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return fserr.TimedOut
	}
	return fserr.NotReady
}
