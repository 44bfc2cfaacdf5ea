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
	"github.com/canopyfs/canopy/dataserver/erasure"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// rowSet is what the group has of rows of a column, as the primary put it together
// under the rows' lock.
type rowSet struct {
	first  uint64
	rows   int
	blocks [][]byte   // by data shard: the rows' blocks, holes as zeros; nil if not asked for
	sums   [][]uint32 // by data shard; 0: hole
}

// memberRows asks a member, or this server, for rows of its shard.
func (g *group) memberRows(ctx context.Context, pg *canopyv1.PlacementGroup, id base.NodeID, key chunkstore.Key, first uint64, n int, bytes, verify bool) (*shardRows, error) {
	shard := shardOf(pg, uint64(id))
	if id == pgSelf(g) {
		return g.readShard(key, shard, first, n, bytes, verify)
	}
	response, err := g.ask(ctx, id, key, &canopyv1.DataRequest{Call: &canopyv1.DataRequest_ShardRead{
		ShardRead: &canopyv1.ShardReadCall{FirstRow: first, Rows: uint32(n), Bytes: bytes, Verify: verify},
	}}, nil)
	if err != nil {
		return nil, err
	}
	defer response.Free()
	out := &shardRows{sums: chunkstore.DecodeSums(response.ShardSums), damaged: make([]bool, n)}
	if bytes {
		out.data = response.Payload.Materialize()
	}
	if len(out.sums) != n || bytes && (len(out.data) != n*erasure.BlockBytes || crc32.Checksum(out.data, castagnoli) != response.Crc32C) ||
		g.code.IsParity(shard) && len(response.ShardEntries) != n*erasure.EntryBytes {
		return nil, fserr.New(fserr.NotReady, "shard read", fmt.Errorf("server %d: %w", id, chunkstore.ErrTransfer))
	}
	for _, i := range response.Damaged {
		out.damaged[i] = true
	}
	if g.code.IsParity(shard) {
		out.entries = make([]erasure.Entry, n)
		for i := range out.entries {
			copy(out.entries[i][:], response.ShardEntries[i*erasure.EntryBytes:])
		}
	}
	return out, nil
}

// gather returns what the rows are, of the wanted data shards. Blocks that are
// missing, damaged or do not come are made from others (degraded read). Kinds: IO if
// fewer than k blocks of a row belong together, NotReady if members do not answer.
func (g *group) gather(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, first uint64, n int, wanted []bool, bytes bool) (*rowSet, error) {
	s := &rowSet{first: first, rows: n, blocks: make([][]byte, g.code.Data()), sums: make([][]uint32, g.code.Data())}
	var direct []base.NodeID
	for shard, want := range wanted {
		if ids := membersOf(pg, shard); want && len(ids) > 0 {
			direct = append(direct, ids[0])
		} else if want {
			return g.gatherAll(ctx, pg, key, s, wanted, bytes)
		}
	}
	got, errs := g.fromMembers(ctx, pg, direct, key, first, n, bytes, false)
	for i, id := range direct {
		if errs[i] != nil || slices.Contains(got[i].damaged, true) {
			return g.gatherAll(ctx, pg, key, s, wanted, bytes)
		}
		shard := shardOf(pg, uint64(id))
		s.blocks[shard], s.sums[shard] = got[i].data, got[i].sums
	}
	return s, nil
}

// fromMembers asks members in parallel.
func (g *group) fromMembers(ctx context.Context, pg *canopyv1.PlacementGroup, ids []base.NodeID, key chunkstore.Key, first uint64, n int, bytes, verify bool) ([]*shardRows, []error) {
	got, errs := make([]*shardRows, len(ids)), make([]error, len(ids))
	if len(ids) == 1 {
		got[0], errs[0] = g.memberRows(ctx, pg, ids[0], key, first, n, bytes, verify)
		return got, errs
	}
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { got[i], errs[i] = g.memberRows(ctx, pg, id, key, first, n, bytes, verify) })
	}
	wg.Wait()
	return got, errs
}

// gatherAll is gather with all members in sync.
func (g *group) gatherAll(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, s *rowSet, wanted []bool, bytes bool) (*rowSet, error) {
	var ids []base.NodeID
	for _, id := range pg.InSync {
		ids = append(ids, base.NodeID(id))
	}
	got, errs := g.fromMembers(ctx, pg, ids, key, s.first, s.rows, true, false)
	for i, err := range errs {
		if fserr.KindOf(err) == fserr.IO {
			g.distrustMember(pg, ids[i], key, err)
		}
	}
	view := newView(g.code, pg, ids, nil, got)
	if len(view.damaged) > 0 {
		g.s.metrics.damaged.Add(float64(len(view.damaged)))
		g.mendLater(key, s.first+view.damaged[0])
	}
	if err := view.decode(s, wanted); err != nil {
		if err := errors.Join(errs...); err != nil {
			return nil, fserr.New(fserr.NotReady, "read", fmt.Errorf("%s: too few members answer: %w", key, err))
		}
		g.s.metrics.lost.Inc()
		return nil, fserr.New(fserr.IO, "read", fmt.Errorf("%s: %w", key, err))
	}
	g.s.metrics.degraded.Inc()
	return s, nil
}

