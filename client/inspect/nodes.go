package inspect

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

const (
	// concurrentCalls bounds the nodes that are asked at the same time.
	concurrentCalls = 16
	// checksumTimeout is how long a replica may take to reach the index and read
	// its range; an fsck may take as long as it likes if it sends something.
	checksumTimeout = 2 * time.Minute
	fsckTimeout     = time.Hour
	drainTimeout    = time.Minute
)

// NodeReport is what one node said of itself and its replicas, or why not.
type NodeReport struct {
	Info   *canopyv1.NodeInfo
	Status *canopyv1.StatusResponse
	Shards []*canopyv1.ShardStatus
	Err    error
}

// Nodes asks every node of the map for its state. The order is that of node ids.
func (c *Cluster) Nodes(ctx context.Context) []*NodeReport {
	var all []*NodeReport
	var g errgroup.Group
	g.SetLimit(concurrentCalls)
	for _, n := range c.m.GetNodes() {
		r := &NodeReport{Info: n}
		all = append(all, r)
		g.Go(func() error { c.askNode(ctx, r); return nil })
	}
	_ = g.Wait() // failures are in the reports
	sort.Slice(all, func(i, k int) bool { return all[i].Info.GetNode() < all[k].Info.GetNode() })
	return all
}

func (c *Cluster) askNode(ctx context.Context, r *NodeReport) {
	r.Err = c.call(ctx, r.Info.GetAddress(), c.opts.Timeout, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		if r.Status, err = canopyv1.NewClusterClient(conn).Status(ctx, &canopyv1.StatusRequest{}); err != nil {
			return err
		}
		s, err := canopyv1.NewAdminClient(conn).ShardStatus(ctx, &canopyv1.ShardStatusRequest{})
		r.Shards = s.GetShards()
		return err
	})
}

// Candidates returns the nodes of a shard, the most likely holder first. reports
// may be nil: then the map's hint counts.
func (c *Cluster) Candidates(shard base.ShardID, reports []*NodeReport) []base.NodeID {
	info := c.ShardInfo(shard)
	if info == nil {
		return nil
	}
	score := map[base.NodeID]int{}
	for _, r := range info.GetReplicas() {
		score[base.NodeID(r.GetNode())] = 1
	}
	if h := base.NodeID(info.GetHolderNode()); score[h] > 0 {
		score[h] += 2
	}
	for _, r := range reports {
		for _, s := range r.Shards {
			node := base.NodeID(r.Info.GetNode())
			if s.GetShard() != uint64(shard) || score[node] == 0 {
				continue
			}
			if s.GetLeader() {
				score[node] += 4
			}
			if s.GetHolder() {
				score[node] += 8
			}
		}
	}
	var nodes []base.NodeID
	for n := range score {
		nodes = append(nodes, n)
	}
	sort.Slice(nodes, func(i, k int) bool {
		a, b := nodes[i], nodes[k]
		return score[a] > score[b] || score[a] == score[b] && a < b
	})
	return nodes
}

// onHolder runs do at the shard's nodes in turn until one is the holder.
func (c *Cluster) onHolder(ctx context.Context, shard base.ShardID, timeout time.Duration, do func(context.Context, canopyv1.AdminClient) error) error {
	if c.ShardInfo(shard) == nil {
		return c.UnknownShard(shard)
	}
	var failures []error
	for _, node := range c.Candidates(shard, nil) {
		err := c.call(ctx, c.NodeInfo(node).GetAddress(), timeout, func(ctx context.Context, conn *grpc.ClientConn) error {
			return do(ctx, canopyv1.NewAdminClient(conn))
		})
		if err == nil {
			return nil
		}
		failures = append(failures, fmt.Errorf("node %v: %w", node, err))
		if k := fserr.KindOf(err); k != fserr.NotHolder && k != fserr.NotReady && k != fserr.UnknownShard && k != fserr.TimedOut {
			break // the holder refused it
		}
	}
	return fmt.Errorf("shard %v: no holder answers: %w", shard, errors.Join(failures...))
}

