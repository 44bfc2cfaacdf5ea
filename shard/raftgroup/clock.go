package raftgroup

import (
	"time"

	"golang.org/x/sys/unix"
)

// SystemClock is the machine's clock.
type SystemClock struct{}

// Boot reads CLOCK_BOOTTIME: Go's monotonic clock stands still in suspend
// (PROTOCOLS B2).
func (SystemClock) Boot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("raftgroup: CLOCK_BOOTTIME: " + err.Error()) // Linux has it since 2.6.39
	}
	return time.Duration(ts.Nano())
}

// Wall returns the wall clock.
func (SystemClock) Wall() time.Time { return time.Now() }
