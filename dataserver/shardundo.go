package dataserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/dataserver/erasure"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// undoChange puts back what a change replaced here, whole or in part.
func (g *group) undoChange(seq uint64) error {
	record, err := g.undo.Record(seq)
	if err != nil || record == nil {
		return err
	}
	pg, _, _ := g.state()
	shard, key := shardOf(pg, g.self()), keyOf(record.Column)
	if err := g.checkRecord(record, shard); err != nil {
		return err
	}
	states := make([]byte, len(record.States))
	blocks := make([][]byte, len(states))
	sums, data := chunkstore.DecodeSums(record.OldSums), record.OldData
	for i, s := range record.States {
		switch {
		case s == blockStays:
		case record.OldDamaged[i] != 0:
			at := g.code.FileBlock(shard, record.FirstRow+uint64(i))
			if err := g.s.store.Condemn(key, at, sums[i:i+1], record.SizeEpoch, (at+1)*erasure.BlockBytes); err != nil {
				return err
			}
		case sums[i] == 0:
			states[i] = blockHole
		case len(data) < erasure.BlockBytes:
			return fserr.New(fserr.IO, "undo log", fmt.Errorf("change %d lacks what was there before", seq))
		default:
			states[i] = blockBytes
			blocks[i], data = data[:erasure.BlockBytes], data[erasure.BlockBytes:]
		}
	}
	err = g.writeShard(key, shard, record.FirstRow, record.SizeEpoch, states, blocks, record.OldEntries)
	if err != nil && fserr.KindOf(err) != fserr.Stale { // deleted: nothing to put back
		return err
	}
	return g.undo.Undone(seq)
}

// checkRecord refuses a record that does not say of each row what it has to. Old data
// are not looked at: undoChange alone has them.
func (g *group) checkRecord(record *canopyv1.ShardUndo, shard int) error {
	n, entries := len(record.States), 0
	if g.code.IsParity(shard) {
		entries = n * erasure.EntryBytes
	}
	if shard < 0 || len(record.Sums) != 4*n || len(record.OldSums) != 4*n || len(record.OldDamaged) != n || g.code.IsParity(shard) && len(record.Entries) != entries || len(record.OldEntries) != entries {
		return fserr.New(fserr.IO, "undo log", fmt.Errorf("change %d of shard %d is not well formed", record.Seq, shard))
	}
	return nil
}

// appliedHere reports whether a change that an earlier process logged is done.
func (g *group) appliedHere(record *canopyv1.ShardUndo) (bool, error) {
	key := keyOf(record.Column)
	pg, _, _ := g.state()
	shard := shardOf(pg, g.self())
	if record.Cut {
		return false, nil // made again
	}
	if err := g.checkRecord(record, shard); err != nil {
		return false, err
	}
	rows, err := g.readShard(key, shard, record.FirstRow, len(record.States), false, false)
	if err != nil {
		return false, err
	}
	for i, sum := range chunkstore.DecodeSums(record.Sums) {
		if record.States[i] != blockStays && rows.sums[i] != sum {
			return false, nil
		}
		if rows.entries != nil && (rows.damaged[i] || string(rows.entries[i][:]) != string(record.Entries[i*erasure.EntryBytes:(i+1)*erasure.EntryBytes])) {
			return false, nil
		}
	}
	return true, nil
}

// shardsInFlight answers which changes are open here, after those of older terms have
// ended; others of these are refused from then on.
func (g *group) shardsInFlight(ctx context.Context, term uint64) (*link.Response, error) {
	g.log.raise(term)
	if err := g.log.drain(ctx); err != nil {
		return nil, err
	}
	response := ok()
	var err error
	response.ShardTerm, response.ShardFloor, response.ShardLog, response.ShardLogLost = g.undo.State()
	for _, record := range response.ShardLog {
		if !record.Applied {
			if record.Applied, err = g.appliedHere(record); err != nil {
				return nil, err
			}
		}
	}
	return response, nil
}

