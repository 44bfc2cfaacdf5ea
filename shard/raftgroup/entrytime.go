package raftgroup

import "time"

// entryClock makes the times of a holder's entries (PROTOCOLS A3): never
// backwards, by the monotonic clock from the last entry, and by the wall clock
// where that is near. A wall clock that jumped ahead is followed, and one that
// jumped back is not, both with an alarm. It is pure.
type entryClock struct {
	anchored bool
	boot     time.Duration // reading at the last call
	timeNS   int64         // what it returned then
	behind   bool          // the wall clock is far behind, and the alarm was raised
}

// wallJumpBound is how far the wall clock may be from the monotonic one before
// it is an alarm.
const wallJumpBound = 500 * time.Millisecond

// start begins an epoch at the time of the last entry. It returns how far the
// wall clock is behind that if it is an alarm, else 0.
func (c *entryClock) start(lastNS int64, boot time.Duration, wall time.Time) (jump time.Duration) {
	c.anchored, c.boot, c.behind = true, boot, false
	c.timeNS = max(lastNS, wall.UnixNano())
	if back := time.Duration(wall.UnixNano() - lastNS); back < -wallJumpBound {
		c.behind = true
		return back
	}
	return 0
}

// next returns the time of the next entry, and by how much the wall clock jumped
// if that is an alarm, else 0.
func (c *entryClock) next(boot time.Duration, wall time.Time) (timeNS int64, jump time.Duration) {
	elapsed := max(0, boot-c.boot)
	monotonic := c.timeNS + int64(elapsed)
	drift := time.Duration(wall.UnixNano() - monotonic)
	c.boot = boot
	switch {
	case drift > wallJumpBound: // ahead: after a jump or a correction by an operator
		c.timeNS, c.behind, jump = wall.UnixNano(), false, drift
	case drift >= 0:
		c.timeNS, c.behind = wall.UnixNano(), false
	case drift >= -wallJumpBound: // a little behind: the clock is being slewed
		c.timeNS, c.behind = monotonic, false
	default:
		if c.timeNS = monotonic; !c.behind {
			c.behind, jump = true, drift
		}
	}
	return c.timeNS, jump
}
