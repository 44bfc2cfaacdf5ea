package layoutsvc

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// lossPatience is how long, in leases, a server that lost what it had not synced
// waits for another member of its in-sync sets that may have kept it.
const lossPatience = 2

// hear notes that a server that has no lease tries to register.
func (t *term) hear(id base.NodeID, lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.servers[id]
	if l == nil {
		return
	}
	l.heard = true
	now := time.Now()
	if !l.knocks {
		l.knocks, l.firstKnock = true, now
	}
	l.lastKnock, l.lostUnsynced = now, lost
}

// awaits returns a server that shares an in-sync set with this one and may be
// alive without that this term knows: until it is heard or its lease is over,
// nobody can say which of the two has all the bytes.
func (t *term) awaits(id base.NodeID) base.NodeID {
	now := time.Now()
	data := t.s.store.Data()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, pg := range data.PGs {
		if without(pg.Value, id) == nil {
			continue
		}
		for _, m := range pg.Value.InSync {
			other := base.NodeID(m)
			if l := t.servers[other]; other != id && l != nil && !l.heard && now.Before(l.until) {
				return other
			}
		}
	}
	return 0
}

// hopesFor returns a server that shares an in-sync set with this one, which lost
// what it had not synced, and that nobody has heard of: it may have kept those
// bytes. It is waited for a little.
func (t *term) hopesFor(id base.NodeID) base.NodeID {
	data := t.s.store.Data()
	t.mu.Lock()
	defer t.mu.Unlock()
	me := t.servers[id]
	if me == nil || !me.lostUnsynced || time.Since(me.firstKnock) > lossPatience*t.s.config.ServerLease {
		return 0
	}
	for _, pg := range data.PGs {
		in := pg.Value.InSync
		if !slices.Contains(in, uint64(id)) || len(in) == 1 || t.sourceLocked(pg.Value, id, true) {
			continue
		}
		for _, m := range in {
			if l := t.servers[base.NodeID(m)]; m != uint64(id) && l != nil && !l.knocks {
				return base.NodeID(m)
			}
		}
	}
	return 0
}

// sourceLocked reports whether another member in sync is there, or at the door,
// from which a server that starts anew can be recovered: one that serves, or one
// that starts too and lost nothing, or no more than this one.
func (t *term) sourceLocked(pg *canopyv1.PlacementGroup, id base.NodeID, lost bool) bool {
	now := time.Now()
	for _, m := range pg.InSync {
		l := t.servers[base.NodeID(m)]
		switch {
		case m == uint64(id) || l == nil:
		case l.knocks:
			if now.Sub(l.lastKnock) < t.s.config.ServerLease && (lost || !l.lostUnsynced) {
				return true
			}
		case now.Before(l.until):
			return true
		}
	}
	return false
}

// returned settles the in-sync sets of a server that starts with a new
// incarnation: what it had in flight is lost or half done, so it leaves where it
// can be compared with another member. Elsewhere it is the only one in sync from
// now on, since only its bytes can be had; if it lost what it had not synced, the
// group's record says so, under an epoch of its own, before it gets a lease.
func (t *term) returned(ctx context.Context, id base.NodeID, lost bool) error {
	t.changes.Lock()
	defer t.changes.Unlock()
	for key, pg := range t.s.store.Data().PGs {
		if !slices.Contains(pg.Value.InSync, uint64(id)) {
			continue
		}
		t.mu.Lock()
		source := t.sourceLocked(pg.Value, id, lost)
		t.mu.Unlock()
		next := without(pg.Value, id)
		if !source {
			next = alone(pg.Value, id, lost)
		}
		if next == nil {
			continue
		}
		if _, err := t.s.store.PutPG(ctx, t.lead, key.Pool, next, pg.Revision); err != nil {
			return err
		}
		t.s.metrics.epochs.Inc()
		if next.LossEpoch == next.Epoch {
			t.s.metrics.losses.Inc()
			t.s.logger.Error("all members in sync lost what was not synced; its writers are told", "pool", key.Pool, "pg", key.PG, "epoch", next.Epoch, "server", id)
		}
	}
	return nil
}

// alone returns the group under the next epoch with the server as the only one in
// sync; nil if it is that and lost nothing.
func alone(pg *canopyv1.PlacementGroup, id base.NodeID, lost bool) *canopyv1.PlacementGroup {
	if len(pg.InSync) == 1 && !lost {
		return nil
	}
	next := proto.CloneOf(pg)
	next.InSync = []uint64{uint64(id)}
	next.Epoch++
	if lost {
		next.LossEpoch = next.Epoch
	}
	return next
}
