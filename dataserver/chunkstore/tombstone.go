package chunkstore

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/canopyfs/canopy/internal/base"
)

// tombstones is the log of deleted data ids, and its contents in memory.
type tombstones struct {
	fs  FS
	dir string
	ttl time.Duration

	mu      sync.RWMutex
	known   map[group]map[base.DataID]int64 // time of the deletion, ns
	file    File
	size    int64
	records int // in the file

	// One caller writes and syncs for all that wait.
	syncMu  sync.Mutex
	pending []byte // under mu: records not written yet
	wanted  uint64 // under mu: number of the last pending batch
	durable uint64 // under syncMu
	failed  error  // under syncMu
}

type group struct {
	pool base.PoolID
	pg   base.PGID
}

const (
	tombstoneName  = "tombstones"
	tombstoneBytes = 32 // pool 8, data id 8, time 8, pg 4, crc 4
)

func encodeTombstone(g group, id base.DataID, at int64) []byte {
	b := make([]byte, tombstoneBytes)
	binary.LittleEndian.PutUint64(b, uint64(g.pool))
	binary.LittleEndian.PutUint64(b[8:], uint64(id))
	binary.LittleEndian.PutUint64(b[16:], uint64(at))
	binary.LittleEndian.PutUint32(b[24:], uint32(g.pg))
	binary.LittleEndian.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
	return b
}

// decodeTombstone reads one record; ok is false for a torn one.
func decodeTombstone(b []byte) (g group, id base.DataID, at int64, ok bool) {
	if len(b) < tombstoneBytes || crc32.Checksum(b[:28], castagnoli) != binary.LittleEndian.Uint32(b[28:]) {
		return g, 0, 0, false
	}
	g.pool = base.PoolID(binary.LittleEndian.Uint64(b))
	g.pg = base.PGID(binary.LittleEndian.Uint32(b[24:]))
	return g, base.DataID(binary.LittleEndian.Uint64(b[8:])), int64(binary.LittleEndian.Uint64(b[16:])), true
}

// openTombstones loads the log and writes it anew without what expired. A torn
// record at the end was never acknowledged; one in the middle is skipped.
func openTombstones(s *Store) (*tombstones, error) {
	t := &tombstones{fs: s.fs, dir: s.dir, ttl: s.options.TombstoneTTL, known: map[group]map[base.DataID]int64{}}
	b, err := readAll(s.fs, filepath.Join(s.dir, tombstoneName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	oldest := s.options.Now().Add(-t.ttl).UnixNano()
	for ; len(b) >= tombstoneBytes; b = b[tombstoneBytes:] {
		if g, id, at, ok := decodeTombstone(b); ok && at >= oldest {
			t.put(g, id, at)
		}
	}
	return t, t.rewriteLocked()
}

func (t *tombstones) put(g group, id base.DataID, at int64) {
	m := t.known[g]
	if m == nil {
		m = map[base.DataID]int64{}
		t.known[g] = m
	}
	m[id] = at
}

// rewriteLocked replaces the log by one of what is known, and opens it.
func (t *tombstones) rewriteLocked() error {
	var b []byte
	t.records = 0
	for g, m := range t.known {
		for id, at := range m {
			b = append(b, encodeTombstone(g, id, at)...)
			t.records++
		}
	}
	if err := replaceFile(t.fs, t.dir, tombstoneName, b); err != nil {
		return err
	}
	f, err := t.fs.OpenFile(filepath.Join(t.dir, tombstoneName), os.O_RDWR)
	if err != nil {
		return err
	}
	if t.file != nil {
		err = t.file.Close()
	}
	t.file, t.size = f, int64(len(b))
	return err
}

func (t *tombstones) has(key Key) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, ok := t.known[group{key.Pool, key.PG}][key.Data]
	return ok
}

// groups returns the PGs that have tombstones.
func (t *tombstones) groups() map[group]bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := map[group]bool{}
	for g := range t.known {
		out[g] = true
	}
	return out
}

// ids returns the data ids of a PG that have tombstones, ascending, above after.
func (t *tombstones) ids(g group, after base.DataID) []base.DataID {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var out []base.DataID
	for id := range t.known[g] {
		if id > after {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// add makes a tombstone, durable on return.
func (t *tombstones) add(key Key, now time.Time) error {
	g := group{key.Pool, key.PG}
	t.mu.Lock()
	if _, ok := t.known[g][key.Data]; !ok {
		t.put(g, key.Data, now.UnixNano())
		t.pending = append(t.pending, encodeTombstone(g, key.Data, now.UnixNano())...)
		t.wanted++
	}
	want := t.wanted
	t.mu.Unlock()
	return t.flush(want, now)
}

// flush writes what is pending up to the batch, with others' records.
func (t *tombstones) flush(want uint64, now time.Time) error {
	t.syncMu.Lock()
	defer t.syncMu.Unlock()
	if t.failed != nil || t.durable >= want {
		return t.failed
	}
	t.mu.Lock()
	b, upTo := t.pending, t.wanted
	t.pending = nil
	t.mu.Unlock()
	if _, err := t.file.WriteAt(b, t.size); err != nil {
		return t.again(b, err)
	}
	if err := t.file.Sync(); err != nil {
		// What is durable is not known any more, and a second sync proves nothing.
		t.failed = err
		return err
	}
	t.size += int64(len(b))
	t.records += len(b) / tombstoneBytes
	t.durable = upTo
	return t.expire(now)
}

// again puts records back after a failed write: nothing behind t.size counts.
func (t *tombstones) again(b []byte, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = append(b, t.pending...)
	return err
}

// expireAt is the size of the log from which it is written anew when half of it
// can go.
const expireAt = 1 << 16

// expire drops what is older than the time to live once the log is large.
func (t *tombstones) expire(now time.Time) error {
	if t.records < expireAt {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	oldest := now.Add(-t.ttl).UnixNano()
	kept := 0
	for g, m := range t.known {
		for id, at := range m {
			if at < oldest {
				delete(m, id)
			}
		}
		if kept += len(m); len(m) == 0 {
			delete(t.known, g)
		}
	}
	if kept > t.records/2 {
		return nil
	}
	t.pending = nil
	t.durable = t.wanted
	return t.rewriteLocked()
}

func (t *tombstones) close() error { return t.file.Close() }
