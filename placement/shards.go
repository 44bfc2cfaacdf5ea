package placement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Bootstrap says how a new cluster begins.
type Bootstrap struct {
	Nodes    int // wait for so many registered nodes
	Replicas int // of each shard: 1, 3 or 5, at most Nodes
	Shards   int
}

// Validate tells what is wrong with the settings.
func (b Bootstrap) Validate() error {
	switch {
	case b.Nodes < 1:
		return errors.New("bootstrap: the number of nodes must be at least 1")
	case b.Replicas != 1 && b.Replicas != 3 && b.Replicas != 5:
		return fmt.Errorf("bootstrap: %d replicas: a shard has 1, 3 or 5", b.Replicas)
	case b.Replicas > b.Nodes:
		return fmt.Errorf("bootstrap: %d replicas need as many nodes, but the cluster starts with %d", b.Replicas, b.Nodes)
	case b.Shards < 1 || b.Shards > int(base.MaxShard):
		return fmt.Errorf("bootstrap: %d shards: at least 1, at most %d", b.Shards, uint64(base.MaxShard))
	}
	return nil
}

// EnsureShards returns when the cluster has its shard table. If nobody wrote it
// yet, it waits until enough nodes are registered and alive and writes it,
// replicas spread over failure domains. Whoever comes first wins; the others' settings are
// ignored.
func (s *Store) EnsureShards(ctx context.Context, b Bootstrap) error {
	if err := b.Validate(); err != nil {
		return err
	}
	changes, cancel := s.Subscribe()
	defer cancel()
	wait := newBackoff()
	for {
		if len(s.Map().Shards()) > 0 {
			return nil
		}
		if nodes := aliveNodes(s.Map()); len(nodes) >= b.Nodes {
			err := s.writeShards(ctx, b, nodes[:b.Nodes])
			if err == nil {
				return nil
			}
			if !errors.Is(err, ErrConflict) {
				s.log.Warn("the shard table could not be written; trying again", "error", err)
			}
			if !wait.sleep(ctx) {
				return ctx.Err()
			}
			if err := s.Sync(ctx); err != nil && ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changes:
		}
	}
}

func aliveNodes(m *Map) []*canopyv1.NodeInfo {
	var out []*canopyv1.NodeInfo
	for _, n := range m.Nodes() {
		if n.Alive {
			out = append(out, n)
		}
	}
	return out
}

// writeShards writes the whole table in one transaction, guarded by a marker that
// only one writer can create.
func (s *Store) writeShards(ctx context.Context, b Bootstrap, nodes []*canopyv1.NodeInfo) error {
	const op = "write the shard table"
	slices.SortFunc(nodes, func(a, b *canopyv1.NodeInfo) int { return cmp.Compare(a.Node, b.Node) })
	if b.Shards > maxTxnWrites {
		return fserr.New(fserr.Invalid, op, fmt.Errorf("%d shards at the start: at most %d", b.Shards, maxTxnWrites))
	}
	marker := s.key("bootstrap")
	writes := []write{{marker, &canopyv1.PlacementMap{Nodes: nodes}}}
	places, err := spread(b, nodes)
	if err != nil {
		return err
	}
	for i, on := range places {
		info := newShard(base.ShardID(i+1), on)
		writes = append(writes, write{s.key("shards", idString(info.Shard)), info})
	}
	_, err = s.commit(ctx, op, []clientv3.Cmp{at(marker, 0)}, writes...)
	return err
}

// newShard is the record of a shard that begins with replicas 1, 2, ... on nodes.
func newShard(id base.ShardID, nodes []base.NodeID) *canopyv1.ShardInfo {
	info := &canopyv1.ShardInfo{Shard: uint64(id), NextReplica: uint64(len(nodes)) + 1}
	for i, node := range nodes {
		info.Replicas = append(info.Replicas, &canopyv1.ReplicaInfo{Replica: uint64(i + 1), Node: uint64(node)})
		info.Initial = append(info.Initial, &canopyv1.ReplicaInfo{Replica: uint64(i + 1), Node: uint64(node)})
	}
	return info
}

// AddShard makes a shard with replicas on nodes, under an id that no shard had
// (PROTOCOLS A7).
func (s *Store) AddShard(ctx context.Context, nodes []base.NodeID) (*canopyv1.ShardInfo, error) {
	const op = "make a shard"
	for {
		id, err := s.AllocateID(ctx, "shard")
		if err != nil {
			return nil, err
		}
		if id > uint64(base.MaxShard) {
			return nil, fserr.New(fserr.Invalid, op, fmt.Errorf("all %d shard ids are used up", uint64(base.MaxShard)))
		}
		info := newShard(base.ShardID(id), nodes)
		key := s.key("shards", idString(id))
		// The shards of the cluster's start did not take their ids from there.
		_, err = s.commit(ctx, op, append(s.onNodes(info), at(key, 0)), write{key, info}, s.guard())
		if !errors.Is(err, ErrConflict) {
			return info, err
		}
		if err := s.Sync(ctx); err != nil {
			return nil, err
		}
		for _, node := range nodes { // gone meanwhile, or only the id was taken
			if s.Map().Node(node) == nil {
				return nil, fserr.New(fserr.NotFound, op, fmt.Errorf("there is no node %v", node))
			}
		}
	}
}

