package raftgroup

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

const (
	// transferWait bounds the wait for one replica to take the leadership over. It is
	// longer than an election's time: until then a transfer to a replica that is dead
	// is under way, and Raft ignores one to another.
	transferWait = (electionRTT + 2*heartbeatRTT) * rttMillisecond * time.Millisecond
	// quietWait bounds the wait for what is in flight before the transfer.
	quietWait = 100 * time.Millisecond
	// settleWait is for the followers to apply what was committed last: a heartbeat.
	settleWait = heartbeatRTT * rttMillisecond * time.Millisecond
)

// Release drains: it moves the Raft leadership to another replica if there is
// one, stops answering, finishes what is in flight and releases the lease
// (PROTOCOLS B5). The group does not acquire the lease again until Resume.
func (g *Group) Release(ctx context.Context) error {
	g.mu.Lock()
	g.beginDrainLocked()
	g.mu.Unlock()
	g.quiesce(ctx)
	g.transferLeadership(ctx, g.others())
	if err := g.giveUp(ctx); err != nil {
		return err
	}
	// As long as this replica leads nobody can take the lease.
	for g.isLeader() && ctx.Err() == nil && g.transferLeadership(ctx, g.others()) {
	}
	return nil
}

// HandOver moves the leadership to one replica, and the lease after it. If that replica
// does not take it everything stays as it is.
func (g *Group) HandOver(ctx context.Context, to base.ReplicaID) error {
	const op = "hand the lease over"
	g.mu.Lock()
	if g.draining || g.epoch == 0 || g.releasing || !g.isLeader() {
		g.mu.Unlock()
		return g.err(fserr.NotHolder, op)
	}
	mine := g.beginDrainLocked()
	g.mu.Unlock()
	g.quiesce(ctx)
	defer g.resume(func() bool { return g.drains == mine }) // else it is drained since
	g.transferLeadership(ctx, []base.ReplicaID{to})
	if leader := base.ReplicaID(g.leader.Load()); leader != to {
		return fserr.New(fserr.TimedOut, op, fmt.Errorf("replica %s did not take it", to))
	}
	return g.giveUp(ctx)
}

// beginDrainLocked has commands wait, until giveUp or Resume, and returns the number of
// this drain.
func (g *Group) beginDrainLocked() uint64 {
	g.draining, g.paused = true, true
	g.drains++
	return g.drains
}

// quiesce waits for what is in flight: a replica does not campaign while it has something
// committed to apply, and the leader drops proposals during a transfer. That is about two
// flushes of the log; reads go on.
func (g *Group) quiesce(ctx context.Context) {
	quiet, cancel := context.WithTimeout(ctx, quietWait)
	_ = g.waitFor(quiet, "quiet", func() bool { return len(g.inflight) == 0 })
	cancel()
	// A transfer to a replica that does not campaign is given up only after an
	// election's time, and nothing is proposed until then: this wait is shorter.
	if len(g.others()) > 0 && g.isLeader() {
		select {
		case <-time.After(settleWait):
		case <-ctx.Done():
		}
	}
}

// giveUp releases the lease, and returns when it is (B5).
func (g *Group) giveUp(ctx context.Context) error {
	g.mu.Lock()
	if g.epoch != 0 && !g.releasing {
		g.beginReleaseLocked()
	}
	g.paused = false
	g.mu.Unlock()
	g.tellHolder()
	g.poke()
	return g.waitFor(ctx, "release", func() bool { return g.epoch == 0 })
}

// others returns the shard's other replicas.
func (g *Group) others() []base.ReplicaID {
	members, _ := g.host.membership(g.cfg.Shard)
	var others []base.ReplicaID
	for id := range members {
		if id != g.cfg.Replica {
			others = append(others, id)
		}
	}
	slices.Sort(others)
	return others
}

// Resume ends what Release began.
func (g *Group) Resume() { g.resume(func() bool { return true }) }

// resume ends a drain if may, which is called under mu, says so.
func (g *Group) resume(may func() bool) {
	g.mu.Lock()
	if may() {
		g.draining, g.paused = false, false
		g.eager = g.isLeader()
	}
	g.mu.Unlock()
	g.poke()
}

// transferLeadership tries replicas in turn until another one than this leads; false:
// there is none.
func (g *Group) transferLeadership(ctx context.Context, to []base.ReplicaID) bool {
	if !g.isLeader() {
		return true
	}
	for _, id := range to {
		if err := g.host.nh.RequestLeaderTransfer(uint64(g.cfg.Shard), uint64(id)); err != nil {
			g.log.Warn("leadership not transferred", "to", uint64(id), "err", err)
			continue
		}
		wait, cancel := context.WithTimeout(ctx, transferWait)
		err := g.waitFor(wait, "transfer", func() bool { return !g.isLeader() && g.leader.Load() != 0 })
		cancel()
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	return len(to) > 0
}

// waitFor returns when done, which is called under mu, says so.
func (g *Group) waitFor(ctx context.Context, op string, done func() bool) error {
	for {
		g.mu.Lock()
		ok, closed, changed := done(), g.closed, g.changed
		g.mu.Unlock()
		switch {
		case ok:
			return nil
		case closed:
			return g.err(fserr.NotReady, op)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fserr.New(fserr.TimedOut, op, ctx.Err())
		}
	}
}

// close ends the group's work. Commands that wait fail with NotReady; what is in
// flight may still be applied, so its outcome is unknown.
func (g *Group) close() {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return
	}
	g.closed = true
	g.view.stop()
	queue, inflight := g.queue, g.inflight
	g.queue, g.queueBytes, g.inflight = nil, 0, nil
	g.epoch = 0
	g.validUntil.Store(0)
	g.ownEpoch.Store(0)
	close(g.changed)
	g.changed = make(chan struct{})
	g.mu.Unlock()
	g.cancel()
	g.sm.checksums.close()
	g.workers.Wait()
	for _, c := range queue {
		c.done(nil, g.err(fserr.NotReady, "submit"), Timing{})
	}
	for _, p := range inflight {
		if p.onIndex != nil {
			p.onIndex(0, g.err(fserr.TimedOut, "checksum"))
		}
		if p.answered {
			continue
		}
		for _, c := range p.commands {
			c.done(nil, g.err(fserr.TimedOut, "submit"), Timing{})
		}
	}
	g.tellHolder()
}
