package mds

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/migrate"
	"github.com/canopyfs/canopy/shard/namespace"
	"github.com/canopyfs/canopy/shard/schema"
)

// maxEndedMoves bounds what a term remembers of moves that ended.
const maxEndedMoves = 256

// mover drives the moves of a shard's subtrees to other shards, in one term as its
// holder. What counts is in the log: the next holder goes on from there.
type mover struct {
	t    *tenure
	wake chan struct{} // a move began

	mu      sync.Mutex
	running map[base.SubtreeID]*moving
	ended   []*canopyv1.Move
}

// moving is one move that runs.
type moving struct {
	t       *tenure
	subtree base.SubtreeID
	into    base.SubtreeID
	driver  *migrate.Driver
	target  *moveTarget

	mu      sync.Mutex
	move    *canopyv1.Move
	problem string
}

func newMover(t *tenure) *mover {
	return &mover{t: t, wake: make(chan struct{}, 1), running: map[base.SubtreeID]*moving{}}
}

func (m *mover) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// loop starts a driver for each move that the log has, at the term's beginning and
// when one begins.
func (m *mover) loop() {
	wait := retry{next: 20 * time.Millisecond, limit: 2 * time.Second}
	for {
		if err := m.start(); err != nil {
			if !wait.sleep(m.t.ctx) {
				return
			}
			continue
		}
		wait.next = 20 * time.Millisecond
		select {
		case <-m.wake:
		case <-m.t.ctx.Done():
			return
		}
	}
}