// replicaGuard is a record that every change of a shard's replicas writes.
const replicaGuard = "replica-guard"

func (s *Store) guard() write { return write{s.key(replicaGuard), &canopyv1.PlacementMap{}} }

// onNodes are the conditions that the nodes of a shard's replicas are there.
func (s *Store) onNodes(info *canopyv1.ShardInfo) []clientv3.Cmp {
	var all []clientv3.Cmp
	for _, r := range info.Replicas {
		all = append(all, clientv3.Compare(clientv3.CreateRevision(s.key("nodes", idString(r.Node))), ">", 0))
	}
	return all
}

// PutShard changes a shard's replicas if its record is at revision have. Replica
// ids are taken from next_replica and never re-used (PROTOCOLS A6).
func (s *Store) PutShard(ctx context.Context, info *canopyv1.ShardInfo, have Revision) (Revision, error) {
	info = WithoutHints(info)
	key := s.key("shards", idString(info.Shard))
	return s.commit(ctx, "change a shard", append(s.onNodes(info), at(key, have)), write{key, info}, s.guard())
}

// WithoutHints returns a copy of what a shard's record holds.
func WithoutHints(info *canopyv1.ShardInfo) *canopyv1.ShardInfo {
	info = proto.CloneOf(info)
	info.HolderNode, info.LeaseEpoch = 0, 0
	return info
}

// GetShard reads a shard's record with its revision.
func (s *Store) GetShard(ctx context.Context, id base.ShardID) (*canopyv1.ShardInfo, Revision, error) {
	info := new(canopyv1.ShardInfo)
	revision, err := s.get(ctx, "read a shard", s.key("shards", idString(uint64(id))), info)
	if err == nil && revision == 0 {
		err = fserr.New(fserr.UnknownShard, "read shard "+id.String(), nil)
	}
	return info, revision, err
}

// PutRoute publishes that a shard owns a subtree. It writes only over a smaller
// epoch (PROTOCOLS E8), and tells whether it wrote; not writing is no error.
func (s *Store) PutRoute(ctx context.Context, route *canopyv1.SubtreeRoute) (bool, error) {
	key := s.key("routes", idString(route.Subtree))
	have := new(canopyv1.SubtreeRoute)
	return s.putIfNewer(ctx, "publish a route", key, route, have, func() bool { return have.Epoch < route.Epoch })
}

// DeleteRoute takes back the route of a subtree that is no more, unless another shard
// has published one (PROTOCOLS E8).
func (s *Store) DeleteRoute(ctx context.Context, subtree base.SubtreeID, shard base.ShardID) error {
	const op = "take back a route"
	key := s.key("routes", idString(uint64(subtree)))
	wait := newBackoff()
	for {
		have := new(canopyv1.SubtreeRoute)
		revision, err := s.get(ctx, op, key, have)
		if err != nil || revision == 0 || base.ShardID(have.Shard) != shard {
			return err
		}
		var answer *clientv3.TxnResponse
		err = s.request(ctx, op, func(ctx context.Context) (err error) {
			answer, err = s.client.Txn(ctx).If(at(key, revision)).Then(clientv3.OpDelete(key)).Commit()
			return err
		})
		switch {
		case err != nil:
			return err
		case answer.Succeeded:
			return nil
		case !wait.sleep(ctx):
			return ctx.Err()
		}
	}
}

// PutHolder publishes who holds a shard's lease, a hint: only over a smaller
// lease epoch.
func (s *Store) PutHolder(ctx context.Context, shard base.ShardID, node base.NodeID, epoch base.LeaseEpoch) (bool, error) {
	key := s.key("holders", idString(uint64(shard)))
	hint := &canopyv1.ShardInfo{Shard: uint64(shard), HolderNode: uint64(node), LeaseEpoch: uint64(epoch)}
	have := new(canopyv1.ShardInfo)
	return s.putIfNewer(ctx, "publish a holder", key, hint, have, func() bool { return have.LeaseEpoch < hint.LeaseEpoch })
}

// putIfNewer writes message unless the record, read into have, is not older.
func (s *Store) putIfNewer(ctx context.Context, op, key string, message, have proto.Message, newer func() bool) (bool, error) {
	wait := newBackoff()
	for {
		proto.Reset(have)
		revision, err := s.get(ctx, op, key, have)
		if err != nil {
			return false, err
		}
		if revision != 0 && !newer() {
			return false, nil
		}
		if _, err = s.commit(ctx, op, []clientv3.Cmp{at(key, revision)}, write{key, message}); err == nil {
			return true, nil
		}
		if !errors.Is(err, ErrConflict) || !wait.sleep(ctx) {
			return false, err
		}
	}
}
