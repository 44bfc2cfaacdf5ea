package dataserver

import (
	"cmp"
	"context"
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/base"
)

// shardLog is what one member's undo log tells.
type shardLog struct {
	id          base.NodeID
	term, floor uint64
	open        map[uint64]*canopyv1.ShardUndo
	lost        bool
}

// activateShards settles the changes that may not be on all members: each is on all, or
// undone on all, before this server serves as primary (PROTOCOLS J3). So no row is ever
// left with blocks of two versions of it.
func (g *group) activateShards(ctx context.Context, pg *canopyv1.PlacementGroup) error {
	if inSyncShards(pg) < g.code.Data() {
		return errTooFewShards(g.code, pg)
	}
	term := g.nextTerm(pg)
	logs, err := g.shardLogs(ctx, pg, term)
	if err != nil {
		return err
	}
	lost := false
	for _, l := range logs {
		lost = lost || l.lost
	}
	if lost {
		// A machine crashed on which bytes hang that nobody else has. What it logged is
		// gone, so nothing can be undone: entries tell what belongs together, and mendLoss
		// makes rows whole.
		g.s.logger.Error("a member in sync lost its undo log with its machine: rows that were being written may be lost", "pool", g.pool, "pg", g.pg)
		if err := g.completeCuts(ctx, pg, term, logs); err != nil {
			return err
		}
	} else {
		for _, step := range resolve(logs) {
			if err := g.settleChange(ctx, term, step); err != nil {
				return err
			}
		}
	}
	for _, id := range pg.InSync {
		if err := g.settle(ctx, base.NodeID(id), term, 0); err != nil {
			return g.surrender(ctx, base.NodeID(id), err)
		}
	}
	g.log.lead()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.current.Epoch == pg.Epoch && g.term == term {
		g.active = pg.Epoch
		g.wakeLocked()
	}
	return nil
}

// nextTerm begins a term above all that were: epochs grow with each primary, and the
// low bits count its activations under one epoch, failed ones too.
func (g *group) nextTerm(pg *canopyv1.PlacementGroup) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.term = max(pg.Epoch<<20, g.term+1)
	return g.term
}

// shardLogs asks all members in sync, this server first. From then on they refuse what
// is of older terms: what they answer stays true until the change is settled.
func (g *group) shardLogs(ctx context.Context, pg *canopyv1.PlacementGroup, term uint64) ([]shardLog, error) {
	var logs []shardLog
	for _, id := range pg.InSync {
		var response *link.Response
		err := g.patiently(ctx, func() (err error) {
			if base.NodeID(id) == pgSelf(g) {
				response, err = g.shardsInFlight(ctx, term)
				return err
			}
			response, err = g.ask(ctx, base.NodeID(id), g.key(), &canopyv1.DataRequest{LogTerm: term, Call: &canopyv1.DataRequest_InFlight{InFlight: &canopyv1.InFlightCall{}}}, nil)
			return err
		})
		if err != nil {
			return nil, g.surrender(ctx, base.NodeID(id), err)
		}
		l := shardLog{id: base.NodeID(id), term: response.ShardTerm, floor: response.ShardFloor, open: map[uint64]*canopyv1.ShardUndo{}, lost: response.ShardLogLost}
		for _, record := range response.ShardLog {
			l.open[record.Seq] = record
		}
		response.Free()
		logs = append(logs, l)
	}
	return logs, nil
}

// resolution is what becomes of a change that is not on all members: it is undone where
// it is, or, a cut, made where it is not.
type resolution struct {
	record  *canopyv1.ShardUndo
	members []base.NodeID
}

