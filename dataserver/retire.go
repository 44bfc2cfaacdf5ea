package dataserver

import (
	"context"
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// retirement is the removal of what this server holds of a placement group that
// it is no member of any more.
type retirement struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// dismiss is told of every group of the map that this server is no member of.
// What it holds goes when the members that the map names are all in sync: until
// then it is one more copy, if an old one. The map is the leader's, and a server
// that becomes a member again is compared with the primary in any case.
func (s *server) dismiss(key groupKey, pg *canopyv1.PlacementGroup, replicas int) {
	s.mu.Lock()
	g := s.groups[key]
	held := s.held[key]
	_, under := s.retiring[key]
	s.mu.Unlock()
	if g != nil {
		g.adopt(pg)
	}
	if !held || under || len(pg.InSync) < replicas {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	r := &retirement{cancel: cancel, done: make(chan struct{})}
	s.mu.Lock()
	s.retiring[key] = r
	s.mu.Unlock()
	s.groupRuns.Go(func() {
		defer close(r.done)
		defer cancel()
		err := s.drop(ctx, key, g)
		s.mu.Lock()
		delete(s.retiring, key)
		if err == nil {
			delete(s.held, key)
		}
		s.mu.Unlock()
		switch {
		case err == nil:
			s.logger.Info("dropped a placement group that others hold now", "pool", key.pool, "pg", key.pg)
		case ctx.Err() == nil:
			s.logger.Warn("a placement group that others hold now could not be dropped", "pool", key.pool, "pg", key.pg, "error", err)
		}
	})
}

// drop removes the group's columns, after what former primaries had under way
// here.
func (s *server) drop(ctx context.Context, key groupKey, g *group) error {
	if g != nil {
		if err := g.log.drain(ctx); err != nil {
			return err
		}
	}
	return s.store.DropGroup(ctx, key.pool, key.pg)
}

// reinstate ends a removal under way: this server is a member again.
func (s *server) reinstate(key groupKey) {
	s.mu.Lock()
	r := s.retiring[key]
	s.mu.Unlock()
	if r != nil {
		r.cancel()
		<-r.done
	}
}

// heldGroups returns the groups that have directories here.
func (s *server) heldGroups() (map[groupKey]bool, error) {
	keys, err := s.store.PGs()
	if err != nil {
		return nil, err
	}
	held := map[groupKey]bool{}
	for _, k := range keys {
		held[groupKey{k.Pool, k.PG}] = true
	}
	return held, nil
}

// shed reports members in sync that are leaving out of sync, once all that stay
// are in sync. It tells whether it did.
func (g *group) shed(ctx context.Context, pg *canopyv1.PlacementGroup) (done bool, err error) {
	for _, m := range pg.Members {
		if !slices.Contains(pg.Leaving, m) && !slices.Contains(pg.InSync, m) {
			return false, nil
		}
	}
	for _, m := range pg.Leaving {
		if slices.Contains(pg.InSync, m) {
			return true, g.reportOut(ctx, base.NodeID(m), errLeaving)
		}
	}
	return false, nil
}
