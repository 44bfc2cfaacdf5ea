package client

import (
	"context"
	"errors"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// LockType is what a LockRequest wants.
type LockType uint8

// The types.
const (
	Unlock LockType = iota
	LockShared
	LockExclusive
)

// LockToEnd as the Last of a lock reaches to the end of every file.
const LockToEnd uint64 = 1<<63 - 1

// LockRequest is a lock that an owner wants to take, give back or ask for.
type LockRequest struct {
	Type  LockType
	Flock bool // a lock of flock(2), which fcntl's do not know: always of the whole file
	// Owner tells the owners of this client apart, within each of the two kinds:
	// for fcntl locks a process, for those of open files and flock an open file.
	Owner       uint64
	Start, Last uint64 // first and last byte
	PID         uint32 // for people
	// Wait until the lock can be had. When Interrupt is closed while nothing but
	// another's lock is in the way the call ends with kind Interrupted; at any
	// other moment it completes.
	Wait      bool
	Interrupt <-chan struct{}
	// Detect, if it says true when the wait begins, lets the call end with kind
	// Deadlock if it would wait for ever. The owner then does nothing else while it
	// waits.
	Detect func() bool
}

// HeldLock is a lock that somebody holds.
type HeldLock struct {
	Exclusive   bool
	Start, Last uint64
	PID         uint32 // 0: of another client
}

func (f *File) message(r LockRequest) *canopyv1.Lock {
	m := &canopyv1.Lock{Client: uint64(f.st.c.id), Owner: r.Owner, Kind: canopyv1.LockKind_LOCK_POSIX, Exclusive: r.Type == LockExclusive,
		Start: r.Start, Last: min(r.Last, LockToEnd), Pid: r.PID, Handle: f.number}
	if r.Flock {
		m.Kind = canopyv1.LockKind_LOCK_FLOCK
	}
	return m
}

// GetLock returns a lock of another owner that keeps the requested one from being
// taken, nil if there is none.
func (f *File) GetLock(ctx context.Context, r LockRequest) (*HeldLock, error) {
	if f.closed.Load() {
		return nil, f.fail("getlk", fserr.BadHandle)
	}
	res, err := f.st.ask(ctx, opGetLock, &canopyv1.Op{Cred: superuser, Call: &canopyv1.Op_GetLock{
		GetLock: &canopyv1.GetLockCall{Place: f.st.n.place(), Lock: f.message(r)}}})
	if err != nil {
		return nil, f.fail("getlk", err)
	}
	if len(res.Locks) == 0 {
		return nil, nil
	}
	l := res.Locks[0]
	h := &HeldLock{Exclusive: l.Exclusive, Start: l.Start, Last: l.Last}
	if l.Client == uint64(f.st.c.id) {
		h.PID = l.Pid
	}
	return h, nil
}

// Locks returns all locks in a file, of all clients.
func (c *Client) Locks(ctx context.Context, n *Inode) ([]*Lock, error) {
	op := n.op(Cred{})
	op.Call = &canopyv1.Op_GetLock{GetLock: &canopyv1.GetLockCall{Place: n.place()}}
	res, err := c.do(ctx, opGetLock, op)
	return res.GetLocks(), err
}

// SetLock takes a lock, or gives it back, for all clients to see. What the owner
// had in the range is replaced. What this client wrote to the file is visible to
// others before a lock is given back, and who has got one sees the file as it is.
//
// Without Wait, kind WouldBlock says that another owner's lock is in the way. The
// locks of a client end with its session: if that happened, kind IO is what the
// owner's lock calls get, and all reads and writes of the handles through which it
// had locked, until it unlocks the whole file or closes it.
func (f *File) SetLock(ctx context.Context, r LockRequest) error {
	if f.closed.Load() {
		return f.fail("setlk", fserr.BadHandle)
	}
	owner := lockOwner{r.Flock, r.Owner}
	var err error
	if r.Type == Unlock {
		err = f.unlock(ctx, owner, r)
	} else {
		err = f.lock(ctx, owner, r)
	}
	if err != nil {
		return f.fail("setlk", err)
	}
	return nil
}

var errLockLost = fserr.New(fserr.IO, "", errors.New("a lock was lost with the client's session"))

func (f *File) lock(ctx context.Context, owner lockOwner, r LockRequest) error {
	locks := &f.st.locks
	o, err := locks.begin(owner, f)
	if err != nil {
		return err
	}
	defer locks.end(owner, o)
	if r.Type == LockShared { // others may read what this owner has written
		if err := f.st.flush(ctx, false); err != nil && ctx.Err() != nil {
			return err
		}
	}
	token := f.st.c.lastToken.Add(1)
	waited := uint64(0)
	for {
		err := f.try(ctx, o, r, waited)
		if !errors.Is(err, fserr.WouldBlock) {
			return err
		}
		if r.Flock && locks.holds(o) {
			// As on Linux: a lock that is to change its kind is given back first.
			if err := f.unlock(ctx, owner, r); err != nil {
				return err
			}
		}
		if !r.Wait {
			return err
		}
		waited = token
		if err := f.wait(ctx, r, token); err != nil {
			return err
		}
	}
}

// try asks for the lock once. An answer that was given in a session which has ended
// since says nothing: the lock ended with it.
func (f *File) try(ctx context.Context, o *ownerLocks, r LockRequest, token uint64) error {
	for {
		op := &canopyv1.Op{Subtree: uint64(f.st.n.subtreeID()), Cred: superuser, Call: &canopyv1.Op_SetLock{
			SetLock: &canopyv1.SetLockCall{Place: f.st.n.place(), Lock: f.message(r), Wait: r.Wait, Token: token}}}
		asked := time.Now()
		res, in, err := f.st.c.doIn(ctx, opSetLock, op)
		switch {
		case err == nil:
			f.st.n.movedTo(res.Place, res.Attr)
			f.st.n.see(res.Attr)
			f.st.c.cache.putAttr(res.Attr, asked)
			if taken, err := f.st.locks.took(o, in.stands); taken || err != nil {
				return err
			}
		case fserr.KindOf(err) == fserr.TimedOut && ctx.Err() == nil: // the session was lost meanwhile
		case ctx.Err() != nil:
			f.st.locks.mayHold(o) // it may have been granted
			return err
		default:
			return err
		}
	}
}

// wait returns when it is worth trying again.
func (f *File) wait(ctx context.Context, r LockRequest, token uint64) error {
	select {
	case <-r.Interrupt:
		return fserr.Interrupted
	default:
	}
	wctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-r.Interrupt:
			cancel()
		case <-wctx.Done():
		}
	}()
	defer func() { cancel(); <-watched }()
	call := &canopyv1.WaitLockCall{Lock: f.message(r), Token: token, Detect: r.Detect != nil && r.Detect()}
	for {
		call.Place = f.st.n.place()
		_, err := f.st.c.do(wctx, opWaitLock, &canopyv1.Op{Subtree: uint64(f.st.n.subtreeID()), Cred: superuser,
			Call: &canopyv1.Op_WaitLock{WaitLock: call}})
		switch {
		case wctx.Err() != nil && err != nil:
			f.cancelWait(token)
			return fserr.Interrupted
		case fserr.KindOf(err) == fserr.Again:
			call = &canopyv1.WaitLockCall{Lock: call.Lock, Token: token, Detect: call.Detect}
		default:
			return err
		}
	}
}

