package raftgroup

import (
	"io"
	"time"
)

const (
	paceBytes = 1 << 20 // worked off between two pauses
	maxPause  = 50 * time.Millisecond
)

// pacer slows a stream down to half the speed that it could have: a snapshot of
// millions of inodes keeps a processor and a disk busy for seconds, at both ends,
// and those who wait for the shards of that node meet it at every step.
type pacer struct {
	stop  <-chan struct{} // ends a pause
	bytes int
	since time.Time // the last pause ended
}

func newPacer(stop <-chan struct{}) *pacer { return &pacer{stop: stop, since: time.Now()} }

// did notes work on n bytes, and pauses for as long as it took, when it is due.
func (p *pacer) did(n int) {
	if p.bytes += n; p.bytes < paceBytes {
		return
	}
	pause := time.NewTimer(min(time.Since(p.since), maxPause))
	defer pause.Stop()
	select {
	case <-p.stop:
	case <-pause.C:
	}
	p.bytes, p.since = 0, time.Now()
}

type pacedWriter struct {
	w io.Writer
	p *pacer
}

func (w pacedWriter) Write(b []byte) (int, error) {
	n, err := w.w.Write(b)
	w.p.did(n)
	return n, err
}

type pacedReader struct {
	r io.Reader
	p *pacer
}

func (r pacedReader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	r.p.did(n)
	return n, err
}
