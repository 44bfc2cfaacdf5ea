package raftgroup

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/lni/dragonboat/v4"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

const (
	// defaultInFlight entries are proposed before the first is applied: the next is
	// in the log's queue while one is flushed. Chosen by BenchmarkGroup.
	defaultInFlight = 2
	// An entry takes what waits, up to these.
	maxEntryCommands = 4096
	maxEntryBytes    = 1 << 20
	// proposeTimeout is when an entry that Dragonboat lost without a word is
	// proposed again; a change of leader does so at once.
	proposeTimeout = time.Second
	// handOverAfter is how long another replica has to be leader before a holder
	// gives the lease up.
	handOverAfter = 200 * time.Millisecond
	resendPause   = 5 * time.Millisecond // plus jitter
	idlePause     = time.Second
)

// run proposes until the group stops. It alone calls Dragonboat's Propose, so
// that entries go out in the order of their numbers (A2).
func (g *Group) run() {
	defer g.workers.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(g.step())
		oldest, ended := g.oldest()
		select {
		case <-g.ctx.Done():
			return
		case <-g.wake:
		case <-timer.C:
		case r := <-ended:
			g.proposalEnded(oldest, r)
		case r := <-g.acquireResult():
			g.acquireEnded(r)
		}
	}
}

// oldest returns the first entry in flight and where Dragonboat says how it ended.
func (g *Group) oldest() (*proposal, <-chan dragonboat.RequestResult) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.inflight) == 0 || g.inflight[0].state == nil {
		return nil, nil
	}
	return g.inflight[0], g.inflight[0].state.ResultC()
}

func (g *Group) acquireResult() <-chan dragonboat.RequestResult {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.acquire == nil || g.acquire.state == nil {
		return nil
	}
	return g.acquire.state.ResultC()
}

// proposalEnded handles what Dragonboat says of the oldest entry in flight. If
// it was applied, applied has dealt with it, or with its refusal. Else it must
// go again, and all behind it (A2).
func (g *Group) proposalEnded(p *proposal, r dragonboat.RequestResult) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p.state = nil
	if len(g.inflight) > 0 && g.inflight[0] == p && !r.Completed() {
		g.resendLocked(resendPause)
	}
}

func (g *Group) acquireEnded(r dragonboat.RequestResult) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if a := g.acquire; a != nil {
		a.state, a.failed = nil, true
		a.retryAfter = g.now() + resendPause
		if r.Completed() {
			g.acquire = nil // accepted or refused: applied knows
		}
	}
}

func (g *Group) resendLocked(pause time.Duration) {
	if !g.resend {
		g.resend = true
		g.resendAfter = g.now() + pause + time.Duration(rand.Int64N(int64(resendPause)))
		g.metrics.resends.Inc()
	}
}

// step does what is due and returns after what time to look again.
func (g *Group) step() time.Duration {
	for {
		now := g.now()
		var fail []pending
		var kinds []fserr.Kind
		g.mu.Lock()
		fail, kinds = g.expireLocked(now, fail, kinds)
		again := g.dueResendLocked(now)
		var next *proposal
		var a *acquisition
		if again == nil {
			next = g.nextLocked(now)
		}
		if again == nil && next == nil {
			a = g.dueAcquireLocked(now)
		}
		pause := g.pauseLocked(now)
		g.metrics.queue.Set(float64(len(g.queue)))
		g.metrics.inflight.Set(float64(len(g.inflight)))
		epoch := g.epoch
		releasing := g.releasing
		g.mu.Unlock()
		g.answer(fail, kinds)
		switch {
		case again != nil:
			for _, p := range again {
				if !g.propose(p) {
					break
				}
			}
		case next != nil:
			g.encode(epoch, next)
			g.propose(next)
		case a != nil:
			g.proposeAcquire(a)
		default:
			if releasing {
				g.tellHolder()
			}
			return pause
		}
	}
}

