package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

var root = Cred{}

func create(t testing.TB, c *Client, name string) *File {
	t.Helper()
	made, err := c.Create(t.Context(), root, c.Root(), name, 0o644, syscall.O_RDWR|syscall.O_EXCL)
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	made.Inode.Release()
	return made.File
}

// isCreate tells creates of a name from other operations.
func isCreate(op *canopyv1.Op, name string) bool {
	c, ok := op.Call.(*canopyv1.Op_Create)
	return ok && (name == "" || string(c.Create.Name) == name)
}

// PROTOCOLS C1, C2: what was executed when the stream broke goes out again with
// its number, and gets the first result. With a new number the exclusive create
// would answer EXIST.
func TestResendAfterExecution(t *testing.T) {
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	var seqs []uint64
	var mu sync.Mutex
	f.setAfter(func(_ *fakeNode, op *canopyv1.Op, _ *canopyv1.Result) bool {
		if !isCreate(op, "a") {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		seqs = append(seqs, op.Seq)
		return len(seqs) < 4
	})
	create(t, c, "a")
	if len(seqs) != 4 || slices.Min(seqs) != slices.Max(seqs) {
		t.Errorf("sent with numbers %v, want four times the same", seqs)
	}
}

// PROTOCOLS C1: what was unanswered goes out again in the order sent first.
func TestResendInOrder(t *testing.T) {
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	create(t, c, "first") // opens the session
	var mu sync.Mutex
	var order []uint64
	dropped := false
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if !isCreate(op, "") {
			return verdict{}
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case dropped:
			order = append(order, op.Seq)
			return verdict{}
		case string(op.GetCreate().Name) == "last":
			dropped = true
			return verdict{drop: true}
		}
		return verdict{mute: true}
	})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { create(t, c, fmt.Sprint("n", i)) })
	}
	eventually(t, "20 creates are on their way", func() bool { return len(f.names()) == 21 })
	create(t, c, "last")
	wg.Wait()
	if len(order) != 21 || !slices.IsSorted(order) {
		t.Errorf("order after the break: %v", order)
	}
	if n := len(f.names()); n != 22 {
		t.Errorf("%d names, want 22", n)
	}
}

// PROTOCOLS C1: at most 4,096 numbers are outstanding, and the floor is the
// lowest without an answer. Reads pass while mutations wait for a number.
func TestOutstandingBoundAndFloor(t *testing.T) {
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	create(t, c, "first")
	var mu sync.Mutex
	low, high, wrong := ^uint64(0), uint64(0), 0
	var holding atomic.Bool
	holding.Store(true)
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, floor uint64) verdict {
		if op.Seq == 0 {
			return verdict{}
		}
		mu.Lock()
		defer mu.Unlock()
		low, high = min(low, op.Seq), max(high, op.Seq)
		if floor > op.Seq || holding.Load() && floor != low {
			wrong++
		}
		if holding.Load() {
			return verdict{hold: true}
		}
		return verdict{}
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range maxOutstanding + 200 {
		wg.Go(func() { _, _ = c.Create(ctx, root, c.Root(), fmt.Sprint("n", i), 0o644, 0) })
	}
	eventually(t, "the window is full", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return high-low == maxOutstanding-1
	})
	if _, err := c.GetAttr(t.Context(), root, c.Root()); err != nil {
		t.Errorf("a read behind a full window: %v", err)
	}
	mu.Lock()
	if high-low != maxOutstanding-1 || wrong != 0 {
		t.Errorf("numbers %d to %d are outstanding, %d wrong floors", low, high, wrong)
	}
	mu.Unlock()
	holding.Store(false)
	cancel() // their callers give up: the numbers are free, and servers refuse late copies
	wg.Wait()
	create(t, c, "behind")
	floor, next := c.seqs.lowest()
	if floor != next {
		t.Errorf("floor %d, next %d after all were answered or given up", floor, next)
	}
}

// PROTOCOLS C2: a caller that gives up moves the floor past its request, so that
// no late copy of it runs, and nothing sends it again.
func TestAbandonedIsNotResent(t *testing.T) {
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	create(t, c, "first")
	sent := make(chan uint64, 10)
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, floor uint64) verdict {
		if isCreate(op, "gone") {
			sent <- op.Seq
			return verdict{result: nil, mute: true}
		}
		return verdict{}
	})
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := c.Create(ctx, root, c.Root(), "gone", 0o644, 0)
		result <- err
	}()
	seq := <-sent
	cancel()
	if err := <-result; fserr.KindOf(err) != fserr.Interrupted {
		t.Errorf("the caller got %v", err)
	}
	f.nodes[0].stop()
	f.nodes[0].restart()
	create(t, c, "next")
	if len(sent) != 0 {
		t.Error("an abandoned request was sent again")
	}
	if floor, _ := c.seqs.lowest(); uint64(floor) <= seq {
		t.Errorf("floor %d is not above the abandoned %d", floor, seq)
	}
}

// PROTOCOLS C3: a mutation that was refused with its session gets a new session
// and a new number; nobody sees an error.
func TestSessionExpiredBeforeSend(t *testing.T) {
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	create(t, c, "a")
	f.expire(1)
	create(t, c, "b")
	f.expire(1)
	if _, err := c.GetAttr(t.Context(), root, c.Root()); err != nil {
		t.Error(err)
	}
	create(t, c, "c")
	if got := f.names(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("names: %v", got)
	}
}

