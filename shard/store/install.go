package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

const (
	installPrefix    = "install-" // of the names of tables on their way in
	installFileBytes = 64 << 20
)

// Install replaces what lies in [lo, hi), atomically and durably, by what fill
// sets, which must come in key order (PROTOCOLS A4). Nobody may write to the
// range meanwhile. If fill fails nothing changes.
func (s *Store) Install(lo, hi []byte, fill func(set func(key, value []byte) error) error) (err error) {
	w := &tableWriter{store: s, serial: s.installs.Add(1)}
	defer func() { err = errors.Join(err, w.remove()) }()
	if err := fill(w.set); err != nil {
		return errors.Join(err, w.finish())
	}
	if err := w.finish(); err != nil {
		return err
	}
	// A4: what was committed before must not become durable after the tables.
	if err := s.flushAll(); err != nil {
		return err
	}
	span := pebble.KeyRange{Start: lo, End: hi}
	return s.values.changeAll(func() error {
		if _, err := s.db.IngestAndExcise(context.Background(), w.paths, nil, nil, span); err != nil {
			return fmt.Errorf("ingest: %w", err)
		}
		return nil
	})
}

// tableWriter writes keys in order into as many tables as needed.
type tableWriter struct {
	store  *Store
	serial uint64
	paths  []string
	w      *sstable.Writer
	size   int64
}

func (t *tableWriter) set(key, value []byte) error {
	if t.w != nil && t.size >= installFileBytes {
		if err := t.finish(); err != nil {
			return err
		}
	}
	if t.w == nil {
		path := t.store.fs.PathJoin(t.store.dir, fmt.Sprintf("%s%d-%d.sst", installPrefix, t.serial, len(t.paths)))
		f, err := t.store.fs.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		t.paths = append(t.paths, path)
		// Else all of it is flushed at once, and the log waits behind it.
		f = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: bytesPerSync})
		t.w = sstable.NewWriter(objstorageprovider.NewFileWritable(f), sstable.WriterOptions{
			TableFormat: t.store.db.TableFormat(), FilterPolicy: bloom.FilterPolicy(10),
		})
		t.size = 0
	}
	t.size += int64(len(key) + len(value))
	return t.w.Set(key, value)
}

func (t *tableWriter) finish() error {
	if t.w == nil {
		return nil
	}
	w := t.w
	t.w = nil
	return w.Close()
}

func (t *tableWriter) remove() error {
	var errs []error
	for _, p := range t.paths {
		if err := t.store.fs.Remove(p); err != nil && !errors.Is(err, errNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeInstallFiles removes what a crash in Install left behind.
func (s *Store) removeInstallFiles() error {
	names, err := s.fs.List(s.dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if strings.HasPrefix(n, installPrefix) {
			if err := s.fs.Remove(s.fs.PathJoin(s.dir, n)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Wipe removes what lies in [lo, hi), durably.
func (s *Store) Wipe(lo, hi []byte) error {
	err := s.values.changeAll(func() error { return s.db.DeleteRange(lo, hi, pebble.NoSync) })
	if err != nil {
		return err
	}
	return s.Flush(s.committed.Add(1))
}

// Checksum is the SHA-256 of a range's keys and values, each with its length in
// front, without those that schema.ChecksumSkips.
func (s *Store) Checksum(ctx context.Context, r shard.Reader, lo, hi []byte) (sum [32]byte, keys, bytes int64, err error) {
	h := sha256.New()
	var head [2 * binary.MaxVarintLen64]byte
	err = r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		if schema.ChecksumSkips(key) {
			return true, nil
		}
		n := binary.PutUvarint(head[:], uint64(len(key)))
		n += binary.PutUvarint(head[n:], uint64(len(value)))
		h.Write(head[:n])
		h.Write(key)
		h.Write(value)
		bytes += int64(len(key) + len(value))
		if keys++; keys%1024 == 0 && ctx.Err() != nil {
			return false, ctx.Err()
		}
		return true, nil
	})
	h.Sum(sum[:0])
	return sum, keys, bytes, err
}
