package raftgroup

import (
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// outcome is what apply made of an entry.
type outcome struct {
	epoch    base.LeaseEpoch
	number   uint64
	index    uint64
	lease    leaseCommand
	accepted bool
	results  [][]byte
	apply    time.Duration // of each command
}

// answerable is an entry of our own whose commands are to be answered.
type answerable struct {
	p   *proposal
	out outcome
}

// applied is called by the state machine after a batch was committed, with what
// became of its entries and the lease record behind them.
func (g *Group) applied(outs []outcome, rec schema.Lease) {
	var own []answerable
	arrived, known := g.arrivals.take(g.sm.applied.Load())
	if !known {
		arrived = g.now()
	}
	g.mu.Lock()
	for i := range outs {
		o := &outs[i]
		switch {
		case o.lease.action == canopyv1.LeaseAction_LEASE_ACQUIRE:
			g.acquireAppliedLocked(o, rec)
		case g.epoch == 0 || o.epoch != g.epoch:
		case o.accepted:
			// A2: accepted entries come in the order of their numbers, so it is the
			// first in flight.
			if len(g.inflight) == 0 || g.inflight[0].number != o.number {
				panic("raftgroup: apply accepted an entry of this instance's epoch that it did not propose")
			}
			p := g.inflight[0]
			g.inflight = g.inflight[1:]
			if !g.releasing {
				g.view.renewed(uint64(g.host.cfg.LeaseDuration.Milliseconds()), p.proposedAt)
			}
			own = append(own, answerable{p, *o})
		case len(g.inflight) > 0 && o.number > g.inflight[0].number:
			g.resendLocked(0) // A2: the one before was dropped
		}
	}
	lost := g.sawLocked(rec, arrived)
	g.mu.Unlock()
	now := g.now()
	for _, a := range own {
		g.complete(a, now)
	}
	for _, p := range lost {
		for _, c := range p.commands {
			c.done(nil, g.err(fserr.NotHolder, "submit"), Timing{})
		}
		if p.onIndex != nil {
			p.onIndex(0, g.err(fserr.NotHolder, "checksum"))
		}
	}
	g.tellHolder()
	g.poke()
}

func (g *Group) complete(a answerable, now time.Duration) {
	g.metrics.proposalSeconds.Observe((now - a.p.proposedAt).Seconds())
	if a.p.onIndex != nil {
		a.p.onIndex(a.out.index, nil)
	}
	if a.p.answered {
		return
	}
	for i, c := range a.p.commands {
		c.done(a.out.results[i], nil, Timing{Queue: a.p.takenAt - c.since, Apply: a.out.apply})
	}
}

// acquireAppliedLocked takes an epoch over if the Acquire was this instance's.
func (g *Group) acquireAppliedLocked(o *outcome, rec schema.Lease) {
	if !o.accepted || o.lease.instance != g.instance {
		return
	}
	proposedAt := g.now() - recordDuration(rec) // not known: nothing may be answered before a renewal
	if a := g.acquire; a != nil && a.epoch == o.epoch && a.seen == o.lease.seenRenewal {
		proposedAt = a.proposedAt
	}
	g.acquire, g.eager = nil, false
	g.epoch, g.number = o.epoch, 0
	g.view.acquired(o.epoch, o.lease.durationMS, proposedAt)
	if jump := g.clock.start(rec.TimeNS, g.now(), g.host.clock.Wall()); jump != 0 {
		g.alarmLocked(jump)
	}
	if g.draining {
		g.beginReleaseLocked()
	}
}

// sawLocked takes in the lease record, seen since at. If the own epoch ended it returns what
// was in flight: apply will refuse it, so it was not executed.
func (g *Group) sawLocked(rec schema.Lease, at time.Duration) (lost []*proposal) {
	g.view.saw(rec, at)
	if g.epoch != 0 && (rec.Epoch != g.epoch || rec.Released) {
		for _, p := range g.inflight {
			if !p.answered {
				lost = append(lost, p)
			}
		}
		g.epoch, g.inflight, g.releasing, g.resend = 0, nil, false, false
	}
	g.publishLocked()
	return lost
}
