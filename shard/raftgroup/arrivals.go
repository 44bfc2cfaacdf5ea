package raftgroup

import (
	"sync"
	"time"
)

// arrivals remembers when entries came into this replica's log, from there until
// they are applied. An entry was proposed before it came, so this process has seen
// its renewal since then (PROTOCOLS B3), not only since apply: the last entries of
// a holder that died are applied when the next leader commits them, an election
// later.
//
// An index that came again counts from the last time: what was there before was
// another entry, or the same one. What a log holds at the start came by then. An
// index that is not known (out of a snapshot) counts from its apply.
type arrivals struct {
	mu    sync.Mutex
	marks []arrival // ascending, without overlap
}

// arrival is a run of entries that came together.
type arrival struct {
	first, last uint64
	at          time.Duration // CLOCK_BOOTTIME
}

// maxArrivals bounds what a replica that is far behind remembers.
const maxArrivals = 4096

// saved notes that the entries [first, last] came, and that nothing behind them
// did.
func (a *arrivals) saved(first, last uint64, at time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(a.marks)
	for n > 0 && a.marks[n-1].first >= first {
		n--
	}
	a.marks = a.marks[:n]
	if n > 0 {
		a.marks[n-1].last = min(a.marks[n-1].last, first-1)
	}
	if n == maxArrivals {
		a.marks = a.marks[1:]
	}
	a.marks = append(a.marks, arrival{first, last, at})
}

// take returns when the entry came, if that is known, and forgets those before it:
// they are applied.
func (a *arrivals) take(index uint64) (at time.Duration, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.marks) > 0 && a.marks[0].last < index {
		a.marks = a.marks[1:]
	}
	if len(a.marks) == 0 {
		a.marks = nil
		return 0, false
	}
	return a.marks[0].at, a.marks[0].first <= index
}
