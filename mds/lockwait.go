package mds

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
	"github.com/canopyfs/canopy/shard/schema"
)

const (
	// maxLockWaits bounds the waits of one client in one shard: fewer than the
	// operations that its stream may have, so that the others go on.
	maxLockWaits = 1024
	// lockLook is how often waits are looked at though nothing was reported.
	lockLook = 500 * time.Millisecond
	// lockRenew is how long a wait lasts until its client is asked to repeat it.
	lockRenew = 30 * time.Second
	// lockReturn is how long the place in the queue of a wait is kept whose client
	// was told to try, or to ask anew.
	lockReturn = 2 * time.Second
	// lockYield is how long a wait lets those before it go first, though nothing
	// but their wish is in its way. (Longer, and a process that needs a shared lock
	// to let go of another one would be stuck behind who waits for that.)
	lockYield = 2 * time.Second
)

// waitID names a wait for a lock.
type waitID struct {
	client base.ClientID
	token  uint64
}

// lockWait is a process that waits for a lock. While stream is nil its client was
// told to try, or to ask anew, and is expected back by until.
type lockWait struct {
	id      waitID
	owner   schema.LockOwner
	lock    *canopyv1.Lock
	place   *canopyv1.Place
	subtree base.SubtreeID
	detect  bool

	stream  *opStream
	op      uint64
	until   time.Time
	granted bool // told to try

	// It waits since since, without a break. It was asked anew at asked; that it
	// came back tells that it still waited then: confirmed.
	since, asked, confirmed time.Time
}

func (w *lockWait) ino() base.Ino { return base.Ino(w.place.Ino) }

// meets reports whether two owners' wishes exclude each other.
func meets(a, b *canopyv1.Lock) bool {
	return a.Kind == b.Kind && a.Start <= b.Last && b.Start <= a.Last && (a.Exclusive || b.Exclusive)
}

func (w *lockWait) inTheWayOf(owner schema.LockOwner, lock *canopyv1.Lock) bool {
	return w.owner != owner && meets(w.lock, lock)
}

// lockQueue are the waits for locks of one inode, the oldest first.
type lockQueue struct {
	waits []*lockWait
	dirty bool // locks or waits have changed
}

// lockTable are the waits of one term. Locks themselves are in the replicated
// state; who waits for them is not, and asks the next holder anew.
type lockTable struct {
	t    *tenure
	wake chan struct{}

	mu     sync.Mutex
	queues map[base.Ino]*lockQueue
	byID   map[waitID]*lockWait
	fresh  []*lockWait // came, or came back, since the last look
	count  map[base.ClientID]int
	closed bool
}

func newLockTable(t *tenure) *lockTable {
	return &lockTable{t: t, wake: make(chan struct{}, 1), queues: map[base.Ino]*lockQueue{},
		byID: map[waitID]*lockWait{}, count: map[base.ClientID]int{}}
}

func (l *lockTable) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run looks after the waits until the term ends.
func (l *lockTable) run(ctx context.Context) {
	tick := time.NewTicker(lockLook)
	defer tick.Stop()
	defer l.close()
	for {
		all := false
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-tick.C:
			all = true
		}
		l.look(ctx, all)
	}
}

// close ends all waits: who is asked now is another node's word.
func (l *lockTable) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, w := range l.byID {
		l.removeLocked(w, fserr.NotHolder)
	}
}

// register takes a wait in, or back. It never blocks.
func (l *lockTable) register(st *opStream, op *canopyv1.Op, now time.Time) {
	c := op.GetWaitLock()
	w := &lockWait{id: waitID{st.client, c.Token}, lock: c.Lock, place: c.Place, subtree: base.SubtreeID(op.Subtree),
		owner:  schema.LockOwner{Kind: schema.LockKind(c.Lock.Kind), Client: st.client, Owner: c.Lock.Owner},
		detect: c.Detect && c.Lock.Kind == canopyv1.LockKind_LOCK_POSIX, since: now}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.byID[w.id]
	switch {
	case st.ctx.Err() != nil:
		return // its stream's waits are forgotten already
	case l.closed:
		w.stream, w.op = st, op.Id
		l.answer(w, fserr.NotHolder)
		return
	case old != nil:
		if old.stream == nil && !old.granted {
			old.confirmed = old.asked
		}
		old.granted = false
		w = old
	case l.count[st.client] >= maxLockWaits:
		w.stream, w.op = st, op.Id
		l.answer(w, fserr.Busy)
		return
	default:
		q := l.queues[w.ino()]
		if q == nil {
			q = &lockQueue{}
			l.queues[w.ino()] = q
		}
		q.waits = append(q.waits, w)
		l.byID[w.id] = w
		l.count[st.client]++
	}
	w.stream, w.op, w.until = st, op.Id, now.Add(lockRenew)
	l.queues[w.ino()].dirty = true
	l.fresh = append(l.fresh, w)
	l.poke()
}

