package clientfuse

import (
	"context"
	"sync"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// memLocks are the file locks of a memFS.
type memLocks struct {
	mu      sync.Mutex
	changed chan struct{} // closed when a lock was given back
	files   map[*memNode]map[schema.LockOwner]*schema.Locks
}

func newMemLocks() *memLocks {
	return &memLocks{changed: make(chan struct{}), files: make(map[*memNode]map[schema.LockOwner]*schema.Locks)}
}

func memLock(f *memFile, r client.LockRequest) (schema.LockOwner, schema.LockRange) {
	owner := schema.LockOwner{Kind: schema.LockPOSIX, Owner: r.Owner}
	if r.Flock {
		owner.Kind = schema.LockFlock
	}
	return owner, schema.LockRange{Start: r.Start, Last: r.Last, Exclusive: r.Type == client.LockExclusive, PID: r.PID, Handle: f.number}
}

func (l *memLocks) conflictLocked(f *memFile, owner schema.LockOwner, want schema.LockRange) *client.HeldLock {
	for o, held := range l.files[f.n] {
		if o == owner || o.Kind != owner.Kind {
			continue
		}
		if c, ok := held.Conflict(want); ok {
			return &client.HeldLock{Exclusive: c.Exclusive, Start: c.Start, Last: c.Last, PID: c.PID}
		}
	}
	return nil
}

func (f *memFile) GetLock(_ context.Context, r client.LockRequest) (*client.HeldLock, error) {
	l := f.n.fs.locks
	l.mu.Lock()
	defer l.mu.Unlock()
	owner, want := memLock(f, r)
	return l.conflictLocked(f, owner, want), nil
}

func (f *memFile) SetLock(ctx context.Context, r client.LockRequest) error {
	l := f.n.fs.locks
	owner, want := memLock(f, r)
	for {
		l.mu.Lock()
		if l.files[f.n] == nil {
			l.files[f.n] = make(map[schema.LockOwner]*schema.Locks)
		}
		mine := l.files[f.n][owner]
		if mine == nil {
			mine = &schema.Locks{}
			l.files[f.n][owner] = mine
		}
		changed := l.changed
		switch {
		case r.Type == client.Unlock:
			mine.Clear(want.Start, want.Last)
			l.wakeLocked()
			l.mu.Unlock()
			return nil
		case l.conflictLocked(f, owner, want) == nil:
			mine.Set(want)
			l.wakeLocked()
			l.mu.Unlock()
			return nil
		}
		if r.Flock { // a lock that is to change is given back first
			mine.Clear(want.Start, want.Last)
			l.wakeLocked()
			changed = l.changed
		}
		l.mu.Unlock()
		if !r.Wait {
			return fserr.WouldBlock
		}
		select {
		case <-changed:
		case <-r.Interrupt:
			return fserr.Interrupted
		case <-ctx.Done():
			return fserr.Interrupted
		}
	}
}

func (l *memLocks) wakeLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (f *memFile) UnlockOwner(ctx context.Context, owner uint64) error {
	return f.SetLock(ctx, client.LockRequest{Type: client.Unlock, Owner: owner, Last: client.LockToEnd})
}

func (f *memFile) LocksLost() bool { return f.lost.Load() }

func (f *memFile) HasLocks() bool {
	l := f.n.fs.locks
	l.mu.Lock()
	defer l.mu.Unlock()
	for o, held := range l.files[f.n] {
		if o.Kind == schema.LockPOSIX && len(held.Ranges) > 0 {
			return true
		}
	}
	return false
}

// drop gives back what was taken through the handle.
func (f *memFile) drop() {
	l := f.n.fs.locks
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, held := range l.files[f.n] {
		held.Drop(f.number)
	}
	l.wakeLocked()
}

// Direct: the file system in memory has no policies.
func (f *memFile) Direct() bool { return false }
