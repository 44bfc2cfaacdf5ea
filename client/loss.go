package client

import (
	"fmt"

	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/fserr"
)

// checkLossLocked deals with acknowledged bytes that the data servers may have
// lost: every copy was in the memory of a machine that crashed before the bytes
// were synced. What this client still has goes out again, as if it had just been
// written. If that is not all of what was not known to be durable, the handles
// report an error, as POSIX has it for a failed write-back.
func (st *fileState) checkLossLocked() {
	if len(st.acks) == 0 {
		return
	}
	safe := st.c.data.Safe(st.acks)
	if len(safe) == len(st.acks) {
		return
	}
	st.acks = safe
	var have spans
	for _, b := range st.blocks {
		for _, layer := range []extents{b.reporting, b.written, b.flight, b.dirty} {
			for _, e := range layer {
				have.add(e.off, e.end())
			}
		}
		st.againLocked(b, &b.reporting, b.written, b.flight)
		st.againLocked(b, &b.written, b.flight)
	}
	var gone int64
	for _, t := range st.touched {
		for _, g := range have.gaps(t.lo, t.hi) {
			gone += g.hi - g.lo
		}
	}
	if gone == 0 {
		st.c.logger.Warn("data servers lost bytes that were not synced; they are sent again", "inode", st.n.ino)
		return
	}
	st.c.metrics.lost.Add(float64(gone))
	err := fserr.New(fserr.IO, "write", fmt.Errorf("%d bytes: %w", gone, data.ErrLost))
	st.failLocked(&fserr.Error{Kind: fserr.IO, Op: "write", Ino: st.n.ino, Err: err})
	st.c.logger.Error("data servers lost bytes that were not synced and that this client has no more", "inode", st.n.ino, "bytes", gone)
}
