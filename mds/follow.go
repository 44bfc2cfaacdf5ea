package mds

import (
	"context"
	"errors"
	"fmt"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/namespace"
	"github.com/canopyfs/canopy/shard/raftgroup"
)

// followMap makes the shard table if this is a new cluster, starts the replicas
// that the map places here and ends those that it takes away, until ctx is done.
func (s *Server) followMap(ctx context.Context) {
	changes, cancel := s.place.Subscribe()
	defer cancel()
	wait := retry{next: 100 * time.Millisecond, limit: 2 * time.Second}
	for s.place.EnsureShards(ctx, s.config.Bootstrap) != nil {
		if !wait.sleep(ctx) {
			return
		}
	}
	for {
		if s.place.Map().Node(s.Node()) == nil {
			s.fail(errRemoved)
			return
		}
		left := s.leaveUnwanted(ctx)
		all := s.startWanted(ctx)
		s.noteReady(all)
		if all && left {
			select {
			case <-ctx.Done():
				return
			case <-changes:
			}
			continue
		}
		if !wait.sleep(ctx) {
			return
		}
	}
}

// noteReady closes ready once all replicas run and the root is routed.
func (s *Server) noteReady(all bool) {
	if !all || s.place.Map().Route(base.RootSubtree) == nil {
		return
	}
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
}

// startWanted starts the replicas of this node that do not run yet; false: one
// could not be started.
func (s *Server) startWanted(ctx context.Context) bool {
	all := true
	for _, info := range s.place.Map().Shards() {
		for _, r := range info.Replicas {
			if base.NodeID(r.Node) != s.Node() {
				continue
			}
			if h := s.lookup(base.ShardID(info.Shard)); h != nil {
				// An earlier replica of the shard has to leave first.
				all = all && h.group.Replica() == base.ReplicaID(r.Replica)
				continue
			}
			if err := s.startReplica(ctx, info, base.ReplicaID(r.Replica)); err != nil {
				if errors.Is(err, fserr.IO) {
					err = fmt.Errorf("%w; %s", err, s.dir.rebuildHint(s.Node()))
				}
				if ctx.Err() == nil && s.unsaid(base.ShardID(info.Shard), err) {
					s.log.Error("a replica could not be started; trying again", "shard", info.Shard, "replica", r.Replica, "error", err)
				}
				all = false
			}
		}
	}
	return all
}

// said is what was logged last about a replica that cannot be started.
type said struct {
	text  string
	until time.Time
}

// unsaid tells whether an error is to be logged: when it changed, and once a minute.
// Only followMap's goroutine calls it.
func (s *Server) unsaid(id base.ShardID, err error) bool {
	last, now := s.said[id], time.Now()
	if last.text == err.Error() && now.Before(last.until) {
		return false
	}
	s.said[id] = said{err.Error(), now.Add(time.Minute)}
	return true
}

// startReplica starts one replica: as one of those that the shard began with, or
// as one that joins.
func (s *Server) startReplica(ctx context.Context, info *canopyv1.ShardInfo, id base.ReplicaID) error {
	shardID := base.ShardID(info.Shard)
	machine := namespace.New(namespace.Config{Shard: shardID})
	rc := raftgroup.ReplicaConfig{Shard: shardID, Replica: id, Join: true, Machine: machine}
	for _, r := range info.Replicas {
		rc.Learner = rc.Learner || base.ReplicaID(r.Replica) == id && r.Learner
	}
	members := map[base.ReplicaID]raftgroup.Member{}
	m := s.place.Map()
	for _, r := range info.Initial {
		if base.ReplicaID(r.Replica) == id {
			rc.Join = false
		}
		if n := m.Node(base.NodeID(r.Node)); n != nil {
			members[base.ReplicaID(r.Replica)] = raftgroup.Member{Node: base.NodeID(n.Node), RaftAddress: n.RaftAddress}
		}
	}
	// Nodes of the beginning may be gone from the cluster. That matters only to a
	// replica that has not begun.
	if !rc.Join && len(members) < len(info.Initial) && !s.host.Knows(shardID, id) {
		return fmt.Errorf("shard %d began on nodes that are not registered: %v", info.Shard, info.Initial)
	}
	if !rc.Join {
		rc.Members = members
	}
	group, err := s.host.Start(ctx, rc)
	if err != nil {
		return err
	}
	h := &hosted{
		server: s, shard: shardID, machine: machine, group: group,
		metrics: s.metrics.ofShard(shardID), wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	run, cancel := context.WithCancel(s.run)
	h.cancel = cancel
	s.mu.Lock()
	s.hosted[shardID] = h
	s.mu.Unlock()
	s.tasks.Go(func() error { h.run(run); return nil })
	return nil
}