func (m *mover) start() error {
	var all []*canopyv1.Move
	err := m.t.h.group.Read(m.t.ctx, func(r shard.Reader) error {
		all = nil
		return namespace.Moves(r, m.t.h.shard, func(x *canopyv1.Move) { all = append(all, x) })
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range all {
		id := base.SubtreeID(x.Subtree)
		if m.running[id] != nil {
			continue
		}
		run := &moving{t: m.t, subtree: id, into: base.SubtreeID(x.Into), move: x, target: &moveTarget{server: m.t.h.server, to: base.ShardID(x.ToShard)}}
		began := time.Now()
		run.driver = migrate.New(m.t.h.shard, id, &moveSource{m.t}, run.target, func() time.Duration { return time.Since(began) })
		m.running[id] = run
		m.t.tasks.Go(func() error { m.run(run); return nil })
	}
	return nil
}

// run drives one move until it ends, or the term does.
func (m *mover) run(run *moving) {
	defer run.target.close()
	m.t.h.server.log.Info("a subtree moves", "shard", m.t.h.shard, "subtree", run.subtree, "into", run.move.Into, "to", run.move.ToShard)
	wait := retry{next: 10 * time.Millisecond, limit: time.Second}
	for m.t.ctx.Err() == nil {
		before := run.phase()
		done, err := run.driver.Step(m.t.ctx)
		run.note(err)
		after := run.phase()
		if before != after {
			m.entered(run, after)
		}
		switch {
		case done:
			m.end(run)
			return
		case errors.Is(err, migrate.ErrWaits):
			pause(m.t.ctx, time.Millisecond)
		case err != nil && before == schema.MoveFrozen:
			pause(m.t.ctx, 10*time.Millisecond) // operations wait
		case err != nil:
			m.t.h.server.log.Debug("a step of a move failed; trying again", "shard", m.t.h.shard, "subtree", run.subtree, "error", err)
			wait.sleep(m.t.ctx)
		default:
			wait.next = 10 * time.Millisecond
		}
	}
}

// entered does what belongs to a phase that was entered.
func (m *mover) entered(run *moving, phase schema.MovePhase) {
	switch phase {
	case schema.MoveHandedOff:
		m.t.locks.changedAll() // who waits for locks there has to ask elsewhere
	case schema.MoveCleaning:
		m.t.tellMoved(run.status())
	}
}

// end files a move that has ended.
func (m *mover) end(run *moving) {
	x := run.status()
	x.Outcome = "moved"
	if canopyv1.MovePhase(x.Phase) == canopyv1.MovePhase_MOVE_CANCELLING {
		x.Outcome = "cancelled"
	}
	m.t.h.server.log.Info("a move has ended", "shard", m.t.h.shard, "subtree", run.subtree, "outcome", x.Outcome,
		"entries", x.Entries, "rounds", x.Rounds, "pause", time.Duration(x.PauseUs)*time.Microsecond)
	m.t.activity.Add(1)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.running, run.subtree)
	if m.ended = append(m.ended, x); len(m.ended) > maxEndedMoves {
		m.ended = slices.Clone(m.ended[1:])
	}
}

// list returns the moves of the term, those that ended first.
func (m *mover) list() []*canopyv1.Move {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := slices.Clone(m.ended)
	var running []*canopyv1.Move
	for _, run := range m.running {
		running = append(running, run.status())
	}
	slices.SortFunc(running, func(a, b *canopyv1.Move) int { return cmp.Compare(a.StartedNs, b.StartedNs) })
	return append(all, running...)
}

// phase returns the move's phase as of the last step; 0: unknown.
func (run *moving) phase() schema.MovePhase {
	if m := run.driver.Move(); m != nil {
		return m.Phase
	}
	return 0
}

// note takes the outcome of a step. It runs on the driver's goroutine.
func (run *moving) note(err error) {
	now := run.driver.Move()
	run.mu.Lock()
	defer run.mu.Unlock()
	run.problem = ""
	if err != nil && !errors.Is(err, migrate.ErrWaits) {
		run.problem = err.Error()
	}
	if now != nil {
		run.move.Phase, run.move.Attempt, run.move.Batches = canopyv1.MovePhase(now.Phase), now.Attempt, now.Batches
	}
}

// status returns how far the move is.
func (run *moving) status() *canopyv1.Move {
	p := run.driver.Progress()
	run.mu.Lock()
	defer run.mu.Unlock()
	x := proto.CloneOf(run.move)
	x.Problem = run.problem
	x.Entries, x.Bytes, x.Rounds, x.Changed, x.Members = p.Entries, p.Bytes, p.Rounds, p.Changed, p.Members
	x.PauseUs = uint64(p.Pause.Microseconds())
	if p.Refused != "" {
		x.Problem = p.Refused
	}
	if seconds := p.Copying.Seconds(); seconds > 0 && p.Entries > 0 {
		rate := float64(p.Entries) / seconds
		x.EntriesPerSecond = uint64(rate)
		// What changes during the last round is at most about what changed in this one;
		// freeze, last batch, hand-off and activation are an entry each.
		x.ExpectedPauseMs = uint64(float64(p.Changed)/rate*1000 + 4*p.Entry.Seconds()*1000)
	}
	return x
}

// tellMoved tells the shard's clients that a subtree has another owner.
func (t *tenure) tellMoved(x *canopyv1.Move) {
	t.mu.Lock()
	var clients []base.ClientID
	for id, c := range t.clients {
		if c.known {
			clients = append(clients, id)
		}
	}
	t.mu.Unlock()
	news := &canopyv1.SubtreeMoved{FromSubtree: x.Subtree, Subtree: x.Into, Shard: x.ToShard, Epoch: x.Epoch}
	if x.Join {
		news.Epoch = 0 // of a subtree that was there before: the map has it
	}
	t.h.server.events.moved(clients, news)
}

// takes returns the shard that takes a new subtree in, as far as a move of this term
// knows; 0: none.
func (m *mover) takes(subtree base.SubtreeID) base.ShardID {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, run := range m.running {
		if run.into == subtree {
			return run.target.to
		}
	}
	return 0
}

// moveSource is a term's shard as migrate.Source.
type moveSource struct{ t *tenure }

func (s *moveSource) Move(_ context.Context, step *canopyv1.MoveCommand) (*canopyv1.Move, error) {
	r, err := s.t.propose(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: step}})
	if err != nil {
		return nil, err
	}
	if r.Move == nil {
		return nil, fserr.New(fserr.Malformed, "move", nil)
	}
	return r.Move, nil
}

func (s *moveSource) Read(ctx context.Context, fn func(shard.Reader) error) error {
	return s.t.h.group.Read(ctx, fn)
}

func (s *moveSource) Changed(subtree base.SubtreeID, attempt, round uint64) ([]string, bool) {
	return s.t.h.machine.Changed(subtree, attempt, round)
}

func (s *moveSource) Recorded(subtree base.SubtreeID, attempt uint64) int {
	return s.t.h.machine.Recorded(subtree, attempt)
}

func (s *moveSource) Policy(r shard.Reader, subtree base.SubtreeID, dir base.Ino) ([]byte, error) {
	return s.t.h.machine.PolicyFor(r, subtree, dir)
}

func (s *moveSource) Waits(r shard.Reader, subtree base.SubtreeID) (bool, error) {
	return namespace.HasIntents(r, s.t.h.shard, subtree)
}