// resolve decides on the open changes of all members, newest first. A change is on all
// members if each says so, if one says that the primary had heard so from all, or if
// another one of the same rows came after it: that one waited for it. Changes of terms
// before the newest were settled when that began.
func resolve(logs []shardLog) []resolution {
	var term, floor uint64
	for _, l := range logs {
		term = max(term, l.term)
	}
	open := map[uint64]*canopyv1.ShardUndo{}
	for _, l := range logs {
		if l.term != term {
			continue
		}
		floor = max(floor, l.floor)
		for seq, record := range l.open {
			open[seq] = record
		}
	}
	var records []*canopyv1.ShardUndo
	for _, record := range open {
		records = append(records, record)
	}
	slices.SortFunc(records, func(a, b *canopyv1.ShardUndo) int { return cmp.Compare(b.Seq, a.Seq) })
	var out []resolution
	for i, record := range records {
		if record.Seq < floor || slices.ContainsFunc(records[:i], func(later *canopyv1.ShardUndo) bool { return overlap(later, record) }) {
			continue
		}
		var have, all []base.NodeID
		applied := 0
		for _, l := range logs {
			all = append(all, l.id)
			if mine := l.open[record.Seq]; mine != nil && l.term == term {
				have = append(have, l.id)
				if mine.Applied {
					applied++
				}
			}
		}
		switch {
		case applied == len(logs):
		case record.Cut:
			out = append(out, resolution{record, all})
		default:
			out = append(out, resolution{record, have})
		}
	}
	return out
}

// overlap reports whether two changes are of the same rows.
func overlap(a, b *canopyv1.ShardUndo) bool {
	if keyOf(a.Column) != keyOf(b.Column) {
		return false
	}
	if a.Cut || b.Cut {
		return true
	}
	return a.FirstRow < b.FirstRow+uint64(len(b.States)) && b.FirstRow < a.FirstRow+uint64(len(a.States))
}

// settleChange carries a resolution out.
func (g *group) settleChange(ctx context.Context, term uint64, r resolution) error {
	key := keyOf(r.record.Column)
	g.s.logger.Info("a change that not all members have is settled", "column", key.String(), "row", r.record.FirstRow, "cut", r.record.Cut, "members", r.members)
	for _, id := range r.members {
		err := g.patiently(ctx, func() error {
			if r.record.Cut {
				return g.completeCut(ctx, id, term, r.record)
			}
			return g.undoAt(ctx, id, key, term, r.record.Seq)
		})
		if err != nil {
			return g.surrender(ctx, id, err)
		}
	}
	return nil
}

// surrender is giveUp that never returns nil: what was not settled must not be served.
func (g *group) surrender(ctx context.Context, id base.NodeID, cause error) error {
	if err := g.giveUp(ctx, id, cause); err != nil {
		return err
	}
	return ctx.Err()
}

// completeCut makes a cut on a member, also on one that has made it.
func (g *group) completeCut(ctx context.Context, id base.NodeID, term uint64, cut *canopyv1.ShardUndo) error {
	head := &canopyv1.DataRequest{
		SizeEpoch: cut.SizeEpoch, LogTerm: term, Shard: &canopyv1.ShardCall{FirstRow: cut.FirstRow, Cut: true, Repair: true},
		Call: &canopyv1.DataRequest_Write{Write: &canopyv1.WriteCall{}},
	}
	key := keyOf(cut.Column)
	if id == pgSelf(g) {
		_, err := g.shardChange(key, &link.Request{DataRequest: head})
		return err
	}
	return g.tell(ctx, id, key, head, nil)
}

func (g *group) undoAt(ctx context.Context, id base.NodeID, key chunkstore.Key, term, seq uint64) error {
	head := &canopyv1.DataRequest{
		LogTerm: term, LogSeq: seq,
		Call: &canopyv1.DataRequest_ShardUndo{ShardUndo: &canopyv1.ShardUndoCall{}},
	}
	if id == pgSelf(g) {
		return g.undoForwarded(ctx, &link.Request{DataRequest: head}, func() bool { return true })
	}
	return g.tell(ctx, id, key, head, nil)
}

// settle tells a member that all changes of older terms, and of this one below floor,
// are as they stay.
func (g *group) settle(ctx context.Context, id base.NodeID, term, floor uint64) error {
	if id == pgSelf(g) {
		g.log.settleTo(term, floor)
		return g.undo.Mark(term, floor)
	}
	return g.patiently(ctx, func() error {
		return g.tell(ctx, id, g.key(), &canopyv1.DataRequest{
			LogTerm: term, LogFloor: floor, Call: &canopyv1.DataRequest_ShardSettle{ShardSettle: &canopyv1.ShardSettleCall{}},
		}, nil)
	})
}
