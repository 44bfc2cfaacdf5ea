package namespace

import (
	"maps"
	"slices"
	"strings"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// endedRetention is how long the shard remembers what an ended session had used
// up: longer than any request can be late.
const endedRetention = 24 * time.Hour

// Limits of what a session record keeps for people.
const maxLabelBytes = 256

// runSession opens or closes the session of the command's client (PROTOCOLS C3).
// Both answer the same when repeated, so they need no stored result.
func (b *batch) runSession(op *canopyv1.Op) (*canopyv1.Result, error) {
	switch call := op.Call.(type) {
	case *canopyv1.Op_OpenSession:
		return &canopyv1.Result{}, b.openSession(call.OpenSession)
	case *canopyv1.Op_CloseSession:
		return &canopyv1.Result{}, b.closeSession()
	}
	return nil, fserr.Malformed
}

func (b *batch) openSession(c *canopyv1.OpenSessionCall) error {
	if s := b.m.sessions[b.client]; s != nil {
		return nil // a repeat, or a client that did not hear the answer
	}
	s := &schema.Session{
		Host: clip(c.GetHost()), PID: c.GetPid(), Mount: clip(c.GetMount()),
		OpenedNS: b.nowNS, OpenSeq: b.seq, Base: b.floor,
	}
	if e := b.m.ended[b.client]; e != nil {
		// Whatever the ended session executed must not run again, however late a
		// copy of the request comes: this open included.
		if b.seq <= e.MaxSeq {
			return fserr.BelowFloor
		}
		s.Base = max(s.Base, e.MaxSeq+1)
		delete(b.m.ended, b.client)
		if err := b.w.Delete(schema.EndedKey(b.id, b.client)); err != nil {
			return err
		}
	}
	b.m.sessions[b.client] = s
	return b.set(schema.SessionKey(b.id, b.client), s)
}

func clip(s string) string {
	if len(s) > maxLabelBytes {
		return s[:maxLabelBytes]
	}
	return s
}

func (b *batch) closeSession() error {
	s := b.m.sessions[b.client]
	if s == nil {
		return nil
	}
	if b.seq <= s.OpenSeq {
		return fserr.BelowFloor // of an earlier session
	}
	if b.frozenSubtree() {
		return fserr.Frozen
	}
	_, err := b.endSessions([]base.ClientID{b.client}, b.seq)
	return err
}

// endLost ends the sessions of clients that were not heard of.
func (b *batch) endLost(c *canopyv1.EndSessionsCommand) (*canopyv1.Result, error) {
	var clients []base.ClientID
	for _, id := range c.Clients {
		client := base.ClientID(id)
		if b.m.sessions[client] != nil && !slices.Contains(clients, client) {
			clients = append(clients, client)
		}
	}
	if len(clients) == 0 {
		return &canopyv1.Result{}, nil
	}
	if b.frozenSubtree() {
		return nil, fserr.Frozen
	}
	b.m.state.LostClientNS = b.nowNS
	zeros, err := b.endSessions(clients, 0)
	return &canopyv1.Result{Detail: strings.Join(zeros, "; ")}, err
}

// endSessions removes the sessions with their results and locks, and gives back
// what they had reserved. It returns which appends became zeros.
func (b *batch) endSessions(clients []base.ClientID, seq base.Seq) (zeros []string, err error) {
	dead := map[base.ClientID]bool{}
	subtrees := b.sortedSubtrees()
	for _, client := range clients {
		dead[client] = true
		e := &schema.Ended{EndedNS: b.nowNS, MaxSeq: max(seq, b.m.sessions[client].OpenSeq)}
		for _, s := range subtrees {
			if err := b.dropWindow(s, client, e); err != nil {
				return nil, err
			}
		}
		for _, s := range b.removedSubtrees() {
			if err := b.dropWindow(s, client, e); err != nil {
				return nil, err
			}
			if err := b.forgetRemoved(s); err != nil {
				return nil, err
			}
		}
		delete(b.m.sessions, client)
		if err := b.w.Delete(schema.SessionKey(b.id, client)); err != nil {
			return nil, err
		}
		b.m.ended[client] = e
		if err := b.set(schema.EndedKey(b.id, client), e); err != nil {
			return nil, err
		}
	}
	for _, s := range subtrees {
		z, err := b.endIn(s, clients, dead)
		if err != nil {
			return nil, err
		}
		zeros = append(zeros, z...)
	}
	return zeros, b.forgetEnded()
}

// dropWindow deletes a client's results in a subtree; what it has used up is noted.
func (b *batch) dropWindow(s *subtree, client base.ClientID, e *schema.Ended) error {
	w := s.windows[client]
	if w == nil {
		return nil
	}
	e.MaxSeq = max(e.MaxSeq, w.maxSeq())
	for _, first := range w.keys() {
		if err := b.w.Delete(schema.ResultsKey(b.id, s.id, client, first)); err != nil {
			return err
		}
	}
	w.pending = nil
	delete(s.windows, client)
	return nil
}

// endIn gives back what clients have locked and reserved in a subtree.
func (b *batch) endIn(s *subtree, clients []base.ClientID, dead map[base.ClientID]bool) (zeros []string, err error) {
	b.enter(s)
	for _, client := range clients {
		if err := b.unlockClient(client); err != nil {
			return nil, err
		}
	}
	return b.giveBackAll(dead)
}

// endStrangers ends in a subtree that has come what clients have there whose sessions
// ended at this shard since its last batch: nobody else would, and their locks would
// stay for ever (PROTOCOLS C5, E5).
func (b *batch) endStrangers(s *subtree) error {
	dead := map[base.ClientID]bool{}
	for client := range s.windows {
		dead[client] = b.m.sessions[client] == nil
	}
	for client := range s.locked {
		dead[client] = b.m.sessions[client] == nil
	}
	maps.DeleteFunc(dead, func(_ base.ClientID, gone bool) bool { return !gone })
	if len(dead) == 0 {
		return nil
	}
	clients := slices.Sorted(maps.Keys(dead))
	for _, client := range clients {
		e := b.m.ended[client]
		if e == nil {
			e = &schema.Ended{EndedNS: b.nowNS}
			b.m.ended[client] = e
		}
		if err := b.dropWindow(s, client, e); err != nil {
			return err
		}
		if err := b.set(schema.EndedKey(b.id, client), e); err != nil {
			return err
		}
	}
	_, err := b.endIn(s, clients, dead)
	return err
}

// sortedSubtrees returns the subtrees that the shard owns, by id.
func (b *batch) sortedSubtrees() []*subtree { return b.subtreesIn(schema.Active, schema.Frozen) }

// removedSubtrees returns those that are removed and have results.
func (b *batch) removedSubtrees() []*subtree { return b.subtreesIn(schema.Removed) }

func (b *batch) subtreesIn(states ...schema.OwnState) []*subtree {
	var all []*subtree
	for _, s := range b.m.subtrees {
		if slices.Contains(states, s.State) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(x, y *subtree) int { return int(int64(x.id) - int64(y.id)) })
	return all
}

// giveBackAll gives back the reservations of dead clients in the subtree. The
// scan is short: only files with unfilled reservations are in it.
func (b *batch) giveBackAll(dead map[base.ClientID]bool) (zeros []string, err error) {
	var places []*canopyv1.Place
	lo, hi := schema.KindRange(b.id, b.subtree, schema.KindAppend)
	err = b.r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		p, err := locatorPlace(key, value)
		places = append(places, p)
		return true, err
	})
	if err != nil {
		return nil, err
	}
	for _, p := range places {
		o, err := b.resolve(p)
		if isElsewhere(err) {
			continue // carved out: what is stored here of it does not count
		}
		if err != nil {
			return nil, brokenState(err, p)
		}
		if o.isDir() {
			continue
		}
		z, err := b.giveBack(o, dead)
		if err != nil {
			return nil, err
		}
		zeros = append(zeros, z...)
	}
	return zeros, nil
}

// forgetEnded drops what is older than the retention.
func (b *batch) forgetEnded() error {
	var old []base.ClientID
	for client, e := range b.m.ended {
		if b.nowNS-e.EndedNS > int64(endedRetention) {
			old = append(old, client)
		}
	}
	for _, client := range old {
		delete(b.m.ended, client)
		if err := b.w.Delete(schema.EndedKey(b.id, client)); err != nil {
			return err
		}
	}
	return nil
}
