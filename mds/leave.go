package mds

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// leaveTimeout bounds one attempt to end a replica.
const leaveTimeout = 5 * time.Second

// leaveUnwanted ends the replicas that run here and that the map does not name
// any more; false: one still has to stay, and is to be looked at again.
func (s *Server) leaveUnwanted(ctx context.Context) bool {
	all := true
	for _, h := range s.allHosted() {
		info := s.place.Map().Shard(h.shard)
		if info == nil || len(info.Replicas) == 0 || names(info, s.Node(), h.group.Replica()) {
			continue
		}
		if !h.leaving.Swap(true) {
			s.log.Info("the map takes a replica away", "shard", h.shard, "replica", h.group.Replica())
		}
		gone, err := s.leave(ctx, h, info)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("a replica that was taken away could not be ended; trying again", "shard", h.shard, "replica", h.group.Replica(), "error", err)
		}
		all = all && gone
	}
	return all
}

func names(info *canopyv1.ShardInfo, node base.NodeID, replica base.ReplicaID) bool {
	r := replicaOn(info, node)
	return r != nil && base.ReplicaID(r.Replica) == replica
}

// leave does what can be done now to end a replica for good: the lease goes to
// another replica, its holder takes this one out of the membership (reconcile),
// and only then the log and the state go. Until then the shard may need them: it
// may be the only replica that has everything.
func (s *Server) leave(ctx context.Context, h *hosted, info *canopyv1.ShardInfo) (gone bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	status := h.group.Status()
	if status.Self || status.LeaderID == status.Replica {
		for _, r := range info.Replicas {
			if _, in := status.Members[base.ReplicaID(r.Replica)]; !in {
				// As the holder this node still has to give it a vote.
				return false, h.group.Read(ctx, func(shard.Reader) error { return nil })
			}
		}
		err := h.group.Release(ctx)
		if h.group.Status().LeaderID == status.Replica {
			h.group.Resume() // nobody took over: better served from here
		}
		return false, err
	}
	members, err := s.membersAtHolder(ctx, info)
	if err != nil || len(members) == 0 || slices.Contains(members, uint64(h.group.Replica())) {
		return false, err
	}
	h.cancel()
	<-h.done
	s.mu.Lock()
	delete(s.hosted, h.shard)
	s.mu.Unlock()
	if err := s.host.Remove(ctx, h.shard); err != nil {
		// It has stopped; what it leaves is wiped before another replica starts here.
		s.log.Warn("a replica that has left is stopped, but not all of it could be removed", "shard", h.shard, "error", err)
		return true, nil
	}
	s.log.Info("a replica has left and was removed", "shard", h.shard, "replica", h.group.Replica())
	return true, nil
}

// membersAtHolder asks the nodes that the map names for who the shard's replicas
// are by its holder; none: nobody holds it now. (What this replica knows of the holder
// ends with its membership: it can be a node that is long gone.)
func (s *Server) membersAtHolder(ctx context.Context, info *canopyv1.ShardInfo) (members []uint64, err error) {
	for _, r := range info.Replicas {
		n := s.place.Map().Node(base.NodeID(r.Node))
		if n == nil || !n.Alive || base.NodeID(r.Node) == s.Node() {
			continue
		}
		at, askErr := s.askShard(ctx, n.Address, base.ShardID(info.Shard))
		if at.GetHolder() {
			return at.Members, nil
		}
		if fserr.KindOf(askErr) != fserr.UnknownShard { // that node has not started its replica yet
			err = errors.Join(err, askErr)
		}
	}
	return nil, err
}

// askShard asks a node for the state of its replica of a shard.
func (s *Server) askShard(ctx context.Context, address string, id base.ShardID) (*canopyv1.ShardStatus, error) {
	conn, err := grpc.NewClient(address, append(wire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx = wire.Caller{Cluster: s.cluster}.Context(ctx)
	answer, err := canopyv1.NewAdminClient(conn).ShardStatus(ctx, &canopyv1.ShardStatusRequest{Shard: uint64(id)})
	if err != nil || len(answer.Shards) == 0 {
		return nil, err
	}
	return answer.Shards[0], nil
}
