package raftgroup

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/raftio"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// listener takes Dragonboat's events, which come one at a time.
type listener struct{ h *Host }

var _ raftio.IRaftEventListener = listener{}

// LeaderUpdated passes on who leads a shard.
func (l listener) LeaderUpdated(info raftio.LeaderInfo) {
	g := l.h.Group(base.ShardID(info.ShardID))
	if g != nil && uint64(g.cfg.Replica) == info.ReplicaID {
		g.leaderChanged(base.ReplicaID(info.LeaderID))
	}
}

// membership returns the Raft addresses of a shard's replicas as this host knows
// them, and the term.
func (h *Host) membership(id base.ShardID) (members map[base.ReplicaID]string, term uint64) {
	info := h.nh.GetNodeHostInfo(dragonboat.NodeHostInfoOption{SkipLogInfo: true})
	if info == nil {
		return nil, 0
	}
	for _, s := range info.ShardInfoList {
		if s.ShardID != uint64(id) {
			continue
		}
		members = make(map[base.ReplicaID]string, len(s.Replicas))
		for r, addr := range s.Replicas {
			members[base.ReplicaID(r)] = addr
		}
		return members, s.Term
	}
	return nil, 0
}

// explain makes one clear line of what Dragonboat says at the start.
func explain(err error, cfg Config) error {
	listen := cfg.ListenAddress
	if listen == "" {
		listen = cfg.RaftAddress
	}
	what := err.Error()
	say := func(format string, args ...any) error {
		return fserr.New(fserr.Invalid, "start raft", fmt.Errorf(format+": %w", append(args, err)...))
	}
	var op *net.OpError
	switch {
	case strings.Contains(what, "address already in use"), errors.As(err, &op):
		return say("cannot listen on %s", listen)
	case strings.Contains(what, "not the owner"):
		return say("the Raft log in %s was written under another address than %s", cfg.Dir, cfg.RaftAddress)
	case strings.Contains(what, "deployment"):
		return say("the Raft log in %s belongs to another cluster than %q", cfg.Dir, cfg.Cluster)
	}
	return fmt.Errorf("start raft in %s: %w", cfg.Dir, err)
}
