package chunkstore

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/internal/base"
)

const (
	slots     = 1024
	slotBytes = 64
)

// inflight is the record of block ranges that are being written, in memory that
// outlives the process. A slot is taken before entries are written and given
// back when the data are.
type inflight struct {
	mu     sync.Mutex
	free   []int
	wake   *sync.Cond
	memory []byte
	file   *os.File
}

type slot struct {
	key           Key
	first, blocks uint64
}

// openInflight maps the file and returns what it held.
func openInflight(dir string) (*inflight, []slot, error) {
	r := &inflight{}
	r.wake = sync.NewCond(&r.mu)
	f, err := os.OpenFile(filepath.Join(dir, "inflight"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if err = reserve(f, slots*slotBytes); err == nil {
		r.memory, err = unix.Mmap(int(f.Fd()), 0, slots*slotBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	r.file = f
	var found []slot
	for i := slots - 1; i >= 0; i-- {
		if s, used := decodeSlot(r.memory[i*slotBytes:]); used {
			found = append(found, s)
		}
		r.free = append(r.free, i)
	}
	return r, found, nil
}

// reserve gives a file its size, and all its blocks: a page of a mapped hole for which the
// full disk has no block ends the process by a signal when it is written to.
func reserve(f *os.File, size int64) error {
	if err := f.Truncate(size); err != nil {
		return err
	}
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return fill(f, size)
	}
	if err != nil {
		return &os.PathError{Op: "reserve", Path: f.Name(), Err: err}
	}
	return nil
}

// fill is reserve where the file system cannot do it at once: what is there is written
// again.
func fill(f *os.File, size int64) error {
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil {
		return err
	}
	_, err := f.WriteAt(b, 0)
	return err
}

// decodeSlot reads one slot; used is false for a free or half-written one.
func decodeSlot(b []byte) (s slot, used bool) {
	if binary.LittleEndian.Uint64(b) != 1 {
		return slot{}, false
	}
	s.key.Pool = base.PoolID(binary.LittleEndian.Uint64(b[8:]))
	s.key.PG = base.PGID(binary.LittleEndian.Uint32(b[16:]))
	s.key.Component = binary.LittleEndian.Uint32(b[20:])
	s.key.Column = binary.LittleEndian.Uint32(b[24:])
	s.key.Data = base.DataID(binary.LittleEndian.Uint64(b[32:]))
	s.first = binary.LittleEndian.Uint64(b[40:])
	s.blocks = binary.LittleEndian.Uint64(b[48:])
	return s, true
}

// begin records a range; it waits while all slots are taken.
func (r *inflight) begin(key Key, first, blocks uint64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.free) == 0 {
		r.wake.Wait()
	}
	i := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	b := r.memory[i*slotBytes:]
	binary.LittleEndian.PutUint64(b[8:], uint64(key.Pool))
	binary.LittleEndian.PutUint32(b[16:], uint32(key.PG))
	binary.LittleEndian.PutUint32(b[20:], key.Component)
	binary.LittleEndian.PutUint32(b[24:], key.Column)
	binary.LittleEndian.PutUint64(b[32:], uint64(key.Data))
	binary.LittleEndian.PutUint64(b[40:], first)
	binary.LittleEndian.PutUint64(b[48:], blocks)
	binary.LittleEndian.PutUint64(b, 1)
	return i
}

// end gives the slot back.
func (r *inflight) end(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	binary.LittleEndian.PutUint64(r.memory[i*slotBytes:], 0)
	r.free = append(r.free, i)
	r.wake.Signal()
}

// reset frees all slots after Open has dealt with what they named.
func (r *inflight) reset() { clear(r.memory) }

func (r *inflight) close() error {
	return errors.Join(unix.Munmap(r.memory), r.file.Close())
}
