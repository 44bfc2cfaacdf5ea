package mds

import (
	"context"
	"errors"
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
)

// errRemoved ends a node that was removed from the cluster.
var errRemoved = errors.New("the node was removed from the cluster")

// CreateShard writes a new shard into the map; the nodes that it names start its
// replicas.
func (a *adminService) CreateShard(ctx context.Context, request *canopyv1.CreateShardRequest) (*canopyv1.CreateShardResponse, error) {
	place := a.server.place
	if err := place.Sync(ctx); err != nil {
		return nil, fserr.Status(err)
	}
	nodes, err := shardNodes(place.Map(), request)
	if err != nil {
		return nil, fserr.Status(err)
	}
	info, err := place.AddShard(ctx, nodes)
	if err != nil {
		return nil, fserr.Status(err)
	}
	a.server.log.Info("a shard was made", "shard", info.Shard, "nodes", nodes)
	return &canopyv1.CreateShardResponse{Info: info}, nil
}

func shardNodes(m *placement.Map, request *canopyv1.CreateShardRequest) (nodes []base.NodeID, err error) {
	count := int(request.Replicas)
	if len(request.Nodes) > 0 {
		count = len(request.Nodes)
	}
	if count != 1 && count != 3 && count != 5 {
		return nil, fserr.New(fserr.Invalid, "", fmt.Errorf("%d replicas: a shard begins with 1, 3 or 5", count))
	}
	if len(request.Nodes) == 0 {
		return m.Choose(count, nil, nil)
	}
	for _, n := range request.Nodes {
		if err := m.CheckNode(base.NodeID(n), nodes); err != nil {
			return nil, err
		}
		nodes = append(nodes, base.NodeID(n))
	}
	return nodes, nil
}

// ChangeReplicas writes into the map what replicas a shard is to have; the shard's
// holder does the rest (tenure.reconcile).
func (a *adminService) ChangeReplicas(ctx context.Context, request *canopyv1.ChangeReplicasRequest) (*canopyv1.ChangeReplicasResponse, error) {
	place := a.server.place
	change := placement.ReplicaChange{
		Add: nodeIDs(request.Add), Count: int(request.AddCount), Remove: nodeIDs(request.Remove), Replace: request.Replace, Cancel: request.Cancel,
	}
	for {
		if err := place.Sync(ctx); err != nil {
			return nil, fserr.Status(err)
		}
		info, revision, err := place.GetShard(ctx, base.ShardID(request.Shard))
		if err != nil {
			return nil, fserr.Status(err)
		}
		next, changed, err := place.Map().PlanReplicas(info, change)
		if err == nil && changed && !request.DryRun {
			_, err = place.PutShard(ctx, next, revision)
		}
		if placement.IsConflict(err) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, fserr.Status(err)
		}
		if changed && !request.DryRun {
			a.server.log.Info("a shard's replicas are to change", "shard", request.Shard, "add", request.Add, "remove", request.Remove, "replace", request.Replace, "cancel", request.Cancel)
		}
		return &canopyv1.ChangeReplicasResponse{Info: next}, nil
	}
}

func nodeIDs(numbers []uint64) (ids []base.NodeID) {
	for _, n := range numbers {
		ids = append(ids, base.NodeID(n))
	}
	return ids
}

// RemoveNode forgets a node without replicas.
func (a *adminService) RemoveNode(ctx context.Context, request *canopyv1.RemoveNodeRequest) (*canopyv1.RemoveNodeResponse, error) {
	if err := a.server.place.RemoveNode(ctx, base.NodeID(request.Node)); err != nil {
		return nil, fserr.Status(err)
	}
	a.server.log.Info("a node was removed from the cluster", "removed", request.Node)
	return &canopyv1.RemoveNodeResponse{}, nil
}
