package schema

import "testing"

// TestLocks: what was taken through one open file goes with it, and nothing else
// (FUSE K10); neighbours are one for who asks.
func TestLocks(t *testing.T) {
	l := &Locks{}
	l.Set(LockRange{Start: 0, Last: 9, Exclusive: true, Handle: 1})
	l.Set(LockRange{Start: 20, Last: 29, Exclusive: true, Handle: 1})
	l.Set(LockRange{Start: 10, Last: 19, Exclusive: true, Handle: 1})
	if got := l.String(); got != "w[0,29] pid=0 handle=1" {
		t.Errorf("three that touch: %s", got)
	}
	l.Set(LockRange{Start: 5, Last: 9, Exclusive: true, Handle: 2})
	if got := l.String(); got != "w[0,4] pid=0 handle=1 w[5,9] pid=0 handle=2 w[10,29] pid=0 handle=1" {
		t.Errorf("through another handle: %s", got)
	}
	if c, ok := l.Conflict(LockRange{Start: 3, Last: 3}); !ok || c.Start != 0 || c.Last != 29 {
		t.Errorf("who asks is told of %d to %d", c.Start, c.Last)
	}
	l.Drop(1)
	if got := l.String(); got != "w[5,9] pid=0 handle=2" {
		t.Errorf("after the end of a handle: %s", got)
	}
	l.Clear(6, 7)
	if got := l.String(); got != "w[5,5] pid=0 handle=2 w[8,9] pid=0 handle=2" {
		t.Errorf("a piece given back: %s", got)
	}
}
