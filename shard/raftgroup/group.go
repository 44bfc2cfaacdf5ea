package raftgroup

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lni/dragonboat/v4"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// Group is one replica of one shard. Its methods are safe for concurrent use.
//
// Two goroutines matter: run proposes (pipeline.go), and Dragonboat's apply
// worker calls the state machine, which reports to applied. They share what mu
// guards. No callback runs under mu.
type Group struct {
	host     *Host
	cfg      ReplicaConfig
	instance uint64 // of this start of the replica: random (B3)
	log      *slog.Logger
	toRaft   proposeFunc // Dragonboat's Propose
	sm       *stateMachine
	arrivals arrivals
	metrics  *groupMetrics

	// The fast path of Read, written under mu: 0 while nothing may be answered.
	ownEpoch   atomic.Uint64
	validUntil atomic.Int64
	validHint  atomic.Int64 // validUntil by Host.waited: saves running a read in vain
	renewAsked atomic.Bool
	depth      atomic.Int32  // entries in flight at most
	reading    atomic.Int64  // reads that run: the lease is kept alive for long ones
	leader     atomic.Uint64 // Raft's leader as replica id, 0: none known

	wake    chan struct{}   // of run
	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	workers sync.WaitGroup

	mu          sync.Mutex
	view        leaseView
	epoch       base.LeaseEpoch // that the pipeline proposes in: own, acquired by this instance
	number      uint64          // of the last entry made in epoch
	clock       entryClock
	queue       []pending
	queueBytes  int
	inflight    []*proposal // by number, not applied yet
	resend      bool        // propose what is in flight again, from the first
	resendAfter time.Duration
	acquire     *acquisition
	releasing   bool // stopped answering, pipeline drains, then Release
	draining    bool // do not acquire
	drains      uint64
	paused      bool // commands wait
	eager       bool // became leader: acquire without being asked
	closed      bool
	readers     int // that wait for the lease
	leaderSince time.Duration
	changed     chan struct{} // closed and replaced when lease or leader changed
	told        holderState   // what OnHolderChange was told last
	tellMu      sync.Mutex    // orders calls of OnHolderChange; taken before mu
}

// pending is a command that waits for its result.
type pending struct {
	command []byte
	done    func(result []byte, err error, took Timing)
	since   time.Duration // by Host.waited
}

// Timing says what became of a command's time. It is zero unless the command was
// applied.
type Timing struct {
	Queue time.Duration // until an entry took it
	Apply time.Duration // its equal share of what applying the entries beside it took
}

// proposal is an entry of the own epoch that was not applied yet.
type proposal struct {
	number     uint64
	action     canopyv1.LeaseAction // NONE: commands or a checksum
	checksum   uint64
	commands   []pending
	data       []byte        // the encoded entry; run's alone
	timeNS     int64         // in the entry
	proposedAt time.Duration // before the first proposal (B2)
	sentAt     time.Duration // the last proposal
	takenAt    time.Duration // the commands from the queue, by Host.waited
	answered   bool          // commands timed out
	state      *dragonboat.RequestState
	onIndex    func(index uint64, err error) // of a checksum entry
}

// acquisition is a proposed Acquire.
type acquisition struct {
	epoch      base.LeaseEpoch
	seen       uint64
	proposedAt time.Duration // the first time for this epoch and renewal
	data       []byte
	state      *dragonboat.RequestState
	failed     bool
	retryAfter time.Duration
}

type holderState struct {
	node     base.NodeID
	epoch    base.LeaseEpoch
	released bool
	self     bool
}

func newGroup(h *Host, rc ReplicaConfig) *Group {
	g := &Group{
		host: h, cfg: rc, instance: rand.Uint64() | 1,
		log:     h.log.With("shard", uint64(rc.Shard), "replica", uint64(rc.Replica)),
		wake:    make(chan struct{}, 1),
		changed: make(chan struct{}),
		metrics: h.metrics.group(rc.Shard),
	}
	g.depth.Store(defaultInFlight)
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.sm = newStateMachine(g)
	return g
}

// Shard returns the group's shard.
func (g *Group) Shard() base.ShardID { return g.cfg.Shard }

// Replica returns which replica of the shard this is.
func (g *Group) Replica() base.ReplicaID { return g.cfg.Replica }

