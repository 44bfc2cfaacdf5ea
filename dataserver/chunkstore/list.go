package chunkstore

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Info is what is known of a column, or of a data id with a tombstone (whose
// component and column are 0).
type Info struct {
	Key            Key
	SizeBytes      uint64
	AllocatedBytes uint64
	SizeEpoch      uint64
	Changes        uint64 // since the column was opened
	Digest         uint64 // if asked for
	Tombstone      bool
}

func (s *Store) pgDir(pool base.PoolID, pg base.PGID) string {
	return filepath.Join(s.dir, "pgs", fmt.Sprintf("%d.%d", pool, pg))
}

// PGs returns the pools and placement groups that have directories here.
func (s *Store) PGs() ([]Key, error) {
	names, err := s.fs.ReadDir(filepath.Join(s.dir, "pgs"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, ioError("list", Key{}, err)
	}
	var out []Key
	for _, n := range names {
		pool, pg, _ := strings.Cut(n, ".")
		a, errA := strconv.ParseUint(pool, 10, 64)
		b, errB := strconv.ParseUint(pg, 10, 32)
		if errA == nil && errB == nil {
			out = append(out, Key{Pool: base.PoolID(a), PG: base.PGID(b)})
		}
	}
	slices.SortFunc(out, compareKeys)
	return out, nil
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.PG, b.PG), cmp.Compare(a.Data, b.Data),
		cmp.Compare(a.Component, b.Component), cmp.Compare(a.Column, b.Column))
}

// keys returns the columns of a PG by ascending key.
func (s *Store) keys(pool base.PoolID, pg base.PGID) ([]Key, error) {
	var out []Key
	for h := range 256 {
		keys, err := s.keysIn(filepath.Join(s.pgDir(pool, pg), fmt.Sprintf("%02x", h)), pool, pg)
		if err != nil {
			return nil, err
		}
		out = append(out, keys...)
	}
	slices.SortFunc(out, compareKeys)
	return out, nil
}

func (s *Store) keysIn(dir string, pool base.PoolID, pg base.PGID) ([]Key, error) {
	names, err := s.fs.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, ioError("list", Key{Pool: pool, PG: pg}, err)
	}
	out := make([]Key, 0, len(names))
	for _, n := range names {
		if key, ok := parseName(n); ok {
			key.Pool, key.PG = pool, pg
			out = append(out, key)
		}
	}
	return out, nil
}

// parseName is the inverse of nameOf; it does not set pool and PG.
func parseName(name string) (key Key, ok bool) {
	parts := strings.Split(name, ".")
	if len(parts) != 3 {
		return Key{}, false
	}
	id, errID := strconv.ParseUint(parts[0], 16, 64)
	component, errComponent := strconv.ParseUint(parts[1], 16, 32)
	column, errColumn := strconv.ParseUint(parts[2], 16, 32)
	key = Key{Data: base.DataID(id), Component: uint32(component), Column: uint32(column)}
	return key, errID == nil && errComponent == nil && errColumn == nil && id != 0 && nameOf(key) == name
}

// ListOptions says what List returns.
type ListOptions struct {
	After  base.DataID // data ids above
	Max    int         // data ids; 0: all
	Only   base.DataID // this one only, if not 0
	Digest bool
}

