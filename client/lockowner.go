package client

import (
	"sync"
)

// lockOwner is somebody who locks, within this client.
type lockOwner struct {
	flock bool
	id    uint64
}

// ownerLocks is what is known here of one owner's locks in one file: not which,
// that is the server's to know, but that there may be some.
type ownerLocks struct {
	files   map[*File]struct{} // through which it may have locked
	pending int                // requests under way
	held    bool               // a lock was granted
	lost    bool               // and ended with the session
}

// fileLocks are the owners that may have locks in a file. The zero value is ready.
type fileLocks struct {
	mu     sync.Mutex
	owners map[lockOwner]*ownerLocks
}

// begin notes that an owner is about to lock through f: from now on an unlock has
// to be sent. An owner that has lost locks gets none.
func (l *fileLocks) begin(owner lockOwner, f *File) (*ownerLocks, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.owners[owner]
	if o == nil {
		o = &ownerLocks{files: map[*File]struct{}{}}
		if l.owners == nil {
			l.owners = map[lockOwner]*ownerLocks{}
		}
		l.owners[owner] = o
	}
	if o.lost {
		return nil, errLockLost
	}
	o.files[f] = struct{}{}
	o.pending++
	return o, nil
}

func (l *fileLocks) end(owner lockOwner, o *ownerLocks) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o.pending--
	if o.pending == 0 && !o.held && !o.lost && l.owners[owner] == o {
		delete(l.owners, owner) // refused: there is nothing
	}
}

// took notes a grant if the session in which it was given stands.
func (l *fileLocks) took(o *ownerLocks, stands func() bool) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.lost {
		return false, errLockLost
	}
	// Whoever ends the session comes to lose after it, and waits for mu until then.
	if !stands() {
		return false, nil
	}
	o.held = true
	return true, nil
}

// mayHold notes that an owner may have got a lock.
func (l *fileLocks) mayHold(o *ownerLocks) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o.held = true
}

// lose marks all locks as lost; false: there are none.
func (l *fileLocks) lose() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	some := false
	for _, o := range l.owners {
		if !o.held {
			continue
		}
		some, o.lost = true, true
		for f := range o.files {
			f.lockLost.Store(true)
		}
	}
	return some
}

func (l *fileLocks) find(owner lockOwner) *ownerLocks {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owners[owner]
}

func (l *fileLocks) holds(o *ownerLocks) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return o.held
}

// gaveBack notes that an owner has no locks any more.
func (l *fileLocks) gaveBack(owner lockOwner, o *ownerLocks) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o.held, o.lost = false, false
	if o.pending == 0 && l.owners[owner] == o {
		delete(l.owners, owner)
	}
	for f := range o.files {
		f.lockLost.Store(l.lostLocked(f))
	}
}

func (l *fileLocks) lostLocked(f *File) bool {
	for _, o := range l.owners {
		if _, ok := o.files[f]; ok && o.lost {
			return true
		}
	}
	return false
}

// leave forgets a handle; it reports whether somebody may have locked through it.
func (l *fileLocks) leave(f *File) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	some := false
	for owner, o := range l.owners {
		if _, ok := o.files[f]; !ok {
			continue
		}
		some = true
		delete(o.files, f)
		if len(o.files) == 0 && o.pending == 0 {
			delete(l.owners, owner)
		}
	}
	return some
}

// any reports whether there may be fcntl locks.
func (l *fileLocks) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for owner := range l.owners {
		if !owner.flock {
			return true
		}
	}
	return false
}
