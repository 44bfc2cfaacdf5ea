package chunkstore

import "context"

// earlyBytes is the least write whose way to the disk begins at once. The kernel
// would leave it in memory until a sync, or until a tenth of the memory is dirty:
// then the disk idles while a checkpoint is written and its fsync waits for all of
// it. Smaller writes may be overwritten or deleted soon, and gain nothing.
const earlyBytes = 256 << 10

// earlyQueued bounds the ranges that wait; what comes beyond is left to the sync.
const earlyQueued = 256

// early is a written range of a column, in bytes of its file.
type early struct {
	c            *column
	from, length int64
}

// beginEarly lets the range's way to the disk begin, soon. It is a hint: durable
// is what was synced.
func (s *Store) beginEarly(c *column, offset, length uint64) {
	if length < earlyBytes {
		return
	}
	from := position(offset)
	s.hold(c)
	select {
	case s.early <- early{c, from, position(offset+length-1) + 1 - from}:
	default:
		s.unref(c)
	}
}

// hold takes a further reference; the caller has one.
func (s *Store) hold(c *column) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.refs++
}

// runEarly serves beginEarly until ctx ends. Starting write-back may wait for the
// disk's queue, which no writer should.
func (s *Store) runEarly(ctx context.Context) {
	for {
		select {
		case e := <-s.early:
			s.startEarly(e)
		case <-ctx.Done():
			return
		}
	}
}

func (s *Store) startEarly(e early) {
	defer s.unref(e.c)
	e.c.openMu.Lock()
	f := e.c.file
	e.c.openMu.Unlock()
	if f == nil {
		return // deleted since
	}
	// An error shows again in the sync, whose business it is.
	_ = f.StartSync(e.from, e.length)
}
