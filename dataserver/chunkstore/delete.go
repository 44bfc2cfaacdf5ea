package chunkstore

import (
	"errors"
	"io/fs"

	"github.com/canopyfs/canopy/dataserver/chunkstore/rangelock"
	"github.com/canopyfs/canopy/internal/base"
)

// Delete removes the column, and leaves a tombstone for its data id in the PG:
// no later write makes any column of it again (PROTOCOLS H3). It is durable on
// return. A repetition is harmless.
func (s *Store) Delete(key Key) error {
	if err := s.deleted.add(key, s.options.Now()); err != nil {
		return ioError("delete", key, err)
	}
	return s.Drop(key)
}

// Drop removes the column without a tombstone.
func (s *Store) Drop(key Key) error {
	// The file is not opened: it may be damaged.
	c, err := s.reference(key)
	if err != nil {
		return err
	}
	defer s.unref(c)
	return s.remove(c)
}

// remove deletes the file under the whole range.
func (s *Store) remove(c *column) error {
	hold, err := c.lock.Acquire(background(), 0, rangelock.All, true)
	if err != nil {
		return err
	}
	defer hold.Release()
	c.syncMu.Lock()
	defer c.syncMu.Unlock()
	err = s.closeFile(c)
	if e := s.fs.Remove(c.path); !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	if err != nil {
		return ioError("remove column", c.key, err)
	}
	c.synced, c.syncError = c.written.Load(), nil
	c.newEntry.Store(false)
	c.epoch.Store(0)
	c.size.Store(0)
	return nil
}

// Deleted reports whether there is a tombstone for the key's data id.
func (s *Store) Deleted(key Key) bool { return s.deleted.has(key) }

// sweep removes the columns of a PG that have a tombstone.
func (s *Store) sweep(pool base.PoolID, pg base.PGID) error {
	keys, err := s.keys(pool, pg)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if s.deleted.has(key) {
			if err := s.Drop(key); err != nil {
				return err
			}
		}
	}
	return nil
}
