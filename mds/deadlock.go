package mds

import (
	"time"

	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
	"github.com/canopyfs/canopy/shard/schema"
)

// Dead-locks of fcntl locks. An owner that waits for a lock points at the owners
// whose locks are in its way, in whatever file of this shard; a circle is a
// dead-lock if all its waits were there at one moment. That cannot be seen here:
// a wait may have ended at its client, by a signal, and the word of it be on its
// way. So before anybody is told EDEADLK the other waits of the circle are asked
// anew. One that comes back under its token has waited without a break from its
// beginning until it was asked. If all were asked after the youngest had begun
// and came back, all of them waited at that time, and the youngest's request has
// closed the circle: it fails, as on Linux. What a wait does not come back for
// points at nobody.

// cycle returns the waits of a circle through w: w first, each in want of a lock
// of the next one's owner. nil: there is none.
func (v *lockView) cycle(m *namespace.Machine, r shard.Reader, w *lockWait) ([]*lockWait, error) {
	seen := map[schema.LockOwner]bool{}
	var walk func(way []*lockWait) ([]*lockWait, error)
	walk = func(way []*lockWait) ([]*lockWait, error) {
		at := way[len(way)-1]
		f, err := v.locksOf(m, r, at)
		if err != nil {
			return nil, err
		}
		for _, owner := range f.Blockers(at.id.client, at.lock) {
			if owner == w.owner {
				return way, nil
			}
			if seen[owner] {
				continue
			}
			seen[owner] = true
			for _, next := range v.waits[owner] {
				found, err := walk(append(way[:len(way):len(way)], next))
				if found != nil || err != nil {
					return found, err
				}
			}
		}
		return nil, nil
	}
	return walk([]*lockWait{w})
}

// breakLocked deals with a circle that a look has found.
func (l *lockTable) breakLocked(cycle []*lockWait, now time.Time) {
	youngest := cycle[0]
	for _, w := range cycle {
		if w.stream == nil || l.byID[w.id] != w {
			return // one has ended meanwhile
		}
		if w.since.After(youngest.since) {
			youngest = w
		}
	}
	sure := true
	for _, w := range cycle {
		if w != youngest && !w.confirmed.After(youngest.since) {
			l.askAnewLocked(w, now)
			sure = false
		}
	}
	if sure {
		l.removeLocked(youngest, fserr.Deadlock)
	}
}
