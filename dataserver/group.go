package dataserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/dataserver/chunkstore/rangelock"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// How long a request waits for the server to catch up with what it names.
const (
	epochWait      = time.Second
	activationWait = 5 * time.Second
	groupTick      = 500 * time.Millisecond
	// recoveryPause is the longest time between two attempts to recover a member.
	recoveryPause = 4 * groupTick
)

// group is this server's part in one placement group. Lock order: log.mu, mu.
type group struct {
	s    *server
	pool base.PoolID
	pg   base.PGID

	log      *changeLog
	sessions sessions
	locks    columnLocks

	mu         sync.Mutex
	current    *canopyv1.PlacementGroup // immutable
	changed    chan struct{}            // closed when current or active changes
	active     uint64                   // the epoch for which this server may serve as primary
	under      context.Context          // ends with the epoch
	end        context.CancelFunc
	recovering map[base.NodeID]*recovery
	reports    map[base.NodeID]chan struct{} // reports under way
	works      map[base.NodeID]*progress     // recoveries and the scrub under way, by member
	failures   map[base.NodeID]string        // why the last recovery of a member ended
	quit       uint64                        // the epoch in which this server reports itself out of sync
}

// epochError says that the request's PG epoch is not the server's.
type epochError struct{ have, asked uint64 }

func (e *epochError) Error() string {
	return fmt.Sprintf("pg epoch is %d, not %d", e.have, e.asked)
}

func (e *epochError) Unwrap() error { return fserr.OldEpoch }

func newGroup(s *server, pool base.PoolID, pg *canopyv1.PlacementGroup) *group {
	g := &group{
		s: s, pool: pool, pg: base.PGID(pg.Pg),
		log:        newChangeLog(s.store.Identity().Incarnation),
		current:    pg,
		changed:    make(chan struct{}),
		recovering: map[base.NodeID]*recovery{},
		reports:    map[base.NodeID]chan struct{}{},
		works:      map[base.NodeID]*progress{},
		failures:   map[base.NodeID]string{},
	}
	g.under, g.end = context.WithCancel(s.ctx)
	return g
}

// isEpoch reports whether the epoch is the present one.
func (g *group) isEpoch(epoch uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.current.Epoch == epoch
}

func (g *group) self() uint64 { return g.s.member.server.Load() }

// state returns the group as adopted, whether this server may serve as its
// primary, and a channel that is closed when either changes.
func (g *group) state() (pg *canopyv1.PlacementGroup, active bool, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.current, g.active == g.current.Epoch && g.quit != g.current.Epoch, g.changed
}

// adopt takes a newer state of the group. From then on nothing is served under
// the old epoch.
func (g *group) adopt(pg *canopyv1.PlacementGroup) {
	if pg == nil || len(pg.InSync) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if pg.Epoch <= g.current.Epoch {
		return
	}
	// A primary that stays one from an epoch to the very next has nothing to make
	// equal. Over a gap somebody else may have been primary.
	stays := pg.Epoch == g.current.Epoch+1 && g.active == g.current.Epoch && g.leads(pg) && g.leads(g.current)
	g.current = pg
	g.end()
	g.under, g.end = context.WithCancel(g.s.ctx)
	if stays {
		g.active = pg.Epoch
	}
	for _, id := range pg.InSync {
		delete(g.recovering, base.NodeID(id))
		delete(g.failures, base.NodeID(id))
	}
	for id := range g.failures {
		if id != 0 && !slices.Contains(pg.Members, uint64(id)) {
			delete(g.failures, id)
		}
	}
	g.wakeLocked()
}

func (g *group) wakeLocked() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// leads reports whether this server is the primary.
func (g *group) leads(pg *canopyv1.PlacementGroup) bool { return pg.InSync[0] == g.self() }

// errQuit is the cause of a report that is repeated.
var errQuit = errors.New("this server said before that it is out of sync")

// quits reports whether this server reported itself out of sync in the epoch.
func (g *group) quits(epoch uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.quit != 0 && g.quit == epoch && g.current.Epoch == epoch
}

