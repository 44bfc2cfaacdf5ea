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
}

// publishHolder puts a new holder and its subtrees into the map, in the
// background: while etcd is away shards run on, and clients find the holder by
// redirects.
func (s *Server) publishHolder(h *hosted, epoch base.LeaseEpoch, routes []*canopyv1.SubtreeRoute) {
	h.mu.Lock()
	h.news = news{epoch, routes}
	h.mu.Unlock()
	select {
	case s.publish <- struct{}{}:
	default:
	}
}

// publishRoute puts one more subtree of a shard that this node holds into the map.
func (s *Server) publishRoute(h *hosted, epoch base.LeaseEpoch, route *canopyv1.SubtreeRoute) {
	h.mu.Lock()
	h.news = news{epoch, append(slices.Clone(h.news.routes), route)}
	h.mu.Unlock()
	select {
	case s.publish <- struct{}{}:
	default:
	}
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
		if h.news.epoch == n.epoch && len(h.news.routes) == len(n.routes) { // else more came meanwhile
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
	return nil
}
