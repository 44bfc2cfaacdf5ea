package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// ShardHeat is what the holder of a shard has counted, or why nobody tells.
type ShardHeat struct {
	Shard base.ShardID
	Heat  *canopyv1.ShardHeat // nil with Err
	Err   error
}

// Heat asks all nodes what keeps the shards busy that they hold: of each shard the limit
// most used directories and clients. The order is that of shards' ids. A node that does
// not answer costs its shards alone.
func (c *Cluster) Heat(ctx context.Context, halfLife time.Duration, limit int) []ShardHeat {
	request := &canopyv1.HeatRequest{HalfLifeSeconds: uint32(halfLife / time.Second), Limit: uint32(limit)}
	nodes := c.m.GetNodes()
	answers, errs := make([]*canopyv1.HeatResponse, len(nodes)), make([]error, len(nodes))
	var g errgroup.Group
	g.SetLimit(concurrentCalls)
	for i, n := range nodes {
		g.Go(func() error {
			errs[i] = c.call(ctx, n.GetAddress(), c.opts.Timeout, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
				answers[i], err = canopyv1.NewAdminClient(conn).Heat(ctx, request)
				return err
			})
			return nil
		})
	}
	_ = g.Wait() // failures are in errs
	latest, failed := map[uint64]*canopyv1.ShardHeat{}, map[uint64]error{}
	for i, n := range nodes {
		if errs[i] != nil {
			failed[n.GetNode()] = errs[i]
			continue
		}
		for _, s := range answers[i].GetShards() {
			if known := latest[s.GetShard()]; known.GetLeaseEpoch() <= s.GetLeaseEpoch() {
				latest[s.GetShard()] = s
			}
		}
	}
	var all []ShardHeat
	for _, info := range c.m.GetShards() {
		s := ShardHeat{Shard: base.ShardID(info.GetShard()), Heat: latest[info.GetShard()]}
		if s.Heat == nil {
			s.Err = noHeat(info, failed)
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b ShardHeat) int { return cmp.Compare(a.Shard, b.Shard) })
	return all
}

// noHeat says why nobody told of a shard.
func noHeat(info *canopyv1.ShardInfo, failed map[uint64]error) error {
	var why []error
	for _, r := range info.GetReplicas() {
		if err := failed[r.GetNode()]; err != nil {
			why = append(why, fmt.Errorf("node %d: %w", r.GetNode(), err))
		}
	}
	if len(why) == 0 {
		return errors.New("no node holds it now")
	}
	return fmt.Errorf("no holder answers: %w", errors.Join(why...))
}
