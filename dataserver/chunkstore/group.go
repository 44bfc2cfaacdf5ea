package chunkstore

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/canopyfs/canopy/internal/base"
)

// Count returns how many columns a placement group has here, and their bytes up
// to the end of each, holes included. It looks at the directory alone.
func (s *Store) Count(pool base.PoolID, pg base.PGID) (columns, bytes uint64, err error) {
	keys, err := s.keys(pool, pg)
	if err != nil {
		return 0, 0, err
	}
	for _, key := range keys {
		length, err := s.fs.FileSize(filepath.Join(s.dirOf(key), nameOf(key)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, 0, ioError("count", key, err)
		}
		columns++
		bytes += columnBytes(length)
	}
	return columns, bytes, nil
}

// Keys returns the columns of a placement group by ascending key.
func (s *Store) Keys(pool base.PoolID, pg base.PGID) ([]Key, error) { return s.keys(pool, pg) }

// DropGroup removes all columns of a placement group and its directory, without
// tombstones; those that are there stay. Nobody makes columns of it meanwhile. It
// ends early with ctx.
func (s *Store) DropGroup(ctx context.Context, pool base.PoolID, pg base.PGID) error {
	keys, err := s.keys(pool, pg)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := s.Drop(key); err != nil {
			return err
		}
	}
	dir := s.pgDir(pool, pg)
	names, err := s.fs.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return ioError("drop group", Key{Pool: pool, PG: pg}, err)
	}
	for _, name := range names {
		if err := s.removeDir(filepath.Join(dir, name)); err != nil {
			return ioError("drop group", Key{Pool: pool, PG: pg}, err)
		}
	}
	if err := s.removeDir(dir); err != nil {
		return ioError("drop group", Key{Pool: pool, PG: pg}, err)
	}
	return nil
}

// removeDir removes an empty directory.
func (s *Store) removeDir(dir string) error {
	if err := s.fs.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.newDirs, dir)
	return nil
}
