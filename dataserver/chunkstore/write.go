package chunkstore

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Write is what is to be written.
type Write struct {
	Offset uint64
	Parts  [][]byte // one behind the other; the slice itself is used up
	CRC    uint32   // CRC-32C of all parts
	// SizeEpoch and Cuts as PROTOCOLS J1: an older epoch than the column's is
	// refused, the cuts of a newer one are applied first.
	SizeEpoch uint64
	Cuts      []*canopyv1.Cut
	// Repair takes the bytes whatever the epoch; the column's becomes SizeEpoch if
	// that is larger.
	Repair bool
}

// ErrTransfer is the cause of a Malformed error: the bytes do not match their
// checksum, so they were damaged under way. Nothing was written.
var ErrTransfer = errors.New("bytes were damaged under way")

// Write writes to a column, which it makes if it is missing, and returns the
// bytes of newly allocated blocks. Kinds: OldEpoch, Stale (the data id was
// deleted), NoSpace, FileTooBig, Malformed (ErrTransfer), IO.
func (s *Store) Write(key Key, w Write) (allocated uint64, err error) {
	length := uint64(0)
	for _, p := range w.Parts {
		length += uint64(len(p))
	}
	on := Range{Offset: w.Offset, Length: length, SizeEpoch: w.SizeEpoch, Cuts: w.Cuts, Repair: w.Repair}
	return s.change("write", key, on, true, func(c *column, first, end uint64) (uint64, error) {
		return s.writeBlocks(c, &w, length, first, end)
	})
}

// Range is what a change of bytes is about; epoch, cuts and repair as in Write.
type Range struct {
	Offset, Length uint64
	SizeEpoch      uint64
	Cuts           []*canopyv1.Cut
	Repair         bool
}

// maxColumnBytes is the largest column whose file has offsets that fit.
const maxColumnBytes = 1 << 62

// change does what every change of bytes begins with, and calls do with the
// column open and the range's blocks locked. With create false nothing is done to
// a column that does not exist.
func (s *Store) change(op string, key Key, on Range, create bool, do func(c *column, first, end uint64) (uint64, error)) (uint64, error) {
	stale := &fserr.Error{Kind: fserr.Stale, Op: op, Path: key.String()}
	switch {
	case on.Length == 0:
		return 0, nil
	case on.Length > maxColumnBytes || on.Offset > maxColumnBytes-on.Length:
		return 0, &fserr.Error{Kind: fserr.FileTooBig, Op: op, Path: key.String()}
	case s.deleted.has(key):
		return 0, stale
	}
	c, err := s.acquire(key, create, on.SizeEpoch)
	if err != nil || c == nil {
		return 0, err
	}
	defer s.unref(c)
	if s.deleted.has(key) {
		// The deletion came before the column was made.
		return 0, errors.Join(stale, s.remove(c))
	}
	if on.SizeEpoch > c.epoch.Load() {
		if err := s.cut(c, on.SizeEpoch, on.Cuts); err != nil {
			return 0, err
		}
	}
	first, end := blocksOf(on.Offset, on.Length)
	hold, err := c.lock.Acquire(background(), first, end, true)
	if err != nil {
		return 0, err
	}
	defer hold.Release()
	if on.SizeEpoch < c.epoch.Load() && !on.Repair {
		return 0, &fserr.Error{Kind: fserr.OldEpoch, Op: op, Path: key.String(), Err: fmt.Errorf("size epoch is %d", c.epoch.Load())}
	}
	// The file may be gone since: a deletion marks first and removes then, under
	// the whole range.
	if s.deleted.has(key) {
		return 0, stale
	}
	if ok, err := s.ensureOpen(c, create, on.SizeEpoch); err != nil || !ok {
		return 0, err
	}
	return do(c, first, end)
}

// writeBlocks writes under the range's lock.
func (s *Store) writeBlocks(c *column, w *Write, length, first, end uint64) (allocated uint64, err error) {
	old := make([]byte, (end-first)*entryBytes) // holes, as everything beyond the end
	if first*BlockBytes < c.size.Load() {
		if old, err = c.readEntries(first, end); err != nil {
			return 0, err
		}
	}
	sums, err := c.sumsOf(w, length, first, end, old)
	if err != nil {
		return 0, err
	}
	entries := make([]byte, len(old))
	for i := range int(end - first) {
		e := getEntry(old, i)
		if e.cur == 0 {
			allocated += BlockBytes
		}
		putEntry(entries, i, entry{cur: sums[i], prev: e.cur})
	}
	if allocated > 0 && s.full(allocated) {
		return 0, &fserr.Error{Kind: fserr.NoSpace, Op: "write", Path: c.key.String()}
	}
	if err := c.zeroPunched(w.Offset, length, first, end, old); err != nil {
		return 0, err
	}
	slot := s.inflight.begin(c.key, first, end-first)
	defer s.inflight.end(slot)
	if err := c.put(w, length, first, end, entries); err != nil {
		err = errors.Join(ioError("write", c.key, err), s.settleHeld(c, first, end))
		if length, e := c.file.Size(); e == nil {
			c.grow(columnBytes(length))
		}
		return 0, err
	}
	c.grow(w.Offset + length)
	s.beginEarly(c, w.Offset, length)
	return allocated, nil
}

