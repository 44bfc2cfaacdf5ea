package mds

import (
	"math/rand/v2"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// redirect says where a shard, or a subtree if it is named, should be asked for,
// as far as this node knows; nil if it knows nothing.
func (s *Server) redirect(id base.ShardID, subtree base.SubtreeID) *canopyv1.Redirect {
	m := s.place.Map()
	out := &canopyv1.Redirect{Shard: uint64(id), Subtree: uint64(subtree)}
	if subtree != 0 {
		if route := m.Route(subtree); route != nil {
			out.Shard, out.Epoch = route.Shard, route.Epoch
		}
	}
	info := m.Shard(base.ShardID(out.Shard))
	if info == nil {
		if out.Epoch == 0 {
			return nil
		}
		return out
	}
	node := base.NodeID(info.HolderNode)
	if h := s.lookup(base.ShardID(out.Shard)); h != nil {
		node, _, _ = h.group.Holder()
	}
	if node == 0 || node == s.Node() {
		node = s.anotherReplica(info)
	}
	if n := m.Node(node); n != nil {
		out.Node, out.Address = n.Node, n.Address
	}
	return out
}

// moved completes the redirect of a shard that does not own a subtree. What the
// shard says itself counts, if it knows: the map may be late.
func (s *Server) moved(known *canopyv1.Redirect, id base.ShardID, subtree base.SubtreeID) *canopyv1.Redirect {
	if known.GetSubtree() == 0 {
		known = &canopyv1.Redirect{Subtree: uint64(subtree)}
	}
	if route := s.place.Map().Route(base.SubtreeID(known.Subtree)); known.Shard == 0 || route.GetEpoch() > known.Epoch {
		// A forward says where a directory went when it was carved out: that subtree
		// can have moved on.
		known.Shard, known.Epoch = route.GetShard(), max(route.GetEpoch(), known.Epoch)
	}
	if h := s.lookup(id); known.Shard == 0 && h != nil {
		if t := h.tenure(); t != nil { // a fragment that is so new that the map has not heard of it
			known.Shard = uint64(t.moves.takes(base.SubtreeID(known.Subtree)))
		}
	}
	if known.Shard == 0 {
		return known
	}
	if n := s.place.Map().Node(s.holderNode(base.ShardID(known.Shard))); n != nil {
		known.Node, known.Address = n.Node, n.Address
	}
	return known
}

// holderNode returns the node that is believed to hold a shard, which can be this
// one; 0 if nothing is known.
func (s *Server) holderNode(id base.ShardID) base.NodeID {
	info := s.place.Map().Shard(id)
	if h := s.lookup(id); h != nil {
		if node, _, _ := h.group.Holder(); node != 0 {
			return node
		}
	}
	if info == nil || info.HolderNode != 0 {
		return base.NodeID(info.GetHolderNode())
	}
	return s.anotherReplica(info)
}

// anotherReplica picks a live node with a replica of the shard, not this one.
func (s *Server) anotherReplica(info *canopyv1.ShardInfo) base.NodeID {
	m := s.place.Map()
	var candidates []base.NodeID
	for _, r := range info.Replicas {
		if id := base.NodeID(r.Node); id != s.Node() && m.Node(id).GetAlive() {
			candidates = append(candidates, id)
		}
	}
	if len(candidates) == 0 {
		return 0
	}
	return candidates[rand.N(len(candidates))]
}

// refusal is the answer to an operation that was not executed, or whose outcome
// is not known.
func (s *Server) refusal(err error, id base.ShardID, subtree base.SubtreeID) *canopyv1.Result {
	kind := fserr.KindOf(err)
	result := &canopyv1.Result{Error: uint32(kind), Detail: err.Error()}
	switch kind {
	case fserr.NotHolder, fserr.UnknownShard:
		result.Redirect = s.redirect(id, 0)
	case fserr.Moved:
		result.Redirect = s.redirect(id, subtree)
	case fserr.Busy, fserr.NotReady:
		result.RetryAfterMs = retryAfterMS()
	}
	return result
}

// The time after which a refused client should come back.
const (
	retryAfterMin = 5 * time.Millisecond
	retryAfterMax = 50 * time.Millisecond
)

// retryAfterMS is spread so that those who were refused together do not come
// back together.
func retryAfterMS() uint32 {
	return uint32((retryAfterMin + rand.N(retryAfterMax-retryAfterMin)) / time.Millisecond)
}
