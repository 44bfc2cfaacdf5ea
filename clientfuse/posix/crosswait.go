package posix

import (
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Who waits for a lock behind whom, over two mounts.

// crossLockFair: readers that come and go, one of them always there, do not keep a
// writer out for ever.
func crossLockFair(t *testing.T, a, b string) {
	p, q, w := newProcess(t), newProcess(t), newProcess(t)
	x, y, z := p.open(t, a, unix.O_RDWR), q.open(t, b, unix.O_RDWR), w.open(t, b, unix.O_RDWR)
	must(t, "shared", p.do(locked(x, unix.F_SETLKW, unix.F_RDLCK, 0, 1)))
	writer := w.start(locked(z, unix.F_SETLKW, unix.F_WRLCK, 0, 1))
	w.blocked(t)
	for range 20 {
		second := q.start(locked(y, unix.F_SETLKW, unix.F_RDLCK, 0, 1))
		shared := false
		select {
		case err := <-second:
			must(t, "shared", err)
			shared = true
		case <-time.After(200 * time.Millisecond): // behind the writer
		}
		must(t, "unlock", p.do(locked(x, unix.F_SETLK, unix.F_UNLCK, 0, 0)))
		if !shared {
			must(t, "exclusive", soon(t, "the writer's wait", writer))
			must(t, "unlock", w.do(locked(z, unix.F_SETLK, unix.F_UNLCK, 0, 0)))
			must(t, "shared", soon(t, "the reader's wait", second))
			return
		}
		p, q, x, y = q, p, y, x
	}
	t.Error("a writer waits while readers come and go")
}

// crossDeadlock: of a circle of waiting processes the one that closed it is told so,
// and nobody else, nor who waits without a circle. Which request closed it the
// file system decides: that a process sleeps in its call does not tell that its
// wait has begun there, so the last two may meet it in either order.
func crossDeadlock(t *testing.T, a, b string) {
	const n = 3
	var ps [n]*process
	var fds [n]int
	for i := range n {
		path := a
		if i%2 == 1 {
			path = b
		}
		ps[i] = newProcess(t)
		fds[i] = ps[i].open(t, path, unix.O_RDWR)
		must(t, "lock", ps[i].do(locked(fds[i], unix.F_SETLK, unix.F_WRLCK, int64(i), 1)))
	}
	type outcome struct {
		who int
		err error
	}
	ended := make(chan outcome, n)
	start := func(i int) {
		wait := ps[i].start(locked(fds[i], unix.F_SETLKW, unix.F_WRLCK, int64((i+1)%n), 1))
		go func() { ended <- outcome{i, <-wait} }()
	}
	next := func(what string) outcome {
		t.Helper()
		select {
		case o := <-ended:
			return o
		case <-time.After(20 * time.Second):
			t.Fatalf("%s does not end", what)
			return outcome{}
		}
	}
	for i := range n - 1 {
		start(i)
		ps[i].blocked(t)
	}
	time.Sleep(100 * time.Millisecond)
	select {
	case o := <-ended:
		t.Fatalf("wait %d in a chain ended: %v", o.who, o.err)
	default:
	}
	start(n - 1)
	closed := next("any wait of a circle")
	want(t, "the wait that closed a circle", closed.err, syscall.EDEADLK)
	// The others go on waiting, until the one before whom they wait lets go.
	for i := 1; i < n; i++ {
		holder := (closed.who + n + 1 - i) % n
		select {
		case o := <-ended:
			t.Fatalf("wait %d of a circle that was broken ended: %v", o.who, o.err)
		case <-time.After(50 * time.Millisecond):
		}
		must(t, "unlock", ps[holder].do(locked(fds[holder], unix.F_SETLK, unix.F_UNLCK, 0, 0)))
		o := next("a wait for a lock that was given back")
		must(t, "lock", o.err)
		if waiter := (holder + n - 1) % n; o.who != waiter {
			t.Fatalf("wait %d ended, of the lock that %d waits for", o.who, waiter)
		}
	}
}
