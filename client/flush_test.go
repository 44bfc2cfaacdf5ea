package client

import (
	"context"
	"testing"
	"time"
)

// TestFlushSeesWhatOthersWroteOut: a flush that waits for a slot ends when somebody
// else writes its bytes out meanwhile. It waited for a change that had been.
func TestFlushSeesWhatOthersWroteOut(t *testing.T) {
	f := newFake(t, 1)
	c := f.connectAged(t, newMemData(), time.Hour)
	w := create(t, c, "x")
	write(t, w, "bytes", 0)
	for range writeOuts {
		if err := c.flusher.slot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	st := w.Inode().file.Load()
	st.mu.Lock()
	before := st.gen
	st.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	flushed := make(chan error, 1)
	go func() { flushed <- w.Flush(ctx) }()
	// It holds mu from there until it waits for a slot.
	eventually(t, "the flush waits for a slot", func() bool {
		st.mu.Lock()
		defer st.mu.Unlock()
		return st.gen > before
	})
	st.mu.Lock()
	started := st.startLocked(st.blocks[0])
	st.mu.Unlock()
	if !started {
		t.Fatal("there was nothing to write out")
	}
	// The slot of the write-out goes to the flush, after the bytes are written.
	if err := <-flushed; err != nil {
		t.Fatalf("flush: %v", err)
	}
	for range writeOuts - 1 {
		c.flusher.freeSlot()
	}
	if got := read(t, w, 10, 0); got != "bytes" {
		t.Errorf("read %q", got)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
