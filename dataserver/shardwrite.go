package dataserver

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/dataserver/chunkstore/rangelock"
	"github.com/canopyfs/canopy/dataserver/erasure"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// rowChange is what a client's request makes of rows.
type rowChange struct {
	key     chunkstore.Key
	request *link.Request
	first   uint64
	rows    int
	// final: the last of the request's changes, with which members note that it is
	// done.
	final  bool
	wanted func() error // asked under the rows' lock
	// partial reports whether a row's blocks as they are must be known.
	partial func(row int) bool
	edit    func(*rowSet, *rowStates)
}

// rowStates are a rowSet's blocks after a change: which stay, by data shard and row.
type rowStates struct{ states [][]byte }

// changeRows makes a change of rows on all members, in the order of the rows' locks,
// and returns the bytes of data blocks that came or went.
func (g *group) changeRows(ctx context.Context, c *rowChange) (bytes uint64, err error) {
	for {
		release, err := g.lockRows(ctx, c.key, c.first*g.code.RowBytes(), uint64(c.rows)*g.code.RowBytes(), true)
		if err != nil {
			return 0, err
		}
		behind, err := g.checkSizeEpoch(c.key, c.request)
		if err == nil && !behind {
			err = c.wanted()
		}
		if err == nil && !behind {
			bytes, err = g.changeHeld(ctx, c)
		}
		release()
		if err != nil || !behind {
			return bytes, err
		}
		if err := g.cutShards(ctx, c.key, c.request); err != nil {
			return 0, err
		}
	}
}

// checkSizeEpoch refuses a request of an older size epoch than the column has
// (PROTOCOLS J1); behind tells that the column does not know the request's cuts yet.
func (g *group) checkSizeEpoch(key chunkstore.Key, r *link.Request) (behind bool, err error) {
	if g.s.store.Deleted(key) {
		return false, &fserr.Error{Kind: fserr.Stale, Op: "data", Path: key.String()}
	}
	epoch, exists, err := g.s.store.Epoch(key)
	if err != nil {
		return false, err
	}
	if exists && r.SizeEpoch < epoch {
		return false, &fserr.Error{Kind: fserr.OldEpoch, Op: "data", Path: key.String(), Err: fmt.Errorf("size epoch is %d", epoch)}
	}
	return exists && r.SizeEpoch > epoch, nil
}

// changeHeld is changeRows under the lock.
func (g *group) changeHeld(ctx context.Context, c *rowChange) (bytes uint64, err error) {
	pg, _, _ := g.state()
	term, err := g.activeTerm()
	if err != nil {
		return 0, err
	}
	set, states := newRowSet(g.code, c.first, c.rows)
	all := slices.Repeat([]bool{true}, g.code.Data())
	for row := 0; row < c.rows; {
		end := row + 1
		if !c.partial(row) {
			row = end
			continue
		}
		for end < c.rows && c.partial(end) {
			end++
		}
		var old *rowSet
		err := g.during(func() (err error) {
			old, err = g.gather(ctx, pg, c.key, c.first+uint64(row), end-row, all, true)
			return err
		})
		if err != nil {
			return 0, err
		}
		for i := range old.blocks {
			copy(set.blocks[i][row*erasure.BlockBytes:], old.blocks[i])
			copy(set.sums[i][row:], old.sums[i])
		}
		row = end
	}
	c.edit(set, states)
	calls, err := g.shardCalls(set, states)
	if err != nil {
		return 0, err
	}
	return g.replicateShards(ctx, term, c.key, calls, c.request, c.final)
}

func newRowSet(code *erasure.Code, first uint64, rows int) (*rowSet, *rowStates) {
	set, states := &rowSet{first: first, rows: rows}, &rowStates{}
	for range code.Data() {
		set.blocks = append(set.blocks, make([]byte, rows*erasure.BlockBytes))
		set.sums = append(set.sums, make([]uint32, rows))
		states.states = append(states.states, make([]byte, rows))
	}
	return set, states
}

// shardCall is a change of one shard: the call and its payload.
type shardCall struct {
	call    *canopyv1.ShardCall
	crc     uint32 // of the payload
	payload mem.BufferSlice
}

