package mds

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/shard/raftgroup"
)

// rebuild discards the directory's state and gives the node fresh replica ids in
// its shards: what an amnesiac replica promised under the old ones must not count
// any more (PROTOCOLS A6). The shards' holders then change the membership.
func (s *Server) rebuild(ctx context.Context, id base.NodeID) error {
	for _, info := range s.place.Map().Shards() {
		if replicaOn(info, id) != nil && len(info.Replicas) < 2 {
			return fmt.Errorf("mds: node %v has the only replica of shard %d: its state exists nowhere else and is not discarded", id, info.Shard)
		}
	}
	if err := s.dir.discard(); err != nil {
		return err
	}
	for _, info := range s.place.Map().Shards() {
		if err := s.renewReplica(ctx, base.ShardID(info.Shard), id); err != nil {
			return err
		}
	}
	return nil
}

func replicaOn(info *canopyv1.ShardInfo, id base.NodeID) *canopyv1.ReplicaInfo {
	i := slices.IndexFunc(info.Replicas, func(r *canopyv1.ReplicaInfo) bool { return base.NodeID(r.Node) == id })
	if i < 0 {
		return nil
	}
	return info.Replicas[i]
}

// renewReplica replaces the node's replica id in one shard, if it has one.
func (s *Server) renewReplica(ctx context.Context, shardID base.ShardID, id base.NodeID) error {
	for {
		info, revision, err := s.place.GetShard(ctx, shardID)
		if err != nil {
			return err
		}
		info = proto.CloneOf(info)
		replica := replicaOn(info, id)
		if replica == nil {
			return nil
		}
		s.log.Info("the node joins a shard anew", "shard", shardID, "old replica", replica.Replica, "new replica", info.NextReplica)
		replica.Replica = info.NextReplica
		info.NextReplica++
		if _, err = s.place.PutShard(ctx, info, revision); !placement.IsConflict(err) {
			return err
		}
	}
}

// reconcileLoop makes the shard's membership what the map says: replicas that
// the map does not name are removed, those that are new to it added, one at a
// time.
func (t *tenure) reconcileLoop() {
	place := t.h.server.place
	changes, cancel := place.Subscribe()
	defer cancel()
	wait := retry{next: 100 * time.Millisecond, limit: 2 * time.Second}
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

// reconcile does one step; true: there was nothing to do.
func (t *tenure) reconcile(m *placement.Map) bool {
	info := m.Shard(t.h.shard)
	have := t.h.group.Status().Members
	if info == nil || len(info.Replicas) == 0 || len(have) == 0 {
		return true
	}
	wanted := map[base.ReplicaID]bool{}
	for _, r := range info.Replicas {
		wanted[base.ReplicaID(r.Replica)] = true
	}
	ctx, cancel := context.WithTimeout(t.ctx, 10*time.Second)
	defer cancel()
	log := t.h.server.log.With("shard", t.h.shard)
	for id := range have {
		if wanted[id] || id == t.h.group.Replica() {
			continue
		}
		err := t.h.group.RemoveReplica(ctx, id)
		log.Info("removed a replica that the map does not name", "replica", id, "error", err)
		return false
	}
	for _, r := range info.Replicas {
		n := m.Node(base.NodeID(r.Node))
		if _, ok := have[base.ReplicaID(r.Replica)]; ok || n == nil {
			continue
		}
		err := t.h.group.AddReplica(ctx, base.ReplicaID(r.Replica), raftgroup.Member{Node: base.NodeID(n.Node), RaftAddress: n.RaftAddress})
		log.Info("added a replica that the map names", "replica", r.Replica, "node", r.Node, "error", err)
		return false
	}
	return true
}
