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

// returnPatience bounds how long an erasure coded group whose members lost power
// together waits for one that is not back yet.
const returnPatience = 2 * time.Minute

// knockEvery is how often at the least a server that has no lease tries to register.
const knockEvery = 2 * time.Second

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
	for key, pg := range data.PGs {
		if without(pg.Value, needed(data, key), id) == nil {
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
	if me == nil || !me.lostUnsynced {
		return 0
	}
	waited := time.Since(me.firstKnock)
	for key, pg := range data.PGs {
		in := pg.Value.InSync
		// A group of copies goes on with the bytes that are there. An erasure coded one
		// needs one more member anyhow.
		patience := lossPatience * t.s.config.ServerLease
		if len(pg.Value.Shards) > 0 {
			patience = max(patience, t.returnPatience())
		}
		if waited > patience || !slices.Contains(in, uint64(id)) || len(in) == 1 || t.sourceLocked(pg.Value, needed(data, key), id, true) {
			continue
		}
		for _, m := range in {
			l := t.servers[base.NodeID(m)]
			if m == uint64(id) || l == nil || l.knocks {
				continue
			}
			// A shard that is served is no news.
			if len(pg.Value.Shards) == 0 || time.Now().After(l.until) {
				return base.NodeID(m)
			}
		}
	}
	return 0
}

// doubts returns a server that has not been heard of since this one, which starts
// anew, came to the door, and whose lease runs: if it lives, an erasure coded group has
// all bytes without this one; if not, this one must stay in sync.
func (t *term) doubts(id base.NodeID) base.NodeID {
	data := t.s.store.Data()
	var since time.Time
	t.mu.Lock()
	if me := t.servers[id]; me != nil {
		since = me.firstKnock
	}
	t.mu.Unlock()
	if since.IsZero() {
		return 0
	}
	for key, pg := range data.PGs {
		need := needed(data, key)
		if len(pg.Value.Shards) == 0 || without(pg.Value, need, id) == nil {
			continue
		}
		heard, may, _ := t.heardOf(pg.Value, id, since)
		if enough(pg.Value, need, heard) || !enough(pg.Value, need, may) {
			continue
		}
		for _, m := range may {
			if !slices.Contains(heard, m) {
				return base.NodeID(m)
			}
		}
	}
	return 0
}

// sourceLocked reports whether other members in sync are there, or at the door, that
// have all bytes, so that a server that starts anew can be recovered from them: those
// that serve, and those that start too and lost nothing, or no more than this one.
func (t *term) sourceLocked(pg *canopyv1.PlacementGroup, need int, id base.NodeID, lost bool) bool {
	now := time.Now()
	coded := len(pg.Shards) > 0
	me := t.servers[id]
	if me == nil {
		me = &lease{}
	}
	var sources []uint64
	for _, m := range pg.InSync {
		l := t.servers[base.NodeID(m)]
		switch {
		case m == uint64(id) || l == nil:
		case l.knocks:
			kept, patience := lost || !l.lostUnsynced, max(t.s.config.ServerLease, knockEvery)
			if coded {
				// Several are needed. One that lost bytes leaves if the others kept them,
				// who then stay, and are waited for. But those that kept them do not help
				// one another: all but some would leave.
				kept, patience = lost && !l.lostUnsynced, t.returnPatience()
			}
			if kept && now.Sub(l.lastKnock) < patience {
				sources = append(sources, m)
			}
		case coded && t.lacksLocked(l, me):
		case coded && !lost && !l.heardAt.After(t.fresh(me.firstKnock)):
			// It may have died with this one.
		case now.Before(l.until):
			sources = append(sources, m)
		}
	}
	return enough(pg, need, sources)
}

// lacksLocked reports whether a member of an erasure coded group that serves lost
// bytes since another one was last there: that one's are as good, or better, and if it
// left the in-sync set they would not count. One that stays away is not waited for
// longer than returnPatience.
func (t *term) lacksLocked(l, other *lease) bool {
	if !l.lostAt.After(other.heardAt) {
		return false
	}
	return other.knocks || other.goneSince.IsZero() || time.Since(other.goneSince) < t.returnPatience()
}

func (t *term) returnPatience() time.Duration {
	if after := t.s.config.RebuildAfter; after > 0 {
		return min(after, returnPatience)
	}
	return returnPatience
}

// returned settles the in-sync sets of a server that starts with a new
// incarnation: what it had in flight is lost or half done, so it leaves where it
// can be compared with another member. Elsewhere it is the only one in sync from
// now on, since only its bytes can be had; if it lost what it had not synced, the
// group's record says so, under an epoch of its own, before it gets a lease.
func (t *term) returned(ctx context.Context, id base.NodeID, lost bool) error {
	t.changes.Lock()
	defer t.changes.Unlock()
	data := t.s.store.Data()
	for key, pg := range data.PGs {
		if !slices.Contains(pg.Value.InSync, uint64(id)) {
			continue
		}
		need := needed(data, key)
		t.mu.Lock()
		source := t.sourceLocked(pg.Value, need, id, lost)
		t.mu.Unlock()
		next := without(pg.Value, need, id)
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
// sync; nil if it is that and lost nothing. Of an erasure coded group those stay in
// sync that were: their shards are needed too.
func alone(pg *canopyv1.PlacementGroup, id base.NodeID, lost bool) *canopyv1.PlacementGroup {
	if len(pg.InSync) == 1 && !lost {
		return nil
	}
	next := proto.CloneOf(pg)
	if len(pg.Shards) == 0 {
		next.InSync = []uint64{uint64(id)}
	}
	next.Epoch++
	if lost {
		next.LossEpoch = next.Epoch
	}
	return next
}
