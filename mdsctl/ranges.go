package mdsctl

import (
	"cmp"
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

// rangeMove is a move of a range of a directory's names.
type rangeMove struct {
	label string
	names shard.Range
	from  client.Fragment // which has them
	into  base.SubtreeID  // which they join; 0: they start one
	to    base.ShardID
}

// plan says which names move next; nil: none, it is as it should be.
type plan func(now []client.Fragment) *rangeMove

// splitPlan brings the borders of n equal fragments about, the highest first, so that
// each new fragment is cut from what one owner has. The new ones go to the shards that
// have the fewest, in turn.
func splitPlan(n int, shards []base.ShardID, of func(i int) base.ShardID) plan {
	width := shard.BorderEnd / uint32(n)
	return func(now []client.Fragment) *rangeMove {
		for i := n - 1; i > 0; i-- {
			lo := width * uint32(i)
			at := now[slices.IndexFunc(now, func(f client.Fragment) bool { return f.Contains(lo) })]
			if at.Lo == lo {
				continue
			}
			return &rangeMove{
				label: fmt.Sprintf("fragment %d of %d", i+1, n), names: shard.Range{Lo: lo, Hi: at.Hi}, from: at, to: fewest(now, shards, of(i)),
			}
		}
		return nil
	}
}

// fewest returns the shard, of those that are listed, with the fewest fragments: the
// preferred one if it is among them.
func fewest(now []client.Fragment, shards []base.ShardID, preferred base.ShardID) base.ShardID {
	count := map[base.ShardID]int{}
	for _, f := range now {
		count[f.Shard]++
	}
	return slices.MinFunc(shards, func(a, b base.ShardID) int {
		return cmp.Or(cmp.Compare(count[a], count[b]), cmp.Compare(boolInt(a != preferred), boolInt(b != preferred)))
	})
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// mergePlan joins the second fragment with the first, until one is left: so each name
// moves once.
func mergePlan(now []client.Fragment) *rangeMove {
	if len(now) == 1 {
		return nil
	}
	next, into := now[1], now[0]
	return &rangeMove{label: fmt.Sprintf("fragment 2 of %d joins the first", len(now)), names: next.Range, from: next, into: into.Subtree, to: into.Shard}
}

// ranger moves ranges of one directory's names until a plan is carried out.
type ranger struct {
	*app
	cl    *inspect.Cluster
	c     *client.Client
	dir   *client.Inode
	path  string
	again string // the command that goes on, for messages
	moves []moveRow
	label string // of the move that was begun last
}

const (
	// trouble is how long holders may be away, or fragments elsewhere than they were said
	// to be, before the command gives up.
	trouble      = time.Minute
	troublePause = 200 * time.Millisecond
)

// run carries out a plan, and returns the fragments that are there then.
func (r *ranger) run(ctx context.Context, next plan) ([]client.Fragment, error) {
	well := time.Now()
	for {
		now, err := r.step(ctx, next)
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("interrupted: a move that runs goes on (mdsctl migrate --status %s; --cancel takes it back before its hand-off), and %s goes on with the rest", r.path, r.again)
		case err == nil && now != nil:
			return now, nil
		case err == nil:
			well = time.Now()
			continue
		case !passing(err) || time.Since(well) > trouble:
			return nil, err
		}
		pauseFor(ctx, troublePause)
		_ = r.cl.Refresh(ctx) // what is old then is an error again
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
func (r *ranger) step(ctx context.Context, next plan) ([]client.Fragment, error) {
	now, err := r.fragmentsOf(ctx, r.c, r.dir)
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
	if r.cl.ShardInfo(m.from.Shard) == nil {
		return nil, fmt.Errorf("%s: subtree %v is at shard %v by now: %w", r.path, m.from.Subtree, m.from.Shard, errSoon)
	}
	move, err := r.cl.StartMove(ctx, &canopyv1.StartMoveRequest{Shard: uint64(m.from.Shard), Subtree: uint64(m.from.Subtree), Dir: uint64(r.dir.Ino()),
		ToShard: uint64(m.to), Lo: m.names.Lo, Hi: m.names.Hi, Into: uint64(m.into)})
	if err != nil {
		if errors.Is(err, fserr.Busy) && r.ends(ctx, now) {
			return nil, fmt.Errorf("%s: %w: %w", r.path, errSoon, err)
		}
		return nil, fmt.Errorf("%s of %s, the names %v: %w", m.label, r.path, m.names, err)
	}
	r.label = m.label
	return nil, r.watch(ctx, move)
}

// running returns a move of a range of the directory's names that has not ended.
func (r *ranger) running(ctx context.Context, now []client.Fragment) (*canopyv1.Move, error) {
	asked := map[base.ShardID]bool{}
	for _, f := range now {
		if asked[f.Shard] {
			continue
		}
		asked[f.Shard] = true
		all, err := r.cl.Moves(ctx, f.Shard)
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			if m.GetRoot() == uint64(r.dir.Ino()) && m.GetHi() > 0 && m.GetOutcome() == "" {
				return m, nil
			}
		}
	}
	return nil, nil
}

// ends tells whether what keeps a move from beginning is none that somebody else
// began: a holder that is new lists moves a moment later.
func (r *ranger) ends(ctx context.Context, now []client.Fragment) bool {
	for _, f := range now {
		all, err := r.cl.Moves(ctx, f.Shard)
		if err != nil {
			return true
		}
		for _, m := range all {
			if m.GetOutcome() == "" && m.GetSubtree() == uint64(f.Subtree) {
				return m.GetRoot() == uint64(r.dir.Ino()) && m.GetHi() > 0
			}
		}
	}
	return true
}

// watch shows the progress of a move until it has ended.
func (r *ranger) watch(ctx context.Context, move *canopyv1.Move) error {
	names := shard.Range{Lo: move.GetLo(), Hi: move.GetHi()}
	prefix := fmt.Sprintf("%s, names %v to shard %d", r.label, names, move.GetToShard())
	if r.label == "" {
		prefix = fmt.Sprintf("names %v to shard %d, begun before", names, move.GetToShard())
	}
	defer func() { r.label = "" }()
	shown, wait := "", 10*time.Millisecond
	for since := time.Now(); ctx.Err() == nil; pauseFor(ctx, wait) {
		wait = min(2*wait, movePoll)
		all, err := r.cl.Moves(ctx, base.ShardID(move.GetFromShard()))
		now := findMove(all, move)
		switch {
		case err != nil || now == nil:
			// Another holder took over, perhaps after the end: the directory tells.
			if time.Since(since) > troublePause {
				_ = r.cl.Refresh(ctx)
				return nil
			}
			continue
		case now.GetOutcome() == "cancelled":
			return fmt.Errorf("%w: the move of the names %v was cancelled; what was done before stays, %s goes on", errStopped, names, r.again)
		}
		since = time.Now()
		row := newMoveRow(now)
		if text := row.text(); text != shown && r.output == "table" {
			fmt.Fprintf(r.env.Stdout, "%s: %s\n", prefix, text)
			shown = text
		}
		if now.GetOutcome() != "" {
			r.moves = append(r.moves, row)
			return r.cl.Refresh(ctx)
		}
	}
	return ctx.Err()
}