// forwardedShard executes what the primary forwarded, once.
func (g *group) forwardedShard(ctx context.Context, key chunkstore.Key, r *link.Request, still func() bool) (*link.Response, error) {
	if _, undo := r.Call.(*canopyv1.DataRequest_ShardUndo); undo {
		return ok(), g.undoForwarded(ctx, r, still)
	}
	if err := checkRange(key, 0, 0, 0); err != nil {
		return nil, err
	}
	id := writeID{r.Client, r.Incarnation, r.Seq, r.Floor}
	if id.client != 0 {
		if err := g.sessions.fence(id, time.Now()); err != nil {
			return nil, err
		}
	}
	rows, err := g.rowsOf(key, r)
	if err != nil {
		return nil, err
	}
	t, mine, open := g.log.takeRows(r.LogTerm, r.LogSeq, r.LogFloor, rows, still)
	if !open {
		return nil, errOverrun
	}
	if mine {
		err := g.undo.Mark(r.LogTerm, r.LogFloor)
		var bytes uint64
		if err == nil {
			bytes, err = g.shardOperation(key, r)
		}
		if err == nil && id.client != 0 {
			t.id = id
			g.sessions.note(id, bytes)
		}
		g.log.took(r.LogSeq, t, bytes, err)
	}
	select {
	case <-t.finished:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	response := ok()
	response.AllocatedBytes = t.bytes
	return response, t.err
}

// rowsOf returns which rows a numbered request changes.
func (g *group) rowsOf(key chunkstore.Key, r *link.Request) (rowsTaken, error) {
	all := rowsTaken{key, 0, ^uint64(0)}
	switch call := r.Call.(type) {
	case *canopyv1.DataRequest_Write:
		if c := r.Shard; c != nil && !c.Cut {
			return rowsTaken{key, c.FirstRow, c.FirstRow + uint64(len(c.States))}, nil
		}
		return all, nil
	case *canopyv1.DataRequest_Condemn:
		pg, _, _ := g.state()
		if shard := shardOf(pg, g.self()); shard >= 0 {
			row := g.code.RowOf(shard, call.Condemn.FirstBlock)
			return rowsTaken{key, row, row + uint64(len(call.Condemn.Sums)/4)}, nil
		}
	case *canopyv1.DataRequest_DropColumn:
		return all, nil
	}
	return all, fserr.New(fserr.Malformed, "shard", fmt.Errorf("%T with a number", r.Call))
}

// shardOperation executes a numbered request.
func (g *group) shardOperation(key chunkstore.Key, r *link.Request) (bytes uint64, err error) {
	if _, write := r.Call.(*canopyv1.DataRequest_Write); write {
		return g.shardChange(key, r)
	}
	response, err := g.recoveryCall(key, r)
	response.Free()
	return 0, err
}

// shardRecoveryCall executes what a primary asks of a member besides changes.
func (g *group) shardRecoveryCall(key chunkstore.Key, r *link.Request) (*link.Response, error) {
	switch call := r.Call.(type) {
	case *canopyv1.DataRequest_ShardRead:
		return g.shardRead(key, call.ShardRead)
	case *canopyv1.DataRequest_Write:
		if !r.Shard.GetRepair() || !r.Shard.GetCut() {
			return nil, fserr.New(fserr.Malformed, "shard", errors.New("a change without a number"))
		}
		_, err := g.shardChange(key, r)
		return ok(), err
	case *canopyv1.DataRequest_DropColumn, *canopyv1.DataRequest_Condemn:
		return nil, fserr.New(fserr.Malformed, "shard", fmt.Errorf("%T without a number", r.Call))
	case *canopyv1.DataRequest_ShardSettle:
		g.log.settleTo(r.LogTerm, r.LogFloor)
		return ok(), g.undo.Mark(r.LogTerm, r.LogFloor)
	}
	return g.recoveryCall(key, r)
}

// undoForwarded makes a change undone here, also one that comes late.
func (g *group) undoForwarded(ctx context.Context, r *link.Request, still func() bool) error {
	leave, err := g.log.visit(g.log.ofTerm(r.LogTerm, still))
	if err != nil {
		return err
	}
	defer leave()
	id, err := g.log.bar(ctx, r.LogSeq)
	if err != nil {
		return err
	}
	if id.client != 0 {
		g.sessions.forget(id)
	}
	return g.undoChange(r.LogSeq)
}

// inSyncShards returns how many different shards the members have.
func inSyncShards(pg *canopyv1.PlacementGroup) int {
	var have []int
	for _, id := range pg.InSync {
		if s := shardOf(pg, id); s >= 0 && !slices.Contains(have, s) {
			have = append(have, s)
		}
	}
	return len(have)
}

// membersOf returns the members in sync that have the shard.
func membersOf(pg *canopyv1.PlacementGroup, shard int) (ids []base.NodeID) {
	for _, id := range pg.InSync {
		if shardOf(pg, id) == shard {
			ids = append(ids, base.NodeID(id))
		}
	}
	return ids
}