// shardCalls makes the changes of all shards of a set of rows.
func (g *group) shardCalls(set *rowSet, states *rowStates) ([]shardCall, error) {
	for i, blocks := range set.blocks {
		for row, state := range states.states[i] {
			switch state {
			case blockBytes:
				set.sums[i][row] = chunkstore.BlockSum(block(blocks, row))
			case blockHole:
				set.sums[i][row] = 0
				clear(block(blocks, row))
			}
		}
	}
	parity, entries, err := set.encode(g.code)
	if err != nil {
		return nil, err
	}
	var out []shardCall
	for i := range set.blocks {
		out = append(out, newShardCall(set.first, states.states[i], set.blocks[i], nil))
	}
	for i := range parity {
		out = append(out, newShardCall(set.first, parityStates(entries[i]), parity[i], entries[i]))
	}
	return out, nil
}

// encode returns the parity blocks and entries of the rows.
func (s *rowSet) encode(code *erasure.Code) (parity [][]byte, entries [][]erasure.Entry, err error) {
	shards := slices.Clone(s.blocks)
	for range code.Parity() {
		parity = append(parity, make([]byte, s.rows*erasure.BlockBytes))
	}
	shards = append(shards, parity...)
	if err := code.Encode(shards); err != nil {
		return nil, nil, err
	}
	sums := make([]uint32, code.Data())
	for _, blocks := range parity {
		made := make([]erasure.Entry, s.rows)
		for row := range made {
			any := uint32(0)
			for i := range sums {
				sums[i] = s.sums[i][row]
				any |= sums[i]
			}
			if any != 0 {
				made[row] = erasure.MakeEntry(sums, chunkstore.BlockSum(block(blocks, row)))
			}
		}
		entries = append(entries, made)
	}
	return parity, entries, nil
}

// parityStates: a row without data blocks needs no parity.
func parityStates(entries []erasure.Entry) []byte {
	states := make([]byte, len(entries))
	for i, e := range entries {
		states[i] = blockBytes
		if e == (erasure.Entry{}) {
			states[i] = blockHole
		}
	}
	return states
}

func newShardCall(first uint64, states, blocks []byte, entries []erasure.Entry) shardCall {
	c := shardCall{call: &canopyv1.ShardCall{FirstRow: first, States: states}}
	var payload []byte
	if !slices.ContainsFunc(states, func(s byte) bool { return s != blockBytes }) {
		payload = blocks
	} else {
		for row, s := range states {
			if s == blockBytes {
				payload = append(payload, block(blocks, row)...)
			}
		}
	}
	c.crc = crc32.Checksum(payload, castagnoli)
	if len(payload) > 0 {
		c.payload = mem.BufferSlice{mem.SliceBuffer(payload)}
	}
	for _, e := range entries {
		c.call.Entries = append(c.call.Entries, e[:]...)
	}
	return c
}

// replicateShards makes a change of all shards here and on the members, in parallel,
// under the lock of what it changes. If not all have it, it is undone on all. It is made
// if the term is that in which the rows were read: between two terms some are undone.
func (g *group) replicateShards(ctx context.Context, term uint64, key chunkstore.Key, calls []shardCall, from *link.Request, final bool) (bytes uint64, err error) {
	var targets []base.NodeID
	seq, err := g.log.begin(ctx, key, func() { targets = g.targets() })
	if err != nil {
		return 0, err
	}
	defer g.log.end(seq, true)
	pg, _, _ := g.state()
	floor := g.log.low()
	if now, err := g.activeTerm(); err != nil || now != term {
		return 0, errors.Join(errDeposed, err)
	}
	var mu sync.Mutex
	data, parity := uint64(0), uint64(0)
	count := func(shard int, n uint64) {
		mu.Lock()
		defer mu.Unlock()
		if g.code.IsParity(shard) {
			parity = max(parity, n)
		} else {
			data += n
		}
	}
	request := func(shard int) *link.Request {
		head := &canopyv1.DataRequest{
			Column: columnOf(key), SizeEpoch: from.SizeEpoch, LogTerm: term, LogSeq: seq, LogFloor: floor,
			Shard: calls[shard].call, Call: &canopyv1.DataRequest_Write{Write: &canopyv1.WriteCall{Crc32C: calls[shard].crc}},
		}
		if final {
			head.Client, head.Incarnation, head.Seq, head.Floor = from.Client, from.Incarnation, from.Seq, from.Floor
		}
		return &link.Request{DataRequest: head, Payload: calls[shard].payload}
	}
	errs := make([]error, len(targets)+1)
	var wg sync.WaitGroup
	for i, id := range targets {
		shard := shardOf(pg, uint64(id))
		if shard < 0 {
			continue
		}
		wg.Go(func() {
			errs[i] = g.forwardCounted(ctx, id, request(shard), seq, floor, func(n uint64) { count(shard, n) })
		})
	}
	own := shardOf(pg, g.self())
	local := g.undo.Mark(term, floor)
	if local == nil {
		var n uint64
		n, local = g.shardChange(key, request(own))
		count(own, n)
	}
	wg.Wait()
	errs[len(targets)] = local
	if err := errors.Join(errs...); err != nil {
		return 0, g.withdraw(ctx, term, seq, floor, targets, calls[0].call.Cut, local, err)
	}
	if parity > 0 {
		return parity, nil // it knows of all data shards
	}
	return data, nil
}