// cancelPatience bounds how long the end of a wait is held back until the server
// has heard of it: before that it counts as waiting, in the eyes of others.
const cancelPatience = 2 * time.Second

func (f *File) cancelWait(token uint64) {
	ctx, cancel := context.WithTimeout(f.st.c.ctx, cancelPatience)
	defer cancel()
	_, err := f.st.c.do(ctx, opCancelWait, &canopyv1.Op{Subtree: uint64(f.st.n.subtreeID()), Cred: superuser,
		Call: &canopyv1.Op_CancelWait{CancelWait: &canopyv1.CancelWaitCall{Ino: uint64(f.st.n.ino), Token: token}}})
	if err != nil {
		f.st.c.logger.Debug("a wait for a lock ended that the server could not be told of", "ino", f.st.n.ino, "error", err)
	}
}

// unlock gives a range back, if the owner may have locks here.
func (f *File) unlock(ctx context.Context, owner lockOwner, r LockRequest) error {
	o := f.st.locks.find(owner)
	if o == nil {
		return nil
	}
	m := f.message(r)
	return f.giveBack(ctx, func(ctx context.Context) error {
		_, err := f.st.ask(ctx, opSetLock, &canopyv1.Op{Cred: superuser, Call: &canopyv1.Op_SetLock{
			SetLock: &canopyv1.SetLockCall{Place: f.st.n.place(), Lock: m, Unlock: true}}})
		if err == nil && m.Start == 0 && m.Last == LockToEnd {
			f.st.locks.gaveBack(owner, o)
		}
		return err
	})
}

