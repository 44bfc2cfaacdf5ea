package dataserver

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/fserr"
)

// TestSessions is PROTOCOLS J3: a repetition is answered and not executed, one
// below the floor is refused, and a new incarnation fences the old one.
func TestSessions(t *testing.T) {
	var s sessions
	now := time.Unix(1000, 0)
	id := func(incarnation, seq, floor uint64) writeID { return writeID{1, incarnation, seq, floor} }
	mine, join, _, err := s.begin(id(1, 5, 4), now)
	if mine == nil || join != nil || err != nil {
		t.Fatalf("first: %v %v %v", mine, join, err)
	}
	if _, join, _, _ := s.begin(id(1, 5, 4), now); join != mine {
		t.Fatal("a repetition does not join the running write")
	}
	s.end(id(1, 5, 4), mine, 4096, nil)
	if again, join, was, err := s.begin(id(1, 5, 4), now); again != nil || join != nil || was.bytes != 4096 || err != nil {
		t.Fatalf("repetition: %v %v %v %v", again, join, was, err)
	}
	failed, _, _, _ := s.begin(id(1, 6, 4), now)
	s.end(id(1, 6, 4), failed, 0, fserr.NotReady)
	if mine, _, _, _ := s.begin(id(1, 6, 4), now); mine == nil {
		t.Fatal("a failed write cannot be tried again")
	}
	full, _, _, _ := s.begin(id(1, 7, 4), now)
	s.end(id(1, 7, 4), full, 0, fserr.NoSpace)
	if again, join, was, err := s.begin(id(1, 7, 4), now); again != nil || join != nil || was.err != fserr.NoSpace || err != nil {
		t.Fatalf("a delayed copy of a write that did not fit: %v %v %v %v", again, join, was, err)
	}
	if err := s.wanted(id(1, 6, 4)); err != nil {
		t.Fatalf("a write under way: %v", err)
	}
	if _, _, _, err := s.begin(id(1, 9, 8), now); err != nil {
		t.Fatal(err)
	}
	if err := s.wanted(id(1, 6, 4)); !errors.Is(err, fserr.BelowFloor) {
		t.Fatalf("a write that its client gave up: %v", err)
	}
	if _, _, _, err := s.begin(id(1, 5, 4), now); !errors.Is(err, fserr.BelowFloor) {
		t.Fatalf("a delayed copy of an answered write: %v", err)
	}
	if _, _, _, err := s.begin(id(1, 9+maxSpread, 8), now); !errors.Is(err, fserr.Busy) {
		t.Fatalf("far ahead: %v", err)
	}
	if mine, _, _, err := s.begin(id(2, 1, 1), now); mine == nil || err != nil {
		t.Fatalf("new incarnation: %v", err)
	}
	if _, _, _, err := s.begin(id(1, 10, 8), now); !errors.Is(err, fserr.Fenced) {
		t.Fatalf("old incarnation: %v", err)
	}
	if err := s.fence(id(1, 11, 8), now); !errors.Is(err, fserr.Fenced) {
		t.Fatalf("old incarnation at a replica: %v", err)
	}
}

// TestChangeLog is PROTOCOLS J3: what a replica took stays listed until the
// primary says that all have it, and a repetition over another connection is
// not executed twice.
func TestChangeLog(t *testing.T) {
	l := newChangeLog(3)
	still := func() bool { return true }
	a, b := chunkstore.Key{Data: 1}, chunkstore.Key{Data: 2}
	take, mine, open := l.take(7, 10, 10, a, still)
	if !mine || !open {
		t.Fatal("the first is not executed")
	}
	if again, mine, open := l.take(7, 10, 10, a, still); again != take || mine || !open {
		t.Fatal("a repetition is executed")
	}
	l.took(10, take, 0, nil)
	other, _, _ := l.take(7, 12, 10, b, still)
	l.took(12, other, 0, nil)
	if n := len(l.columns()); n != 2 {
		t.Fatalf("%d columns in flight, want 2", n)
	}
	last, _, _ := l.take(7, 14, 13, b, still)
	l.took(14, last, 0, nil)
	if c := l.columns(); len(c) != 1 || c[0] != b {
		t.Fatalf("in flight: %v", c)
	}
	if _, _, open := l.take(7, 11, 11, a, still); open {
		t.Fatal("a delayed copy of a finished change is executed")
	}
	if _, _, open := l.take(7, 15, 13, a, func() bool { return false }); open {
		t.Fatal("a change of an epoch that is over is executed")
	}
	// Another primary numbers on its own.
	if _, mine, open := l.take(8, 1, 1, a, still); !mine || !open {
		t.Fatal("a new primary's change is not executed")
	}
}

// TestChangeLogDrain: a drain waits for what runs, not for what comes.
func TestChangeLogDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newChangeLog(1)
		key := chunkstore.Key{Data: 1}
		first, err := l.begin(context.Background(), key, func() {})
		if err != nil {
			t.Fatal(err)
		}
		drained := make(chan error, 1)
		go func() { drained <- l.drain(context.Background()) }()
		synctest.Wait()
		second, _ := l.begin(context.Background(), key, func() {})
		if low := l.low(); low != first {
			t.Fatalf("low is %d, want %d", low, first)
		}
		l.end(first, true)
		if err := <-drained; err != nil {
			t.Fatal(err)
		}
		l.end(second, false)
		if c := l.columns(); len(c) != 1 {
			t.Fatalf("a change that not all members have is not listed: %v", c)
		}
		l.settled([]chunkstore.Key{key})
		if c := l.columns(); len(c) != 0 {
			t.Fatalf("listed: %v", c)
		}
	})
}

// TestLease: it counts from before the heartbeat, and never shrinks.
func TestLease(t *testing.T) {
	now := time.Duration(0)
	l := &lease{clock: func() time.Duration { return now }}
	if l.valid() {
		t.Fatal("valid before the first")
	}
	l.extend(0, 3*time.Second)
	now = 2 * time.Second
	l.extend(time.Second, 3*time.Second)
	l.extend(0, 3*time.Second) // an answer that came late
	if now = 3500 * time.Millisecond; !l.valid() {
		t.Fatal("a late answer shortened the lease")
	}
	if now = 4 * time.Second; l.valid() {
		t.Fatal("the lease does not end")
	}
}