// grow makes the size at least that.
func (c *column) grow(to uint64) {
	for {
		size := c.size.Load()
		if to <= size || c.size.CompareAndSwap(size, to) {
			return
		}
	}
}

// put writes entries and data, span by span.
func (c *column) put(w *Write, length, first, end uint64, entries []byte) error {
	defer c.written.Add(1)
	parts := w.Parts
	at := w.Offset
	for b := first; b < end; {
		sp := spanAt(b, end)
		lo, hi := (sp.first-first)*entryBytes, (sp.first-first+sp.blocks)*entryBytes
		if _, err := c.file.WriteAt(entries[lo:hi], sp.entries); err != nil {
			return err
		}
		stop := min(w.Offset+length, (sp.first+sp.blocks)*BlockBytes)
		var now [][]byte
		now, parts = split(parts, int(stop-at))
		if err := c.file.WriteVec(now, sp.data+int64(at-sp.first*BlockBytes)); err != nil {
			return err
		}
		at = stop
		b += sp.blocks
	}
	return nil
}

// split returns the first n bytes of the parts, and the rest.
func split(parts [][]byte, n int) (head, rest [][]byte) {
	for i, p := range parts {
		if n == 0 {
			return parts[:i:i], parts[i:]
		}
		if n < len(p) {
			head = append(append(head, parts[:i]...), p[:n])
			rest = append(append(rest, p[n:]), parts[i+1:]...)
			return head, rest
		}
		n -= len(p)
	}
	return parts, nil
}

// readEntries reads the entries of blocks [first, end); those beyond the file
// are holes.
func (c *column) readEntries(first, end uint64) ([]byte, error) {
	b := make([]byte, (end-first)*entryBytes)
	for at := first; at < end; {
		sp := spanAt(at, end)
		lo, hi := (sp.first-first)*entryBytes, (sp.first-first+sp.blocks)*entryBytes
		if _, err := c.file.ReadAt(b[lo:hi], sp.entries); err != nil && !errors.Is(err, io.EOF) {
			return nil, ioError("read checksums", c.key, err)
		}
		at += sp.blocks
	}
	return b, nil
}

// sumsOf computes what the blocks' checksums will be, and verifies the
// transfer's. Blocks that are written in part are read and verified first.
func (c *column) sumsOf(w *Write, length, first, end uint64, old []byte) ([]uint32, error) {
	sums := make([]uint32, end-first)
	in := partsReader{parts: w.Parts}
	var whole uint32
	var block []byte
	at, stop := w.Offset, w.Offset+length
	for i := range sums {
		start := (first + uint64(i)) * BlockBytes
		lo, hi := max(at, start)-start, min(stop, start+BlockBytes)-start
		if lo == 0 && hi == BlockBytes {
			crc := in.crc(0, BlockBytes)
			sums[i], whole = sumOf(crc), blockShift.then(whole, crc)
			continue
		}
		if block == nil {
			block = make([]byte, BlockBytes)
		}
		if w.Repair && lo == 0 && start+hi >= c.size.Load() {
			clear(block) // the column's last block, whatever it was
		} else if err := c.readBlock(block, first+uint64(i), getEntry(old, i)); err != nil {
			return nil, err
		}
		in.copy(block[lo:hi])
		whole = crc32.Update(whole, castagnoli, block[lo:hi])
		sums[i] = sumOf(crc32.Checksum(block, castagnoli))
	}
	if whole != w.CRC {
		return nil, &fserr.Error{Kind: fserr.Malformed, Op: "write", Path: c.key.String(),
			Err: fmt.Errorf("%w: checksum %08x, announced %08x", ErrTransfer, whole, w.CRC)}
	}
	return sums, nil
}

// readBlock reads and verifies one block.
func (c *column) readBlock(block []byte, number uint64, e entry) error {
	if e.cur == 0 {
		clear(block)
		return nil
	}
	if err := readRaw(c.file, c.key, block, spanAt(number, number+1).data); err != nil {
		return err
	}
	if sumOf(crc32.Checksum(block, castagnoli)) != e.cur {
		return &ChecksumError{Key: c.key, Block: number}
	}
	return nil
}

// readRaw fills p from the file; what lies beyond its end is zeros.
func readRaw(f File, key Key, p []byte, at int64) error {
	n, err := f.ReadAt(p, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return ioError("read", key, err)
	}
	clear(p[n:])
	return nil
}

// partsReader walks through parts.
type partsReader struct {
	parts [][]byte
	at    int // in parts[0]
}

// crc continues a CRC over the next n bytes.
func (r *partsReader) crc(sum uint32, n int) uint32 {
	for n > 0 {
		p := r.next(n)
		sum = crc32.Update(sum, castagnoli, p)
		n -= len(p)
	}
	return sum
}

func (r *partsReader) copy(to []byte) {
	for len(to) > 0 {
		to = to[copy(to, r.next(len(to))):]
	}
}

// next returns up to n of the next bytes.
func (r *partsReader) next(n int) []byte {
	for r.at == len(r.parts[0]) {
		r.parts, r.at = r.parts[1:], 0
	}
	p := r.parts[0][r.at:min(len(r.parts[0]), r.at+n)]
	r.at += len(p)
	return p
}
