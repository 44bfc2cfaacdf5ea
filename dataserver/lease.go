package dataserver

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Clock returns the time since boot, suspend included (PROTOCOLS B2: Go's
// monotonic clock stands still in suspend).
type Clock func() time.Duration

// BootClock is the machine's clock.
func BootClock() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("dataserver: this kernel has no CLOCK_BOOTTIME: " + err.Error())
	}
	return time.Duration(t.Nano())
}

// lease is the server's permission to serve (PROTOCOLS J3). It counts from
// before the heartbeat was sent that brought it.
type lease struct {
	clock Clock
	until atomic.Int64 // in the clock's time
}

// extend sets the end to ttl after asked, the time before the request was sent.
func (l *lease) extend(asked, ttl time.Duration) {
	for end := int64(asked + ttl); ; {
		old := l.until.Load()
		if end <= old || l.until.CompareAndSwap(old, end) {
			return
		}
	}
}

// end gives the lease up.
func (l *lease) end() { l.until.Store(0) }

func (l *lease) valid() bool { return int64(l.clock()) < l.until.Load() }