func (g *Group) now() time.Duration { return g.host.clock.Boot() }

func (g *Group) isLeader() bool { return g.leader.Load() == uint64(g.cfg.Replica) }

func (g *Group) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *Group) err(kind fserr.Kind, op string) error {
	return &fserr.Error{Kind: kind, Op: op, Path: "shard " + g.cfg.Shard.String()}
}

// Submit queues a command, which must not be changed any more, and calls done
// once with its result or error: before Submit returns if it is refused at once,
// else on a goroutine of the group, which it must not block.
//
//	NotHolder  this replica does not lead; the command was not executed
//	Busy       too many commands wait; not executed
//	NotReady   the group stops, or no leader is known; not executed
//	TimedOut   the outcome is unknown
func (g *Group) Submit(command []byte, done func(result []byte, err error)) {
	g.SubmitTimed(command, func(result []byte, err error, _ Timing) { done(result, err) })
}

// SubmitTimed is Submit, and tells done where the time went.
func (g *Group) SubmitTimed(command []byte, done func(result []byte, err error, took Timing)) {
	now := g.host.waited()
	g.mu.Lock()
	kind := g.refusalLocked()
	if kind == fserr.OK && (len(g.queue) >= g.host.cfg.QueueCommands || g.queueBytes+len(command) > g.host.cfg.QueueBytes) {
		kind = fserr.Busy
	}
	if kind != fserr.OK {
		g.mu.Unlock()
		done(nil, g.err(kind, "submit"), Timing{})
		return
	}
	first := len(g.queue) == 0
	g.queue = append(g.queue, pending{command, done, now})
	g.queueBytes += len(command)
	g.mu.Unlock()
	if first {
		g.poke()
	}
}

// refusalLocked says why this replica takes no commands now, or OK.
func (g *Group) refusalLocked() fserr.Kind {
	switch leader := g.leader.Load(); {
	case g.closed:
		return fserr.NotReady
	case g.releasing, g.draining && g.epoch == 0:
		return fserr.NotHolder
	case g.epoch != 0 || leader == uint64(g.cfg.Replica):
		return fserr.OK
	case leader == 0:
		return fserr.NotReady
	}
	return fserr.NotHolder
}

// Propose submits a command and waits. If ctx ends first its outcome is unknown.
func (g *Group) Propose(ctx context.Context, command []byte) ([]byte, error) {
	type outcome struct {
		result []byte
		err    error
	}
	c := make(chan outcome, 1)
	g.Submit(command, func(result []byte, err error) { c <- outcome{result, err} })
	select {
	case o := <-c:
		return o.result, o.err
	case <-ctx.Done():
		return nil, fserr.New(fserr.TimedOut, "propose", ctx.Err())
	}
}

// Read calls fn with a snapshot of the state and returns nil only if this
// replica held the lease after fn returned (PROTOCOLS B4): what fn read is then
// current, and only then may it be answered. fn can run more than once. The
// lease is acquired or renewed on demand if this replica leads the shard;
// NotHolder otherwise. An error of fn is returned as it is, if the lease held.
func (g *Group) Read(ctx context.Context, fn func(r shard.Reader) error) error {
	for {
		if epoch := g.ownEpoch.Load(); g.Serving() {
			g.reading.Add(1)
			snap := g.host.cfg.Store.NewSnapshot()
			err := fn(snap)
			if cerr := snap.Close(); err == nil {
				err = cerr
			}
			g.reading.Add(-1)
			// B4: the lease is checked after the snapshot was taken and read.
			if left := time.Duration(g.validUntil.Load()) - g.now(); left > 0 && g.ownEpoch.Load() == epoch {
				if left < g.host.cfg.LeaseDuration/2 && g.renewAsked.CompareAndSwap(false, true) {
					g.poke() // readers keep the lease alive
				}
				return err
			}
			g.metrics.staleReads.Inc()
		}
		if err := g.waitForLease(ctx); err != nil {
			return err
		}
	}
}

// Serving says whether a Read would probably not have to wait for the lease. It is
// a hint: Read itself checks.
func (g *Group) Serving() bool {
	return g.ownEpoch.Load() != 0 && time.Duration(g.validHint.Load()) > g.host.waited()
}

