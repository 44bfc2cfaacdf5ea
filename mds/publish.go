package mds

import (
	"context"
	"slices"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// news is what a holder wants to tell the placement map.
type news struct {
	epoch  base.LeaseEpoch // 0: nothing
	routes []*canopyv1.SubtreeRoute
	gone   []base.SubtreeID // that are no more
}

// publishHolder puts a new holder and its subtrees into the map, in the
// background: while etcd is away shards run on, and clients find the holder by
// redirects.
func (s *Server) publishHolder(h *hosted, epoch base.LeaseEpoch, routes []*canopyv1.SubtreeRoute, gone []base.SubtreeID) {
	h.mu.Lock()
	h.news = news{epoch, routes, gone}
	h.mu.Unlock()
	s.pokePublish()
}

func (s *Server) pokePublish() {
	select {
	case s.publish <- struct{}{}:
	default:
	}
}

// publishRoute puts one more subtree of a shard that this node holds into the map.
func (s *Server) publishRoute(h *hosted, epoch base.LeaseEpoch, route *canopyv1.SubtreeRoute) {
	h.mu.Lock()
	h.news = news{epoch, append(slices.Clone(h.news.routes), route), h.news.gone}
	h.mu.Unlock()
	s.pokePublish()
}

// unpublishRoute takes the route of a subtree that is no more out of the map.
func (s *Server) unpublishRoute(h *hosted, epoch base.LeaseEpoch, subtree base.SubtreeID) {
	h.mu.Lock()
	h.news = news{epoch, h.news.routes, append(slices.Clone(h.news.gone), subtree)}
	h.mu.Unlock()
	s.pokePublish()
}

// publishLoop writes what waits, again and again while etcd is away.
func (s *Server) publishLoop(ctx context.Context) {
	wait := retry{next: 100 * time.Millisecond, limit: 5 * time.Second}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.publish:
		}
		for !s.publishAll(ctx) {
			if !wait.sleep(ctx) {
				return
			}
		}
		wait.next = 100 * time.Millisecond
	}
}

// publishAll writes what all shards have to tell; false: something failed.
func (s *Server) publishAll(ctx context.Context) bool {
	all := true
	for _, h := range s.allHosted() {
		h.mu.Lock()
		n := h.news
		h.mu.Unlock()
		if n.epoch == 0 {
			continue
		}
		if err := s.publishOne(ctx, h.shard, n); err != nil {
			if ctx.Err() == nil {
				s.log.Debug("the placement map could not be updated; trying again", "shard", h.shard, "error", err)
			}
			all = false
			continue
		}
		h.mu.Lock()
		if h.news.epoch == n.epoch && len(h.news.routes) == len(n.routes) && len(h.news.gone) == len(n.gone) { // else more came meanwhile
			h.news = news{}
		}
		h.mu.Unlock()
	}
	return all
}

// publishOne writes one shard's news, without what the map says already. Routes
// go in only under a larger epoch (PROTOCOLS E8).
func (s *Server) publishOne(ctx context.Context, id base.ShardID, n news) error {
	m := s.place.Map()
	if info := m.Shard(id); base.NodeID(info.GetHolderNode()) != s.Node() {
		if _, err := s.place.PutHolder(ctx, id, s.Node(), n.epoch); err != nil {
			return err
		}
	}
	for _, route := range n.routes {
		if have := m.Route(base.SubtreeID(route.Subtree)); have.GetEpoch() >= route.Epoch {
			continue
		}
		if _, err := s.place.PutRoute(ctx, route); err != nil {
			return err
		}
	}
	for _, subtree := range n.gone {
		if err := s.place.DeleteRoute(ctx, subtree, id); err != nil {
			return err
		}
	}
	return nil
}

// published returns the subtrees that the map has at a shard.
func (s *Server) published(id base.ShardID) (all []base.SubtreeID) {
	for _, r := range s.place.Map().Message().Subtrees {
		if base.ShardID(r.Shard) == id {
			all = append(all, base.SubtreeID(r.Subtree))
		}
	}
	return all
}
