package layoutsvc

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
)

// term is one leadership: what the leader knows of the servers' leases. It is
// memory only: a new leader takes it that every lease was renewed just before.
type term struct {
	s    *instance
	lead *placement.Leadership

	mu      sync.Mutex
	servers map[base.NodeID]*lease
	changed chan struct{} // closed when a lease or an adopted revision changed

	// changes serialises what reads records, decides and writes them.
	changes sync.Mutex
	keeper  keeper // under changes
	// stuck is what keeps groups from being rebuilt, by group.
	stuck map[placement.PGKey]string // under mu
}

// lease is the leader's view of one server.
type lease struct {
	incarnation uint64
	until       time.Time // it may serve until then, margin included
	heard       bool      // in this term
	adopted     uint64    // revision of the pool map that it serves by
	reportedAt  time.Time // when its usage was written last
	gaveUp      bool      // the server ended the lease itself: it stops
	goneSince   time.Time // when this term found that the lease is over; zero: it is not
	// A start that is not registered yet:
	knocks       bool
	firstKnock   time.Time // in this term
	lastKnock    time.Time
	lostUnsynced bool // it came back without what it had not synced
}

// campaign leads whenever it can, until ctx is done.
func (s *instance) campaign(ctx context.Context, registration *placement.Registration, info *canopyv1.ServiceInfo) error {
	announce := func(leader bool) {
		next := proto.CloneOf(info)
		next.Leader = leader
		registration.Update(next)
	}
	for ctx.Err() == nil {
		lead, err := s.store.Campaign(ctx, placement.LayoutService, s.address)
		if err == nil {
			// What the leader before wrote must be seen before anything is decided.
			if err = s.store.Sync(ctx); err == nil {
				s.logger.Info("leading the layout services")
				announce(true)
				s.rule(ctx, lead)
				announce(false)
			}
			lead.Resign(context.WithoutCancel(ctx))
		}
		if err != nil && ctx.Err() == nil {
			s.logger.Warn("campaign for the lead", "error", err)
		}
		select {
		case <-time.After(100*time.Millisecond + rand.N(200*time.Millisecond)):
		case <-ctx.Done():
		}
	}
	return nil
}

// rule is one term, from the election to its end.
func (s *instance) rule(ctx context.Context, lead *placement.Leadership) {
	t := &term{s: s, lead: lead, servers: map[base.NodeID]*lease{}, changed: make(chan struct{})}
	horizon := time.Now().Add(s.config.ServerLease + leaseMargin)
	for id, server := range s.store.Data().Servers {
		t.servers[id] = &lease{incarnation: server.Value.Incarnation, until: horizon}
	}
	if err := t.tendKeys(ctx, time.Now()); err != nil {
		s.logger.Warn("the keys of capabilities", "error", err)
		return
	}
	s.setTerm(t)
	defer s.setTerm(nil)
	tick := time.NewTicker(s.config.ServerLease / 8)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := t.expire(ctx); err != nil && ctx.Err() == nil {
				s.logger.Warn("excluding data servers whose lease ran out", "error", err)
			}
			if err := t.rebuild(ctx); err != nil && ctx.Err() == nil {
				s.logger.Warn("changing the members of placement groups", "error", err)
			}
			if err := t.tendKeys(ctx, time.Now()); err != nil && ctx.Err() == nil {
				s.logger.Warn("the keys of capabilities", "error", err)
			}
		case <-lead.Done():
			s.logger.Warn("the lead of the layout services is lost")
			return
		case <-ctx.Done():
			return
		}
	}
}

func (s *instance) setTerm(t *term) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.term = t
}

// leading returns the present term, nil if there is none or it may be lost.
func (s *instance) leading() *term {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term == nil || s.term.lost() {
		return nil
	}
	return s.term
}

func (t *term) lost() bool {
	select {
	case <-t.lead.Done():
		return true
	default:
		return false
	}
}

