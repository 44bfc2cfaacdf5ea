package mds

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
)

// tenure is one term of this node as a shard's holder. What it knows of sessions
// and open files begins empty: nothing is ended or purged on the word of an
// earlier holder.
type tenure struct {
	h     *hosted
	epoch base.LeaseEpoch
	since time.Time // acquisition, by the monotonic clock

	ctx    context.Context
	cancel context.CancelFunc
	tasks  errgroup.Group
	// activity counts what may have made work for the background: workers look
	// again only when it moved.
	activity atomic.Uint64
	waiting  waiting

	mu      sync.Mutex
	clients map[base.ClientID]*clientState
	came    map[base.SubtreeID]time.Time // when subtrees were activated here
	scanned bool                         // the sessions of the replicated state are in clients
	clock   shardClock

	locks *lockTable
	moves *mover
	marks *markTable

	txns      *txnTable
	inherited *inherited
	txnRoutes txnRoutes

	heat *heatCounter
}

func newTenure(h *hosted, epoch base.LeaseEpoch) *tenure {
	t := &tenure{h: h, epoch: epoch, since: time.Now(), clients: map[base.ClientID]*clientState{},
		came: map[base.SubtreeID]time.Time{}, txns: newTxnTable(), inherited: newInherited()}
	t.locks = newLockTable(t)
	t.moves = newMover(t)
	t.marks = newMarkTable(h.server.metrics.marks)
	t.heat = newHeatCounter(&h.server.heatBatches)
	return t
}

// begin starts the term's workers; they end with it.
func (t *tenure) begin(ctx context.Context) {
	t.ctx, t.cancel = context.WithCancel(ctx)
	t.tasks.Go(func() error { t.sessionLoop(); return nil })
	t.tasks.Go(func() error { t.purgeLoop(); return nil })
	t.tasks.Go(func() error { t.reconcileLoop(); return nil })
	t.tasks.Go(func() error { t.deletionLoop(); return nil })
	t.tasks.Go(func() error { t.cutLoop(); return nil })
	t.tasks.Go(func() error { t.quotaLoop(); return nil })
	t.tasks.Go(func() error { t.txnLoop(); return nil })
	t.tasks.Go(func() error { t.inherited.await(t.ctx); return nil })
	t.tasks.Go(func() error { t.locks.run(t.ctx); return nil })
	t.tasks.Go(func() error { t.moves.loop(); return nil })
	t.tasks.Go(func() error { t.heat.run(t.ctx); return nil })
}

// end stops the workers and waits for them.
func (t *tenure) end() {
	t.cancel()
	t.marks.close()
	_ = t.tasks.Wait() // workers report no errors
}

// setUp creates the shard's initial state, publishes its routes, and learns its
// sessions. It retries until the term ends; false: it ended.
func (t *tenure) setUp() bool {
	wait := retry{next: 20 * time.Millisecond, limit: 2 * time.Second}
	for {
		err := t.bootstrap()
		if err == nil {
			err = t.learn()
		}
		if err == nil {
			return true
		}
		if t.ctx.Err() == nil {
			t.h.server.log.Debug("a new holder's first steps failed; trying again", "shard", t.h.shard, "error", err)
		}
		if !wait.sleep(t.ctx) {
			return false
		}
	}
}

// bootstrap proposes the initial state, which changes nothing if it is there.
func (t *tenure) bootstrap() error {
	command := &canopyv1.BootstrapCommand{Cluster: t.h.server.cluster, Shard: uint64(t.h.shard)}
	if t.h.shard == 1 {
		command.Subtree = uint64(base.RootSubtree)
		command.Epoch = 1
		command.RootIno = uint64(base.RootIno)
		command.RootMode = 0o755
		command.Layout = t.h.server.rootLayout()
	}
	_, err := t.propose(&canopyv1.Command{Own: &canopyv1.Command_Bootstrap{Bootstrap: command}})
	return err
}

// rootLayout is that of the first pool, or the configured one while there is none.
func (s *Server) rootLayout() *canopyv1.Layout {
	pool := base.PoolID(s.config.DefaultLayout.GetPool())
	if p := s.place.Data().Pools[pool].Value; len(p.GetLayout().GetComponents()) > 0 {
		layout := proto.CloneOf(p.Layout)
		layout.Pool = uint64(pool)
		return layout
	}
	return s.config.DefaultLayout
}

