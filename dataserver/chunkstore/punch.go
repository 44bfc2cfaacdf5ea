package chunkstore

import (
	"errors"
	"hash/crc32"
	"io"
	"math"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// segmentBlocks bounds what a punch or a reservation does in one step.
const segmentBlocks = 1 << 16

// Punch makes the range zeros, and gives the space of whole blocks back; freed
// says how many bytes that were. The column keeps its size, one that does not
// exist is not made. Kinds as of Write.
//
// Entries are set to "hole" and made durable before the data go: an entry is never
// left with the checksum of data that are not there. Killed in between, the block
// is what it was (see settle), or zeros.
func (s *Store) Punch(key Key, on Range) (freed uint64, err error) {
	return s.change("punch", key, on, false, func(c *column, _, _ uint64) (uint64, error) {
		return s.punchHeld(c, on.Offset, on.Offset+on.Length)
	})
}

func (s *Store) punchHeld(c *column, lo, hi uint64) (freed uint64, err error) {
	size := c.size.Load()
	hi = min(hi, size)
	if lo >= hi {
		return 0, nil
	}
	first, end := (lo+BlockBytes-1)/BlockBytes, hi/BlockBytes
	if hi == size {
		end = (hi + BlockBytes - 1) / BlockBytes // nothing of the last block lies behind
	}
	if first > end {
		return 0, s.zeroPart(c, lo, hi)
	}
	if err := s.zeroPart(c, lo, min(first*BlockBytes, hi)); err != nil {
		return 0, err
	}
	if err := s.zeroPart(c, end*BlockBytes, hi); err != nil {
		return 0, err
	}
	for b := first; b < end; {
		at, ok, err := c.nextGroup(b)
		if err != nil || !ok || at >= end {
			return freed, err
		}
		b = min(end, at+segmentBlocks)
		n, err := s.punchBlocks(c, at, b)
		freed += n
		if err != nil {
			return freed, err
		}
	}
	return freed, nil
}

// zeroPart writes zeros to a part of a block, if it is no hole.
func (s *Store) zeroPart(c *column, lo, hi uint64) error {
	if lo >= hi {
		return nil
	}
	first := lo / BlockBytes
	b, err := c.readEntries(first, first+1)
	if err != nil || getEntry(b, 0).cur == 0 {
		return err
	}
	zeros := make([]byte, hi-lo)
	w := Write{Offset: lo, Parts: [][]byte{zeros}, CRC: crc32.Checksum(zeros, castagnoli)}
	_, err = s.writeBlocks(c, &w, hi-lo, first, first+1)
	return err
}

// punchBlocks makes holes of whole blocks.
func (s *Store) punchBlocks(c *column, first, end uint64) (freed uint64, err error) {
	entries, err := c.readEntries(first, end)
	if err != nil {
		return 0, err
	}
	var spans []span // with data
	for at := first; at < end; {
		sp := spanAt(at, end)
		before := freed
		for i := sp.first - first; i < sp.first-first+sp.blocks; i++ {
			if e := getEntry(entries, int(i)); e.cur != 0 {
				freed += BlockBytes
				putEntry(entries, int(i), entry{prev: e.cur})
			}
		}
		if freed > before {
			spans = append(spans, sp)
		}
		at += sp.blocks
	}
	if freed == 0 {
		return 0, nil
	}
	slot := s.inflight.begin(c.key, first, end-first)
	defer s.inflight.end(slot)
	defer c.written.Add(1)
	failed := func(err error) (uint64, error) {
		return 0, errors.Join(ioError("punch", c.key, err), s.settleHeld(c, first, end))
	}
	for _, sp := range spans {
		lo, hi := (sp.first-first)*entryBytes, (sp.first-first+sp.blocks)*entryBytes
		if _, err := c.file.WriteAt(entries[lo:hi], sp.entries); err != nil {
			return failed(err)
		}
	}
	if err := c.file.Sync(); err != nil {
		return failed(err)
	}
	for _, sp := range spans {
		if err := c.file.Deallocate(sp.data, int64(sp.blocks*BlockBytes)); err != nil {
			return failed(err)
		}
	}
	return freed, nil
}

// zeroPunched makes zeros of the blocks that a write covers in part and that were
// punched: after a crash their old bytes may still be in the file.
func (c *column) zeroPunched(offset, length, first, end uint64, old []byte) error {
	for _, b := range [2]uint64{first, end - 1} {
		if b*BlockBytes >= offset && (b+1)*BlockBytes <= offset+length {
			continue
		}
		if e := getEntry(old, int(b-first)); e.cur == 0 && e.prev != 0 {
			if err := c.file.Deallocate(spanAt(b, b+1).data, BlockBytes); err != nil {
				return ioError("write", c.key, err)
			}
		}
	}
	return nil
}

// nextGroup returns the first block, at or behind b, whose group has anything in
// the file; ok is false if there is none.
func (c *column) nextGroup(b uint64) (at uint64, ok bool, err error) {
	group := spanAt(b, b+1)
	start := int64(0)
	if b >= headBlocks {
		start = group.entries - int64((b-headBlocks)%groupBlocks*entryBytes)
	}
	next, err := c.file.NextData(start)
	if errors.Is(err, io.EOF) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, ioError("read holes", c.key, err)
	}
	if next >= headBytes {
		b = max(b, headBlocks+uint64(next-headBytes)/groupBytes*groupBlocks)
	}
	return b, true, nil
}

