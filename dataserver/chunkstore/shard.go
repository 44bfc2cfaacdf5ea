package chunkstore

import (
	"errors"
	"hash/crc32"

	"github.com/canopyfs/canopy/internal/fserr"
)

// BlockSum returns what the store keeps as the checksum of a block with the bytes.
func BlockSum(block []byte) uint32 { return sumOf(crc32.Checksum(block, castagnoli)) }

// Make makes a column that is missing, empty and of the size epoch. Kind Stale if its
// data id was deleted.
func (s *Store) Make(key Key, sizeEpoch uint64) error {
	stale := &fserr.Error{Kind: fserr.Stale, Op: "make", Path: key.String()}
	if s.deleted.has(key) {
		return stale
	}
	c, err := s.acquire(key, true, sizeEpoch)
	if err != nil {
		return err
	}
	defer s.unref(c)
	if s.deleted.has(key) {
		// The deletion came before the column was made.
		return errors.Join(stale, s.remove(c))
	}
	return nil
}

// Epoch returns the column's size epoch, and whether there is one.
func (s *Store) Epoch(key Key) (sizeEpoch uint64, exists bool, err error) {
	if s.deleted.has(key) {
		return 0, false, nil
	}
	c, err := s.acquire(key, false, 0)
	if err != nil || c == nil {
		return 0, false, err
	}
	defer s.unref(c)
	return c.epoch.Load(), true, nil
}