// expireLocked takes out the commands that waited too long. Those that were
// never proposed were surely not executed.
func (g *Group) expireLocked(now time.Duration, fail []pending, kinds []fserr.Kind) ([]pending, []fserr.Kind) {
	limit := now - g.host.cfg.CommandTimeout
	for _, p := range g.inflight {
		if !p.answered && p.proposedAt < limit {
			p.answered = true
			for _, c := range p.commands {
				fail, kinds = append(fail, c), append(kinds, fserr.TimedOut)
			}
		}
	}
	kind := fserr.NotReady
	waitLimit := g.host.waited() - g.host.cfg.CommandTimeout
	if g.epoch == 0 || g.releasing {
		if k := g.refusalLocked(); k != fserr.OK { // lost the leadership meanwhile
			kind, waitLimit = k, math.MaxInt64
		}
	}
	for len(g.queue) > 0 && g.queue[0].since < waitLimit {
		fail, kinds = append(fail, g.queue[0]), append(kinds, kind)
		g.queueBytes -= len(g.queue[0].command)
		g.queue[0] = pending{}
		g.queue = g.queue[1:]
	}
	return fail, kinds
}

func (g *Group) answer(fail []pending, kinds []fserr.Kind) {
	for i, c := range fail {
		c.done(nil, g.err(kinds[i], "submit"), Timing{})
	}
}

func (g *Group) dueResendLocked(now time.Duration) []*proposal {
	if g.epoch == 0 || len(g.inflight) == 0 {
		g.resend = false
		return nil
	}
	if p := g.inflight[0]; !g.resend && p.state == nil && p.sentAt != 0 && now-p.sentAt > proposeTimeout {
		g.resendLocked(0) // nobody will say any more what became of it
	}
	if !g.resend {
		return nil
	}
	if now < g.resendAfter {
		return nil
	}
	g.resend = false
	return append([]*proposal(nil), g.inflight...)
}

// nextLocked makes the next entry of the own epoch, nil if none is due.
func (g *Group) nextLocked(now time.Duration) *proposal {
	if g.epoch == 0 || g.resend || len(g.inflight) >= int(g.depth.Load()) {
		return nil
	}
	p := &proposal{proposedAt: now}
	switch {
	case g.releasing:
		if len(g.inflight) > 0 {
			return nil // B5: the pipeline empties before Release is proposed
		}
		p.action = canopyv1.LeaseAction_LEASE_RELEASE
	case len(g.queue) > 0 && !g.paused:
		p.commands, p.takenAt = g.takeLocked(), g.host.waited()
	case g.sm.checksums.due():
		p.checksum, p.onIndex = g.sm.checksums.take()
	case len(g.inflight) == 0 && g.renewalDueLocked(now):
		p.action = canopyv1.LeaseAction_LEASE_RENEW
	default:
		g.handOverLocked(now)
		return nil
	}
	g.renewAsked.Store(false)
	g.number++
	p.number = g.number
	var jump time.Duration
	if p.timeNS, jump = g.clock.next(now, g.host.clock.Wall()); jump != 0 {
		g.alarmLocked(jump)
	}
	g.inflight = append(g.inflight, p)
	g.handOverLocked(now)
	return p
}

// renewalDueLocked: readers wait, or read and want the lease to stay.
func (g *Group) renewalDueLocked(now time.Duration) bool {
	left := g.view.until - now
	return (g.readers > 0 && left <= 0) || (g.reading.Load() > 0 && left < g.host.cfg.LeaseDuration/2) || g.renewAsked.Load()
}

// handOverLocked begins a release if another replica has become the leader: the
// holder is then better there (it can acquire at once).
func (g *Group) handOverLocked(now time.Duration) {
	leader := g.leader.Load()
	if g.epoch == 0 || g.releasing || leader == 0 || leader == uint64(g.cfg.Replica) || now-g.leaderSince < handOverAfter {
		return
	}
	g.beginReleaseLocked()
	g.poke()
}

// beginReleaseLocked stops answering for good in this epoch (B5).
func (g *Group) beginReleaseLocked() {
	g.releasing = true
	g.view.stop()
	g.publishLocked()
}

func (g *Group) takeLocked() []pending {
	n, size := 0, 0
	for n < len(g.queue) && n < maxEntryCommands {
		size += len(g.queue[n].command)
		if n > 0 && size > maxEntryBytes {
			size -= len(g.queue[n].command)
			break
		}
		n++
	}
	taken := g.queue[:n:n]
	g.queue = g.queue[n:]
	if len(g.queue) == 0 {
		g.queue = nil
	}
	g.queueBytes -= size
	return taken
}