// withdraw deals with a change that not all members have: it is undone everywhere. If
// that fails, or it is a cut, it stays open until the group is activated anew.
func (g *group) withdraw(ctx context.Context, term, seq, floor uint64, targets []base.NodeID, cut bool, local, cause error) error {
	undone := !cut
	for _, id := range targets {
		if !undone {
			break
		}
		err := g.forward(ctx, id, &link.Request{DataRequest: &canopyv1.DataRequest{
			Column: columnOf(g.key()), LogTerm: term, Call: &canopyv1.DataRequest_ShardUndo{ShardUndo: &canopyv1.ShardUndoCall{}},
		}}, seq, floor)
		if err != nil {
			undone = false
			cause = errors.Join(cause, err)
		}
	}
	if undone {
		if err := g.undoChange(seq); err != nil {
			undone = false
			cause = errors.Join(cause, err)
		}
	}
	if !undone {
		g.log.unsettle(seq)
		g.deactivate()
		cause = fserr.New(fserr.NotReady, "data", cause)
	}
	if kind := fserr.KindOf(local); kind == fserr.IO {
		pg, _, _ := g.state()
		if g.leads(pg) && inSyncShards(pg) > g.code.Data() {
			g.s.inBackground(func() { _ = g.reportOut(g.s.ctx, pgSelf(g), local) }) // repeated by run
			return fserr.New(fserr.NotReady, "data", fmt.Errorf("this server's disk failed, another one takes over: %w", local))
		}
	}
	return cause
}

// clientWriteShards is a client's write.
func (g *group) clientWriteShards(ctx context.Context, key chunkstore.Key, r *link.Request, wanted func() error) (uint64, error) {
	w := r.GetWrite()
	payload := contiguous(r.Payload)
	if crc32.Checksum(payload, castagnoli) != w.Crc32C {
		return 0, fserr.New(fserr.Malformed, "write", chunkstore.ErrTransfer)
	}
	length := uint64(len(payload))
	if length == 0 {
		return 0, nil
	}
	first, end := g.code.Rows(w.Offset, length)
	rowBytes := g.code.RowBytes()
	bytes, err := g.changeRows(ctx, &rowChange{
		key: key, request: r, first: first, rows: int(end - first), final: true, wanted: wanted,
		partial: func(row int) bool {
			at := (first + uint64(row)) * rowBytes
			return at < w.Offset || at+rowBytes > w.Offset+length
		},
		edit: func(set *rowSet, states *rowStates) {
			set.walk(payload, w.Offset, func(shard, at int, part []byte) {
				copy(set.blocks[shard][at:], part)
				states.states[shard][at/erasure.BlockBytes] = blockBytes
			})
		},
	})
	if err == nil && w.Sync {
		err = g.syncShards(ctx, key, r)
	}
	return bytes, err
}

// syncShards makes the column durable on all members.
func (g *group) syncShards(ctx context.Context, key chunkstore.Key, r *link.Request) error {
	sync := &link.Request{DataRequest: &canopyv1.DataRequest{
		Column: columnOf(key), PgEpoch: r.PgEpoch, SizeEpoch: r.SizeEpoch, Call: &canopyv1.DataRequest_Sync{Sync: &canopyv1.SyncCall{}},
	}}
	response, err := g.clientSync(ctx, key, sync)
	response.Free()
	return err
}