// UnlockOwner gives back all fcntl locks that the owner has in the file: what
// close(2) of any of a process's descriptors does.
func (f *File) UnlockOwner(ctx context.Context, owner uint64) error {
	if err := f.unlock(ctx, lockOwner{false, owner}, LockRequest{Owner: owner, Last: LockToEnd}); err != nil {
		return f.fail("unlock", err)
	}
	return nil
}

// HasLocks reports whether somebody of this client may have fcntl locks in the file.
func (f *File) HasLocks() bool { return f.st.locks.any() }

// LocksLost reports whether a lock that was taken through this handle has ended with
// the session: what reads and writes through it answer is EIO until its owner unlocks.
func (f *File) LocksLost() bool { return f.lockLost.Load() }

// dropLocks gives back what was taken through a handle that goes.
func (f *File) dropLocks(ctx context.Context) error {
	if !f.st.locks.leave(f) {
		return nil
	}
	return f.giveBack(ctx, func(ctx context.Context) error {
		_, err := f.st.ask(ctx, opDropLocks, &canopyv1.Op{Cred: superuser, Call: &canopyv1.Op_DropLocks{
			DropLocks: &canopyv1.DropLocksCall{Place: f.st.n.place(), Handle: f.number}}})
		return err
	})
}

// giveBack runs an unlock to its end even when ctx ends, as that of a process that
// was killed does: a lock that nobody gives back would stay until the session ends.
// What was written under the lock goes first; an error of that is for fsync and
// close to report.
func (f *File) giveBack(ctx context.Context, unlock func(context.Context) error) error {
	st := f.st
	done := make(chan error, 1)
	st.n.Hold()
	if !st.c.spawn(func() {
		defer st.n.Release()
		if err := st.flush(st.c.ctx, false); err != nil {
			st.c.logger.Debug("unlocking a file whose bytes could not be written", "ino", st.n.ino, "error", err)
		}
		for {
			err := unlock(st.c.ctx)
			switch kind := fserr.KindOf(err); {
			case kind == fserr.TimedOut: // the session, and with it the lock, may be gone, or not
				continue
			case kind == fserr.Stale || kind == fserr.NotFound: // with the file
				err = nil
			}
			done <- err
			return
		}
	}) {
		st.n.Release()
		return nil // the client ends, and with its session the lock
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// locksLost notes that the session at a shard has ended, and with it the locks in
// the shard's files.
func (c *Client) locksLost(shard base.ShardID) {
	for _, n := range c.opens.nodes() {
		st := n.file.Load()
		if to, ok, _ := c.routes.find(n.subtreeID()); st != nil && ok && to.shard == shard && st.locks.lose() {
			c.logger.Error("file locks were lost with the session; their holders get errors", "shard", shard, "ino", n.ino)
		}
		n.Release()
	}
}
