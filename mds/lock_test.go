package mds_test

import (
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/mds"
	"github.com/canopyfs/canopy/placement"
)

// locker is a client that locks bytes of one file. An owner is a process of it.
type locker struct {
	*caller
	place *canopyv1.Place
}

func (l *locker) lock(owner, at uint64) *canopyv1.Lock {
	return &canopyv1.Lock{Kind: canopyv1.LockKind_LOCK_POSIX, Owner: owner, Exclusive: true, Start: at, Last: at, Handle: 1}
}

func (l *locker) set(owner, at, token uint64, unlock bool) fserr.Kind {
	op := l.write(&canopyv1.Op{Subtree: 1, Call: &canopyv1.Op_SetLock{SetLock: &canopyv1.SetLockCall{
		Place: l.place, Lock: l.lock(owner, at), Unlock: unlock, Wait: true, Token: token}}})
	return fserr.Kind(l.do(1, op).Error)
}

// wait starts a wait; it is in the node's table when the call returns.
func (l *locker) wait(n *mds.Server, owner, at, token uint64) chan *canopyv1.Result {
	c := l.send(n, 1, &canopyv1.Op{Subtree: 1, Call: &canopyv1.Op_WaitLock{WaitLock: &canopyv1.WaitLockCall{
		Place: l.place, Lock: l.lock(owner, at), Token: token, Detect: true}}})[0]
	l.cancel(n, 999) // of one stream the node takes things in order
	return c
}

func (l *locker) cancel(n *mds.Server, token uint64) fserr.Kind {
	return answer(l.c.t, l.send(n, 1, &canopyv1.Op{Subtree: 1, Call: &canopyv1.Op_CancelWait{
		CancelWait: &canopyv1.CancelWaitCall{Ino: l.place.Ino, Token: token}}})[0])
}

func answer(t testing.TB, from chan *canopyv1.Result) fserr.Kind {
	t.Helper()
	select {
	case r := <-from:
		return fserr.Kind(r.GetError())
	case <-time.After(patience):
		t.Fatal("no answer")
		return fserr.Internal
	}
}

func none(t testing.TB, what string, from chan *canopyv1.Result) {
	t.Helper()
	select {
	case r := <-from:
		t.Fatalf("%s was answered: %v", what, r)
	default:
	}
}

func expect(t testing.TB, what string, got, want fserr.Kind) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

// lockers makes a file and clients that lock in it.
func (c *cluster) lockers(ids ...base.ClientID) []*locker {
	var all []*locker
	var place *canopyv1.Place
	for i, id := range ids {
		k := c.caller(id).open(1)
		if i == 0 {
			r := k.must(1, k.write(create(1, "locked")))
			place = &canopyv1.Place{Ino: r.Attr.Ino, Dir: 1, Name: []byte("locked")}
		}
		all = append(all, &locker{k, place})
	}
	return all
}

// TestDeadlockIsSure: nobody is told of a dead-lock on the word of a wait that may
// have ended. The other waits of a circle are asked anew; only when they come back
// the youngest is told.
func TestDeadlockIsSure(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 1}, nil)
	ls := c.lockers(1, 2)
	a, b := ls[0], ls[1]
	n := c.nodes[c.holding(1)]
	expect(t, "lock", a.set(1, 10, 0, false), fserr.OK)
	expect(t, "lock", b.set(1, 20, 0, false), fserr.OK)

	// The wait of a ends at its client; the word of it is lost.
	expect(t, "a's try", a.set(1, 20, 0, false), fserr.WouldBlock)
	lost := a.wait(n, 1, 20, 100)
	expect(t, "b's try", b.set(1, 10, 0, false), fserr.WouldBlock)
	waiting := b.wait(n, 1, 10, 200)
	expect(t, "a's wait, in a circle", answer(t, lost), fserr.Again)
	// It does not come back, but a gives its lock back: there was no dead-lock.
	expect(t, "unlock", a.set(1, 10, 0, true), fserr.OK)
	expect(t, "b's wait", answer(t, waiting), fserr.OK)
	expect(t, "b's lock", b.set(1, 10, 200, false), fserr.OK)
	expect(t, "unlock", b.set(1, 10, 0, true), fserr.OK)

	// A cancelled wait points at nobody.
	expect(t, "lock", a.set(1, 10, 0, false), fserr.OK)
	cancelled := a.wait(n, 1, 20, 101)
	expect(t, "cancel", a.cancel(n, 101), fserr.OK)
	expect(t, "the cancelled wait", answer(t, cancelled), fserr.Interrupted)
	waiting = b.wait(n, 1, 10, 201)

	// And one that goes on is a dead-lock.
	again := a.wait(n, 1, 20, 102)
	expect(t, "b's wait, in a circle", answer(t, waiting), fserr.Again)
	none(t, "a's wait", again)
	waiting = b.wait(n, 1, 10, 201)
	expect(t, "the youngest wait of the circle", answer(t, again), fserr.Deadlock)
	none(t, "the other wait", waiting)
	expect(t, "unlock", a.set(1, 10, 0, true), fserr.OK)
	expect(t, "b's wait", answer(t, waiting), fserr.OK)
}

