package chunkstore

import (
	"fmt"
	"hash/crc32"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// ChecksumError says that a block's bytes are not those that were written. It
// is of kind IO.
type ChecksumError struct {
	Key   Key
	Block uint64
}

// Error names the block.
func (e *ChecksumError) Error() string {
	return fmt.Sprintf("%s: block %d does not match its checksum", e.Key, e.Block)
}

// Unwrap returns the kind.
func (e *ChecksumError) Unwrap() error { return fserr.IO }

// BufferBytes returns how large a buffer Read needs.
func BufferBytes(offset, length uint64) int {
	first, end := blocksOf(offset, length)
	return int(end-first) * BlockBytes
}

// Read reads length bytes into the buffer, of at least BufferBytes, and returns
// the part of it that holds them, with their CRC-32C. Holes, what lies beyond
// the column's end, and what lies beyond a cut of a newer size epoch than the
// column knows are zeros. It may return fewer bytes: the rest is zeros. A damaged
// block is a *ChecksumError.
func (s *Store) Read(key Key, offset, length, sizeEpoch uint64, cuts []*canopyv1.Cut, buffer []byte) (data []byte, crc uint32, err error) {
	if s.deleted.has(key) {
		return nil, 0, nil
	}
	c, err := s.acquire(key, false, 0)
	if err != nil || c == nil {
		return nil, 0, err
	}
	defer s.unref(c)
	limit := c.limit(sizeEpoch, cuts)
	if offset >= limit {
		return nil, 0, nil
	}
	length = min(length, limit-offset)
	first, end := blocksOf(offset, length)
	hold, err := c.lock.Acquire(background(), first, end, false)
	if err != nil {
		return nil, 0, err
	}
	defer hold.Release()
	if ok, err := s.ensureOpen(c, false, 0); err != nil || !ok {
		return nil, 0, err
	}
	buffer = buffer[:(end-first)*BlockBytes]
	whole, err := s.readBlocks(c, first, end, buffer)
	if err != nil {
		return nil, 0, err
	}
	skip := offset - first*BlockBytes
	data = buffer[skip : skip+length]
	if skip == 0 && length%BlockBytes == 0 {
		return data, whole, nil
	}
	return data, crc32.Checksum(data, castagnoli), nil
}

// readBlocks reads and verifies whole blocks under their lock, and returns the
// CRC of all.
func (s *Store) readBlocks(c *column, first, end uint64, buffer []byte) (whole uint32, err error) {
	entries, err := c.readEntries(first, end)
	if err != nil {
		return 0, err
	}
	for b := first; b < end; {
		sp := spanAt(b, end)
		lo := (sp.first - first) * BlockBytes
		if err := readRaw(c.file, c.key, buffer[lo:lo+sp.blocks*BlockBytes], sp.data); err != nil {
			return 0, c.unreadable(sp, err)
		}
		b += sp.blocks
	}
	for i := range int(end - first) {
		block := buffer[i*BlockBytes : (i+1)*BlockBytes]
		e := getEntry(entries, i)
		if e.cur == 0 {
			clear(block)
			whole = blockShift.then(whole, zeroCRC)
			continue
		}
		crc := crc32.Checksum(block, castagnoli)
		if !s.matches(crc, e) {
			return 0, &ChecksumError{Key: c.key, Block: first + uint64(i)}
		}
		whole = blockShift.then(whole, crc)
	}
	return whole, nil
}

// unreadable finds the block that the disk does not give: it is damaged like one
// with wrong bytes.
func (c *column) unreadable(sp span, cause error) error {
	block := make([]byte, BlockBytes)
	for i := range sp.blocks {
		if err := readRaw(c.file, c.key, block, sp.data+int64(i*BlockBytes)); err != nil {
			return &ChecksumError{Key: c.key, Block: sp.first + i}
		}
	}
	return cause
}

// matches reports whether a block's CRC is one that may be returned. After a
// crash of the machine a block may be what it was before an unsynced write.
func (s *Store) matches(crc uint32, e entry) bool {
	sum := sumOf(crc)
	if sum == e.cur {
		return true
	}
	return s.suspect.Load() && (sum == e.prev || e.prev == 0 && crc == zeroCRC)
}

// settle makes the entries of blocks agree with the data, where the data are
// what was there before an interrupted write.
func (s *Store) settle(key Key, first, end uint64) error {
	if s.deleted.has(key) {
		return nil
	}
	c, err := s.acquire(key, false, 0)
	if err != nil || c == nil {
		return err
	}
	defer s.unref(c)
	hold, err := c.lock.Acquire(background(), first, end, true)
	if err != nil {
		return err
	}
	defer hold.Release()
	if ok, err := s.ensureOpen(c, false, 0); err != nil || !ok {
		return err
	}
	if err := s.settleHeld(c, first, end); err != nil {
		return err
	}
	length, err := c.file.Size()
	if err != nil {
		return ioError("settle", c.key, err)
	}
	c.size.Store(columnBytes(length))
	return nil
}

// settleHeld is settle under the range's lock. A block that matches neither of
// its checksums is left: reading it is an error.
func (s *Store) settleHeld(c *column, first, end uint64) error {
	entries, err := c.readEntries(first, end)
	if err != nil {
		return err
	}
	block := make([]byte, BlockBytes)
	for i := range int(end - first) {
		e := getEntry(entries, i)
		sp := spanAt(first+uint64(i), first+uint64(i)+1)
		if err := readRaw(c.file, c.key, block, sp.data); err != nil {
			return err
		}
		crc := crc32.Checksum(block, castagnoli)
		if sumOf(crc) == e.cur || e.cur == e.prev || sumOf(crc) != e.prev && (e.prev != 0 || crc != zeroCRC) {
			continue
		}
		b := make([]byte, entryBytes)
		putEntry(b, 0, entry{cur: e.prev, prev: e.prev})
		if _, err := c.file.WriteAt(b, sp.entries); err != nil {
			return ioError("settle", c.key, err)
		}
		c.written.Add(1)
	}
	return nil
}