// Reserve gives the holes of the range space, so that a later write there does not
// fail for want of it, and returns how many bytes that took. They read as zeros, as
// before. The column grows to what was reserved. A failure for want of space leaves
// what was reserved so far. Kinds as of Write.
//
// A reserved block is one of zeros with their checksum; the data come before the
// entries: what lies under a hole does not count.
func (s *Store) Reserve(key Key, on Range) (allocated uint64, err error) {
	return s.change("reserve", key, on, true, func(c *column, first, end uint64) (uint64, error) {
		for b := first; b < end && err == nil; {
			at := b
			b = min(end, at+segmentBlocks)
			var n uint64
			n, err = s.reserveBlocks(c, at, b, on.Offset+on.Length)
			allocated += n
		}
		return allocated, err
	})
}

func (s *Store) reserveBlocks(c *column, first, end, stop uint64) (allocated uint64, err error) {
	entries := make([]byte, (end-first)*entryBytes) // holes, as everything beyond the end
	if first*BlockBytes < c.size.Load() {
		if entries, err = c.readEntries(first, end); err != nil {
			return 0, err
		}
	}
	for i := range int(end - first) {
		if getEntry(entries, i).cur == 0 {
			allocated += BlockBytes
		}
	}
	if allocated == 0 {
		return 0, nil
	}
	if s.full(allocated) {
		return 0, &fserr.Error{Kind: fserr.NoSpace, Op: "reserve", Path: c.key.String()}
	}
	defer c.written.Add(1)
	for at := first; at < end; {
		sp := spanAt(at, end)
		part := entries[(sp.first-first)*entryBytes : (sp.first-first+sp.blocks)*entryBytes]
		if err := c.reserveSpan(sp, part, stop); err != nil {
			return 0, ioError("reserve", c.key, err)
		}
		at += sp.blocks
	}
	return allocated, nil
}

// reserveSpan reserves the holes of a span, up to the byte stop of the column.
func (c *column) reserveSpan(sp span, entries []byte, stop uint64) error {
	changed := false
	for i := 0; i < int(sp.blocks); {
		j := i
		for j < int(sp.blocks) && getEntry(entries, j).cur == 0 {
			putEntry(entries, j, entry{cur: sumOf(zeroCRC)})
			j++
		}
		if j > i {
			lo := (sp.first + uint64(i)) * BlockBytes
			hi := min((sp.first+uint64(j))*BlockBytes, max(stop, c.size.Load()))
			if err := c.file.Zero(sp.data+int64(i*BlockBytes), int64(hi-lo)); err != nil {
				return err
			}
			c.grow(hi)
			changed = true
		}
		i = j + 1
	}
	if !changed {
		return nil
	}
	_, err := c.file.WriteAt(entries, sp.entries)
	return err
}

