package raftgroup

import (
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/schema"
)

// admit is the replicated half of the lease: what apply makes of an entry. It
// returns the lease record after the entry, or ok = false for an entry that
// changes nothing.
//
// Acquire is taken if the renewal that its proposer saw is still the last one
// (PROTOCOLS B3). Every other entry must be of the current epoch, which was not
// released (B5), and carry the next number in it (A2); it renews the lease (B1).
// Time is the maximum of the last and the entry's (A3).
func admit(rec schema.Lease, e *entry) (next schema.Lease, ok bool) {
	next = rec
	next.Renewal++
	next.TimeNS = max(rec.TimeNS, e.timeNS)
	if e.lease.action == canopyv1.LeaseAction_LEASE_ACQUIRE {
		if e.epoch != rec.Epoch+1 || e.lease.seenRenewal != rec.Renewal {
			return rec, false
		}
		next.Epoch, next.Number, next.Released = e.epoch, 0, false
		next.Node, next.Replica, next.Instance = e.lease.node, e.lease.replica, e.lease.instance
		next.DurationMS = e.lease.durationMS
		return next, true
	}
	if rec.Epoch == 0 || e.epoch != rec.Epoch || rec.Released || e.number != rec.Number+1 {
		return rec, false
	}
	next.Number++
	next.Released = e.lease.action == canopyv1.LeaseAction_LEASE_RELEASE
	return next, true
}

// leaseView is one process's view of one shard's lease: the record as of its
// last apply, and what follows from it by this process's clock. It is pure: its
// inputs are readings of CLOCK_BOOTTIME and what apply did.
type leaseView struct {
	rec      schema.Lease
	seen     bool          // rec was set
	firstSaw time.Duration // when this process first saw rec.Renewal: its entry's arrival in the log
	own      base.LeaseEpoch
	until    time.Duration // end of the own lease
}

// clockMarginDivisor states how far two machines' clocks may drift apart within
// a lease's duration: a holder stops this part of the duration early.
const clockMarginDivisor = 16

func recordDuration(rec schema.Lease) time.Duration {
	return time.Duration(rec.DurationMS) * time.Millisecond
}

// saw takes in the record as apply, open or a snapshot left it, seen since at: a
// moment at which its last entry was proposed already.
func (v *leaseView) saw(rec schema.Lease, at time.Duration) {
	if !v.seen || rec.Renewal != v.rec.Renewal {
		v.firstSaw = at
	}
	v.rec, v.seen = rec, true
	if v.own != 0 && (rec.Epoch != v.own || rec.Released) {
		v.stop()
	}
}

// acquired says that apply accepted an Acquire that this process proposed, the
// first time at proposedAt.
func (v *leaseView) acquired(epoch base.LeaseEpoch, durationMS uint64, proposedAt time.Duration) {
	v.own, v.until = epoch, 0
	v.renewed(durationMS, proposedAt)
}

// renewed says that apply accepted an entry of the own epoch, first proposed at
// proposedAt: the holder counts from before that (PROTOCOLS B2).
func (v *leaseView) renewed(durationMS uint64, proposedAt time.Duration) {
	d := time.Duration(durationMS) * time.Millisecond
	v.until = max(v.until, proposedAt+d-d/clockMarginDivisor)
}

// valid says whether this process holds the lease now.
func (v *leaseView) valid(now time.Duration) bool { return v.own != 0 && now < v.until }

// stop ends the own epoch for good, before its release is proposed (PROTOCOLS
// B5). Its entries may still be proposed; nothing is answered any more.
func (v *leaseView) stop() { v.own, v.until = 0, 0 }

// acquireIn says after what time this process may propose to acquire the next
// epoch: at once if the lease was never held or was released, else a full
// duration after this process first saw the last renewal (PROTOCOLS B3).
func (v *leaseView) acquireIn(now time.Duration) time.Duration {
	if v.rec.Epoch == 0 || v.rec.Released {
		return 0
	}
	return max(0, v.firstSaw+recordDuration(v.rec)-now)
}