// List returns the columns and tombstones of a PG by ascending data id.
func (s *Store) List(pool base.PoolID, pg base.PGID, o ListOptions) ([]Info, error) {
	keys, dead, err := s.candidates(pool, pg, o)
	if err != nil {
		return nil, err
	}
	ids := make([]base.DataID, 0, len(keys)+len(dead))
	ids = append(ids, dead...)
	for _, k := range keys {
		if k.Data > o.After {
			ids = append(ids, k.Data)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if o.Max > 0 && len(ids) > o.Max {
		ids = ids[:o.Max]
	}
	var out []Info
	for _, id := range ids {
		key := Key{Pool: pool, PG: pg, Data: id}
		if s.deleted.has(key) {
			out = append(out, Info{Key: key, Tombstone: true})
			continue
		}
		at, _ := slices.BinarySearchFunc(keys, key, compareKeys)
		for ; at < len(keys) && keys[at].Data == id; at++ {
			info, ok, err := s.Stat(keys[at], o.Digest)
			if err != nil {
				return nil, err
			}
			if ok {
				out = append(out, info)
			}
		}
	}
	return out, nil
}

func (s *Store) candidates(pool base.PoolID, pg base.PGID, o ListOptions) (keys []Key, dead []base.DataID, err error) {
	if o.Only == 0 {
		keys, err = s.keys(pool, pg)
		return keys, s.deleted.ids(group{pool, pg}, o.After), err
	}
	only := Key{Pool: pool, PG: pg, Data: o.Only}
	keys, err = s.keysIn(s.dirOf(only), pool, pg)
	keys = slices.DeleteFunc(keys, func(k Key) bool { return k.Data != o.Only })
	slices.SortFunc(keys, compareKeys)
	if s.deleted.has(only) {
		dead = []base.DataID{o.Only}
	}
	return keys, dead, err
}

// Stat returns what is known of a column; ok is false if there is none. A column
// that cannot be opened is reported with digest 0, so that it equals no other; but
// not one for which the disk is too full now.
func (s *Store) Stat(key Key, digest bool) (info Info, ok bool, err error) {
	info = Info{Key: key}
	c, err := s.acquire(key, false, 0)
	if fserr.KindOf(err) == fserr.NoSpace {
		return info, true, err
	}
	if err != nil {
		s.logger.Error("a column cannot be opened", "column", key.String(), "error", err)
		return info, true, nil
	}
	if c == nil {
		return info, false, nil
	}
	defer s.unref(c)
	info.SizeBytes, info.SizeEpoch, info.Changes = c.size.Load(), c.epoch.Load(), c.written.Load()
	_, end := blocksOf(0, info.SizeBytes)
	h := sha256.New()
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], info.SizeEpoch)
	h.Write(b[:8])
	for at := uint64(0); at < end; {
		next, entries, err := s.nextEntries(c, at)
		if err != nil {
			return info, true, err
		}
		if entries == nil || next >= end {
			break // the rest is one hole
		}
		sp := spanAt(next, end)
		sums, err := s.sums(c, sp.first, sp.first+sp.blocks, digest)
		if err != nil {
			return info, true, err
		}
		for i, sum := range sums {
			if sum == 0 {
				continue
			}
			info.AllocatedBytes += BlockBytes
			binary.LittleEndian.PutUint64(b[:], sp.first+uint64(i))
			binary.LittleEndian.PutUint32(b[8:], sum)
			h.Write(b[:12])
		}
		at = sp.first + sp.blocks
	}
	if digest {
		info.Digest = binary.LittleEndian.Uint64(h.Sum(nil)) | 1
	}
	return info, true, nil
}

// Sums returns the checksums of blocks, 0 for holes and for blocks beyond the
// end; of the data themselves while the store is Suspect.
func (s *Store) Sums(key Key, first, blocks uint64) ([]uint32, error) {
	c, err := s.acquire(key, false, 0)
	if err != nil {
		return nil, err
	}
	if c == nil || s.deleted.has(key) {
		if c != nil {
			s.unref(c)
		}
		return make([]uint32, blocks), nil
	}
	defer s.unref(c)
	return s.sums(c, first, first+blocks, true)
}

func (s *Store) sums(c *column, first, end uint64, verify bool) ([]uint32, error) {
	hold, err := c.lock.Acquire(background(), first, max(end, first+1), false)
	if err != nil {
		return nil, err
	}
	defer hold.Release()
	out := make([]uint32, end-first)
	if ok, err := s.ensureOpen(c, false, 0); err != nil || !ok {
		return out, err
	}
	entries, err := c.readEntries(first, end)
	if err != nil {
		return nil, err
	}
	var block []byte
	for i := range out {
		out[i] = getEntry(entries, i).cur
		if out[i] == 0 || !verify || !s.suspect.Load() {
			continue
		}
		if block == nil {
			block = make([]byte, BlockBytes)
		}
		if err := readRaw(c.file, c.key, block, spanAt(first+uint64(i), first+uint64(i)+1).data); err != nil {
			return nil, err
		}
		out[i] = sumOf(crc32.Checksum(block, castagnoli))
	}
	return out, nil
}
