package client

import (
	"context"

	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/fserr"
)

// ReadAt reads at off into p. It returns fewer bytes than len(p) only at the
// end of the file: 0 at or beyond it. It never returns io.EOF.
func (f *File) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	switch {
	case f.closed.Load() || !f.readable():
		return 0, f.fail("read", fserr.BadHandle)
	case f.lockLost.Load():
		return 0, f.fail("read", errLockLost)
	case off < 0:
		return 0, f.fail("read", fserr.Invalid)
	}
	if p = p[:min(int64(len(p)), maxFileBytes-off)]; len(p) == 0 {
		return 0, nil
	}
	n, err := f.st.read(ctx, p, off)
	if err != nil {
		return 0, f.fail("read", err)
	}
	return n, nil
}

// view is what a read starts from.
type view struct {
	file data.File
	size int64 // the server's
	end  int64 // of this client's unreported bytes
	gaps spans // what has to come from the data servers
}

// read fills p. In strict mode it asks for the current size, while the bytes
// that lie below the last known one are on their way already; when the answer
// shows another size epoch they are read again.
func (st *fileState) read(ctx context.Context, p []byte, off int64) (int, error) {
	stale := st.c.cache.attr(st.n.ino) == nil // the size has to be asked for
	for try := 0; ; try++ {
		if err := st.ensureKnown(ctx); err != nil {
			return 0, err
		}
		var ask chan error
		if stale {
			ask = make(chan error, 1)
			if !st.c.spawn(func() { _, err := st.c.fetchAttr(ctx, st.n); ask <- err }) {
				return 0, fserr.NotConnected
			}
		}
		v := st.look(p, off)
		n := clamp(max(v.size, v.end), off, len(p))
		holes, err := st.fetch(ctx, v, p[:n], off)
		if ask != nil {
			if askErr := <-ask; askErr != nil {
				return 0, askErr
			}
			stale = false
		}
		if err != nil && fserr.KindOf(err) != fserr.OldEpoch {
			return 0, err
		}
		size, end, same := st.current(v.file.SizeEpoch)
		switch {
		case err != nil && same:
			// The data servers know of a cut that the metadata service did not show.
			stale = true
			if err := pause(ctx, backoff(try)); err != nil {
				return 0, err
			}
		case err == nil && same && clamp(max(size, end), off, len(p)) <= n && !(holes && size > v.size):
			return n, nil
		}
	}
}

// look copies what this client has of the range into p.
func (st *fileState) look(p []byte, off int64) view {
	st.mu.Lock()
	defer st.mu.Unlock()
	var have spans
	for i := off / blockBytes; i <= (off+int64(len(p))-1)/blockBytes; i++ {
		b := st.blocks[i]
		if b == nil {
			continue
		}
		b.reporting.copyTo(p, off, &have)
		b.written.copyTo(p, off, &have)
		b.flight.copyTo(p, off, &have)
		b.dirty.copyTo(p, off, &have)
	}
	v := view{file: st.file, size: st.size, end: st.endLocked()}
	v.gaps = have.gaps(off, off+int64(len(p)))
	return v
}

// fetch reads the gaps that lie within p from the data servers. Between the
// server's end and this client's own bytes there are holes; whether it met one
// matters if the server's end turns out to be further on.
func (st *fileState) fetch(ctx context.Context, v view, p []byte, off int64) (holes bool, err error) {
	end := off + int64(len(p))
	for _, g := range v.gaps {
		if g.lo >= end {
			break
		}
		part := p[g.lo-off : min(g.hi, end)-off]
		stored := clamp(v.size, g.lo, len(part))
		if stored < len(part) {
			holes = true
			clear(part[stored:])
		}
		if stored == 0 {
			continue
		}
		if _, err := st.c.data.ReadAt(ctx, v.file, part[:stored], g.lo); err != nil {
			return holes, err
		}
		st.c.metrics.read.Add(float64(stored))
	}
	return holes, nil
}

// current returns the server's size and the end of the unreported bytes now, and
// whether the size epoch is still the one.
func (st *fileState) current(epoch uint64) (size, end int64, same bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.size, st.endLocked(), st.file.SizeEpoch == epoch
}

// clamp returns how many of n bytes at off lie below size.
func clamp(size, off int64, n int) int {
	return int(max(0, min(size-off, int64(n))))
}
