package layoutsvc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
)

// maxMoves bounds the placement groups whose members change in one round.
const maxMoves = 32

// A server with less free space than a twentieth of its disk, or maxSpare if
// that is less, gets no placement groups.
const (
	spareShare = 20
	maxSpare   = 4 << 30
)

func isFull(s *canopyv1.DataServerInfo) bool {
	return s.FreeBytes < min(s.TotalBytes/spareShare, maxSpare)
}

// rebuild gives placement groups new members for those whose servers are gone
// for long or are drained, and takes those out that are not needed any more, one
// compare-and-set each (PROTOCOLS J3).
func (t *term) rebuild(ctx context.Context) error {
	t.changes.Lock()
	defer t.changes.Unlock()
	data := t.s.store.Data()
	servers := t.states(data)
	stuck := map[placement.PGKey]string{}
	moves := 0
	var errs []error
	for id, pool := range data.Pools {
		keys, groups := groupsOf(data, id)
		plan := newPlan(int(pool.Value.Replicas), servers, groups)
		for i, key := range keys {
			next, why := plan.next(groups[i])
			if why != "" {
				stuck[key] = why
			}
			if next == nil || moves == maxMoves {
				continue
			}
			moves++
			errs = append(errs, t.move(ctx, key, data.PGs[key], next))
		}
	}
	t.noteStuck(stuck)
	err := errors.Join(errs...)
	if placement.IsConflict(err) {
		return t.s.store.Sync(ctx) // as in exclude
	}
	return err
}

// groupsOf returns a pool's groups in order.
func groupsOf(data *placement.DataMap, pool base.PoolID) (keys []placement.PGKey, groups []*canopyv1.PlacementGroup) {
	for key := range data.PGs {
		if key.Pool == pool {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b placement.PGKey) int { return int(a.PG) - int(b.PG) })
	for _, key := range keys {
		groups = append(groups, data.PGs[key].Value)
	}
	return keys, groups
}

func (t *term) move(ctx context.Context, key placement.PGKey, known placement.Versioned[*canopyv1.PlacementGroup], next *canopyv1.PlacementGroup) error {
	if _, err := t.s.store.PutPG(ctx, t.lead, key.Pool, next, known.Revision); err != nil {
		return err
	}
	t.s.metrics.epochs.Inc()
	t.s.metrics.moves.Inc()
	t.s.logger.Info("members of a placement group changed", "pool", key.Pool, "pg", key.PG, "epoch", next.Epoch,
		"was", known.Value.Members, "members", next.Members, "leaving", next.Leaving, "in_sync", next.InSync)
	return nil
}

// states joins records and leases.
func (t *term) states(data *placement.DataMap) map[base.NodeID]serverState {
	now := time.Now()
	out := map[base.NodeID]serverState{}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, s := range data.Servers {
		l := t.servers[id]
		out[id] = serverState{
			labels:   domainsOf(s.Value),
			alive:    s.Value.Alive && l != nil && !now.After(l.until),
			gone:     t.goneLocked(id, now) > t.s.config.RebuildAfter && t.s.config.RebuildAfter > 0,
			draining: s.Value.Draining,
			full:     isFull(s.Value),
		}
	}
	return out
}

// goneLocked returns how long this term knows that the server has no lease.
func (t *term) goneLocked(id base.NodeID, now time.Time) time.Duration {
	l := t.servers[id]
	if l == nil || l.goneSince.IsZero() {
		return 0
	}
	return now.Sub(l.goneSince)
}

// noteStuck keeps what Repairs tells, and logs what is new.
func (t *term) noteStuck(stuck map[placement.PGKey]string) {
	t.mu.Lock()
	before := t.stuck
	t.stuck = stuck
	t.mu.Unlock()
	reasons := map[string]int{}
	for key, why := range stuck {
		if before[key] != why {
			reasons[why]++
		}
	}
	for why, n := range reasons {
		t.s.logger.Warn("placement groups lack a copy and cannot be rebuilt", "pgs", n, "reason", why)
	}
}

