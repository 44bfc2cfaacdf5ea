package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// lockedBytes is how many bytes of each file the model locks in: the oracle keeps
// each by itself, and knows nothing of ranges.
const lockedBytes = 12

// drawLock locks or unlocks, as owners 1 to 3, through a handle of its own number
// or one that all share.
func (m *model) drawLock() step {
	place, find := m.target()
	owner := uint64(1 + m.pick("owner", 3))
	handle := []uint64{owner, 9}[m.pick("handle", 2)]
	start := m.pick("start", lockedBytes)
	last := start + m.pick("length", lockedBytes-start)
	what := byte(m.pick("lock", 3))
	l := &canopyv1.Lock{Kind: canopyv1.LockKind_LOCK_POSIX, Owner: owner, Start: uint64(start), Last: uint64(last), Exclusive: what == 2, Handle: handle}
	c := &canopyv1.SetLockCall{Place: place, Lock: l, Unlock: what == 0}
	return step{&canopyv1.Op{Call: &canopyv1.Op_SetLock{SetLock: c}}, func(res *canopyv1.Result) {
		n, kind := find()
		switch {
		case kind != fserr.OK:
		case n.isDir():
			kind = fserr.IsDir
		case n.kind != schema.TypeFile:
			kind = fserr.Invalid
		default:
			kind = n.lock(owner, start, last, what)
		}
		if m.expect(res, kind, "lock") {
			m.same(res.Attr, n)
		}
	}}
}

// lock is fcntl on single bytes.
func (n *node) lock(owner uint64, start, last int, what byte) fserr.Kind {
	for other, bytes := range n.locks {
		for i := start; i <= last; i++ {
			if other != owner && what != 0 && bytes[i] != 0 && (bytes[i] == 2 || what == 2) {
				return fserr.WouldBlock
			}
		}
	}
	if n.locks == nil {
		n.locks = map[uint64]*[lockedBytes]byte{}
	}
	if n.locks[owner] == nil {
		n.locks[owner] = &[lockedBytes]byte{}
	}
	for i := start; i <= last; i++ {
		n.locks[owner][i] = what
	}
	return fserr.OK
}

// compareLocks compares a file's locks byte by byte.
func (m *model) compareLocks(n *node, p *canopyv1.Place) {
	res := m.Query(&canopyv1.Op{Call: &canopyv1.Op_GetLock{GetLock: &canopyv1.GetLockCall{Place: p}}})
	m.expect(res, fserr.OK, "locks")
	got := map[uint64]*[lockedBytes]byte{}
	for _, l := range res.Locks {
		if got[l.Owner] == nil {
			got[l.Owner] = &[lockedBytes]byte{}
		}
		for i := l.Start; i <= l.Last; i++ {
			if got[l.Owner][i] != 0 {
				m.rt.Fatalf("byte %d is locked twice: %v", i, res.Locks)
			}
			got[l.Owner][i] = 1
			if l.Exclusive {
				got[l.Owner][i] = 2
			}
		}
	}
	for owner := uint64(1); owner <= 3; owner++ {
		var have, want [lockedBytes]byte
		if b := got[owner]; b != nil {
			have = *b
		}
		if b := n.locks[owner]; b != nil {
			want = *b
		}
		if have != want {
			m.rt.Fatalf("owner %d has locked %v, want %v", owner, have, want)
		}
	}
}
