// Package rangelock locks ranges of one object, shared or exclusive. Ranges that
// do not overlap never wait for each other; those that do are served in the
// order of arrival.
package rangelock

import (
	"context"
	"math"
	"slices"
	"sync"
)

// All is the end of a range without end.
const All = math.MaxUint64

// Lock is a set of locked ranges. The zero Lock is free.
type Lock struct {
	mu      sync.Mutex
	held    []*Hold
	waiting []*Hold // in order of arrival
}

// Hold is a locked range [lo, hi).
type Hold struct {
	lock      *Lock
	lo, hi    uint64
	exclusive bool
	granted   chan struct{} // closed when granted; nil if it never waited
}

func (h *Hold) conflicts(o *Hold) bool {
	return (h.exclusive || o.exclusive) && h.lo < o.hi && o.lo < h.hi
}

// Acquire locks [lo, hi). It waits until no conflicting range is held, or
// until ctx is done.
func (l *Lock) Acquire(ctx context.Context, lo, hi uint64, exclusive bool) (*Hold, error) {
	h := &Hold{lock: l, lo: lo, hi: hi, exclusive: exclusive}
	l.mu.Lock()
	if !conflictsAny(h, l.held) && !conflictsAny(h, l.waiting) {
		l.held = append(l.held, h)
		l.mu.Unlock()
		return h, nil
	}
	h.granted = make(chan struct{})
	l.waiting = append(l.waiting, h)
	l.mu.Unlock()
	select {
	case <-h.granted:
		return h, nil
	case <-ctx.Done():
		h.Release()
		return nil, ctx.Err()
	}
}

// Release unlocks the range. Call it once.
func (h *Hold) Release() {
	l := h.lock
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = remove(l.held, h)
	l.waiting = remove(l.waiting, h)
	still := l.waiting[:0]
	for _, w := range l.waiting {
		if conflictsAny(w, l.held) || conflictsAny(w, still) {
			still = append(still, w)
			continue
		}
		l.held = append(l.held, w)
		close(w.granted)
	}
	clear(l.waiting[len(still):])
	l.waiting = still
}

func conflictsAny(h *Hold, others []*Hold) bool {
	return slices.ContainsFunc(others, h.conflicts)
}

func remove(list []*Hold, h *Hold) []*Hold {
	if i := slices.Index(list, h); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