// UnknownShard is the error for a shard that the map does not have.
func (c *Cluster) UnknownShard(shard base.ShardID) error {
	return fmt.Errorf("there is no shard %v: the cluster has %d (mdsctl shard ls)", shard, len(c.m.GetShards()))
}

// Sessions returns the sessions at a shard, from its holder.
func (c *Cluster) Sessions(ctx context.Context, shard base.ShardID) (sessions []*canopyv1.SessionInfo, err error) {
	err = c.onHolder(ctx, shard, c.opts.Timeout, func(ctx context.Context, a canopyv1.AdminClient) error {
		r, err := a.ListSessions(ctx, &canopyv1.ListSessionsRequest{Shard: uint64(shard)})
		sessions = r.GetSessions()
		return err
	})
	return sessions, err
}

// ReplicaSum is one replica's checksum, or why there is none.
type ReplicaSum struct {
	Replica base.ReplicaID
	Node    base.NodeID
	Answer  *canopyv1.ReplicaChecksumResponse
	Err     error
}

// Checksum has the shard's holder propose a checksum and asks every replica
// for what it computed at that point of the log.
func (c *Cluster) Checksum(ctx context.Context, shard base.ShardID) (index uint64, sums []*ReplicaSum, err error) {
	var token uint64
	err = c.onHolder(ctx, shard, checksumTimeout, func(ctx context.Context, a canopyv1.AdminClient) error {
		r, err := a.Checksum(ctx, &canopyv1.ChecksumRequest{Shard: uint64(shard)})
		if err == nil {
			err = kindError(r.GetError(), r.GetDetail())
		}
		token, index = r.GetToken(), r.GetIndex()
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	var g errgroup.Group
	g.SetLimit(concurrentCalls)
	for _, r := range c.ShardInfo(shard).GetReplicas() {
		sum := &ReplicaSum{Replica: base.ReplicaID(r.GetReplica()), Node: base.NodeID(r.GetNode())}
		sums = append(sums, sum)
		g.Go(func() error { c.replicaSum(ctx, shard, token, sum); return nil })
	}
	_ = g.Wait() // failures are in the sums
	sort.Slice(sums, func(i, k int) bool { return sums[i].Replica < sums[k].Replica })
	return index, sums, nil
}

func (c *Cluster) replicaSum(ctx context.Context, shard base.ShardID, token uint64, sum *ReplicaSum) {
	sum.Err = c.call(ctx, c.NodeInfo(sum.Node).GetAddress(), checksumTimeout, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		req := &canopyv1.ReplicaChecksumRequest{Shard: uint64(shard), Token: token}
		if sum.Answer, err = canopyv1.NewAdminClient(conn).ReplicaChecksum(ctx, req); err != nil {
			return err
		}
		return kindError(sum.Answer.GetError(), sum.Answer.GetDetail())
	})
}

// Drain has a node hand over the shards that it holds; with stop = true its
// process ends.
func (c *Cluster) Drain(ctx context.Context, node base.NodeID, stop bool) error {
	return c.call(ctx, c.NodeInfo(node).GetAddress(), drainTimeout, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := canopyv1.NewAdminClient(conn).Drain(ctx, &canopyv1.DrainRequest{Stop: stop})
		return err
	})
}

// MoveLease has a shard's holder hand it to another node.
func (c *Cluster) MoveLease(ctx context.Context, shard base.ShardID, node base.NodeID) error {
	var refused error
	err := c.onHolder(ctx, shard, drainTimeout, func(ctx context.Context, a canopyv1.AdminClient) error {
		_, err := a.MoveLease(ctx, &canopyv1.MoveLeaseRequest{Shard: uint64(shard), Node: uint64(node)})
		if fserr.KindOf(err) == fserr.Invalid { // in the holder's words
			refused = plain(err)
			return nil
		}
		return err
	})
	return errors.Join(err, refused)
}

// Resume lets a drained node hold shards again.
func (c *Cluster) Resume(ctx context.Context, node base.NodeID) error {
	return c.call(ctx, c.NodeInfo(node).GetAddress(), c.opts.Timeout, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := canopyv1.NewAdminClient(conn).Resume(ctx, &canopyv1.ResumeRequest{})
		return err
	})
}