// Repairs implements the service.
func (s *instance) Repairs(ctx context.Context, _ *canopyv1.RepairsRequest) (*canopyv1.RepairsResponse, error) {
	t := s.leading()
	if t == nil {
		kind, detail, leader := s.notLeader(ctx)
		return &canopyv1.RepairsResponse{Error: kind, Detail: detail, LeaderAddress: leader}, nil
	}
	out := &canopyv1.RepairsResponse{RebuildAfterMs: uint64(max(s.config.RebuildAfter, 0) / time.Millisecond)}
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(t.servers)) {
		if gone := t.goneLocked(id, now); gone > 0 && s.store.Data().Servers[id].Value != nil {
			out.Gone = append(out.Gone, &canopyv1.GoneServer{Server: uint64(id), GoneMs: uint64(gone / time.Millisecond)})
		}
	}
	for key, why := range t.stuck {
		out.Stuck = append(out.Stuck, &canopyv1.StuckGroup{Pool: uint64(key.Pool), Pg: uint32(key.PG), Reason: why})
	}
	slices.SortFunc(out.Stuck, func(a, b *canopyv1.StuckGroup) int {
		return int(a.Pool)<<32 + int(a.Pg) - int(b.Pool)<<32 - int(b.Pg)
	})
	return out, nil
}

// SetServer implements the service.
func (s *instance) SetServer(ctx context.Context, r *canopyv1.SetServerRequest) (*canopyv1.SetServerResponse, error) {
	t := s.leading()
	if t == nil {
		kind, detail, leader := s.notLeader(ctx)
		return &canopyv1.SetServerResponse{Error: kind, Detail: detail, LeaderAddress: leader}, nil
	}
	if err := t.setServer(ctx, r); err != nil {
		return &canopyv1.SetServerResponse{Error: uint32(fserr.KindOf(err)), Detail: err.Error()}, nil
	}
	return &canopyv1.SetServerResponse{}, nil
}

func (t *term) setServer(ctx context.Context, r *canopyv1.SetServerRequest) error {
	t.changes.Lock()
	defer t.changes.Unlock()
	data := t.s.store.Data()
	id := base.NodeID(r.Server)
	known := data.Servers[id]
	if known.Value == nil {
		return fserr.New(fserr.NotFound, "data server", fmt.Errorf("there is no data server %d", id))
	}
	if r.Forget {
		return t.forget(ctx, id, known, data)
	}
	if known.Value.Draining == r.Draining {
		return nil
	}
	next := proto.CloneOf(known.Value)
	next.Draining = r.Draining
	if _, err := t.s.store.PutServer(ctx, t.lead, next, known.Revision); err != nil {
		return fserr.New(fserr.NotReady, "data server", errors.Join(err, t.s.store.Sync(ctx)))
	}
	t.s.logger.Info("a data server is drained, or not any more", "server", id, "draining", r.Draining)
	return nil
}

// forget removes the record of a server that is gone and has no part in any
// group. Its id is not given out again (PROTOCOLS A7).
func (t *term) forget(ctx context.Context, id base.NodeID, known placement.Versioned[*canopyv1.DataServerInfo], data *placement.DataMap) error {
	const op = "forget a data server"
	groups := 0
	for _, pg := range data.PGs {
		if slices.Contains(pg.Value.Members, uint64(id)) {
			groups++
		}
	}
	switch {
	case groups > 0:
		return fserr.New(fserr.Busy, op, fmt.Errorf("data server %d is still in %d placement groups: drain it first and wait until it is in none", id, groups))
	case known.Value.Alive || t.serves(id):
		return fserr.New(fserr.Busy, op, fmt.Errorf("data server %d is alive: stop its process first", id))
	}
	if err := t.s.store.DeleteServer(ctx, t.lead, id, known.Revision); err != nil {
		return fserr.New(fserr.NotReady, op, errors.Join(err, t.s.store.Sync(ctx)))
	}
	t.mu.Lock()
	delete(t.servers, id)
	t.mu.Unlock()
	t.s.logger.Info("a data server is forgotten", "server", id)
	return nil
}