// answer sends a wait's answer. The wait is not parked any more.
func (l *lockTable) answer(w *lockWait, kind fserr.Kind) {
	result := &canopyv1.Result{Error: uint32(kind)}
	switch kind {
	case fserr.NotHolder:
		result = l.t.h.server.refusal(fserr.New(kind, "wait", nil), l.t.h.shard, w.subtree)
	case fserr.Busy:
		result.RetryAfterMs = retryAfterMS()
	}
	w.stream.queue.put(1, outcome{w.op, encodeResult(result)})
	w.stream = nil
}

// removeLocked forgets a wait; if it is parked it is answered.
func (l *lockTable) removeLocked(w *lockWait, kind fserr.Kind) {
	if w.stream != nil {
		l.answer(w, kind)
	}
	q := l.queues[w.ino()]
	q.waits = slices.DeleteFunc(q.waits, func(x *lockWait) bool { return x == w })
	q.dirty = true
	if len(q.waits) == 0 {
		delete(l.queues, w.ino())
	}
	delete(l.byID, w.id)
	if l.count[w.id.client]--; l.count[w.id.client] == 0 {
		delete(l.count, w.id.client)
	}
}

// remove forgets the waits that are meant.
func (l *lockTable) remove(meant func(*lockWait) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.byID {
		if meant(w) {
			l.removeLocked(w, fserr.Interrupted)
		}
	}
	l.poke()
}

// cancel forgets one wait.
func (l *lockTable) cancel(id waitID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.byID[id]; w != nil {
		l.removeLocked(w, fserr.Interrupted)
		l.poke()
	}
}

// refuses says whether a try for a lock has to queue up, though nobody may hold
// one that it meets. A try of who was told to try goes first. Others queue behind
// those; and if they would wait, behind everybody who waits already: else there
// might always be somebody quicker than who waits longest.
func (l *lockTable) refuses(client base.ClientID, c *canopyv1.SetLockCall) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[base.Ino(c.Place.GetIno())]
	if q == nil {
		return false
	}
	if own := l.byID[waitID{client, c.Token}]; own != nil && own.granted {
		return false
	}
	owner := schema.LockOwner{Kind: schema.LockKind(c.Lock.Kind), Client: client, Owner: c.Lock.Owner}
	return slices.ContainsFunc(q.waits, func(w *lockWait) bool {
		return (w.granted || c.Wait) && w.inTheWayOf(owner, c.Lock)
	})
}

// tried notes the outcome of a try for a lock.
func (l *lockTable) tried(id waitID, ino base.Ino, taken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.byID[id]
	if w == nil && !taken {
		return
	}
	if w != nil && w.granted {
		if taken {
			l.removeLocked(w, fserr.OK)
		} else {
			w.granted, w.until = false, time.Now().Add(lockReturn)
		}
	}
	l.changedLocked(ino)
}

// changedLocked notes that locks of an inode were given back.
func (l *lockTable) changedLocked(ino base.Ino) {
	if q := l.queues[ino]; q != nil {
		q.dirty = true
		l.poke()
	}
}

// changedAll notes that any locks may have been given back.
func (l *lockTable) changedAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.queues {
		q.dirty = true
	}
	l.poke()
}

// look reads the locks of the inodes where something has changed, and answers
// who can go on.
func (l *lockTable) look(ctx context.Context, all bool) {
	v := l.view(all, time.Now())
	if len(v.queues) == 0 {
		return
	}
	// What waits was in the table before its locks are read, and who gives a lock
	// back tells after it was applied: no wake-up is lost between the two.
	err := l.t.h.group.Read(ctx, func(r shard.Reader) error { return v.read(l.t.h.machine, r) })
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		for ino := range v.queues {
			l.changedLocked(ino) // the next look sees to it
		}
		return
	}
	now := time.Now()
	for _, cycle := range v.cycles {
		l.breakLocked(cycle, now)
	}
	for ino, w := range v.queues {
		if q := l.queues[ino]; q != nil {
			l.goOnLocked(q, v.files[w.ino()], now)
		}
	}
}

