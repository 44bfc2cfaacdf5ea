package chunkstore

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/canopyfs/canopy/dataserver/chunkstore/rangelock"
)

// Verify reads blocks from the disk and returns their checksums, 0 for holes and
// for blocks beyond the end, and the numbers of those whose bytes do not match.
func (s *Store) Verify(key Key, first, blocks uint64) (sums []uint32, damaged []uint64, err error) {
	c, err := s.acquire(key, false, 0)
	if err != nil {
		return nil, nil, err
	}
	if c == nil || s.deleted.has(key) {
		if c != nil {
			s.unref(c)
		}
		return make([]uint32, blocks), nil, nil
	}
	defer s.unref(c)
	hold, err := c.lock.Acquire(background(), first, first+max(blocks, 1), false)
	if err != nil {
		return nil, nil, err
	}
	defer hold.Release()
	sums = make([]uint32, blocks)
	if ok, err := s.ensureOpen(c, false, 0); err != nil || !ok {
		return sums, nil, err
	}
	entries, err := c.readEntries(first, first+blocks)
	if err != nil {
		return nil, nil, err
	}
	block := make([]byte, BlockBytes)
	for i := range sums {
		number := first + uint64(i)
		e := getEntry(entries, i)
		if sums[i] = e.cur; e.cur == 0 {
			continue
		}
		err := readRaw(c.file, c.key, block, spanAt(number, number+1).data)
		if err != nil || !s.matches(crc32.Checksum(block, castagnoli), e) {
			damaged = append(damaged, number)
		}
	}
	return sums, damaged, nil
}

// Condemn gives blocks the checksums of bytes that are lost: reading them is an
// error until they are overwritten. The column is made if it is missing, and is
// at least sizeBytes large then.
func (s *Store) Condemn(key Key, first uint64, sums []uint32, sizeEpoch, sizeBytes uint64) error {
	c, err := s.acquire(key, true, sizeEpoch)
	if err != nil {
		return err
	}
	defer s.unref(c)
	end := first + uint64(len(sums))
	hold, err := c.lock.Acquire(background(), first, end, true)
	if err != nil {
		return err
	}
	defer hold.Release()
	if _, err := s.ensureOpen(c, true, sizeEpoch); err != nil {
		return err
	}
	defer c.written.Add(1)
	if sizeBytes > c.size.Load() {
		if err := c.file.Truncate(fileBytes(sizeBytes)); err != nil {
			return ioError("condemn", key, err)
		}
		c.grow(sizeBytes)
	}
	for b := first; b < end; {
		sp := spanAt(b, end)
		entries := make([]byte, sp.blocks*entryBytes)
		for i := range int(sp.blocks) {
			sum := sums[int(sp.first-first)+i]
			putEntry(entries, i, entry{cur: sum, prev: sum})
		}
		if _, err := c.file.WriteAt(entries, sp.entries); err != nil {
			return ioError("condemn", key, err)
		}
		b += sp.blocks
	}
	return nil
}

// condemned stands where the header of a column was whose bytes are lost.
const condemned = "the contents of this column are lost"

// CondemnAll makes the whole column unreadable, whatever is there.
func (s *Store) CondemnAll(key Key) error {
	c, err := s.reference(key)
	if err != nil {
		return err
	}
	defer s.unref(c)
	hold, err := c.lock.Acquire(background(), 0, rangelock.All, true)
	if err != nil {
		return err
	}
	defer hold.Release()
	if err := s.closeFile(c); err != nil {
		return ioError("condemn", key, err)
	}
	if err := s.makeDir(filepath.Dir(c.path)); err != nil {
		return ioError("condemn", key, err)
	}
	f, err := s.fs.OpenFile(c.path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return ioError("condemn", key, err)
	}
	b := make([]byte, headerBytes)
	copy(b, condemned)
	_, err = f.WriteAt(b, 0)
	if err := errors.Join(err, f.Sync(), f.Close(), s.syncEntry(c)); err != nil {
		return ioError("condemn", key, err)
	}
	return nil
}

// DecodeSums is the form of checksums in messages: 4 bytes each, little endian.
func DecodeSums(b []byte) []uint32 {
	sums := make([]uint32, len(b)/4)
	for i := range sums {
		sums[i] = binary.LittleEndian.Uint32(b[i*4:])
	}
	return sums
}

// EncodeSums is the inverse of DecodeSums.
func EncodeSums(sums []uint32) []byte {
	b := make([]byte, 0, 4*len(sums))
	for _, sum := range sums {
		b = binary.LittleEndian.AppendUint32(b, sum)
	}
	return b
}
