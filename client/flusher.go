package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/canopyfs/canopy/internal/fserr"
)

const (
	writeOuts      = 32                   // write-outs of blocks at a time, over all files
	writeBackAge   = time.Second          // how long bytes wait for more
	agesPerCheck   = 4                    // how often in that time ages are looked at
	flushSpacing   = 2 * time.Millisecond // between two rounds under pressure
	reportFraction = 4                    // a file reports when this part of the budget waits for it
)

// flusher writes back in the background: full blocks at once, others when they
// are old, and everything when memory runs short.
type flusher struct {
	c      *Client
	budget budget
	age    time.Duration // writeBackAge
	slots  chan struct{} // write-outs under way
	wake   chan struct{}

	mu    sync.Mutex
	files map[*fileState]struct{} // with unreported bytes; each holds a reference to its inode
}

func newFlusher(c *Client, limit int64) *flusher {
	return &flusher{c: c, budget: budget{limit: limit}, age: writeBackAge, slots: make(chan struct{}, writeOuts),
		wake: make(chan struct{}, 1), files: map[*fileState]struct{}{}}
}

func (f *flusher) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// slot waits for the right to write one block out; trySlot does not wait.
func (f *flusher) slot(ctx context.Context) error {
	select {
	case f.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-f.c.ctx.Done():
		return fserr.NotConnected
	}
}

func (f *flusher) trySlot() bool {
	select {
	case f.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (f *flusher) freeSlot() {
	<-f.slots
	f.poke()
}

func (f *flusher) add(st *fileState) {
	st.n.Hold()
	f.mu.Lock()
	f.files[st] = struct{}{}
	f.mu.Unlock()
}

func (f *flusher) remove(st *fileState) {
	f.mu.Lock()
	delete(f.files, st)
	f.mu.Unlock()
	st.n.Release()
}

func (f *flusher) list() []*fileState {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]*fileState, 0, len(f.files))
	for st := range f.files {
		all = append(all, st)
	}
	return all
}

// run works until ctx ends.
func (f *flusher) run(ctx context.Context) {
	ticker := time.NewTicker(f.age / agesPerCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-f.wake:
			if !f.budget.pressed() {
				continue
			}
		}
		pressed := f.budget.pressed()
		for _, st := range f.list() {
			st.background(time.Now(), pressed)
		}
		if pause(ctx, flushSpacing) != nil {
			return
		}
	}
}

// background starts what is due, as far as there are slots.
func (st *fileState) background(now time.Time, pressed bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	f := st.c.flusher
	st.checkLossLocked()
	var kept int64
	idle := true
	for _, b := range st.blocks {
		kept += b.written.bytes()
		due := pressed || now.Sub(b.since) >= f.age || b.dirty.bytes() >= blockBytes
		if len(b.dirty) > 0 && len(b.flight) == 0 && due && f.trySlot() && !st.startLocked(b) {
			f.freeSlot()
		}
		idle = idle && len(b.flight) == 0
	}
	if st.unreported && !st.reporting &&
		(kept >= f.budget.limit/reportFraction || idle && (pressed || now.Sub(st.since) >= f.age)) {
		st.reportLocked()
	}
}

// Flush writes out all buffered bytes of all files and reports their sizes;
// with sync it makes them durable. It returns the first error; the files'
// handles report theirs as well.
func (c *Client) Flush(ctx context.Context, sync bool) error {
	type outcome struct {
		st   *fileState
		errs uint64
		done chan error
	}
	var all []outcome
	for _, st := range c.flusher.list() {
		st.mu.Lock()
		o := outcome{st, st.errs, make(chan error, 1)}
		st.mu.Unlock()
		all = append(all, o)
		c.wg.Go(func() { o.done <- st.flush(ctx, sync) })
	}
	var first error
	for _, o := range all {
		err := <-o.done
		o.st.mu.Lock()
		if err == nil && o.st.errs != o.errs {
			err = o.st.lastErr
		}
		o.st.mu.Unlock()
		if first == nil {
			first = err
		}
	}
	if first != nil && !errors.As(first, new(*fserr.Error)) {
		return fserr.New(fserr.KindOf(first), "flush", first)
	}
	return first
}