// distrustMember takes a member out of sync that cannot read its shard at all.
func (g *group) distrustMember(pg *canopyv1.PlacementGroup, id base.NodeID, key chunkstore.Key, cause error) {
	g.s.metrics.damaged.Inc()
	g.s.logger.Error("a shard cannot be read", "column", key.String(), "server", id, "error", cause)
	if inSyncShards(pg) > g.code.Data() {
		g.s.inBackground(func() { _ = g.reportOut(g.s.ctx, id, cause) }) // a failure shows at the next read
	}
}

// readShards reads bytes of a column under the rows' lock.
func (g *group) readShards(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, offset, length uint64) ([]byte, error) {
	out := make([]byte, length)
	first, end := g.code.Rows(offset, length)
	for row := first; row < end; row += maxShardRows {
		n := int(min(end-row, maxShardRows))
		lo, hi := max(offset, row*g.code.RowBytes()), min(offset+length, (row+uint64(n))*g.code.RowBytes())
		wanted := make([]bool, g.code.Data())
		for b := lo / erasure.BlockBytes; b*erasure.BlockBytes < hi && b < lo/erasure.BlockBytes+uint64(len(wanted)); b++ {
			wanted[b%uint64(len(wanted))] = true
		}
		s, err := g.gather(ctx, pg, key, row, n, wanted, true)
		if err != nil {
			return nil, err
		}
		s.copyOut(out[lo-offset:hi-offset], lo)
	}
	return out, nil
}

// copyOut fills p with the column's bytes from offset on.
func (s *rowSet) copyOut(p []byte, offset uint64) {
	s.walk(p, offset, func(shard, at int, part []byte) { copy(part, s.blocks[shard][at:]) })
}

// walk calls fn with the parts of p, whose bytes lie at offset of the column, that lie
// in one block each, and where in the shard's blocks that is.
func (s *rowSet) walk(p []byte, offset uint64, fn func(shard, at int, part []byte)) {
	k := uint64(len(s.blocks))
	for len(p) > 0 {
		block, within := offset/erasure.BlockBytes, offset%erasure.BlockBytes
		n := min(uint64(len(p)), erasure.BlockBytes-within)
		fn(int(block%k), int((block/k-s.first)*erasure.BlockBytes+within), p[:n])
		p, offset = p[n:], offset+n
	}
}

// clientReadShards is a client's read: the primary puts it together.
func (g *group) clientReadShards(ctx context.Context, key chunkstore.Key, r *link.Request) (*link.Response, error) {
	c := r.GetRead()
	pg, err := g.admitPrimary(ctx, r.PgEpoch)
	if err != nil {
		return nil, err
	}
	release, err := g.lockRows(ctx, key, c.Offset, uint64(c.Length), false)
	if err != nil {
		return nil, err
	}
	defer release()
	epoch, exists, err := g.s.store.Epoch(key)
	if err != nil {
		g.distrustMember(pg, pgSelf(g), key, err)
		return nil, fserr.New(fserr.NotReady, "read", err)
	}
	response := ok()
	if length := min(uint64(c.Length), cutLimit(epoch, r)-min(c.Offset, cutLimit(epoch, r))); exists && length > 0 {
		var p []byte
		err := g.during(func() (err error) {
			p, err = g.readShards(ctx, pg, key, c.Offset, length)
			return err
		})
		if err != nil {
			return nil, err
		}
		response.Payload = mem.BufferSlice{mem.SliceBuffer(p)}
		response.Crc32C = crc32.Checksum(p, castagnoli)
	}
	// As PROTOCOLS B4: the lease is looked at after the bytes.
	if !g.s.lease.valid() {
		response.Free()
		return nil, errNoLease
	}
	return response, nil
}

// cutLimit is where the column ends for a request that knows of cuts that the members
// do not know yet.
func cutLimit(epoch uint64, r *link.Request) uint64 {
	limit := ^uint64(0)
	for _, cut := range r.Cuts {
		if cut.SizeEpoch > epoch && cut.SizeEpoch <= r.SizeEpoch {
			limit = min(limit, cut.Size)
		}
	}
	return limit
}

