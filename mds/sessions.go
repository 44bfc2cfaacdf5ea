package mds

import (
	"slices"
	"sync/atomic"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
)

// clientState is what a holder knows of one client in one term. heard is set
// without a lock by every request; the rest is guarded by the tenure's mu.
type clientState struct {
	heard atomic.Int64 // nanoseconds after the term's beginning
	gone  atomic.Bool  // the state was dropped: look the client up again
	known bool         // has a session, as far as this term saw
	opens openTable
}

// maxTrackedClients bounds the table against callers that never open a session.
const maxTrackedClients = 1 << 20

// clientLocked returns the client's state, made as needed; it counts as heard of
// at the term's beginning at the earliest, so that a new holder waits a full
// time-out before it ends any session.
func (t *tenure) clientLocked(id base.ClientID) *clientState {
	c := t.clients[id]
	if c == nil {
		c = &clientState{}
		c.heard.Store(int64(time.Since(t.since)))
		if len(t.clients) < maxTrackedClients {
			t.clients[id] = c
		}
	}
	return c
}

// client returns the state of a client that makes a request.
func (t *tenure) client(id base.ClientID) *clientState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.clientLocked(id)
}

// touch notes that a client was heard of.
func (t *tenure) touch(c *clientState) { c.heard.Store(int64(time.Since(t.since))) }

// sessionOpened notes an open session: called when its entry was applied.
func (t *tenure) sessionOpened(id base.ClientID) {
	t.mu.Lock()
	c := t.clientLocked(id)
	c.known = true
	t.mu.Unlock()
	t.touch(c)
	t.h.server.events.askReports([]base.ClientID{id}, t.h.shard)
}

// sessionClosed forgets a session.
func (t *tenure) sessionClosed(id base.ClientID) {
	t.mu.Lock()
	t.dropLocked(id)
	t.mu.Unlock()
	t.activity.Add(1)
	t.locksEnded(id)
}

// locksEnded notes that the locks of ended sessions are gone, and what the
// clients waited for.
func (t *tenure) locksEnded(ids ...base.ClientID) {
	t.locks.remove(func(w *lockWait) bool { return slices.Contains(ids, w.id.client) })
	t.locks.changedAll()
}

func (t *tenure) dropLocked(id base.ClientID) {
	if c := t.clients[id]; c != nil {
		c.gone.Store(true)
		delete(t.clients, id)
	}
}

// hasSession tells whether the client has a session; true while the term has not
// read the sessions yet.
func (t *tenure) hasSession(id base.ClientID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.clients[id]
	return !t.scanned || (c != nil && c.known)
}

// sessionLoop sets the shard up and then ends the sessions that were not heard
// of for the time-out (PROTOCOLS C3).
func (t *tenure) sessionLoop() {
	if !t.setUp() {
		return
	}
	timeout := t.h.server.config.SessionTimeout
	interval := max(timeout/6, 10*time.Millisecond)
	last := time.Now()
	for pause(t.ctx, interval) {
		if late := time.Since(last); late > 3*interval {
			// This process stood still: the silence is not the clients'.
			t.h.server.log.Warn("the session watch stood still; all sessions get a new time-out", "for", late)
			t.touchAll()
		}
		last = time.Now()
		if overdue := t.overdue(timeout); len(overdue) > 0 {
			t.endSessions(overdue, timeout)
		}
	}
}

func (t *tenure) touchAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.clients {
		t.touch(c)
	}
}

// overdue returns the clients that were not heard of for the time-out.
func (t *tenure) overdue(timeout time.Duration) map[base.ClientID]bool {
	limit := int64(time.Since(t.since) - timeout)
	if limit < 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[base.ClientID]bool{}
	for id, c := range t.clients {
		if c.heard.Load() < limit {
			out[id] = true
		}
	}
	return out
}

// endSessions ends those of the overdue clients that have a session, and forgets
// all of them.
func (t *tenure) endSessions(overdue map[base.ClientID]bool, timeout time.Duration) {
	command := &canopyv1.EndSessionsCommand{}
	err := t.h.group.Read(t.ctx, func(r shard.Reader) error {
		command.Clients = nil
		return namespace.Sessions(r, t.h.shard, func(s namespace.SessionInfo) bool {
			if overdue[s.Client] {
				command.Clients = append(command.Clients, uint64(s.Client))
			}
			return true
		})
	})
	// Who spoke up meanwhile stays.
	still := t.overdue(timeout)
	command.Clients = slices.DeleteFunc(command.Clients, func(id uint64) bool { return !still[base.ClientID(id)] })
	if err == nil && len(command.Clients) > 0 {
		_, err = t.propose(&canopyv1.Command{Own: &canopyv1.Command_EndSessions{EndSessions: command}})
	}
	if err != nil {
		return // the next round tries again
	}
	t.mu.Lock()
	for id := range still {
		t.dropLocked(id)
	}
	t.mu.Unlock()
	var ended []base.ClientID
	for _, id := range command.Clients {
		ended = append(ended, base.ClientID(id))
		t.h.server.log.Info("session ended: not heard of", "shard", t.h.shard, "client", base.ClientID(id), "timeout", timeout)
		t.h.server.events.sessionLost(base.ClientID(id), t.h.shard)
	}
	t.locksEnded(ended...)
	t.h.metrics.sessionsEnded.Add(float64(len(command.Clients)))
	t.activity.Add(1)
}