// wakeLocked tells those who wait for leases.
func (t *term) wakeLocked() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// expire excludes servers whose lease ran out (PROTOCOLS J3: a new epoch is
// active only after every server that leaves has confirmed or its lease has run
// out). Servers that are out already cost nothing.
func (t *term) expire(ctx context.Context) error {
	now := time.Now()
	var gone []base.NodeID
	t.mu.Lock()
	for id, l := range t.servers {
		if now.After(l.until) {
			gone = append(gone, id)
			if l.goneSince.IsZero() {
				l.goneSince = now
			}
		}
	}
	t.wakeLocked()
	t.mu.Unlock()
	var errs []error
	for _, id := range gone {
		errs = append(errs, t.exclude(ctx, id))
	}
	return errors.Join(errs...)
}

// exclude takes a server whose lease is over out of the in-sync sets where
// another member remains that is not overdue itself, and records it as not alive;
// unless its lease was renewed meanwhile.
func (t *term) exclude(ctx context.Context, id base.NodeID) error {
	t.changes.Lock()
	defer t.changes.Unlock()
	for try := 1; ; try++ {
		err := t.excludeHeld(ctx, id)
		if !placement.IsConflict(err) || try == excludeTries {
			return err
		}
		// An own write was cut off by the end of its caller, and took place: what
		// is known here is older than the record.
		if err := t.s.store.Sync(ctx); err != nil {
			return err
		}
	}
}

const excludeTries = 3

// excludeHeld is exclude under changes.
func (t *term) excludeHeld(ctx context.Context, id base.NodeID) error {
	if !t.overdue(id) {
		return nil
	}
	data := t.s.store.Data()
	for key, pg := range data.PGs {
		next := without(pg.Value, id)
		if next == nil || !t.anyServes(next.InSync) {
			continue
		}
		if _, err := t.s.store.PutPG(ctx, t.lead, key.Pool, next, pg.Revision); err != nil {
			return err
		}
		t.s.metrics.epochs.Inc()
	}
	server, ok := data.Servers[id]
	if !ok || !server.Value.Alive {
		return nil
	}
	if t.left(id) {
		t.s.logger.Info("a data server stops and gave its lease up", "server", id)
	} else {
		t.s.logger.Warn("a data server's lease ran out", "server", id)
		t.s.metrics.expired.Inc()
	}
	next := proto.CloneOf(server.Value)
	next.Alive = false
	_, err := t.s.store.PutServer(ctx, t.lead, next, server.Revision)
	return err
}

// anyServes reports whether one of the servers has a lease.
func (t *term) anyServes(ids []uint64) bool {
	for _, id := range ids {
		if t.serves(base.NodeID(id)) {
			return true
		}
	}
	return false
}

func (t *term) left(id base.NodeID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.servers[id].gaveUp
}

func (t *term) overdue(id base.NodeID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.servers[id]
	return l != nil && time.Now().After(l.until)
}

// without returns the group under the next epoch without the server in sync; nil
// if it is not, or if it is the last: the last member stays, since only it has
// the bytes.
func without(pg *canopyv1.PlacementGroup, id base.NodeID) *canopyv1.PlacementGroup {
	next := proto.CloneOf(pg)
	next.InSync = next.InSync[:0]
	for _, m := range pg.InSync {
		if m != uint64(id) {
			next.InSync = append(next.InSync, m)
		}
	}
	if len(next.InSync) == len(pg.InSync) || len(next.InSync) == 0 {
		return nil
	}
	next.Epoch++
	return next
}

// with returns the group under the next epoch with the member in sync, nil if it
// is. In-sync sets keep the order of members, so that a server that returns
// leads again what it led.
func with(pg *canopyv1.PlacementGroup, id base.NodeID) *canopyv1.PlacementGroup {
	in := map[uint64]bool{}
	for _, m := range pg.InSync {
		in[m] = true
	}
	if in[uint64(id)] {
		return nil
	}
	in[uint64(id)] = true
	next := proto.CloneOf(pg)
	next.InSync = nil
	for _, m := range pg.Members {
		if in[m] {
			next.InSync = append(next.InSync, m)
		}
	}
	next.Epoch++
	return next
}

// confirmed waits until the server serves by a map of at least the revision, or
// its lease has run out, margin included.
func (t *term) confirmed(ctx context.Context, id base.NodeID, revision uint64) error {
	for {
		t.mu.Lock()
		l, changed := t.servers[id], t.changed
		ok := l == nil || l.adopted >= revision || time.Now().After(l.until)
		t.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-t.lead.Done():
			return fserr.New(fserr.NotHolder, "wait for a data server's lease", nil)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