// dueAcquireLocked returns an Acquire to propose (B3), nil if none is due.
func (g *Group) dueAcquireLocked(now time.Duration) *acquisition {
	if g.epoch != 0 || g.closed || g.draining || !g.isLeader() || !(g.eager || g.readers > 0 || len(g.queue) > 0) {
		return nil
	}
	if g.view.acquireIn(now) > 0 {
		return nil
	}
	rec := g.view.rec
	a := g.acquire
	if a == nil || a.epoch != rec.Epoch+1 || a.seen != rec.Renewal {
		a = &acquisition{epoch: rec.Epoch + 1, seen: rec.Renewal, proposedAt: now}
		g.acquire = a
	} else if !a.failed || now < a.retryAfter {
		return nil
	}
	a.failed = false
	return a
}

// pauseLocked says when something may be due without anything happening.
func (g *Group) pauseLocked(now time.Duration) time.Duration {
	pause := idlePause
	if g.epoch != 0 {
		pause = g.host.cfg.LeaseDuration / 4 // a read may be running
	}
	if g.resend {
		pause = min(pause, g.resendAfter-now)
	}
	if len(g.queue) > 0 || len(g.inflight) > 0 {
		pause = min(pause, 100*time.Millisecond)
	}
	if g.epoch == 0 && g.isLeader() && !g.draining && (g.eager || g.readers > 0 || len(g.queue) > 0) {
		pause = min(pause, max(g.view.acquireIn(now), resendPause))
	}
	if g.epoch != 0 && !g.isLeader() && g.leader.Load() != 0 {
		pause = min(pause, max(handOverAfter-(now-g.leaderSince), resendPause))
	}
	return max(pause, time.Millisecond)
}

// encode makes the entry's bytes. Only run reads them.
func (g *Group) encode(epoch base.LeaseEpoch, p *proposal) {
	e := entry{epoch: epoch, number: p.number, timeNS: p.timeNS, checksum: p.checksum}
	size := 64
	if len(p.commands) > 0 {
		e.commands = make([][]byte, len(p.commands))
		for i, c := range p.commands {
			e.commands[i] = c.command
			size += len(c.command) + 8
		}
		g.metrics.entryCommands.Observe(float64(len(p.commands)))
	}
	e.lease.action = p.action
	p.data = appendEntry(make([]byte, 0, size), &e)
}

// propose hands an entry to Dragonboat. False: it and what follows must go again.
func (g *Group) propose(p *proposal) bool {
	state, err := g.toRaft(p.data)
	g.mu.Lock()
	defer g.mu.Unlock()
	p.state, p.sentAt = state, g.now()
	if err != nil {
		p.state = nil
		g.resendLocked(resendPause)
		return false
	}
	return true
}

func (g *Group) proposeAcquire(a *acquisition) {
	if a.data == nil {
		a.data = appendEntry(nil, &entry{epoch: a.epoch, lease: leaseCommand{
			action: canopyv1.LeaseAction_LEASE_ACQUIRE, node: g.host.cfg.Node, replica: g.cfg.Replica,
			seenRenewal: a.seen, durationMS: uint64(g.host.cfg.LeaseDuration.Milliseconds()), instance: g.instance,
		}})
	}
	state, err := g.toRaft(a.data)
	g.mu.Lock()
	defer g.mu.Unlock()
	a.state = state
	if err != nil {
		a.state, a.failed, a.retryAfter = nil, true, g.now()+resendPause
	}
}

func (g *Group) alarmLocked(jump time.Duration) {
	g.metrics.wallJumps.Inc()
	g.log.Error("the wall clock jumped: times of entries are kept from running backwards (PROTOCOLS A3)", "by", jump)
}

// leaderChanged takes in who leads the Raft group.
func (g *Group) leaderChanged(leader base.ReplicaID) {
	now := g.now()
	g.mu.Lock()
	if base.ReplicaID(g.leader.Swap(uint64(leader))) != leader {
		g.leaderSince = now
	}
	g.eager = leader == g.cfg.Replica
	if leader != 0 && len(g.inflight) > 0 {
		g.resendLocked(0) // what was on its way to the last leader may be lost
	}
	g.publishLocked()
	g.mu.Unlock()
	g.log.Info("raft leader", "leader", uint64(leader), "self", leader == g.cfg.Replica)
	g.poke()
}