// PROTOCOLS C3: a mutation that may have run before its session was lost is never
// sent in the new one: here it did run, and a repeat would run it twice.
func TestSessionExpiredAfterSend(t *testing.T) {
	for _, event := range []bool{false, true} { // an event tells of the loss before the repeat goes out
		t.Run(fmt.Sprint("event=", event), func(t *testing.T) {
			f := newFake(t, 1)
			c := f.connect(t, newMemData())
			create(t, c, "a").Close(t.Context())
			l, err := c.link(1)
			if err != nil {
				t.Fatal(err)
			}
			var runs atomic.Int32
			f.setAfter(func(_ *fakeNode, op *canopyv1.Op, _ *canopyv1.Result) bool {
				if op.GetRename() == nil || runs.Add(1) > 1 {
					return false
				}
				f.expire(1)
				if event {
					l.sessionLost(0)
				}
				return true
			})
			_, _, err = c.Rename(t.Context(), root, c.Root(), "a", c.Root(), "b", 0)
			if fserr.KindOf(err) != fserr.TimedOut {
				t.Errorf("rename answered %v, want an unknown outcome", err)
			}
			create(t, c, "a").Close(t.Context()) // a late repeat must not take this one away
			if got := f.names(); !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("names: %v", got)
			}
			if event && runs.Load() != 1 {
				t.Errorf("sent %d times; the new session must never see it", runs.Load())
			}
		})
	}
}

// PROTOCOLS C3: the floor of a new session lies above every number that was used
// under the old one, so that late copies are refused in it.
func TestNewSessionFloor(t *testing.T) {
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	create(t, c, "a")
	block := make(chan struct{})
	var seq atomic.Uint64
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if isCreate(op, "stuck") {
			seq.Store(op.Seq)
			return verdict{mute: true}
		}
		return verdict{}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer close(block)
		_, _ = c.Create(ctx, root, c.Root(), "stuck", 0o644, 0)
	}()
	eventually(t, "the create is out", func() bool { return seq.Load() != 0 })
	floors := make(chan uint64, 10)
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, floor uint64) verdict {
		if op.GetOpenSession() != nil {
			floors <- floor
		}
		return verdict{}
	})
	f.expire(1)
	if _, err := c.Create(t.Context(), root, c.Root(), "x", 0o644, 0); err != nil {
		t.Fatal(err)
	}
	if floor := <-floors; floor <= seq.Load() {
		t.Errorf("the new session starts at floor %d, and request %d of the old one is not below it", floor, seq.Load())
	}
	cancel()
	<-block
}

// PROTOCOLS C4: protocol kinds are no results: they are retried under the same
// number until the context ends.
func TestProtocolKindsAreRetried(t *testing.T) {
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	kinds := []fserr.Kind{fserr.Busy, fserr.Frozen, fserr.Locked, fserr.NotReady, fserr.TimedOut, fserr.UnknownShard, fserr.Busy}
	var mu sync.Mutex
	var seqs []uint64
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		mu.Lock()
		defer mu.Unlock()
		if !isCreate(op, "a") {
			return verdict{}
		}
		seqs = append(seqs, op.Seq)
		if i := len(seqs) - 1; i < len(kinds) {
			return verdict{result: &canopyv1.Result{Error: uint32(kinds[i])}}
		}
		return verdict{}
	})
	create(t, c, "a")
	if len(seqs) != len(kinds)+1 || slices.Min(seqs) != slices.Max(seqs) {
		t.Errorf("sent with numbers %v", seqs)
	}
	f.setHook(func(*fakeNode, *canopyv1.Op, uint64) verdict {
		return verdict{result: &canopyv1.Result{Error: uint32(fserr.Busy)}}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err := c.Rename(ctx, root, c.Root(), "a", c.Root(), "b", 0)
	if fserr.KindOf(err) != fserr.TimedOut || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at the deadline: %v", err)
	}
}

// A definite refusal behind a broken stream says nothing about the first send:
// the mutation may have run, and must not get a new number (PROTOCOLS C3).
func TestBusyAfterResendStaysUnsure(t *testing.T) {
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	create(t, c, "a").Close(t.Context())
	var step atomic.Int32
	f.setAfter(func(_ *fakeNode, op *canopyv1.Op, _ *canopyv1.Result) bool {
		return op.GetUnlink() != nil && step.CompareAndSwap(0, 1)
	})
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		switch {
		case op.GetUnlink() == nil:
		case step.CompareAndSwap(1, 2):
			return verdict{result: &canopyv1.Result{Error: uint32(fserr.Busy)}}
		case step.CompareAndSwap(2, 3):
			return verdict{result: &canopyv1.Result{Error: uint32(fserr.SessionExpired)}}
		}
		return verdict{}
	})
	_, err := c.Unlink(t.Context(), root, c.Root(), "a")
	if fserr.KindOf(err) != fserr.TimedOut {
		t.Errorf("unlink answered %v, want an unknown outcome", err)
	}
}