// goOnLocked answers those of a queue whose lock nobody else holds, in their order.
func (l *lockTable) goOnLocked(q *lockQueue, f fileLocks, now time.Time) {
	for i, w := range slices.Clone(q.waits) {
		switch {
		case w.stream == nil:
			continue
		case f.gone == fserr.Moved:
			l.movedLocked(w, f.moved)
			continue
		case f.gone != fserr.OK:
			l.removeLocked(w, f.gone)
			continue
		case len(f.Blockers(w.id.client, w.lock)) > 0:
			continue
		}
		patient := now.Sub(w.since) < lockYield
		if slices.ContainsFunc(q.waits, func(e *lockWait) bool {
			return e.granted && e.inTheWayOf(w.owner, w.lock)
		}) || patient && slices.ContainsFunc(q.waits[:min(i, len(q.waits))], func(e *lockWait) bool {
			return e.inTheWayOf(w.owner, w.lock)
		}) {
			continue
		}
		l.answer(w, fserr.OK)
		l.heatWait(w, now)
		w.granted, w.until = true, now.Add(lockReturn)
	}
}

// movedLocked ends a wait for a lock of a file that is in another subtree or shard
// now: the client goes on there.
func (l *lockTable) movedLocked(w *lockWait, where *canopyv1.Result) {
	server := l.t.h.server
	result := &canopyv1.Result{Error: uint32(fserr.Moved), Place: where.Place, Redirect: server.moved(where.Redirect, l.t.h.shard, w.subtree)}
	w.stream.queue.put(1, outcome{w.op, encodeResult(result)})
	w.stream = nil
	l.removeLocked(w, fserr.OK)
}

// askAnewLocked lets a wait's client repeat it, which shows that it still waits.
func (l *lockTable) askAnewLocked(w *lockWait, now time.Time) {
	l.answer(w, fserr.Again)
	w.asked, w.until = now, now.Add(lockReturn)
}

// view takes what a look works on: for each inode to look at one of its waits,
// and all waits by owner. What is overdue goes.
func (l *lockTable) view(all bool, now time.Time) *lockView {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := &lockView{queues: map[base.Ino]*lockWait{}, waits: map[schema.LockOwner][]*lockWait{}, files: map[base.Ino]fileLocks{}}
	for _, w := range l.byID {
		switch {
		case now.Before(w.until):
		case w.stream == nil:
			l.removeLocked(w, fserr.OK)
		default:
			l.askAnewLocked(w, now)
		}
		if w.stream != nil && w.detect {
			v.waits[w.owner] = append(v.waits[w.owner], w)
		}
	}
	for ino, q := range l.queues {
		if q.dirty || all {
			v.queues[ino], q.dirty = q.waits[0], false
		}
	}
	for _, w := range l.fresh {
		if w.stream != nil && w.detect {
			v.fresh = append(v.fresh, w)
		}
	}
	l.fresh = nil
	return v
}

// fileLocks are the locks of a file, or the kind that says that it is gone.
type fileLocks struct {
	namespace.FileLocks
	gone  fserr.Kind
	moved *canopyv1.Result // gone is Moved: where to
}

// lockView is the work of one look.
type lockView struct {
	queues map[base.Ino]*lockWait
	waits  map[schema.LockOwner][]*lockWait // those that dead-locks count for
	fresh  []*lockWait
	files  map[base.Ino]fileLocks
	cycles [][]*lockWait
}

func (v *lockView) read(m *namespace.Machine, r shard.Reader) error {
	clear(v.files)
	v.cycles = nil
	for _, w := range v.queues {
		if _, err := v.locksOf(m, r, w); err != nil {
			return err
		}
	}
	for _, w := range v.fresh {
		cycle, err := v.cycle(m, r, w)
		if err != nil {
			return err
		}
		if cycle != nil {
			v.cycles = append(v.cycles, cycle)
		}
	}
	return nil
}

func (v *lockView) locksOf(m *namespace.Machine, r shard.Reader, w *lockWait) (fileLocks, error) {
	if f, ok := v.files[w.ino()]; ok {
		return f, nil
	}
	locks, err := m.Locks(r, w.subtree, w.place)
	f := fileLocks{FileLocks: locks}
	var moved *namespace.MovedError
	if kind, ok := err.(fserr.Kind); ok {
		f.gone, err = kind, nil
	} else if errors.As(err, &moved) {
		f.gone, f.moved, err = fserr.Moved, moved.Result, nil
	}
	v.files[w.ino()] = f
	return f, err
}