// learn reads which sessions and subtrees the shard has.
func (t *tenure) learn() error {
	var clients []base.ClientID
	var routes []*canopyv1.SubtreeRoute
	var gone []base.SubtreeID
	published := t.h.server.published(t.h.shard)
	err := t.h.group.Read(t.ctx, func(r shard.Reader) (err error) {
		clients, routes = nil, nil
		// What a holder before this one removed, and could not take out of the map.
		if gone, err = namespace.GoneSubtrees(r, t.h.shard, published); err != nil {
			return err
		}
		err = namespace.Sessions(r, t.h.shard, func(s namespace.SessionInfo) bool {
			clients = append(clients, s.Client)
			return true
		})
		if err != nil {
			return err
		}
		return namespace.Subtrees(r, t.h.shard, func(s namespace.SubtreeInfo) bool {
			if s.State == "active" {
				routes = append(routes, &canopyv1.SubtreeRoute{
					Subtree: uint64(s.Subtree), Shard: uint64(t.h.shard), Epoch: uint64(s.Epoch), RootIno: uint64(s.Root),
				})
			}
			return true
		})
	})
	if err != nil {
		return err
	}
	t.mu.Lock()
	for _, id := range clients {
		t.clientLocked(id).known = true
	}
	t.scanned = true
	t.mu.Unlock()
	t.h.server.publishHolder(t.h, t.epoch, routes, gone)
	t.h.server.events.askReports(clients, t.h.shard)
	return nil
}

// propose runs one of the holder's own commands and returns its result; an error
// kind in it becomes an error.
func (t *tenure) propose(command *canopyv1.Command) (*canopyv1.Result, error) {
	encoded, err := command.MarshalVT()
	if err != nil {
		return nil, err
	}
	answer, err := t.h.group.Propose(t.ctx, encoded)
	if err != nil {
		return nil, err
	}
	result := new(canopyv1.Result)
	if err := result.UnmarshalVT(answer); err != nil {
		return nil, err
	}
	if result.Error != 0 {
		return result, &fserr.Error{Kind: fserr.Kind(result.Error), Op: "holder's command", Path: result.Detail}
	}
	return result, nil
}

// subtrees lists the active subtrees of the shard.
func (t *tenure) subtrees(r shard.Reader) ([]base.SubtreeID, error) {
	var out []base.SubtreeID
	err := namespace.Subtrees(r, t.h.shard, func(s namespace.SubtreeInfo) bool {
		if s.State == "active" {
			out = append(out, s.Subtree)
		}
		return true
	})
	return out, err
}

// retry is a jittered back-off that doubles to a limit.
type retry struct{ next, limit time.Duration }

// sleep waits; false when ctx ended.
func (r *retry) sleep(ctx context.Context) bool {
	d := r.next
	r.next = min(2*r.next, r.limit)
	return pause(ctx, d)
}

// pause waits a random time in [d/2, 3d/2); false when ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d/2 + rand.N(max(d, 1)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// shardClock estimates the shard's time from below: the time of the last entry
// that was seen, and what passed since it was first seen. (An idle shard's time
// stands still in its log.) It also sees when entries' time ran ahead of the
// monotonic clock, as it does after the wall clock was set (PROTOCOLS A3).
type shardClock struct {
	entryNS int64
	at      time.Time // the entry was first seen
	start   time.Time // of the first call
	ahead   int64     // largest entry time less what passed since start
	jumped  time.Time // when it was last seen to have run ahead; zero: never
}

// now returns the estimate, given the time of the shard's last entry.
func (c *shardClock) now(entryNS int64, at time.Time) int64 {
	if c.start.IsZero() {
		c.start, c.ahead = at, entryNS
	}
	if entryNS != c.entryNS {
		c.entryNS, c.at = entryNS, at
	}
	return c.entryNS + int64(at.Sub(c.at))
}

// settled reports whether what is older than grace by the shard's time is so by
// the monotonic clock too, but for half of it. An entry after a long silence can
// look like a jump: that costs a grace period.
func (c *shardClock) settled(at time.Time, grace time.Duration) bool {
	if ahead := c.entryNS - int64(at.Sub(c.start)); ahead > c.ahead {
		if ahead-c.ahead > int64(grace/2) {
			c.jumped = at
		}
		c.ahead = ahead
	}
	return c.jumped.IsZero() || at.Sub(c.jumped) >= grace
}
