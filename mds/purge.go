package mds

import (
	"slices"
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
	grace := t.h.server.config.OrphanGrace
	t.mu.Lock()
	at := time.Now()
	limit := t.clock.now(t.h.group.Status().LastTimeNS, at) - int64(grace)
	// A wall clock that is set forward makes all orphans old at once, also those
	// that a client opened a moment ago and has not reported (PROTOCOLS H2).
	settled := t.clock.settled(at, grace) && at.Sub(t.since) >= grace
	t.mu.Unlock()
	var due []pending
	var silent []base.ClientID
	err = t.h.group.Read(t.ctx, func(r shard.Reader) error {
		due, left = nil, false
		var live []base.ClientID
		if err := namespace.Sessions(r, t.h.shard, func(s namespace.SessionInfo) bool {
			live = append(live, s.Client)
			return true
		}); err != nil {
			return err
		}
		var held func(base.Ino) bool
		if silent, held = t.openFiles(live); !settled || len(silent) > 0 {
			held = nil // nothing may go
		}
		subtrees, err := t.subtrees(r)
		if err != nil {
			return err
		}
		for _, subtree := range subtrees {
			held := held
			if !t.settled(subtree, grace) {
				held = nil
			}
			found, more, err := t.scan(r, subtree, limit, held)
			if err != nil {
				return err
			}
			due = append(due, found)
			left = left || more
		}
		return nil
	})
	if err != nil {
		return true, err
	}
	if left && settled && len(silent) > 0 {
		t.h.server.events.askReports(silent, t.h.shard)
	}
	for _, p := range due {
		if err := t.proposePurge(p); err != nil {
			return true, err
		}
	}
	return left, nil
}

// openFiles returns the live sessions that have not reported to this holder in
// this term (nothing is purged while there is one), and tells which inodes the
// others have open.
func (t *tenure) openFiles(live []base.ClientID) (silent []base.ClientID, held func(base.Ino) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var tables []*openTable
	for _, id := range live {
		c := t.clients[id]
		if c == nil || !c.opens.reported {
			silent = append(silent, id)
		} else if c.opens.overflow || len(c.opens.inos) > 0 {
			tables = append(tables, &c.opens)
		}
	}
	return silent, func(ino base.Ino) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return slices.ContainsFunc(tables, func(o *openTable) bool { return o.holds(ino) })
	}
}

// scan finds what lost its name, or moved, before limit and is not held (nil: all
// is held); more tells that there is something else, or more than a page.
func (t *tenure) scan(r shard.Reader, subtree base.SubtreeID, limit int64, held func(base.Ino) bool) (due pending, more bool, err error) {
	due.subtree, due.beforeNS = subtree, limit+1
	take := func(list *[]uint64, ino base.Ino, sinceNS int64) bool {
		if held == nil || sinceNS > limit || held(ino) {
			more = true
			return held != nil
		}
		*list = append(*list, uint64(ino))
		if len(*list) < purgePage {
			return true
		}
		more = true
		return false
	}
	err = namespace.Orphans(r, t.h.shard, subtree, 0, func(o namespace.OrphanInfo) bool {
		if o.Bytes > 0 && held != nil {
			t.waiting.purges(base.DataID(o.Ino), o.Bytes)
		}
		return take(&due.orphans, o.Ino, o.SinceNS)
	})
	if err == nil {
		err = namespace.Relocations(r, t.h.shard, subtree, 0, func(m namespace.RelocationInfo) bool {
			return take(&due.relocations, m.Ino, m.SinceNS)
		})
	}
	return due, more, err
}

// proposePurge purges what was found.
func (t *tenure) proposePurge(p pending) error {
	orphans, relocations := p.orphans, p.relocations
	for len(orphans) > 0 || len(relocations) > 0 {
		n, m := min(len(orphans), purgeChunk), min(len(relocations), purgeChunk)
		command := &canopyv1.PurgeCommand{Subtree: uint64(p.subtree), Orphans: orphans[:n], Relocations: relocations[:m], BeforeNs: p.beforeNS}
		r, err := t.propose(&canopyv1.Command{Own: &canopyv1.Command_Purge{Purge: command}})
		if err != nil {
			return err
		}
		t.removed(p.subtree, r)
		t.h.metrics.purged.Add(float64(n))
		orphans, relocations = orphans[n:], relocations[m:]
		t.activity.Add(1) // the deletion queue has work
	}
	return nil
}

// removed takes note of what a command says that may have deleted the last of a
// subtree.
func (t *tenure) removed(subtree base.SubtreeID, r *canopyv1.Result) {
	if r.GetRemoved() {
		t.h.server.unpublishRoute(t.h, t.epoch, subtree)
	}
}
