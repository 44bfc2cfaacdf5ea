package reshape

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
)

// Targets returns the shards that take fragments, and which of them is the i-th one's
// if all have as many.
func (r *Ranger) Targets(ctx context.Context, home base.ShardID, to []base.ShardID) ([]base.ShardID, func(i int) base.ShardID, error) {
	for _, id := range to {
		if r.Cluster.ShardInfo(id) == nil {
			return nil, nil, r.Cluster.UnknownShard(id)
		}
	}
	if len(to) > 0 {
		return to, func(i int) base.ShardID { return to[(i-1)%len(to)] }, nil
	}
	var healthy []base.ShardID
	full := fullShards(r.Cluster.Nodes(ctx))
	first := errors.New("their disks are full")
	for _, s := range r.Cluster.Map().GetShards() {
		id := base.ShardID(s.GetShard())
		switch _, err := r.Cluster.Moves(ctx, id); { // asked so, an idle shard gets a holder
		case err != nil:
			first = err
		case !full[id]:
			healthy = append(healthy, id)
		}
	}
	if len(healthy) == 0 {
		return nil, nil, fmt.Errorf("no shard can take a fragment: see mdsctl status: %w", first)
	}
	slices.Sort(healthy)
	at := max(slices.Index(healthy, home), 0)
	return healthy, func(i int) base.ShardID { return healthy[(at+i)%len(healthy)] }, nil
}

// fullShards are those that are read-only.
func fullShards(reports []*inspect.NodeReport) map[base.ShardID]bool {
	full := map[base.ShardID]bool{}
	for _, r := range reports {
		for _, s := range r.Shards {
			if s.GetHolder() && s.GetReadOnly() != "" {
				full[base.ShardID(s.GetShard())] = true
			}
		}
	}
	return full
}