// lockRows locks the rows that have the bytes.
func (g *group) lockRows(ctx context.Context, key chunkstore.Key, offset, length uint64, exclusive bool) (release func(), err error) {
	first, end := g.code.Rows(offset, length)
	return g.locks.acquire(ctx, key, first*g.code.RowBytes(), end*g.code.RowBytes(), exclusive)
}

// nextRow returns the first row, at or behind from, that any of the members has
// anything of, or an earlier one; ok is false if there is none.
func (g *group) nextRow(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, from uint64, ids []uint64) (row uint64, ok bool, err error) {
	for _, id := range ids {
		shard := shardOf(pg, id)
		offset := g.code.FileBlock(shard, from) * erasure.BlockBytes
		at, err := g.seekMember(ctx, base.NodeID(id), key, offset)
		if err != nil {
			return 0, false, err
		}
		if at == chunkstore.NoOffset {
			continue
		}
		if r := max(from, g.code.RowOf(shard, at/erasure.BlockBytes)); !ok || r < row {
			row, ok = r, true
		}
	}
	return row, ok, nil
}

func (g *group) seekMember(ctx context.Context, id base.NodeID, key chunkstore.Key, offset uint64) (uint64, error) {
	if id == pgSelf(g) {
		return g.s.store.Seek(key, offset, false, 0, nil)
	}
	response, err := g.ask(ctx, id, key, &canopyv1.DataRequest{Call: &canopyv1.DataRequest_Seek{Seek: &canopyv1.SeekCall{Offset: offset}}}, nil)
	if err != nil {
		return 0, err
	}
	defer response.Free()
	return response.ColumnSize, nil
}

// seekRows is how many rows a seek looks at in one step.
const seekRows = 256

// clientSeekShards answers where data or holes are, or how much there is, of the
// members in sync.
func (g *group) clientSeekShards(ctx context.Context, key chunkstore.Key, r *link.Request) (*link.Response, error) {
	c := r.GetSeek()
	pg, err := g.admitPrimary(ctx, r.PgEpoch)
	if err != nil {
		return nil, err
	}
	epoch, exists, err := g.s.store.Epoch(key)
	if err != nil {
		return nil, err
	}
	limit := (min(cutLimit(epoch, r), 1<<63) + erasure.BlockBytes - 1) / erasure.BlockBytes
	response := ok()
	response.ColumnSize = chunkstore.NoOffset
	if c.Hole {
		response.ColumnSize = c.Offset
	}
	if exists {
		err = g.walkSums(ctx, pg, key, c.Offset/erasure.BlockBytes, c.Hole && !c.Usage, func(block uint64, has bool) bool {
			switch lo := max(c.Offset, block*erasure.BlockBytes); {
			case block >= limit:
				return false
			case c.Usage && has:
				response.AllocatedBytes += erasure.BlockBytes
			case c.Usage:
			case c.Hole && has:
				response.ColumnSize = (block + 1) * erasure.BlockBytes
			case c.Hole:
				return false
			case has:
				response.ColumnSize = lo
				return false
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	if c.Usage {
		response.ColumnSize = 0
	}
	if !g.s.lease.valid() {
		return nil, errNoLease
	}
	return response, nil
}

// walkSums calls fn with the column's blocks from one on, until it returns false. Rows
// that no member has anything of are left out, unless holes are looked for: the first
// of them is one.
func (g *group) walkSums(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, block uint64, holes bool, fn func(block uint64, has bool) bool) error {
	k := uint64(g.code.Data())
	wanted := make([]bool, k)
	for i := range wanted {
		wanted[i] = true
	}
	for row := block / k; ; {
		next, ok, err := g.nextRow(ctx, pg, key, row, pg.InSync)
		if err != nil || !ok || holes && next > row {
			return err
		}
		row = next
		s, err := g.sumsOf(ctx, pg, key, row, wanted)
		if err != nil {
			return err
		}
		for b := max(block, row*k); b < (row+seekRows)*k; b++ {
			if !fn(b, s.sums[b%k][b/k-row] != 0) {
				return nil
			}
		}
		row += seekRows
	}
}

func (g *group) sumsOf(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, row uint64, wanted []bool) (*rowSet, error) {
	release, err := g.locks.acquire(ctx, key, row*g.code.RowBytes(), (row+seekRows)*g.code.RowBytes(), false)
	if err != nil {
		return nil, err
	}
	defer release()
	var s *rowSet
	err = g.during(func() (err error) {
		s, err = g.gather(ctx, pg, key, row, seekRows, wanted, false)
		return err
	})
	return s, err
}