// waitForLease returns when this replica held the lease a moment ago.
func (g *Group) waitForLease(ctx context.Context) error {
	deadline := g.now() + g.host.cfg.CommandTimeout
	for {
		g.mu.Lock()
		if g.view.valid(g.now()) && !g.closed {
			g.mu.Unlock()
			return nil
		}
		if kind := g.refusalLocked(); kind != fserr.OK {
			g.mu.Unlock()
			return g.err(kind, "read")
		}
		if g.now() > deadline {
			g.mu.Unlock()
			return g.err(fserr.NotReady, "read")
		}
		g.readers++
		changed := g.changed
		g.mu.Unlock()
		g.poke()
		timer := time.NewTimer(g.host.cfg.LeaseDuration)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		g.mu.Lock()
		g.readers--
		g.mu.Unlock()
		if ctx.Err() != nil {
			return fserr.New(fserr.TimedOut, "read", ctx.Err())
		}
	}
}

// publishLocked makes the view's state visible to Read and to who waits for it.
func (g *Group) publishLocked() {
	g.validHint.Store(int64(g.host.waited() + g.view.until - g.now()))
	g.validUntil.Store(int64(g.view.until))
	g.ownEpoch.Store(uint64(g.view.own))
	if g.readers > 0 || g.releasing || g.draining {
		close(g.changed)
		g.changed = make(chan struct{})
	}
}

// Holder says who should serve the shard as far as this replica knows: the
// lease's holder, or the Raft leader while there is none; 0: unknown. It is a
// hint. self says that this replica serves.
func (g *Group) Holder() (node base.NodeID, epoch base.LeaseEpoch, self bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	rec := g.view.rec
	if g.epoch != 0 && !g.releasing {
		return g.host.cfg.Node, g.epoch, true
	}
	// A lapsed lease says who held it last; the leader is the next to acquire it.
	if leader := base.ReplicaID(g.leader.Load()); leader != 0 {
		if m, ok := g.cfg.Members[leader]; ok && (rec.Epoch == 0 || rec.Released || g.view.acquireIn(g.now()) == 0) {
			return m.Node, rec.Epoch, false
		}
	}
	if rec.Epoch == 0 || rec.Released {
		return 0, rec.Epoch, false
	}
	return rec.Node, rec.Epoch, false
}

// tellHolder calls OnHolderChange if what it was told last is no longer so.
func (g *Group) tellHolder() {
	g.tellMu.Lock()
	defer g.tellMu.Unlock()
	g.mu.Lock()
	rec := g.view.rec
	now := holderState{rec.Node, rec.Epoch, rec.Released, g.epoch != 0 && !g.releasing}
	change := now != g.told
	g.told = now
	g.mu.Unlock()
	if !change {
		return
	}
	g.metrics.holder(now.self)
	g.log.Info("lease", "holder", uint64(now.node), "epoch", uint64(now.epoch), "released", now.released, "self", now.self)
	if f := g.host.cfg.OnHolderChange; f != nil {
		node := now.node
		if now.released {
			node = 0
		}
		f(g.cfg.Shard, node, now.epoch, now.self)
	}
}

// Status returns the present state.
func (g *Group) Status() Status {
	members, term := g.host.membership(g.cfg.Shard)
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	rec := g.view.rec
	s := Status{
		Shard: g.cfg.Shard, Replica: g.cfg.Replica, Members: members,
		LeaderID: base.ReplicaID(g.leader.Load()), Term: term, Applied: g.sm.applied.Load(),
		Holder: rec.Node, HolderID: rec.Replica, LeaseEpoch: rec.Epoch, LeaseRenewal: rec.Renewal, Released: rec.Released,
		Self: g.epoch != 0 && !g.releasing, Queue: len(g.queue), InFlight: len(g.inflight), LastTimeNS: rec.TimeNS,
	}
	if s.Self {
		s.LeaseLeft = g.view.until - now
	}
	return s
}

// opened is called when the state machine was opened or replaced by a snapshot.
func (g *Group) opened(rec schema.Lease) {
	g.mu.Lock()
	g.sawLocked(rec, g.now())
	g.mu.Unlock()
	g.tellHolder()
	g.poke()
}
