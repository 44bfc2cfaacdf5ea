package mds

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/placement"
)

// rebuild discards the directory's state and gives the node fresh replica ids in
// its shards: what an amnesiac replica promised under the old ones must not count
// any more (PROTOCOLS A6). The shards' holders then change the membership.
func (s *Server) rebuild(ctx context.Context, id base.NodeID) error {
	for _, info := range s.place.Map().Shards() {
		votes := placement.Voting(info)
		if len(votes) == 1 && base.NodeID(votes[0].Node) == id {
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
		replica.Replica, replica.Learner, replica.Joining = info.NextReplica, true, true
		info.NextReplica++
		if _, err = s.place.PutShard(ctx, info, revision); !placement.IsConflict(err) {
			return err
		}
	}
}
