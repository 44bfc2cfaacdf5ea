package reshape

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// Ranger moves ranges of one directory's names until a plan is carried out. It keeps
// nothing that counts: another one goes on with the same plan.
type Ranger struct {
	Cluster *inspect.Cluster
	Client  *client.Client
	Dir     *client.Inode
	Path    string
	Again   string                              // what goes on with the rest, for messages
	Ask     time.Duration                       // bounds one look at the fragments
	Show    func(what string, m *canopyv1.Move) // is called with a move's progress; nil: nobody looks

	moves []*canopyv1.Move
	label string // of the move that was begun last
}

// Moves returns the moves that were made, as they ended.
func (r *Ranger) Moves() []*canopyv1.Move { return r.moves }

// Fragments asks for the directory's fragments.
func (r *Ranger) Fragments(ctx context.Context) ([]client.Fragment, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Ask)
	defer cancel()
	return r.Client.Fragments(ctx, r.Dir)
}

// Poll is how often progress is asked for.
const Poll = 500 * time.Millisecond

const (
	// trouble is how long holders may be away, or fragments elsewhere than they were said
	// to be, before the command gives up.
	trouble      = time.Minute
	troublePause = 200 * time.Millisecond
)

// Run carries out a plan, and returns the fragments that are there then.
func (r *Ranger) Run(ctx context.Context, next Plan) ([]client.Fragment, error) {
	well := time.Now()
	for {
		now, err := r.step(ctx, next)
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("interrupted: a move that runs goes on (mdsctl migrate --status %s; --cancel takes it back before its hand-off), and %s goes on with the rest", r.Path, r.Again)
		case err == nil && now != nil:
			return now, nil
		case err == nil:
			well = time.Now()
			continue
		case !passing(err) || time.Since(well) > trouble:
			return nil, err
		}
		pause(ctx, troublePause)
		_ = r.Cluster.Refresh(ctx) // what is old then is an error again
	}
}

// errStopped is the end of a command by somebody's decision; errSoon is what will be
// known in a moment.
var errStopped, errSoon = errors.New("stopped"), errors.New("not known yet")

// passing tells whether an error is worth another try: nobody holds a shard for the
// moment, or what was asked for is elsewhere since.
func passing(err error) bool {
	if errors.Is(err, errSoon) {
		return true
	}
	switch fserr.KindOf(err) {
	case fserr.NotHolder, fserr.UnknownShard, fserr.NotReady, fserr.NotConnected, fserr.TimedOut, fserr.Moved, fserr.Frozen, fserr.Locked, fserr.OldEpoch:
		return !errors.Is(err, errStopped)
	}
	return false
}

// step makes one move, or ends one that runs; with nothing left to do it returns the
// fragments.
func (r *Ranger) step(ctx context.Context, next Plan) ([]client.Fragment, error) {
	now, err := r.Fragments(ctx)
	if err != nil {
		return nil, err
	}
	if running, err := r.running(ctx, now); err != nil || running != nil {
		if err == nil {
			err = r.watch(ctx, running)
		}
		return nil, err
	}
	m := next(now)
	if m == nil {
		return now, nil
	}
	if r.Cluster.ShardInfo(m.from.Shard) == nil {
		return nil, fmt.Errorf("%s: subtree %v is at shard %v by now: %w", r.Path, m.from.Subtree, m.from.Shard, errSoon)
	}
	move, err := r.Cluster.StartMove(ctx, &canopyv1.StartMoveRequest{Shard: uint64(m.from.Shard), Subtree: uint64(m.from.Subtree), Dir: uint64(r.Dir.Ino()),
		ToShard: uint64(m.to), Lo: m.names.Lo, Hi: m.names.Hi, Into: uint64(m.into)})
	if err != nil {
		if errors.Is(err, fserr.Busy) && r.ends(ctx, now) {
			return nil, fmt.Errorf("%s: %w: %w", r.Path, errSoon, err)
		}
		return nil, fmt.Errorf("%s of %s, the names %v: %w", m.label, r.Path, m.names, err)
	}
	r.label = m.label
	return nil, r.watch(ctx, move)
}

// running returns a move of a range of the directory's names that has not ended.
func (r *Ranger) running(ctx context.Context, now []client.Fragment) (*canopyv1.Move, error) {
	asked := map[base.ShardID]bool{}
	for _, f := range now {
		if asked[f.Shard] {
			continue
		}
		asked[f.Shard] = true
		all, err := r.Cluster.Moves(ctx, f.Shard)
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			if m.GetRoot() == uint64(r.Dir.Ino()) && m.GetHi() > 0 && m.GetOutcome() == "" {
				return m, nil
			}
		}
	}
	return nil, nil
}

// ends tells whether what keeps a move from beginning is none that somebody else
// began: a holder that is new lists moves a moment later.
func (r *Ranger) ends(ctx context.Context, now []client.Fragment) bool {
	for _, f := range now {
		all, err := r.Cluster.Moves(ctx, f.Shard)
		if err != nil {
			return true
		}
		for _, m := range all {
			if m.GetOutcome() == "" && m.GetSubtree() == uint64(f.Subtree) {
				return m.GetRoot() == uint64(r.Dir.Ino()) && m.GetHi() > 0
			}
		}
	}
	return true
}

// watch shows the progress of a move until it has ended.
func (r *Ranger) watch(ctx context.Context, move *canopyv1.Move) error {
	names := shard.Range{Lo: move.GetLo(), Hi: move.GetHi()}
	what := fmt.Sprintf("%s, names %v to shard %d", r.label, names, move.GetToShard())
	if r.label == "" {
		what = fmt.Sprintf("names %v to shard %d, begun before", names, move.GetToShard())
	}
	defer func() { r.label = "" }()
	wait := 10 * time.Millisecond
	for since := time.Now(); ctx.Err() == nil; pause(ctx, wait) {
		wait = min(2*wait, Poll)
		all, err := r.Cluster.Moves(ctx, base.ShardID(move.GetFromShard()))
		now := Find(all, move)
		switch {
		case err != nil || now == nil:
			// Another holder took over, perhaps after the end: the directory tells.
			if time.Since(since) > troublePause {
				_ = r.Cluster.Refresh(ctx)
				return nil
			}
			continue
		case now.GetOutcome() == "cancelled":
			return fmt.Errorf("%w: the move of the names %v was cancelled; what was done before stays, %s goes on", errStopped, names, r.Again)
		}
		since = time.Now()
		if r.Show != nil {
			r.Show(what, now)
		}
		if now.GetOutcome() != "" {
			r.moves = append(r.moves, now)
			return r.Cluster.Refresh(ctx)
		}
	}
	return ctx.Err()
}

// Find finds a move again; the newest, if a subtree moved several times.
func Find(all []*canopyv1.Move, move *canopyv1.Move) *canopyv1.Move {
	for _, m := range slices.Backward(all) {
		if m.GetSubtree() == move.GetSubtree() && m.GetInto() == move.GetInto() && m.GetEpoch() == move.GetEpoch() && m.GetStartedNs() == move.GetStartedNs() {
			return m
		}
	}
	return nil
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
