package mds

import (
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
)

// purgeChunk bounds one purge command: each purged inode is a few keys.
const purgeChunk = 256

// purgePage bounds how many orphans and relocations one pass looks at.
const purgePage = 4096

// pending is what a pass found.
type pending struct {
	subtree     base.SubtreeID
	beforeNS    int64 // what lost its name or moved again since is not due
	orphans     []uint64
	relocations []uint64
}

// purgeLoop removes orphans and relocations when PROTOCOLS H2 allows.
func (t *tenure) purgeLoop() {
	interval := min(max(t.h.server.config.OrphanGrace/4, 10*time.Millisecond), 5*time.Second)
	looked, again := uint64(0), true
	for pause(t.ctx, interval) {
		active := t.activity.Load()
		if !again && active == looked {
			continue // nothing that could have made an orphan
		}
		left, err := t.purge()
		again = left || err != nil
		looked = active
	}
}

// purge does one pass; left tells that something must wait for a later one.
func (t *tenure) purge() (left bool, err error) {
	grace := int64(t.h.server.config.OrphanGrace)
	t.mu.Lock()
	limit := t.clock.now(t.h.group.Status().LastTimeNS, time.Now()) - grace
	t.mu.Unlock()
	settled := time.Since(t.since) >= t.h.server.config.OrphanGrace
	var due []pending
	var live []base.ClientID
	err = t.h.group.Read(t.ctx, func(r shard.Reader) error {
		due, live, left = nil, nil, false
		if err := namespace.Sessions(r, t.h.shard, func(s namespace.SessionInfo) bool {
			live = append(live, s.Client)
			return true
		}); err != nil {
			return err
		}
		subtrees, err := t.subtrees(r)
		if err != nil {
			return err
		}
		for _, subtree := range subtrees {
			found, more, err := t.scan(r, subtree, limit)
			if err != nil {
				return err
			}
			due = append(due, found)
			left = left || more
		}
		return nil
	})
	if err != nil || !settled {
		return left || len(due) > 0, err
	}
	if silent := t.silent(live); len(silent) > 0 {
		t.h.server.events.askReports(silent, t.h.shard)
		for _, p := range due {
			left = left || len(p.orphans)+len(p.relocations) > 0
		}
		return left, nil
	}
	for _, p := range due {
		kept, err := t.purgeFree(p, live)
		if left = left || kept; err != nil {
			return true, err
		}
	}
	return left, nil
}

// scan finds what lost its name, or moved, before limit; more tells that there
// is something younger, or more than a page.
func (t *tenure) scan(r shard.Reader, subtree base.SubtreeID, limit int64) (due pending, more bool, err error) {
	due.subtree, due.beforeNS = subtree, limit+1
	take := func(list *[]uint64, ino base.Ino, sinceNS int64) bool {
		if sinceNS > limit {
			more = true
			return true
		}
		*list = append(*list, uint64(ino))
		if len(*list) < purgePage {
			return true
		}
		more = true
		return false
	}
	err = namespace.Orphans(r, t.h.shard, subtree, 0, func(o namespace.OrphanInfo) bool {
		return take(&due.orphans, o.Ino, o.SinceNS)
	})
	if err == nil {
		err = namespace.Relocations(r, t.h.shard, subtree, 0, func(m namespace.RelocationInfo) bool {
			return take(&due.relocations, m.Ino, m.SinceNS)
		})
	}
	return due, more, err
}

// silent returns the live sessions that have not reported to this holder in this
// term. Nothing is purged while there is one.
func (t *tenure) silent(live []base.ClientID) []base.ClientID {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []base.ClientID
	for _, id := range live {
		if c := t.clients[id]; c == nil || !c.opens.reported {
			out = append(out, id)
		}
	}
	return out
}

// purgeFree purges what nobody has open; kept tells that somebody has some open.
func (t *tenure) purgeFree(p pending, live []base.ClientID) (kept bool, err error) {
	free := func(inos []uint64) []uint64 {
		t.mu.Lock()
		defer t.mu.Unlock()
		out := inos[:0]
		for _, ino := range inos {
			if t.heldLocked(base.Ino(ino), live) {
				kept = true
			} else {
				out = append(out, ino)
			}
		}
		return out
	}
	orphans, relocations := free(p.orphans), free(p.relocations)
	for len(orphans) > 0 || len(relocations) > 0 {
		n, m := min(len(orphans), purgeChunk), min(len(relocations), purgeChunk)
		command := &canopyv1.PurgeCommand{Subtree: uint64(p.subtree), Orphans: orphans[:n], Relocations: relocations[:m], BeforeNs: p.beforeNS}
		if _, err := t.propose(&canopyv1.Command{Own: &canopyv1.Command_Purge{Purge: command}}); err != nil {
			return kept, err
		}
		t.h.metrics.purged.Add(float64(n))
		orphans, relocations = orphans[n:], relocations[m:]
		t.activity.Add(1) // the deletion queue has work
	}
	return kept, nil
}

func (t *tenure) heldLocked(ino base.Ino, live []base.ClientID) bool {
	for _, id := range live {
		if c := t.clients[id]; c != nil && c.opens.holds(ino) {
			return true
		}
	}
	return false
}
