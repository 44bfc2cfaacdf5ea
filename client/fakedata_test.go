package client

import (
	"bytes"
	"context"
	"sync"

	"google.golang.org/grpc/metadata"

	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

func metadataValue(ctx context.Context, key string) string {
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// memData is a data plane in memory, shared by the clients of a test. It keeps
// size epochs and cuts as data servers do (PROTOCOLS J1).
type memData struct {
	mu     sync.Mutex
	files  map[base.DataID]*memFile
	writes int
	fail   func(op string, f data.File, off, n int64) error // asked before each call; may block
	log    func(event string)
	epoch  uint64 // of the one placement group
	loss   uint64 // epoch of the last crash
}

type memFile struct {
	b       []byte
	durable []byte
	epoch   uint64
}

func newMemData() *memData { return &memData{files: map[base.DataID]*memFile{}, epoch: 1} }

// crash takes what was not synced, as a loss of power of all servers does.
func (d *memData) crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.files {
		m.b = bytes.Clone(m.durable)
	}
	d.epoch++
	d.loss = d.epoch
}

func (d *memData) Safe(acks data.Acks) data.Acks {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.safeLocked(acks)
}

func (d *memData) safeLocked(acks data.Acks) (safe data.Acks) {
	for _, a := range acks {
		if a.Epoch >= d.loss {
			safe = append(safe, a)
		}
	}
	return safe
}

func (d *memData) check(ctx context.Context, op string, f data.File, off, n int64) error {
	d.mu.Lock()
	fail, log := d.fail, d.log
	d.mu.Unlock()
	if log != nil {
		log(op)
	}
	if fail != nil {
		if err := fail(op, f, off, n); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// fileLocked returns the file after it has learned the cuts of the request.
func (d *memData) fileLocked(f data.File) *memFile {
	m := d.files[f.ID]
	if m == nil {
		m = &memFile{epoch: f.SizeEpoch}
		d.files[f.ID] = m
	}
	for _, c := range f.Cuts {
		if c.SizeEpoch > m.epoch {
			m.b = m.b[:min(uint64(len(m.b)), c.Size)]
		}
	}
	m.epoch = max(m.epoch, f.SizeEpoch)
	return m
}

func (d *memData) WriteAt(ctx context.Context, f data.File, p []byte, off int64) (data.Written, error) {
	if err := d.check(ctx, "write", f, off, int64(len(p))); err != nil {
		return data.Written{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.fileLocked(f)
	if f.SizeEpoch < m.epoch {
		return data.Written{}, fserr.OldEpoch
	}
	d.writes++
	before := len(m.b)
	if need := int(off) + len(p); need > len(m.b) {
		m.b = append(m.b, make([]byte, need-len(m.b))...)
	}
	copy(m.b[off:], p)
	acks := data.Acks{{Pool: 1, Epoch: d.epoch}}
	return data.Written{AllocatedBytes: uint64(len(m.b) - before), Acks: acks}, nil
}

func (d *memData) ReadAt(ctx context.Context, f data.File, p []byte, off int64) (int, error) {
	if err := d.check(ctx, "read", f, off, int64(len(p))); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.fileLocked(f)
	clear(p)
	if off < int64(len(m.b)) {
		copy(p, m.b[off:])
	}
	return len(p), nil
}

func (d *memData) Sync(ctx context.Context, f data.File, acks data.Acks, _ ...data.Range) error {
	if err := d.check(ctx, "sync", f, 0, 0); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.fileLocked(f)
	if f.SizeEpoch < m.epoch {
		return fserr.OldEpoch
	}
	m.durable = bytes.Clone(m.b)
	if len(d.safeLocked(acks)) < len(acks) {
		return fserr.New(fserr.IO, "sync", data.ErrLost)
	}
	return nil
}

func (d *memData) Punch(ctx context.Context, f data.File, r data.Range) (uint64, data.Acks, error) {
	return d.sparse(ctx, "punch", f, r, func(m *memFile) int64 {
		lo, hi := min(r.Offset, int64(len(m.b))), min(r.Offset+r.Length, int64(len(m.b)))
		clear(m.b[lo:hi])
		return hi - lo
	})
}

func (d *memData) Reserve(ctx context.Context, f data.File, r data.Range) (uint64, data.Acks, error) {
	return d.sparse(ctx, "reserve", f, r, func(m *memFile) int64 {
		n := max(0, r.Offset+r.Length-int64(len(m.b)))
		m.b = append(m.b, make([]byte, n)...)
		return n
	})
}

func (d *memData) sparse(ctx context.Context, op string, f data.File, r data.Range, do func(*memFile) int64) (uint64, data.Acks, error) {
	if err := d.check(ctx, op, f, r.Offset, r.Length); err != nil {
		return 0, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.fileLocked(f)
	if f.SizeEpoch < m.epoch {
		return 0, nil, fserr.OldEpoch
	}
	return uint64(do(m)), data.Acks{{Pool: 1, Epoch: d.epoch}}, nil
}

// Seek takes zeros for holes.
func (d *memData) Seek(ctx context.Context, f data.File, off int64, hole bool) (int64, error) {
	if err := d.check(ctx, "seek", f, off, 0); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.fileLocked(f)
	for ; off < int64(len(m.b)); off++ {
		if (m.b[off] == 0) == hole {
			return off, nil
		}
	}
	if hole {
		return off, nil
	}
	return -1, nil
}

// Allocated counts what is not zero.
func (d *memData) Allocated(ctx context.Context, f data.File) (uint64, error) {
	if err := d.check(ctx, "allocated", f, 0, 0); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.fileLocked(f)
	return uint64(len(m.b) - bytes.Count(m.b, []byte{0})), nil
}

func (d *memData) Usage(context.Context, base.PoolID) (totalBytes, freeBytes uint64, err error) {
	return memDataBytes, memDataBytes, nil
}

const memDataBytes = 64 << 20

func (d *memData) Close() error { return nil }

func (d *memData) setFail(fail func(op string, f data.File, off, n int64) error) {
	d.mu.Lock()
	d.fail = fail
	d.mu.Unlock()
}

// bytes returns what is stored of a file.
func (d *memData) bytes(n *Inode) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.files[base.DataID(n.ino)]; m != nil {
		return bytes.Clone(m.b)
	}
	return nil
}
