package client

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// PROTOCOLS C1: the floor stays at the lowest number without an answer, though
// later ones are answered: else a server would refuse the one that is resent.
func TestFloorWaitsForTheLowest(t *testing.T) {
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	create(t, c, "first") // opens the session
	var mu sync.Mutex
	var slow, highest uint64
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, floor uint64) verdict {
		if op.Seq == 0 {
			return verdict{}
		}
		mu.Lock()
		defer mu.Unlock()
		highest = max(highest, floor)
		if isCreate(op, "slow") && slow == 0 {
			slow = op.Seq
			return verdict{hold: true}
		}
		return verdict{}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := c.Create(ctx, root, c.Root(), "slow", 0o644, syscall.O_EXCL)
		done <- err
	}()
	eventually(t, "the slow one is out", func() bool { mu.Lock(); defer mu.Unlock(); return slow != 0 })
	for i := range 20 {
		create(t, c, fmt.Sprint("quick", i))
	}
	mu.Lock()
	if highest != slow {
		t.Errorf("requests went out under floor %d, and %d has no answer", highest, slow)
	}
	mu.Unlock()
	// The stream breaks: the slow one goes out again, and is not refused.
	f.nodes[0].stop()
	f.nodes[0].restart()
	if err := <-done; err != nil {
		t.Errorf("the slow one: %v", err)
	}
}

// PROTOCOLS J1: another client's truncation comes while some bytes are in a report
// under way and others, acknowledged by the data servers, wait for the next one:
// all of them go out again under the new epoch.
func TestForeignTruncationMeetsUnreported(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	w := create(t, a, "x")
	write(t, w, "reported", 0)
	if err := w.Fsync(t.Context()); err != nil {
		t.Fatal(err)
	}
	st := a.state(w.Inode())
	st.mu.Lock()
	before := st.file.SizeEpoch
	st.mu.Unlock()
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict { // no report of this epoch comes through
		if r := op.GetReportSize(); r != nil && r.SizeEpoch <= before {
			return verdict{result: &canopyv1.Result{Error: uint32(fserr.Busy), RetryAfterMs: 1}}
		}
		return verdict{}
	})
	blk := func() (written, reporting int) {
		st.mu.Lock()
		defer st.mu.Unlock()
		if b := st.blocks[0]; b != nil {
			return len(b.written), len(b.reporting)
		}
		return 0, 0
	}
	write(t, w, "-in the report", 8)
	flushUntil(t, w, "some bytes are in a report", func() bool { _, reporting := blk(); return reporting > 0 })
	write(t, w, "-behind it", 22)
	flushUntil(t, w, "others wait for the next", func() bool { written, reporting := blk(); return written > 0 && reporting > 0 })
	if n := len(d.bytes(w.Inode())); n != 32 {
		t.Fatalf("%d bytes are at the data servers", n)
	}
	st.mu.Lock()
	if blk := st.blocks[0]; len(blk.written) == 0 || len(blk.reporting) == 0 {
		t.Errorf("%d bytes wait for a report, %d are in one: the test does not test what it should", blk.written.bytes(), blk.reporting.bytes())
	}
	st.mu.Unlock()
	o := open(t, b, "x", syscall.O_WRONLY)
	if err := o.Truncate(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	write(t, o, "new", 4) // makes the data servers know the cut
	if err := o.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.setHook(nil)
	if err := w.Fsync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := read(t, open(t, b, "x", syscall.O_RDONLY), 100, 0); got != "reponew\x00-in the report-behind it" {
		t.Errorf("afterwards: %q", got)
	}
}
