package dataserver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/dataserver/chunkstore/rangelock"
	"github.com/canopyfs/canopy/dataserver/erasure"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// mendRows is how many rows are compared at a time; their lock is held meanwhile. A
// multiple of what has its entries in one block.
const mendRows = 4 * erasure.GroupRows

// mended counts what was found in rows and put right.
type mended struct{ blocks, damaged, differing, lost int }

// mendHeld compares rows of all members in sync, and of the one that is recovered
// (target, 0: none), and writes anew what does not belong to its row. With verify all
// blocks are read from the disks. What cannot be made any more is made unreadable on
// the target. Call it with the rows locked.
func (g *group) mendHeld(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, first uint64, target base.NodeID, verify bool, p *progress) (m mended, err error) {
	term, err := g.activeTerm()
	if err != nil {
		return m, err
	}
	ids, extra := g.compared(pg, target)
	got, errs := g.fromMembers(ctx, pg, ids, key, first, mendRows, false, verify)
	for i, err := range errs {
		if ids[i] != target && fserr.KindOf(err) == fserr.IO {
			g.distrustMember(pg, ids[i], key, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return m, err
	}
	v := newView(g.code, pg, ids, extra, got)
	lo, hi := -1, 0
	for row := range mendRows {
		if verdict := v.judge(row); verdict.Lost || len(verdict.Wrong) > 0 {
			if lo < 0 {
				lo = row
			}
			hi = row + 1
		}
	}
	if verify {
		p.sent(len(ids) * mendRows * erasure.BlockBytes)
	}
	if lo < 0 {
		return m, nil
	}
	// A block of entries is written as a whole if it may be damaged.
	lo -= lo % erasure.GroupRows
	hi += (erasure.GroupRows - hi%erasure.GroupRows) % erasure.GroupRows
	return g.rewrite(ctx, pg, term, key, first+uint64(lo), hi-lo, target, p)
}

// compared returns the members to compare, and those of them that are not believed.
func (g *group) compared(pg *canopyv1.PlacementGroup, target base.NodeID) (ids, extra []base.NodeID) {
	for _, id := range pg.InSync {
		ids = append(ids, base.NodeID(id))
	}
	if target != 0 {
		ids, extra = append(ids, target), []base.NodeID{target}
	}
	return ids, extra
}

// rewrite reads the rows with their bytes, and writes what is wrong anew.
func (g *group) rewrite(ctx context.Context, pg *canopyv1.PlacementGroup, term uint64, key chunkstore.Key, first uint64, n int, target base.NodeID, p *progress) (m mended, err error) {
	ids, extra := g.compared(pg, target)
	got, errs := g.fromMembers(ctx, pg, ids, key, first, n, true, false)
	if err := errors.Join(errs...); err != nil {
		return m, err
	}
	if now, err := g.activeTerm(); err != nil || now != term {
		return m, errors.Join(errDeposed, err)
	}
	v := newView(g.code, pg, ids, extra, got)
	set, _ := newRowSet(g.code, first, n)
	wrong := make([][]bool, len(v.members)) // by member, by row
	for i := range wrong {
		wrong[i] = make([]bool, n)
	}
	lost := make([]bool, n)
	for row := range n {
		verdict := v.judge(row)
		one := &rowSet{first: first + uint64(row), rows: 1, blocks: make([][]byte, g.code.Data()), sums: make([][]uint32, g.code.Data())}
		if !verdict.Lost {
			if err := v.row(row).decode(one, nil); err != nil {
				verdict.Lost = true
			}
		}
		if lost[row] = verdict.Lost; verdict.Lost {
			m.lost++
			continue
		}
		for i := range one.blocks {
			copy(block(set.blocks[i], row), one.blocks[i])
			set.sums[i][row] = one.sums[i][0]
		}
		for _, i := range verdict.Wrong {
			wrong[i][row] = true
		}
	}
	parity, entries, err := set.encode(g.code)
	if err != nil {
		return m, err
	}
	epoch, _, err := g.s.store.Epoch(key)
	if err != nil {
		return m, err
	}
	for i, member := range v.members {
		c, any := g.repairCall(set, parity, entries, member.shard, wrong[i])
		for row := range n {
			switch {
			case !wrong[i][row]:
			case member.rows.damaged[row]:
				m.damaged++
			case member.trusted:
				m.differing++
			}
		}
		if any {
			if err := g.sendRepair(ctx, member.id, key, term, epoch, c); err != nil {
				return m, err
			}
			m.blocks += c.payload.Len() / erasure.BlockBytes
			p.sent(c.payload.Len())
			g.s.metrics.recovered.Add(float64(c.payload.Len()))
		}
	}
	return m, g.condemnLost(ctx, key, term, epoch, first, v, lost)
}

// row is a view of one row.
func (v *view) row(row int) *view {
	one := &view{code: v.code}
	for _, m := range v.members {
		rows := &shardRows{sums: m.rows.sums[row : row+1], damaged: m.rows.damaged[row : row+1], data: block(m.rows.data, row)}
		if m.rows.entries != nil {
			rows.entries = m.rows.entries[row : row+1]
		}
		one.members = append(one.members, viewed{m.id, m.shard, m.trusted, rows})
	}
	return one
}

// repairCall is the call that writes a member's wrong blocks anew. A parity shard gets
// the entries of all rows: those of the others are what they were.
func (g *group) repairCall(set *rowSet, parity [][]byte, entries [][]erasure.Entry, shard int, wrong []bool) (shardCall, bool) {
	if !slices.Contains(wrong, true) {
		return shardCall{}, false
	}
	states := make([]byte, set.rows)
	if !g.code.IsParity(shard) {
		for row, bad := range wrong {
			switch {
			case bad && set.sums[shard][row] == 0:
				states[row] = blockHole
			case bad:
				states[row] = blockBytes
			}
		}
		return newShardCall(set.first, states, set.blocks[shard], nil), true
	}
	i := shard - g.code.Data()
	for row, s := range parityStates(entries[i]) {
		if wrong[row] {
			states[row] = s
		}
	}
	return newShardCall(set.first, states, parity[i], entries[i]), true
}

// sendRepair writes what a member has to have, of what was read in the term under the
// lock that is held.
func (g *group) sendRepair(ctx context.Context, id base.NodeID, key chunkstore.Key, term, epoch uint64, c shardCall) error {
	c.call.Repair = true
	head := &canopyv1.DataRequest{SizeEpoch: epoch, Shard: c.call, Call: &canopyv1.DataRequest_Write{Write: &canopyv1.WriteCall{Crc32C: c.crc}}}
	if id == pgSelf(g) {
		leave, err := g.log.visit(g.log.ofTerm(term, func() bool { return true }))
		if err != nil {
			return err
		}
		defer leave()
		_, err = g.shardChange(key, &link.Request{
			DataRequest: head, Payload: c.payload,
		})
		return err
	}
	return g.tellInOrder(ctx, id, key, term, head, c.payload)
}

// tellInOrder is tell with a number in the order of the term's changes: a copy that
// comes late is refused.
func (g *group) tellInOrder(ctx context.Context, id base.NodeID, key chunkstore.Key, term uint64, head *canopyv1.DataRequest, payload mem.BufferSlice) error {
	seq, done := g.log.number()
	defer done()
	head.LogTerm, head.LogSeq, head.LogFloor = term, seq, g.log.low()
	return g.tell(ctx, id, key, head, payload)
}

// condemnLost makes the blocks of lost rows unreadable on the member that is recovered:
// what it has there is older, or nothing.
func (g *group) condemnLost(ctx context.Context, key chunkstore.Key, term, epoch, first uint64, v *view, lost []bool) error {
	for _, member := range v.members {
		for row, bad := range lost {
			if !bad || member.trusted {
				continue
			}
			at := g.code.FileBlock(member.shard, first+uint64(row))
			err := g.tellInOrder(ctx, member.id, key, term, &canopyv1.DataRequest{SizeEpoch: epoch, Call: &canopyv1.DataRequest_Condemn{Condemn: &canopyv1.CondemnCall{
				FirstBlock: at, Sums: chunkstore.EncodeSums([]uint32{1}), Size: (at + 1) * erasure.BlockBytes,
			}}}, nil)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// mendLater puts right what a read found damaged, around the row.
func (g *group) mendLater(key chunkstore.Key, row uint64) {
	first := row - row%mendRows
	g.s.inBackground(func() {
		pg, active, _ := g.state()
		if !active || !g.leads(pg) {
			return
		}
		m, err := g.mendLocked(g.s.ctx, pg, key, first, 0, false, nil)
		if err != nil {
			g.s.logger.Warn("damaged blocks could not be put right", "column", key.String(), "error", err)
			return
		}
		g.s.metrics.repaired.Add(float64(m.blocks))
		g.s.logger.Warn("damaged blocks were made anew from the other shards", "column", key.String(), "row", row, "blocks", m.blocks, "lost", m.lost)
	})
}

func (g *group) mendLocked(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, first uint64, target base.NodeID, verify bool, p *progress) (mended, error) {
	release, err := g.locks.acquire(ctx, key, first*g.code.RowBytes(), (first+mendRows)*g.code.RowBytes(), true)
	if err != nil {
		return mended{}, err
	}
	defer release()
	return g.mendHeld(ctx, pg, key, first, target, verify, p)
}

// syncShard makes a member's shard of a column what it has to be, block by block where
// the checksums say that it is not.
func (g *group) syncShard(ctx context.Context, key chunkstore.Key, id base.NodeID, p *progress) error {
	done, err := g.syncShardShape(ctx, key, id)
	if done || err != nil {
		return err
	}
	pg, _, _ := g.state()
	return g.eachRows(ctx, pg, key, id, p, func(first uint64) error {
		m, err := g.mendLocked(ctx, pg, key, first, id, false, p)
		if m.lost > 0 {
			g.s.metrics.lost.Add(float64(m.lost))
			g.s.logger.Error("rows of which too few blocks are left are marked as lost", "column", key.String(), "row", first, "rows", m.lost)
		}
		return err
	})
}

// eachRows calls fn for every mendRows rows in which a member in sync, or the one that
// is recovered, has anything.
func (g *group) eachRows(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, target base.NodeID, p *progress, fn func(first uint64) error) error {
	ids := slices.Clone(pg.InSync)
	if target != 0 {
		ids = append(ids, uint64(target))
	}
	for row := uint64(0); ; {
		if err := p.pay(ctx); err != nil {
			return err
		}
		next, ok, err := g.nextRow(ctx, pg, key, row, ids)
		if err != nil || !ok {
			return err
		}
		row = next - next%mendRows
		if err := fn(row); err != nil {
			return err
		}
		row += mendRows
		p.compared(mendRows * erasure.BlockBytes)
	}
}

// syncShardShape settles existence and size epoch, under the whole column's lock. done:
// nothing is left to compare.
func (g *group) syncShardShape(ctx context.Context, key chunkstore.Key, id base.NodeID) (done bool, err error) {
	release, err := g.locks.acquire(ctx, key, 0, rangelock.All, true)
	if err != nil {
		return false, err
	}
	defer release()
	if g.s.store.Deleted(key) {
		return true, g.deleteThere(ctx, id, key, held{})
	}
	term, err := g.activeTerm()
	if err != nil {
		return false, err
	}
	epoch, exists, err := g.s.store.Epoch(key)
	if err != nil {
		return false, err
	}
	there, found, err := g.statThere(ctx, id, key)
	if err != nil {
		return false, err
	}
	if there.Tombstone {
		return true, g.s.store.Delete(key)
	}
	if found && (!exists || there.Digest == 0 || there.SizeEpoch > epoch) {
		if err := g.tellInOrder(ctx, id, key, term, &canopyv1.DataRequest{Call: &canopyv1.DataRequest_DropColumn{DropColumn: &canopyv1.DropColumnCall{}}}, nil); err != nil {
			return false, err
		}
		found = false
	}
	if !exists || found && there.SizeEpoch == epoch {
		return !exists, nil
	}
	// It is made, or told the epoch; what it has behind a cut is found row by row.
	return false, g.sendRepair(ctx, id, key, term, epoch, shardCall{call: &canopyv1.ShardCall{FirstRow: 1 << 50, Cut: true}})
}

// scrubShards reads a column from the disks of all members in sync, and makes anew what
// is damaged or does not belong to its row (PROTOCOLS J3).
func (g *group) scrubShards(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, p *progress) error {
	return g.eachRows(ctx, pg, key, 0, p, func(first uint64) error {
		m, err := g.mendLocked(ctx, pg, key, first, 0, true, p)
		p.damaged.Add(uint64(m.damaged))
		p.differing.Add(uint64(m.differing))
		p.lost.Add(uint64(m.lost))
		g.s.metrics.damaged.Add(float64(m.damaged))
		g.s.metrics.differing.Add(float64(m.differing))
		g.s.metrics.lost.Add(float64(m.lost))
		if m != (mended{}) {
			p.finding("%s: rows from %d: %d blocks damaged, %d not of their row, %d rows lost", key, first, m.damaged, m.differing, m.lost)
		}
		if err != nil {
			return err
		}
		p.repaired.Add(uint64(m.damaged + m.differing))
		g.s.metrics.repaired.Add(float64(m.damaged + m.differing))
		return nil
	})
}

// errTooFewShards is why a group with too few members cannot be served.
func errTooFewShards(code *erasure.Code, pg *canopyv1.PlacementGroup) error {
	return fserr.New(fserr.NotReady, "data", fmt.Errorf("pg %d has %d shards in sync, of which %d are needed", pg.Pg, inSyncShards(pg), code.Data()))
}