// sparseRows is how many rows a punch or a reservation changes in one step.
const sparseRows = 256

// sparseShards makes a punch or a reservation, some rows at a time. Members note it as
// done with the last.
func (g *group) sparseShards(ctx context.Context, key chunkstore.Key, r *link.Request, offset, length uint64, reserve bool, wanted func() error) (bytes uint64, err error) {
	if length == 0 {
		return 0, nil
	}
	first, end := g.code.Rows(offset, length)
	rowBytes := g.code.RowBytes()
	for row := first; row < end; row += sparseRows {
		lo := max(offset, row*rowBytes)
		hi := min(offset+length, (row+sparseRows)*rowBytes)
		n, err := g.changeRows(ctx, &rowChange{
			key: key, request: r, first: row, rows: int(min(end-row, sparseRows)), final: row+sparseRows >= end, wanted: wanted,
			partial: func(i int) bool {
				at := (row + uint64(i)) * rowBytes
				return reserve || at < lo || at+rowBytes > hi
			},
			edit: func(set *rowSet, states *rowStates) { set.sparse(states, lo, hi, reserve) },
		})
		bytes += n
		if err != nil {
			return bytes, err
		}
	}
	return bytes, nil
}

// sparse makes blocks of [lo, hi) holes, and parts of blocks zeros; or with reserve
// holes blocks.
func (s *rowSet) sparse(states *rowStates, lo, hi uint64, reserve bool) {
	k := uint64(len(s.blocks))
	for b := lo / erasure.BlockBytes; b*erasure.BlockBytes < hi; b++ {
		shard, row := b%k, int(b/k-s.first)
		from, to := max(lo, b*erasure.BlockBytes), min(hi, (b+1)*erasure.BlockBytes)
		hole := s.sums[shard][row] == 0
		switch {
		case reserve && hole:
			states.states[shard][row] = blockBytes
		case reserve:
		case to-from == erasure.BlockBytes:
			states.states[shard][row] = blockHole
		case !hole:
			clear(block(s.blocks[shard], row)[from-b*erasure.BlockBytes : to-b*erasure.BlockBytes])
			states.states[shard][row] = blockBytes
		}
	}
}

// cutShards makes the members know the request's cuts, durably (PROTOCOLS J1). The row
// that is cut in two is changed as by any other change; then all members cut their
// shards behind it. What lies there is nobody's any more, so that is completed, and
// never undone.
func (g *group) cutShards(ctx context.Context, key chunkstore.Key, r *link.Request) error {
	release, err := g.locks.acquire(ctx, key, 0, rangelock.All, true)
	if err != nil {
		return err
	}
	defer release()
	if g.s.store.Deleted(key) {
		return nil
	}
	epoch, exists, err := g.s.store.Epoch(key)
	if err != nil || exists && r.SizeEpoch <= epoch {
		return err
	}
	term, err := g.activeTerm()
	if err != nil {
		return err
	}
	size, rowBytes := cutLimit(epoch, r), g.code.RowBytes()
	rows := min(size/rowBytes, 1<<50)
	if in := size % rowBytes; exists && in > 0 && rows < 1<<50 {
		old := &link.Request{DataRequest: &canopyv1.DataRequest{SizeEpoch: epoch}}
		_, err := g.changeHeld(ctx, &rowChange{
			key: key, request: old, first: rows, rows: 1,
			partial: func(int) bool { return true },
			edit:    func(set *rowSet, states *rowStates) { set.cut(states, size) },
		})
		if err == nil {
			// Each member's cut is durable by itself: the row must be before, so that a
			// power loss of all between two of them leaves nothing behind the cut.
			err = g.syncShards(ctx, key, r)
		}
		if err != nil {
			return err
		}
		rows++
	}
	calls := make([]shardCall, g.code.Shards())
	for i := range calls {
		calls[i].call = &canopyv1.ShardCall{FirstRow: rows, Cut: true}
	}
	_, err = g.replicateShards(ctx, term, key, calls, r, false)
	return err
}

// cut makes holes of the blocks behind size, and zeros of what is behind it in its own.
func (s *rowSet) cut(states *rowStates, size uint64) {
	end := (s.first + uint64(s.rows)) * uint64(len(s.blocks)) * erasure.BlockBytes
	s.sparse(states, size, end, false)
}
