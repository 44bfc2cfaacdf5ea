package mds

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/shard/raftgroup"
)

// learnerLag is how many entries a replica may be behind to be given a vote: it
// must not hold up what the others commit.
const learnerLag = 1000

// reconcileLoop makes the shard's membership what the map says, see reconcile.
func (t *tenure) reconcileLoop() {
	place := t.h.server.place
	changes, cancel := place.Subscribe()
	defer cancel()
	wait := retry{next: 100 * time.Millisecond, limit: time.Second}
	for {
		if t.reconcile(place.Map()) {
			wait.next = 100 * time.Millisecond
			select {
			case <-t.ctx.Done():
				return
			case <-changes:
			}
		} else if !wait.sleep(t.ctx) {
			return
		}
	}
}

// reconcile does one step to make the membership what the map says; true: there is
// nothing to do. Each step begins with what is, so that the next holder goes on
// where this one ended:
//
//	what the map does not name leaves the membership
//	what joins is added without a vote
//	once it has caught up it gets a vote
//	the map says that it has joined
//	when all have, the map drops what leaves, one at a time
func (t *tenure) reconcile(m *placement.Map) bool {
	info := m.Shard(t.h.shard)
	if info == nil || len(info.Replicas) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(t.ctx, 10*time.Second)
	defer cancel()
	have, err := t.h.group.Membership(ctx)
	if err != nil {
		if t.ctx.Err() == nil {
			t.h.server.log.Debug("the membership is not known; trying again", "shard", t.h.shard, "error", err)
		}
		return false
	}
	if t.removeUnnamed(ctx, info, have) {
		return false
	}
	for _, r := range info.Replicas {
		if n := m.Node(base.NodeID(r.Node)); n != nil && t.join(ctx, r, n, have) {
			return false
		}
	}
	next := m.NextToGo(info)
	if next == nil {
		return !waitsToGo(info)
	}
	t.change(ctx, func(now *canopyv1.ShardInfo) bool {
		if !proto.Equal(placement.WithoutHints(now), placement.WithoutHints(info)) {
			return false // the next look at the map decides
		}
		now.Replicas = next.Replicas
		return true
	})
	return false
}

// waitsToGo tells whether a replica leaves that cannot go yet.
func waitsToGo(info *canopyv1.ShardInfo) bool {
	for _, r := range info.Replicas {
		if r.Leaving {
			return true
		}
	}
	return false
}

// removeUnnamed takes one replica that the map does not name out of the membership;
// false: there is none. (This one leaves when another holds the lease.)
func (t *tenure) removeUnnamed(ctx context.Context, info *canopyv1.ShardInfo, have raftgroup.Membership) bool {
	named := map[base.ReplicaID]bool{t.h.group.Replica(): true}
	for _, r := range info.Replicas {
		named[base.ReplicaID(r.Replica)] = true
	}
	for _, members := range []map[base.ReplicaID]string{have.Learners, have.Voters} {
		for id := range members {
			if named[id] {
				continue
			}
			err := t.h.group.RemoveReplica(ctx, id)
			t.h.server.log.Info("removed a replica that the map does not name", "shard", t.h.shard, "replica", id, "error", err)
			return true
		}
	}
	return false
}

// join does the next step for one replica; false: there is none.
func (t *tenure) join(ctx context.Context, r *canopyv1.ReplicaInfo, n *canopyv1.NodeInfo, have raftgroup.Membership) bool {
	id, member := base.ReplicaID(r.Replica), raftgroup.Member{Node: base.NodeID(r.Node), RaftAddress: n.RaftAddress}
	log := t.h.server.log.With("shard", t.h.shard, "replica", r.Replica, "node", r.Node)
	_, votes := have.Voters[id]
	_, learns := have.Learners[id]
	switch {
	case votes && !r.Joining:
		return false
	case votes:
		t.change(ctx, func(now *canopyv1.ShardInfo) bool {
			for _, x := range now.Replicas {
				if x.Replica == r.Replica && x.Joining {
					x.Joining = false
					return true
				}
			}
			return false
		})
	case !learns:
		log.Info("adding a replica that the map names", "error", t.h.group.AddLearner(ctx, id, member))
	case t.caughtUp(ctx, id, n):
		log.Info("a replica has caught up and gets a vote", "error", t.h.group.AddReplica(ctx, id, member))
	}
	return true
}

// caughtUp asks a replica's node how far it is.
func (t *tenure) caughtUp(ctx context.Context, id base.ReplicaID, n *canopyv1.NodeInfo) bool {
	before := t.h.group.Status().Applied
	status, err := t.h.server.askShard(ctx, n.Address, t.h.shard)
	if err != nil {
		if t.ctx.Err() == nil {
			t.h.server.log.Debug("a replica that joins does not answer; asking again", "shard", t.h.shard, "replica", id, "node", n.Node, "error", err)
		}
		return false
	}
	return base.ReplicaID(status.GetReplica()) == id && status.GetError() == "" && status.GetAppliedIndex()+learnerLag >= before && status.GetAppliedIndex() > 0
}

// change changes the shard's record in the map, if change says so. It is called for
// what the record is now.
func (t *tenure) change(ctx context.Context, change func(now *canopyv1.ShardInfo) bool) {
	s := t.h.server
	info, revision, err := s.place.GetShard(ctx, t.h.shard)
	if err == nil {
		info = proto.CloneOf(info)
		if !change(info) {
			return
		}
		_, err = s.place.PutShard(ctx, info, revision)
	}
	if err != nil && t.ctx.Err() == nil {
		s.log.Debug("the shard's record could not be changed; trying again", "shard", t.h.shard, "error", err)
	}
}
