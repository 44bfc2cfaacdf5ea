package raftgroup

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lni/dragonboat/v4"

	"github.com/canopyfs/canopy/shard/schema"
)

// upkeep asks for Raft snapshots (A5): after so many entries or bytes of log,
// once the store is flushed, so that Dragonboat's Sync finds nothing to do. A
// local snapshot is a record of an index; the state stays in the store. The log
// before it goes, but for what a replica that was away for a short time needs.
type upkeep struct {
	g   *Group
	due chan struct{}

	mu      sync.Mutex
	entries uint64 // since the last snapshot
	bytes   uint64
	marks   []logMark // oldest first
	total   uint64    // bytes since the start
}

// logMark says how many bytes were logged up to an index.
type logMark struct{ index, total uint64 }

const (
	// A log longer than this since the last snapshot is not left behind by a group that
	// is put to rest: the next start would read all of it.
	restBytes       = 8 << 20
	restEntries     = 10_000
	logMarkBytes    = 1 << 20
	snapshotTimeout = time.Minute
)

func (u *upkeep) init(g *Group) { u.g, u.due = g, make(chan struct{}, 1) }

// begin counts what an earlier process left in the log behind its snapshot.
func (u *upkeep) begin(entries uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.entries += entries
}

// note counts what was applied.
func (u *upkeep) note(index uint64, entries, bytes int) {
	cfg := &u.g.host.cfg
	u.mu.Lock()
	defer u.mu.Unlock()
	u.entries += uint64(entries)
	u.bytes += uint64(bytes)
	u.total += uint64(bytes)
	if n := len(u.marks); n == 0 || u.total-u.marks[n-1].total >= logMarkBytes {
		u.marks = append(u.marks, logMark{index, u.total})
	}
	if u.entries < cfg.SnapshotEntries && u.bytes < cfg.SnapshotBytes {
		return
	}
	select {
	case u.due <- struct{}{}:
	default:
	}
}

// overhead is how many entries to keep behind a snapshot at index: no more than
// configured, and no more than a quarter of SnapshotBytes.
func (u *upkeep) overhead(index uint64) uint64 {
	cfg := &u.g.host.cfg
	u.mu.Lock()
	defer u.mu.Unlock()
	for len(u.marks) > 1 && u.total-u.marks[0].total > cfg.SnapshotBytes/4 {
		u.marks = u.marks[1:]
	}
	keep := cfg.CompactionOverhead
	if len(u.marks) > 0 && u.marks[0].index < index {
		keep = min(keep, index-u.marks[0].index)
	}
	u.entries, u.bytes = 0, 0
	return max(keep, 1)
}

// run takes snapshots until the group stops.
func (u *upkeep) run() {
	defer u.g.workers.Done()
	ctx := u.g.ctx
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.due:
		}
		switch err := u.snapshot(ctx); {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, dragonboat.ErrRejected): // Dragonboat has not put the last one away yet
			u.g.log.Debug("raft snapshot not taken: the one before it is still being recorded")
		default:
			u.g.log.Warn("raft snapshot failed", "err", err)
		}
	}
}

func (u *upkeep) snapshot(ctx context.Context) error {
	begun := time.Now()
	if err := u.g.sm.store.Flush(u.g.sm.seq.Load()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	keep := u.overhead(u.g.sm.applied.Load())
	index, err := u.g.host.nh.SyncRequestSnapshot(ctx, uint64(u.g.cfg.Shard), dragonboat.SnapshotOption{
		OverrideCompactionOverhead: true, CompactionOverhead: keep,
	})
	if err != nil {
		return err
	}
	u.g.metrics.snapshots.Inc()
	u.g.log.Debug("raft snapshot", "index", index, "keep", keep, "took", time.Since(begun))
	return nil
}

// Flushed returns the index up to which the state is on the store's disk. What
// was applied behind it is in the log alone. It reads the disk.
func (g *Group) Flushed() (index uint64, err error) {
	raw, found, err := g.host.cfg.Store.GetDurable(schema.AppliedKey(g.cfg.Shard))
	if err != nil || !found {
		return 0, err
	}
	return schema.DecodeUint64(raw)
}

// Snapshot flushes the store and takes a Raft snapshot now, after which the log
// before it can go. The group does so by itself when it is due.
func (g *Group) Snapshot(ctx context.Context) error { return g.sm.upkeep.snapshot(ctx) }

// Rest takes a Raft snapshot if a start would have much of the log to read, which
// is how long it takes. For a group that is about to stop.
func (g *Group) Rest(ctx context.Context) error {
	u := &g.sm.upkeep
	u.mu.Lock()
	much := u.bytes >= restBytes || u.entries >= restEntries
	u.mu.Unlock()
	if !much {
		return nil
	}
	return u.snapshot(ctx)
}
