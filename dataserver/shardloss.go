package dataserver

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/dataserver/chunkstore/rangelock"
	"github.com/canopyfs/canopy/internal/base"
)

// completeCuts makes cuts that some members in sync know, and others do not, on those
// too, when members lost power together. Of such a machine's undo log only records of
// cuts count: they were synced before the cut. Whoever does not know the cut has taken
// nothing of its size epoch, so nothing can be cut that came after it (PROTOCOLS J1).
func (g *group) completeCuts(ctx context.Context, pg *canopyv1.PlacementGroup, term uint64, logs []shardLog) error {
	var cuts []*canopyv1.ShardUndo
	for _, l := range logs {
		for _, record := range l.open {
			if record.Cut {
				cuts = append(cuts, record)
			}
		}
	}
	slices.SortFunc(cuts, func(a, b *canopyv1.ShardUndo) int { return cmp.Compare(a.SizeEpoch, b.SizeEpoch) })
	for _, cut := range cuts {
		key := keyOf(cut.Column)
		shapes, err := g.shapes(ctx, pg, key)
		if err != nil {
			return err
		}
		if shapes.deleted || shapes.epoch < cut.SizeEpoch {
			continue
		}
		for i, id := range pg.InSync {
			if !shapes.found[i] || shapes.epochs[i] >= cut.SizeEpoch {
				continue
			}
			g.s.logger.Info("a cut that not all members have is made on all", "column", key.String(), "row", cut.FirstRow, "server", id)
			if err := g.completeCut(ctx, base.NodeID(id), term, cut); err != nil {
				return err
			}
		}
	}
	return nil
}

// shapes is which members in sync have a column, and under which size epoch.
type shapes struct {
	found   []bool
	epochs  []uint64
	epoch   uint64 // the newest
	deleted bool   // somewhere
}

func (g *group) shapes(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key) (*shapes, error) {
	s := &shapes{found: make([]bool, len(pg.InSync)), epochs: make([]uint64, len(pg.InSync))}
	for i, id := range pg.InSync {
		if id == g.self() {
			s.deleted = s.deleted || g.s.store.Deleted(key)
			var err error
			if s.epochs[i], s.found[i], err = g.s.store.Epoch(key); err != nil {
				return nil, err
			}
		} else {
			infos, err := g.columnsThere(ctx, base.NodeID(id), &canopyv1.ListColumnsCall{Max: listPage, DataId: uint64(key.Data)})
			if err != nil {
				return nil, err
			}
			for _, c := range infos {
				s.deleted = s.deleted || c.Tombstone
				if !c.Tombstone && keyOf(c.Column) == key {
					s.found[i], s.epochs[i] = true, c.SizeEpoch
				}
			}
		}
		s.epoch = max(s.epoch, s.epochs[i])
	}
	return s, nil
}

// columnsThere asks a member for a page of its columns.
func (g *group) columnsThere(ctx context.Context, id base.NodeID, call *canopyv1.ListColumnsCall) (infos []*canopyv1.ColumnInfo, err error) {
	err = g.patiently(ctx, func() error {
		response, err := g.ask(ctx, id, g.key(), &canopyv1.DataRequest{Call: &canopyv1.DataRequest_ListColumns{ListColumns: call}}, nil)
		if err != nil {
			return err
		}
		defer response.Free()
		infos = nil
		for _, c := range response.Columns {
			infos = append(infos, proto.CloneOf(c))
		}
		return nil
	})
	return infos, err
}

// mendLoss compares all rows after members lost power and stayed in sync, since others
// had lost theirs: what was not synced may be on some of them alone. As long as all of
// a row's data blocks are there that is no harm, but a block that goes before is made
// of versions that do not belong together, which is an error. It is done by each primary
// that did not do it itself.
func (g *group) mendLoss(ctx context.Context, pg *canopyv1.PlacementGroup) error {
	if g.code == nil || g.mended.Load() >= pg.LossEpoch {
		return nil
	}
	p := &progress{limit: g.s.recoveryRate}
	var sum mended
	for _, id := range pg.InSync {
		err := g.eachColumnOf(ctx, base.NodeID(id), func(key chunkstore.Key) error {
			_, exists, err := g.s.store.Epoch(key)
			if err != nil || exists != (id == g.self()) {
				return err // those that this server has are done with its own
			}
			m, err := g.mendColumn(ctx, pg, key, p)
			sum.blocks, sum.lost = sum.blocks+m.blocks, sum.lost+m.lost
			return err
		})
		if err != nil {
			return err
		}
	}
	g.mended.Store(pg.LossEpoch)
	g.s.metrics.lost.Add(float64(sum.lost))
	g.s.logger.Warn("a group was compared after members lost power", "pool", g.pool, "pg", g.pg, "blocks_written", sum.blocks, "rows_lost", sum.lost)
	return nil
}

// eachColumnOf calls fn with the columns of a member.
func (g *group) eachColumnOf(ctx context.Context, id base.NodeID, fn func(chunkstore.Key) error) error {
	if id == pgSelf(g) {
		keys, err := g.s.store.Keys(g.pool, g.pg)
		for _, key := range keys {
			if err == nil {
				err = fn(key)
			}
		}
		return err
	}
	for after := uint64(0); ; {
		infos, err := g.columnsThere(ctx, id, &canopyv1.ListColumnsCall{AfterDataId: after, Max: listPage})
		if err != nil || len(infos) == 0 {
			return err
		}
		for _, c := range infos {
			if after = c.Column.DataId; !c.Tombstone {
				if err := fn(keyOf(c.Column)); err != nil {
					return err
				}
			}
		}
	}
}

// mendColumn makes a column's size epoch the same on all members in sync, and its rows
// whole.
func (g *group) mendColumn(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, p *progress) (sum mended, err error) {
	if done, err := g.settleShapes(ctx, pg, key); done || err != nil {
		return sum, err
	}
	err = g.eachRows(ctx, pg, key, 0, p, func(first uint64) error {
		m, err := g.mendLocked(ctx, pg, key, first, 0, false, p)
		sum.blocks, sum.lost = sum.blocks+m.blocks, sum.lost+m.lost
		return err
	})
	return sum, err
}

// settleShapes brings members that do not know a column's size epoch up to it. done:
// the column is deleted.
func (g *group) settleShapes(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key) (done bool, err error) {
	release, err := g.locks.acquire(ctx, key, 0, rangelock.All, true)
	if err != nil {
		return false, err
	}
	defer release()
	term, err := g.activeTerm()
	if err != nil {
		return false, err
	}
	s, err := g.shapes(ctx, pg, key)
	if err != nil || s.deleted {
		return true, err
	}
	for i, id := range pg.InSync {
		if s.found[i] && s.epochs[i] == s.epoch {
			continue
		}
		if err := g.sendRepair(ctx, base.NodeID(id), key, term, s.epoch, shardCall{call: &canopyv1.ShardCall{FirstRow: 1 << 50, Cut: true}}); err != nil {
			return false, err
		}
	}
	return false, nil
}
