package dataserver

import (
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/dataserver/erasure"
	"github.com/canopyfs/canopy/internal/fserr"
)

// What a ShardCall makes of a row's block.
const (
	blockStays = 0
	blockHole  = 1
	blockBytes = 2
)

// maxShardRows bounds the rows of one call to a member.
const maxShardRows = 1024

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// shardOf returns the number of the shard that a member has, -1 if it is none.
func shardOf(pg *canopyv1.PlacementGroup, id uint64) int {
	at := slices.Index(pg.Members, id)
	if at < 0 || at >= len(pg.Shards) {
		return -1
	}
	return int(pg.Shards[at])
}

// shardRows is what a member has of some rows.
type shardRows struct {
	sums    []uint32 // 0: hole
	damaged []bool
	entries []erasure.Entry // of a parity shard
	data    []byte          // if asked for: all blocks, holes and damaged ones as zeros
}

// runs calls fn for the parts of rows [first, first+n) that are contiguous in the
// shard's file.
func (g *group) runs(shard int, first uint64, n int, fn func(at, rows int, block uint64) error) error {
	for at := 0; at < n; {
		rows := n - at
		if g.code.IsParity(shard) {
			rows = min(rows, int(erasure.GroupRows-(first+uint64(at))%erasure.GroupRows))
		}
		if err := fn(at, rows, g.code.FileBlock(shard, first+uint64(at))); err != nil {
			return err
		}
		at += rows
	}
	return nil
}

