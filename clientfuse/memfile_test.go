package clientfuse

import (
	"context"
	"sort"
	"sync/atomic"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/internal/fserr"
)

type memFile struct {
	n      *memNode
	number uint64
	lost   atomic.Bool // its locks
}

// openLocked makes a handle. The caller holds mu.
func (m *memFS) openLocked(n *memNode) *memFile {
	m.lastFile++
	return &memFile{n: n, number: m.lastFile}
}

func (m *memFS) Open(ctx context.Context, cred client.Cred, n inode, flags uint32) (file, error) {
	m.mu.Lock()
	f := m.openLocked(n.(*memNode))
	m.mu.Unlock()
	if flags&0o1000 != 0 { // O_TRUNC
		_, err := m.SetAttr(ctx, cred, n, client.SetAttr{Mask: 8}, f)
		return f, err
	}
	return f, nil
}

const memBlock = 64 << 10

// each calls fn for the parts of [off, off+len(p)) by block.
func each(p []byte, off int64, fn func(part []byte, block int64, at int)) {
	for len(p) > 0 {
		at := int(off % memBlock)
		part := p[:min(len(p), memBlock-at)]
		fn(part, off/memBlock, at)
		p, off = p[len(part):], off+int64(len(part))
	}
}

func (n *memNode) resize(size int64) {
	for b, data := range n.blocks {
		if at := size - b*memBlock; at <= 0 {
			delete(n.blocks, b)
		} else if at < memBlock {
			clear(data[at:])
		}
	}
	n.attr.Size = uint64(size)
}

func (f *memFile) ReadAt(_ context.Context, p []byte, off int64) (int, error) {
	f.n.fs.mu.Lock()
	defer f.n.fs.mu.Unlock()
	size := int64(f.n.attr.Size)
	if off >= size {
		return 0, nil
	}
	p = p[:min(int64(len(p)), size-off)]
	each(p, off, func(part []byte, block int64, at int) {
		clear(part)
		if data := f.n.blocks[block]; data != nil {
			copy(part, data[at:])
		}
	})
	return len(p), nil
}

func (f *memFile) WriteAt(_ context.Context, p []byte, off int64) (int, error) {
	f.n.fs.mu.Lock()
	defer f.n.fs.mu.Unlock()
	return f.writeLocked(p, off), nil
}

func (f *memFile) writeLocked(p []byte, off int64) int {
	each(p, off, func(part []byte, block int64, at int) {
		if f.n.blocks[block] == nil {
			f.n.blocks[block] = new([memBlock]byte)
		}
		copy(f.n.blocks[block][at:], part)
	})
	f.n.attr.Size = max(f.n.attr.Size, uint64(off)+uint64(len(p)))
	f.n.touch()
	f.n.attr.DataVersion++
	return len(p)
}

func (f *memFile) Append(_ context.Context, p []byte) (int64, error) {
	f.n.fs.mu.Lock()
	defer f.n.fs.mu.Unlock()
	off := int64(f.n.attr.Size)
	f.writeLocked(p, off)
	return off, nil
}

func (f *memFile) Allocate(_ context.Context, mode uint32, off, length int64) error {
	f.n.fs.mu.Lock()
	defer f.n.fs.mu.Unlock()
	for b := off / memBlock; b <= (off+length-1)/memBlock; b++ {
		lo, hi := max(off, b*memBlock)-b*memBlock, min(off+length, (b+1)*memBlock)-b*memBlock
		if data := f.n.blocks[b]; mode&^client.AllocateKeepSize != 0 && data != nil {
			clear(data[lo:hi])
			if hi-lo == memBlock {
				delete(f.n.blocks, b)
			}
		}
	}
	if mode&client.AllocateKeepSize == 0 {
		f.n.attr.Size = max(f.n.attr.Size, uint64(off+length))
	}
	f.n.touch()
	f.n.attr.DataVersion++
	return nil
}

func (f *memFile) SeekData(_ context.Context, off int64) (int64, error) { return f.seek(off, false) }
func (f *memFile) SeekHole(_ context.Context, off int64) (int64, error) { return f.seek(off, true) }

func (f *memFile) seek(off int64, hole bool) (int64, error) {
	f.n.fs.mu.Lock()
	defer f.n.fs.mu.Unlock()
	size := int64(f.n.attr.Size)
	for at := off; at < size; at = (at/memBlock + 1) * memBlock {
		if (f.n.blocks[at/memBlock] == nil) == hole {
			return at, nil
		}
	}
	if hole && off < size {
		return size, nil
	}
	return 0, fserr.NoDevice
}

func (f *memFile) Flush(context.Context) error { return nil }
func (f *memFile) Fsync(context.Context) error { return nil }
func (f *memFile) Close(context.Context) error {
	f.drop()
	return nil
}

func (m *memFS) GetXattr(_ context.Context, _ client.Cred, n inode, name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := n.(*memNode).xattrs[name]
	if !ok {
		return nil, fserr.NoData
	}
	return v, nil
}

func (m *memFS) SetXattr(_ context.Context, _ client.Cred, in inode, name string, value []byte, flags uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := in.(*memNode)
	_, there := n.xattrs[name]
	if there && flags == 1 {
		return fserr.Exist
	}
	if !there && flags == 2 {
		return fserr.NoData
	}
	n.xattrs[name] = append([]byte{}, value...)
	n.attr.CtimeNs = m.now()
	return nil
}

func (m *memFS) ListXattr(_ context.Context, _ client.Cred, n inode) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name := range n.(*memNode).xattrs {
		names = append(names, name)
	}
	sort.Strings(names)
	return names, nil
}

func (m *memFS) RemoveXattr(_ context.Context, _ client.Cred, in inode, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := in.(*memNode)
	if _, ok := n.xattrs[name]; !ok {
		return fserr.NoData
	}
	delete(n.xattrs, name)
	return nil
}
