package placement

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// EnsureCluster returns the cluster's id, after creating it if the prefix has
// none yet. A cluster of a newer format is refused.
func (s *Store) EnsureCluster(ctx context.Context) (string, error) {
	const op = "read the cluster id"
	key := s.key("cluster")
	for {
		var have canopyv1.PlacementMap
		revision, err := s.get(ctx, op, key, &have)
		if err != nil {
			return "", err
		}
		if revision != 0 {
			if have.Format > Format {
				return "", fserr.New(fserr.NotSupported, op, fmt.Errorf("the cluster's format is %d, this program knows up to %d: run a newer release", have.Format, Format))
			}
			return have.Cluster, nil
		}
		id := make([]byte, 8)
		rand.Read(id)
		created := &canopyv1.PlacementMap{Cluster: hex.EncodeToString(id), Format: Format}
		if _, err := s.commit(ctx, "create the cluster", []clientv3.Cmp{at(key, 0)}, write{key, created}); err != nil && !errors.Is(err, ErrConflict) {
			return "", err
		}
	}
}

// ErrAmnesia says that a state directory is older than what the cluster saw of
// it: it was restored from a copy, or is used twice (PROTOCOLS A6).
var ErrAmnesia = errors.New("the state directory is older than what the cluster saw of it")

// ErrRemoved says that a node was removed from the cluster: its id is not used
// again (PROTOCOLS A7).
var ErrRemoved = errors.New("the node was removed from the cluster: start it with an empty data directory, and it gets a new id")

// RemoveNode forgets a node for ever, unless some shard names it.
func (s *Store) RemoveNode(ctx context.Context, id base.NodeID) error {
	const op = "remove a node"
	key := s.key("nodes", idString(uint64(id)))
	wait := newBackoff()
	for {
		// A shard may be given a replica there just now: whoever does that writes the
		// guard, and finds the node gone afterwards (onNodes).
		guard, err := s.get(ctx, op, s.key(replicaGuard), new(canopyv1.PlacementMap))
		if err != nil {
			return err
		}
		if err := s.Sync(ctx); err != nil {
			return err
		}
		for _, info := range s.Map().Shards() {
			for _, r := range info.Replicas {
				if r.Node == uint64(id) {
					return fserr.New(fserr.Invalid, op, fmt.Errorf("node %v has replica %d of shard %d: move it first (mdsctl node drain %v)", id, r.Replica, info.Shard, id))
				}
			}
		}
		node := new(canopyv1.NodeInfo)
		revision, err := s.get(ctx, op, key, node)
		if err != nil {
			return err
		}
		if revision == 0 {
			return fserr.New(fserr.NotFound, op, fmt.Errorf("there is no node %v", id))
		}
		conditions := []clientv3.Cmp{at(key, revision), at(s.key(replicaGuard), guard)}
		err = s.bury(ctx, op, conditions, key, s.key("removed", idString(uint64(id))), node)
		if !errors.Is(err, ErrConflict) || !wait.sleep(ctx) {
			return err
		}
	}
}

// bury deletes a record and writes another in one transaction.
func (s *Store) bury(ctx context.Context, op string, conditions []clientv3.Cmp, key, grave string, message proto.Message) error {
	var answer *clientv3.TxnResponse
	err := s.request(ctx, op, func(ctx context.Context) (err error) {
		answer, err = s.client.Txn(ctx).If(conditions...).
			Then(clientv3.OpDelete(key), clientv3.OpPut(grave, string(encode(message)))).Commit()
		return err
	})
	if err != nil {
		return err
	}
	if !answer.Succeeded {
		return fmt.Errorf("%s: %w", op, ErrConflict)
	}
	return s.Sync(ctx)
}

// ClaimNode registers a start of the node info.Node (PROTOCOLS A6). stored is the
// incarnation that the state directory holds from its last start, 0 for a new
// one. If etcd saw a newer one the start is refused with ErrAmnesia and nothing
// is changed. Otherwise persist must put stored+1 on disk, durably, before
// ClaimNode publishes it by compare-and-set, so that a crash between leaves the
// disk ahead, which is harmless. It sets info.Incarnation.
func (s *Store) ClaimNode(ctx context.Context, info *canopyv1.NodeInfo, stored uint64, persist func(incarnation uint64) error) error {
	const op = "register the node"
	key := s.key("nodes", idString(info.Node))
	var have canopyv1.NodeInfo
	revision, err := s.get(ctx, op, key, &have)
	if err != nil {
		return err
	}
	removed, err := s.get(ctx, op, s.key("removed", idString(info.Node)), new(canopyv1.NodeInfo))
	if err != nil {
		return err
	}
	if removed != 0 {
		return fmt.Errorf("node %d: %w", info.Node, ErrRemoved)
	}
	if have.Incarnation > stored {
		return fmt.Errorf("node %d: incarnation %d on disk, %d in the cluster: %w", info.Node, stored, have.Incarnation, ErrAmnesia)
	}
	info.Incarnation = stored + 1
	info.Alive = false
	if err := persist(info.Incarnation); err != nil {
		return err
	}
	wait := newBackoff()
	for {
		if _, err = s.commit(ctx, op, []clientv3.Cmp{at(key, revision)}, write{key, info}); err == nil {
			return nil
		}
		// Not written, or written with the answer lost: look.
		if !wait.sleep(ctx) {
			return err
		}
		have = canopyv1.NodeInfo{}
		now, readErr := s.get(ctx, op, key, &have)
		switch {
		case readErr != nil:
			return errors.Join(err, readErr)
		case proto.Equal(&have, info):
			return nil
		case now != revision:
			return fmt.Errorf("node %d: another process (pid %d on %s) started as this node just now: %w", info.Node, have.Pid, have.Host, ErrAmnesia)
		}
	}
}

// KeepNodeAlive makes the node appear as alive until the registration is closed.
func (s *Store) KeepNodeAlive(info *canopyv1.NodeInfo) *Registration {
	return s.register(s.key("live", "nodes", idString(info.Node)), aliveRecord(info, false, false))
}

// TellNode changes what the map says of a node that is kept alive.
func (r *Registration) TellNode(info *canopyv1.NodeInfo, diskFull, drained bool) {
	r.Update(aliveRecord(info, diskFull, drained))
}

// aliveRecord is what stands under a node's lease.
func aliveRecord(info *canopyv1.NodeInfo, diskFull, drained bool) *canopyv1.NodeInfo {
	return &canopyv1.NodeInfo{Node: info.Node, Incarnation: info.Incarnation, DiskFull: diskFull, Drained: drained}
}

// AllocateNode returns a fresh node id.
func (s *Store) AllocateNode(ctx context.Context) (base.NodeID, error) {
	id, err := s.AllocateID(ctx, "node")
	return base.NodeID(id), err
}

// RegisterService announces a running service until the registration is closed.
func (s *Store) RegisterService(info *canopyv1.ServiceInfo) *Registration {
	return s.register(s.key("services", info.Kind, idString(info.Id)), info)
}