// readShard reads rows of this server's own shard.
func (g *group) readShard(key chunkstore.Key, shard int, first uint64, n int, bytes, verify bool) (*shardRows, error) {
	out := &shardRows{sums: make([]uint32, n), damaged: make([]bool, n)}
	if bytes {
		out.data = make([]byte, n*erasure.BlockBytes)
	}
	if g.code.IsParity(shard) {
		out.entries = make([]erasure.Entry, n)
	}
	err := g.runs(shard, first, n, func(at, rows int, block uint64) error {
		// After a crash of the machine checksums may be newer than blocks, or older.
		sums, damaged, err := g.sumsHere(key, block, rows, verify || !bytes && g.s.store.Suspect())
		if err != nil {
			return err
		}
		copy(out.sums[at:], sums)
		for _, b := range damaged {
			out.damaged[at+int(b-block)] = true
		}
		if bytes {
			if err := g.readBlocks(key, block, out.data[at*erasure.BlockBytes:(at+rows)*erasure.BlockBytes], out.damaged[at:]); err != nil {
				return err
			}
		}
		if out.entries == nil {
			return nil
		}
		raw := make([]byte, rows*erasure.EntryBytes)
		err = g.readEntries(key, first+uint64(at), raw)
		if errors.As(err, new(*chunkstore.ChecksumError)) {
			for i := range rows {
				out.damaged[at+i] = true
			}
			return nil
		}
		for i := range rows {
			copy(out.entries[at+i][:], raw[i*erasure.EntryBytes:])
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (g *group) sumsHere(key chunkstore.Key, block uint64, n int, verify bool) ([]uint32, []uint64, error) {
	if verify {
		return g.s.store.Verify(key, block, uint64(n))
	}
	sums, err := g.s.store.Sums(key, block, uint64(n))
	return sums, nil, err
}

// readBlocks fills data with blocks from the number on, and notes damaged ones.
func (g *group) readBlocks(key chunkstore.Key, block uint64, data []byte, damaged []bool) error {
	for at := 0; at < len(data)/erasure.BlockBytes; {
		rest := data[at*erasure.BlockBytes:]
		got, _, err := g.s.store.Read(key, (block+uint64(at))*erasure.BlockBytes, uint64(len(rest)), 0, nil, rest)
		var bad *chunkstore.ChecksumError
		if !errors.As(err, &bad) {
			clear(rest[len(got):])
			return err
		}
		n := int(bad.Block - block - uint64(at))
		if n > 0 {
			if _, _, err := g.s.store.Read(key, (block+uint64(at))*erasure.BlockBytes, uint64(n)*erasure.BlockBytes, 0, nil, rest); err != nil {
				return err
			}
		}
		clear(rest[n*erasure.BlockBytes : (n+1)*erasure.BlockBytes])
		damaged[at+n] = true
		at += n + 1
	}
	return nil
}

// readEntries reads the entries of rows of one group of rows.
func (g *group) readEntries(key chunkstore.Key, row uint64, into []byte) error {
	at := erasure.EntryOffset(row)
	got, _, err := g.s.store.Read(key, at, uint64(len(into)), 0, nil, make([]byte, chunkstore.BufferBytes(at, uint64(len(into)))))
	copy(into, got)
	return err
}

// shardRead answers a primary.
func (g *group) shardRead(key chunkstore.Key, c *canopyv1.ShardReadCall) (*link.Response, error) {
	pg, _, _ := g.state()
	shard := shardOf(pg, g.self())
	if shard < 0 || c.Rows > maxShardRows {
		return nil, fserr.New(fserr.Malformed, "shard read", fmt.Errorf("%d rows of shard %d", c.Rows, shard))
	}
	rows, err := g.readShard(key, shard, c.FirstRow, int(c.Rows), c.Bytes, c.Verify)
	if err != nil {
		return nil, err
	}
	response := ok()
	response.ShardSums = chunkstore.EncodeSums(rows.sums)
	for i, damaged := range rows.damaged {
		if damaged {
			response.Damaged = append(response.Damaged, uint64(i))
		}
	}
	for _, e := range rows.entries {
		response.ShardEntries = append(response.ShardEntries, e[:]...)
	}
	if c.Bytes {
		response.Crc32C = crc32.Checksum(rows.data, castagnoli)
		response.Payload = mem.BufferSlice{mem.SliceBuffer(rows.data)}
	}
	return response, nil
}

// shardChange makes a change of this server's shard. What it replaces is in the undo
// log before. bytes is what it allocated or freed, as far as this shard knows.
func (g *group) shardChange(key chunkstore.Key, r *link.Request) (bytes uint64, err error) {
	pg, _, _ := g.state()
	c, shard := r.Shard, shardOf(pg, g.self())
	n := len(c.GetStates())
	switch {
	case c == nil || shard < 0 || n > maxShardRows || g.code.IsParity(shard) && len(c.Entries) != n*erasure.EntryBytes && !c.Cut:
		return 0, fserr.New(fserr.Malformed, "shard", fmt.Errorf("%d rows, %d bytes of entries, shard %d", n, len(c.Entries), shard))
	case c.Cut:
		return 0, g.shardCut(key, shard, r)
	}
	entries := c.Entries
	if !g.code.IsParity(shard) {
		entries = nil
	}
	payload := contiguous(r.Payload)
	if crc32.Checksum(payload, castagnoli) != r.GetWrite().GetCrc32C() {
		return 0, fserr.New(fserr.Malformed, "shard", chunkstore.ErrTransfer)
	}
	blocks, err := blocksOf(c.States, payload)
	if err != nil {
		return 0, err
	}
	if err := g.s.store.Make(key, r.SizeEpoch); err != nil {
		return 0, err
	}
	if !c.Repair {
		if bytes, err = g.logShard(key, shard, r, blocks); err != nil {
			return 0, err
		}
	}
	if err := g.writeShard(key, shard, c.FirstRow, r.SizeEpoch, c.States, blocks, entries); err != nil {
		if !c.Repair {
			err = errors.Join(err, g.undoChange(r.LogSeq)) // it may be tried again
		}
		return 0, err
	}
	if !c.Repair {
		g.undo.Applied(r.LogSeq)
	}
	return bytes, nil
}

// contiguous returns the payload's bytes, valid as long as it is.
func contiguous(payload mem.BufferSlice) []byte {
	if len(payload) == 1 {
		return payload[0].ReadOnlyData()
	}
	return payload.Materialize()
}

// blocksOf returns, per row, the block in the payload, nil where there is none.
func blocksOf(states, payload []byte) ([][]byte, error) {
	out := make([][]byte, len(states))
	for i, s := range states {
		if s == blockBytes && len(payload) >= erasure.BlockBytes {
			out[i], payload = payload[:erasure.BlockBytes], payload[erasure.BlockBytes:]
		} else if s > blockHole {
			return nil, fserr.New(fserr.Malformed, "shard", fmt.Errorf("state %d of a row", s))
		}
	}
	if len(payload) > 0 {
		return nil, fserr.New(fserr.Malformed, "shard", fmt.Errorf("%d bytes too much", len(payload)))
	}
	return out, nil
}

// logShard writes what a change replaces to the undo log.
func (g *group) logShard(key chunkstore.Key, shard int, r *link.Request, blocks [][]byte) (bytes uint64, err error) {
	c := r.Shard
	n := len(c.States)
	record := &canopyv1.ShardUndo{
		Term: r.LogTerm, Seq: r.LogSeq, Column: columnOf(key), FirstRow: c.FirstRow, States: c.States, Entries: c.Entries, SizeEpoch: r.SizeEpoch,
		OldDamaged: make([]byte, n),
	}
	sums, oldSums := make([]uint32, n), make([]uint32, n)
	lo, hi := 0, n
	for lo < hi && c.States[lo] == blockStays {
		lo++
	}
	for hi > lo && c.States[hi-1] == blockStays {
		hi--
	}
	from, count := lo, hi-lo
	if g.code.IsParity(shard) {
		from, count = 0, n // the entries of all rows
	}
	old, err := g.readShard(key, shard, c.FirstRow+uint64(from), count, true, false)
	if err != nil {
		return 0, err
	}
	for i := lo; i < hi; i++ {
		if c.States[i] == blockStays {
			continue
		}
		at := i - from
		if blocks[i] != nil {
			sums[i] = chunkstore.BlockSum(blocks[i])
		}
		oldSums[i] = old.sums[at]
		switch {
		case old.damaged[at]:
			record.OldDamaged[i] = 1
		case oldSums[i] != 0:
			record.OldData = append(record.OldData, old.data[at*erasure.BlockBytes:(at+1)*erasure.BlockBytes]...)
		}
		if (sums[i] == 0) != (oldSums[i] == 0) {
			bytes += erasure.BlockBytes
		}
	}
	if g.code.IsParity(shard) {
		bytes = 0
		for i, e := range old.entries {
			record.OldEntries = append(record.OldEntries, e[:]...)
			bytes += g.entryBytes(e, erasure.Entry(c.Entries[i*erasure.EntryBytes:]))
		}
	}
	record.Sums, record.OldSums = chunkstore.EncodeSums(sums), chunkstore.EncodeSums(oldSums)
	if err := g.undo.Add(record); err != nil {
		return 0, fserr.New(fserr.KindOf(err), "undo log", err)
	}
	return bytes, nil
}

// entryBytes returns the bytes of data blocks that came or went.
func (g *group) entryBytes(old, now erasure.Entry) (bytes uint64) {
	for i := range g.code.Data() {
		if (old.Sum(i) == 0) != (now.Sum(i) == 0) {
			bytes += erasure.BlockBytes
		}
	}
	return bytes
}

// writeShard writes blocks, holes and entries.
func (g *group) writeShard(key chunkstore.Key, shard int, first, epoch uint64, states []byte, blocks [][]byte, entries []byte) error {
	return g.runs(shard, first, len(states), func(at, rows int, block uint64) error {
		for i, j := at, at; i < at+rows; i = j {
			for j = i + 1; j < at+rows && states[j] == states[i]; {
				j++
			}
			offset, length := (block+uint64(i-at))*erasure.BlockBytes, uint64(j-i)*erasure.BlockBytes
			var err error
			switch states[i] {
			case blockBytes:
				parts := slices.Clone(blocks[i:j])
				crc := uint32(0)
				for _, p := range parts {
					crc = crc32.Update(crc, castagnoli, p)
				}
				_, err = g.s.store.Write(key, chunkstore.Write{Offset: offset, Parts: parts, CRC: crc, SizeEpoch: epoch, Repair: true})
			case blockHole:
				_, err = g.s.store.Punch(key, chunkstore.Range{Offset: offset, Length: length, SizeEpoch: epoch, Repair: true})
			}
			if err != nil {
				return err
			}
		}
		if entries == nil {
			return nil
		}
		return g.writeEntries(key, first+uint64(at), epoch, entries[at*erasure.EntryBytes:(at+rows)*erasure.EntryBytes])
	})
}

// writeEntries writes the entries of rows of one group of rows.
func (g *group) writeEntries(key chunkstore.Key, row, epoch uint64, entries []byte) error {
	_, err := g.s.store.Write(key, chunkstore.Write{
		Offset: erasure.EntryOffset(row), Parts: [][]byte{entries}, CRC: crc32.Checksum(entries, castagnoli), SizeEpoch: epoch, Repair: true,
	})
	return err
}

// shardCut cuts this server's shard to some rows, durably. It is logged, and made on
// those that lack it instead of undone. A repetition changes nothing.
func (g *group) shardCut(key chunkstore.Key, shard int, r *link.Request) error {
	c := r.Shard
	if !c.Repair {
		err := g.undo.Add(&canopyv1.ShardUndo{
			Term: r.LogTerm, Seq: r.LogSeq, Column: columnOf(key), FirstRow: c.FirstRow, SizeEpoch: r.SizeEpoch, Cut: true,
		})
		if err != nil {
			return fserr.New(fserr.KindOf(err), "undo log", err)
		}
	}
	epoch, exists, err := g.s.store.Epoch(key)
	if err != nil {
		return err
	}
	if in := c.FirstRow % erasure.GroupRows; g.code.IsParity(shard) && in > 0 && exists && epoch < r.SizeEpoch {
		// The last group's entries lie behind its blocks, so the rest of it stays. It goes
		// first: who knows the size epoch has all of the cut.
		rows := int(erasure.GroupRows - in)
		states := make([]byte, rows)
		for i := range states {
			states[i] = blockHole
		}
		err := g.writeShard(key, shard, c.FirstRow, epoch, states, make([][]byte, rows), make([]byte, rows*erasure.EntryBytes))
		if err == nil {
			err = g.s.store.Sync(key)
		}
		if err != nil {
			return err
		}
	}
	size := g.code.FileBlocks(shard, c.FirstRow) * erasure.BlockBytes
	if err := g.s.store.Cut(key, r.SizeEpoch, []*canopyv1.Cut{{SizeEpoch: r.SizeEpoch, Size: size}}); err != nil {
		return err
	}
	if err := g.s.store.Sync(key); err != nil {
		return err
	}
	if !c.Repair {
		g.undo.Applied(r.LogSeq)
	}
	return nil
}