// admit returns the group if the request is of its epoch. A newer one than this
// server knows is waited for: the map is under way.
func (g *group) admit(ctx context.Context, epoch uint64) (*canopyv1.PlacementGroup, error) {
	timeout := time.NewTimer(epochWait)
	defer timeout.Stop()
	for {
		pg, _, changed := g.state()
		switch {
		case epoch == pg.Epoch:
			return pg, nil
		case epoch < pg.Epoch:
			return nil, &epochError{pg.Epoch, epoch}
		}
		select {
		case <-changed:
		case <-timeout.C:
			return nil, fserr.New(fserr.NotReady, "data", fmt.Errorf("pg epoch %d is not known here yet", epoch))
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// admitPrimary is admit for what only the primary does, once it is active.
func (g *group) admitPrimary(ctx context.Context, epoch uint64) (*canopyv1.PlacementGroup, error) {
	timeout := time.NewTimer(activationWait)
	defer timeout.Stop()
	for {
		pg, err := g.admit(ctx, epoch)
		if err != nil {
			return nil, err
		}
		if !g.leads(pg) {
			return nil, fserr.New(fserr.NotHolder, "data", fmt.Errorf("server %d is the primary", pg.InSync[0]))
		}
		if !g.s.lease.valid() {
			return nil, errNoLease
		}
		now, active, changed := g.state()
		if active && now.Epoch == epoch {
			return pg, nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			return nil, fserr.New(fserr.NotReady, "data", fmt.Errorf("pg epoch %d is not active yet", epoch))
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

var errNoLease = fserr.New(fserr.NotReady, "data", fmt.Errorf("this server's lease ran out"))

// targets returns who must get a change, besides this server: the in-sync
// members, and those being recovered.
func (g *group) targets() []base.NodeID {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []base.NodeID
	for _, id := range g.current.InSync {
		if id != g.self() {
			out = append(out, base.NodeID(id))
		}
	}
	for id := range g.recovering {
		out = append(out, id)
	}
	return out
}

// standing is what a member is to a primary's change now.
type standing struct {
	under           context.Context // ends with the epoch
	epoch           uint64
	primary, inSync bool
	recovery        *recovery
}

func (g *group) standing(id base.NodeID) standing {
	g.mu.Lock()
	defer g.mu.Unlock()
	return standing{g.under, g.current.Epoch, g.leads(g.current), slices.Contains(g.current.InSync, uint64(id)), g.recovering[id]}
}

// run activates and recovers as long as this server is primary, until ctx is
// done.
func (g *group) run(ctx context.Context) {
	tick := time.NewTicker(groupTick)
	defer tick.Stop()
	var pace pace
	for ctx.Err() == nil {
		pg, active, changed := g.state()
		if g.quits(pg.Epoch) && g.s.lease.valid() {
			// The outcome of a report is not known yet.
			if err := g.reportOut(ctx, pgSelf(g), errQuit); err != nil && ctx.Err() == nil {
				g.s.logger.Info("placement group", "pool", g.pool, "pg", g.pg, "epoch", pg.Epoch, "error", err)
			}
		} else if pace.due(pg.Epoch) && g.leads(pg) && g.s.lease.valid() {
			under, cancel := context.WithCancel(ctx)
			stop := cancelWhen(under, cancel, changed)
			var err error
			if !active {
				err = g.activate(under, pg)
			} else {
				err = g.recover(under, pg)
			}
			cancel()
			stop()
			pace.outcome(pg.Epoch, err != nil && active)
			if err != nil && ctx.Err() == nil {
				g.s.logger.Info("placement group", "pool", g.pool, "pg", g.pg, "epoch", pg.Epoch, "error", err)
			}
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// pace spaces the attempts to recover members under one epoch: they fail as long
// as a member is stopping, or unreachable and still taken for alive.
type pace struct {
	epoch  uint64 // of the failures; 0: none
	pause  time.Duration
	notYet time.Time
}

func (p *pace) due(epoch uint64) bool { return epoch != p.epoch || !time.Now().Before(p.notYet) }

func (p *pace) outcome(epoch uint64, failed bool) {
	switch {
	case !failed:
		*p = pace{}
		return
	case p.epoch == epoch:
		p.pause = min(2*p.pause, recoveryPause)
	default:
		*p = pace{epoch: epoch, pause: groupTick}
	}
	p.notYet = time.Now().Add(p.pause/2 + rand.N(p.pause))
}

// cancelWhen cancels when the channel is closed; the returned function waits for
// its goroutine after cancel.
func cancelWhen(ctx context.Context, cancel context.CancelFunc, when <-chan struct{}) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-when:
			cancel()
		case <-ctx.Done():
		}
	}()
	return func() { <-done }
}

// activate makes the chunks in flight equal on all in-sync members before this
// server serves as primary of the epoch (PROTOCOLS J3).
func (g *group) activate(ctx context.Context, pg *canopyv1.PlacementGroup) error {
	if err := g.log.drain(ctx); err != nil {
		return err
	}
	unequal := map[chunkstore.Key]bool{}
	for _, key := range g.log.columns() {
		unequal[key] = true
	}
	for _, id := range pg.InSync[1:] {
		keys, err := g.inFlightOf(ctx, pg, base.NodeID(id))
		if err != nil {
			return g.giveUp(ctx, base.NodeID(id), err)
		}
		for _, key := range keys {
			unequal[key] = true
		}
	}
	var keys []chunkstore.Key
	for key := range unequal {
		for _, id := range pg.InSync[1:] {
			if err := g.syncColumn(ctx, key, base.NodeID(id), nil); err != nil {
				return g.giveUp(ctx, base.NodeID(id), err)
			}
		}
		keys = append(keys, key)
	}
	g.log.settled(keys)
	g.log.lead()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.current.Epoch == pg.Epoch {
		g.active = pg.Epoch
		g.wakeLocked()
	}
	return nil
}

// giveUp takes a member out of the in-sync set that cannot be made equal.
func (g *group) giveUp(ctx context.Context, id base.NodeID, cause error) error {
	if ctx.Err() != nil {
		return nil // the epoch changed: that one is activated next
	}
	if err := g.reportOut(ctx, id, cause); err != nil {
		return fmt.Errorf("%w (and it cannot be reported: %w)", cause, err)
	}
	return cause
}

// reportOut makes sure that a member is not in sync any more. When it returns
// nil, that member has confirmed or its lease has run out. One report per member
// at a time; the others wait for it. If the member is this server itself nobody
// waits for its confirmation: it serves nothing from before the report on, until
// the outcome is known.
func (g *group) reportOut(ctx context.Context, id base.NodeID, cause error) error {
	for {
		g.mu.Lock()
		if !slices.Contains(g.current.InSync, uint64(id)) {
			g.mu.Unlock()
			return nil
		}
		if !g.leads(g.current) && uint64(id) != g.self() {
			g.mu.Unlock()
			return fserr.New(fserr.NotHolder, "report replica", nil)
		}
		epoch := g.current.Epoch
		other := g.reports[id]
		if other == nil {
			mine := make(chan struct{})
			g.reports[id] = mine
			if uint64(id) == g.self() {
				g.quit = epoch
			}
			g.mu.Unlock()
			pg, err := g.s.member.report(ctx, &canopyv1.ReportReplicaRequest{
				Pool: uint64(g.pool), Pg: uint32(g.pg), Epoch: epoch, Reporter: g.self(), Server: uint64(id),
			})
			g.s.logger.Warn("replica reported out of sync", "pool", g.pool, "pg", g.pg, "server", id, "epoch", epoch, "cause", cause, "error", err)
			g.adopt(pg)
			g.mu.Lock()
			delete(g.reports, id)
			if kind := fserr.KindOf(err); g.quit == epoch && (kind == fserr.Invalid || kind == fserr.Permission) {
				g.quit = 0 // it stays what it was
			}
			close(mine)
			g.mu.Unlock()
			if err != nil && fserr.KindOf(err) != fserr.OldEpoch {
				return err
			}
			continue
		}
		g.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// columnLocks has a range lock per column in use.
type columnLocks struct {
	mu    sync.Mutex
	locks map[chunkstore.Key]*columnLock
}

type columnLock struct {
	rangelock.Lock
	users int
}

// acquire locks bytes [lo, hi) of a column; call the returned function once.
func (c *columnLocks) acquire(ctx context.Context, key chunkstore.Key, lo, hi uint64, exclusive bool) (release func(), err error) {
	c.mu.Lock()
	if c.locks == nil {
		c.locks = map[chunkstore.Key]*columnLock{}
	}
	l := c.locks[key]
	if l == nil {
		l = &columnLock{}
		c.locks[key] = l
	}
	l.users++
	c.mu.Unlock()
	hold, err := l.Acquire(ctx, lo, hi, exclusive)
	leave := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(c.locks, key)
		}
	}
	if err != nil {
		leave()
		return nil, err
	}
	return func() { hold.Release(); leave() }, nil
}