// TestLockQueue: waits go on in their order, and nobody takes the lock before who
// was told to.
func TestLockQueue(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 1}, nil)
	ls := c.lockers(1, 2, 3)
	n := c.nodes[c.holding(1)]
	expect(t, "lock", ls[0].set(1, 5, 0, false), fserr.OK)
	first := ls[1].wait(n, 1, 5, 1)
	eventually(t, "the first wait is there", func() bool { return ls[1].set(2, 5, 0, false) == fserr.WouldBlock })
	second := ls[2].wait(n, 1, 5, 1)
	expect(t, "unlock", ls[0].set(1, 5, 0, true), fserr.OK)
	expect(t, "the first wait", answer(t, first), fserr.OK)
	none(t, "the second wait", second)
	expect(t, "somebody else", ls[0].set(1, 5, 0, false), fserr.WouldBlock)
	expect(t, "the first", ls[1].set(1, 5, 1, false), fserr.OK)
	none(t, "the second wait", second)
	expect(t, "unlock", ls[1].set(1, 5, 0, true), fserr.OK)
	expect(t, "the second wait", answer(t, second), fserr.OK)
	// Who does not take what it was told to take does not keep it for long.
	eventually(t, "somebody else gets it", func() bool { return ls[0].set(1, 5, 0, false) == fserr.OK })
}

// TestLocksOfALostClient: locks end with the session of a client that was not
// heard of, and who waits for them goes on; those of the others stay.
func TestLocksOfALostClient(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 1}, func(m *mds.Config) {
		m.SessionTimeout, m.Heartbeat = 1500*time.Millisecond, 300*time.Millisecond
	})
	ls := c.lockers(1, 2)
	n := c.nodes[c.holding(1)]
	expect(t, "lock", ls[0].set(1, 5, 0, false), fserr.OK)
	expect(t, "lock", ls[1].set(1, 6, 0, false), fserr.OK)
	waiting := ls[1].wait(n, 1, 5, 1) // and the first is heard of no more
	deadline := time.After(patience)
	for done := false; !done; {
		select {
		case r := <-waiting:
			expect(t, "the wait", fserr.Kind(r.Error), fserr.OK)
			done = true
		case <-time.After(100 * time.Millisecond):
			ls[1].must(1, lookup(1, "locked")) // the second is
		case <-deadline:
			t.Fatal("the lock of a lost client stays")
		}
	}
	expect(t, "lock", ls[1].set(1, 5, 1, false), fserr.OK)
	expect(t, "by another owner", ls[1].set(9, 6, 0, false), fserr.WouldBlock)
}

// TestLocksOutliveTheHolder: a lock is in the log; who waits asks the next holder.
func TestLocksOutliveTheHolder(t *testing.T) {
	t.Parallel()
	c := newCluster(t, triple, nil)
	ls := c.lockers(1, 2)
	expect(t, "lock", ls[0].set(1, 5, 0, false), fserr.OK)
	dead := c.holding(1)
	c.kill(dead)
	expect(t, "another, at the next holder", ls[1].set(1, 5, 0, false), fserr.WouldBlock)
	waiting := ls[1].wait(c.nodes[c.holding(1)], 1, 5, 1)
	drained := c.holding(1)
	c.start(dead)
	c.waitReady(dead)
	c.drain(drained)
	if kind := answer(t, waiting); kind != fserr.NotHolder && kind != fserr.NotReady {
		t.Fatalf("the wait at a holder that was drained: %v", kind)
	}
	expect(t, "another, at the third holder", ls[1].set(1, 5, 0, false), fserr.WouldBlock)
	expect(t, "unlock", ls[0].set(1, 5, 0, true), fserr.OK)
	eventually(t, "the wait goes on", func() bool {
		return answer(t, ls[1].wait(c.nodes[c.holding(1)], 1, 5, 1)) == fserr.OK
	})
	expect(t, "lock", ls[1].set(1, 5, 1, false), fserr.OK)
}

// TestWaitEndsWhereItsFileWas: a wait for a lock of a file whose subtree is not the
// shard's (any more) ends with MOVED, so that the client goes on where it is (E7).
func TestWaitEndsWhereItsFileWas(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 1}, nil)
	a := c.lockers(1)[0]
	wait := a.send(c.nodes[c.holding(1)], 1, &canopyv1.Op{Subtree: 1 << 44, Call: &canopyv1.Op_WaitLock{WaitLock: &canopyv1.WaitLockCall{
		Place: a.place, Lock: a.lock(1, 10), Token: 100}}})[0]
	expect(t, "a wait for what is elsewhere", answer(t, wait), fserr.Moved)
}
