package inspect

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// Refresh takes the placement map anew, from the node that gave it last or from
// another. It must not be called while others use the Cluster.
func (c *Cluster) Refresh(ctx context.Context) error {
	addresses := []string{c.from}
	for _, n := range c.m.GetNodes() {
		if n.GetAlive() && n.GetAddress() != c.from {
			addresses = append(addresses, n.GetAddress())
		}
	}
	var failures []error
	for _, address := range addresses {
		m, err := c.mapFrom(ctx, address)
		if err == nil {
			c.m, c.from = m, address
			return nil
		}
		failures = append(failures, fmt.Errorf("%s: %w", address, err))
	}
	return fmt.Errorf("no metadata node answers: %w", errors.Join(failures...))
}

// admin asks the node that gave the map.
func (c *Cluster) admin(ctx context.Context, do func(context.Context, canopyv1.AdminClient) error) error {
	return c.call(ctx, c.from, c.opts.Timeout, func(ctx context.Context, conn *grpc.ClientConn) error {
		return do(ctx, canopyv1.NewAdminClient(conn))
	})
}

// CreateShard makes a shard; its nodes start it afterwards.
func (c *Cluster) CreateShard(ctx context.Context, request *canopyv1.CreateShardRequest) (info *canopyv1.ShardInfo, err error) {
	err = c.admin(ctx, func(ctx context.Context, a canopyv1.AdminClient) error {
		r, err := a.CreateShard(ctx, request)
		info = r.GetInfo()
		return err
	})
	return info, err
}

// ChangeReplicas asks for other replicas of a shard, and returns what is to be.
func (c *Cluster) ChangeReplicas(ctx context.Context, request *canopyv1.ChangeReplicasRequest) (info *canopyv1.ShardInfo, err error) {
	if c.ShardInfo(base.ShardID(request.GetShard())) == nil {
		return nil, c.UnknownShard(base.ShardID(request.GetShard()))
	}
	err = c.admin(ctx, func(ctx context.Context, a canopyv1.AdminClient) error {
		r, err := a.ChangeReplicas(ctx, request)
		info = r.GetInfo()
		return err
	})
	return info, err
}

// RemoveNode forgets a node that has no replicas. Another node is asked: the one that
// is removed stops when it hears of it, perhaps before it has answered.
func (c *Cluster) RemoveNode(ctx context.Context, node base.NodeID) error {
	for _, n := range c.m.GetNodes() {
		removed := base.NodeID(n.GetNode()) == node
		if !removed && n.GetAlive() && n.GetAddress() != "" {
			c.from = n.GetAddress()
			break
		}
	}
	return c.admin(ctx, func(ctx context.Context, a canopyv1.AdminClient) error {
		_, err := a.RemoveNode(ctx, &canopyv1.RemoveNodeRequest{Node: uint64(node)})
		return err
	})
}