// NoOffset is what Seek returns when there is nothing to be found.
const NoOffset = math.MaxUint64

// Seek returns the first byte of the column, at or behind offset, that lies in a
// block with data, or with hole in one without; NoOffset if there is none. What
// lies beyond the column's end or beyond a cut of a newer size epoch than it knows
// is a hole.
func (s *Store) Seek(key Key, offset uint64, hole bool, sizeEpoch uint64, cuts []*canopyv1.Cut) (at uint64, err error) {
	at = NoOffset
	if hole {
		at = offset
	}
	err = s.walk(key, offset, sizeEpoch, cuts, func(first uint64, entries []byte, limit uint64) bool {
		start := first * BlockBytes
		if hole && start > at {
			return false // blocks were left out: there
		}
		for i := range len(entries) / entryBytes {
			has := getEntry(entries, i).cur != 0
			switch lo := max(offset, start+uint64(i)*BlockBytes); {
			case lo >= limit:
				return false
			case hole && has:
				at = start + uint64(i+1)*BlockBytes
			case hole:
				return false
			case has:
				at = lo
				return false
			}
		}
		return true
	})
	return at, err
}

// Allocated returns the bytes of the column's blocks that have space, without
// those beyond a cut that the column does not know yet.
func (s *Store) Allocated(key Key, sizeEpoch uint64, cuts []*canopyv1.Cut) (bytes uint64, err error) {
	err = s.walk(key, 0, sizeEpoch, cuts, func(first uint64, entries []byte, limit uint64) bool {
		for i := range len(entries) / entryBytes {
			if (first+uint64(i))*BlockBytes < limit && getEntry(entries, i).cur != 0 {
				bytes += BlockBytes
			}
		}
		return true
	})
	return bytes, err
}

// walk calls fn with the entries of the column's blocks from offset on, as far as
// the file has any, by ascending block, until it returns false. limit is where the
// column's blocks end.
func (s *Store) walk(key Key, offset, sizeEpoch uint64, cuts []*canopyv1.Cut, fn func(first uint64, entries []byte, limit uint64) bool) error {
	if s.deleted.has(key) {
		return nil
	}
	c, err := s.acquire(key, false, 0)
	if err != nil || c == nil {
		return err
	}
	defer s.unref(c)
	for b := offset / BlockBytes; ; {
		at, entries, err := s.nextEntries(c, b)
		limit := (c.limit(sizeEpoch, cuts) + BlockBytes - 1) / BlockBytes * BlockBytes
		if err != nil || entries == nil || at*BlockBytes >= limit || !fn(at, entries, limit) {
			return err
		}
		b = groupEnd(at)
	}
}

// nextEntries returns the entries of the next group with anything in the file, from
// block at >= b on; nil if there is none.
func (s *Store) nextEntries(c *column, b uint64) (at uint64, entries []byte, err error) {
	hold, err := c.lock.Acquire(background(), b, groupEnd(b), false)
	if err != nil {
		return 0, nil, err
	}
	defer hold.Release()
	if ok, err := s.ensureOpen(c, false, 0); err != nil || !ok {
		return 0, nil, err
	}
	at, ok, err := c.nextGroup(b)
	if err != nil || !ok || at*BlockBytes >= c.size.Load() {
		return 0, nil, err
	}
	// Of a later group than b's the entries may change meanwhile: they are read as
	// a whole, and what was there before or comes after is as good.
	entries, err = c.readEntries(at, groupEnd(at))
	return at, entries, err
}

// limit is the column's size for a reader that knows cuts of newer epochs.
func (c *column) limit(sizeEpoch uint64, cuts []*canopyv1.Cut) uint64 {
	limit, known := c.size.Load(), c.epoch.Load()
	for _, cut := range cuts {
		if cut.SizeEpoch > known && cut.SizeEpoch <= sizeEpoch {
			limit = min(limit, cut.Size)
		}
	}
	return limit
}
