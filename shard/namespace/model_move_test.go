package namespace

import (
	"context"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/migrate"
	"github.com/canopyfs/canopy/shard/schema"
)

// rigSource and rigTarget are rigs as the ends of a move.
type rigSource struct{ *rig }

func (s rigSource) Move(_ context.Context, c *canopyv1.MoveCommand) (*canopyv1.Move, error) {
	r := s.own(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: c}})
	if r.Error != 0 {
		return nil, &fserr.Error{Kind: fserr.Kind(r.Error), Path: r.Detail}
	}
	return r.Move, nil
}

func (s rigSource) Read(_ context.Context, fn func(shard.Reader) error) error { return fn(s.kv) }

func (s rigSource) Changed(subtree base.SubtreeID, attempt, round uint64) ([]string, bool) {
	return s.m.Changed(subtree, attempt, round)
}

func (s rigSource) Recorded(subtree base.SubtreeID, attempt uint64) int {
	return s.m.Recorded(subtree, attempt)
}

func (s rigSource) Policy(r shard.Reader, subtree base.SubtreeID, dir base.Ino) ([]byte, error) {
	return s.m.PolicyFor(r, subtree, dir)
}

func (s rigSource) Waits(shard.Reader, base.SubtreeID) (bool, error) { return false, nil }

type rigTarget struct{ *rig }

func (t rigTarget) Import(_ context.Context, c *canopyv1.ImportCommand) (*canopyv1.ImportResponse, error) {
	r := t.own(&canopyv1.Command{Own: &canopyv1.Command_Import{Import: c}})
	return &canopyv1.ImportResponse{Error: r.Error, Detail: r.Detail, Batch: r.Move.GetBatches(), Counts: r.MoveCounts}, nil
}

// migrate moves the subtree to the other shard, with rounds of the history and
// crashes between the steps.
func (m *model) migrate() {
	if m.moving {
		return
	}
	m.moving = true
	defer func() { m.moving = false }()
	if m.other == nil {
		m.other = newRigOf(2, m.rig.t, m.hash)
		m.other.own(&canopyv1.Command{Own: &canopyv1.Command_Bootstrap{Bootstrap: &canopyv1.BootstrapCommand{Cluster: "test", Shard: 2}}})
	}
	from, to := m.rig, m.other
	to.countNow = from.countNow
	to.load()
	if r := from.own(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: &canopyv1.MoveCommand{
		Step: canopyv1.MoveStep_MOVE_BEGIN, Subtree: 1, Dir: 1, ToShard: uint64(to.shard)}}}); r.Error != 0 {
		m.rt.Fatalf("it does not move: %s", formatResult(r))
	}
	m.drive(1, from, to)
	to.now, to.seq, to.places, to.marks, to.counts, from.counts = from.now, from.seq, from.places, from.marks, from.counts, nil
	m.rig, m.other = to, from
}

// drive moves what began to move out of a subtree, with rounds of the history and
// crashes between the steps.
func (m *model) drive(subtree base.SubtreeID, from, to *rig) *schema.Move {
	limits := migrate.Limits{BatchBytes: 1 << (8 + m.pick("batch", 8)), WalkNames: 3, CalmKeys: uint64(m.pick("calm", 20)), RotateKeys: 1 + m.pick("rotate", 30), Border: 1 << 10}
	clock := time.Duration(0)
	fresh := func() *migrate.Driver {
		d := migrate.New(from.shard, subtree, rigSource{from}, rigTarget{to}, func() time.Duration { return clock })
		d.Limits = limits
		if m.hash != nil {
			d.Hash = m.hash
		}
		return d
	}
	d := fresh()
	meanwhile := m.pick("meanwhile", 12) // rounds of the history
	crashes := m.pick("crashes", 4)      // each makes the copy begin again
	for done := false; !done; {
		if crashes > 0 && m.pick("crash", 10) == 0 {
			crashes--
			switch m.pick("of", 4) {
			case 0:
				d = fresh()
			case 1:
				from.load()
			case 2:
				to.load()
			case 3:
				clock += migrate.FreezeLimit + 1
			}
		}
		var err error
		if done, err = d.Step(context.Background()); err != nil && fserr.KindOf(err) != fserr.OldEpoch {
			m.rt.Fatalf("a step of the move: %v", err)
		}
		if at := d.Move(); at != nil && at.Phase <= schema.MoveCopying && meanwhile > 0 && subtree == 1 {
			meanwhile--
			m.round()
		}
	}
	return d.Move()
}

// splitAndMerge splits a directory, with rounds of the history meanwhile, and merges it
// again: nothing of that can be seen.
func (m *model) splitAndMerge() {
	dir := m.dir("split")
	if m.moving || dir.purged || m.quotas { // no quota where names move
		return
	}
	m.moving = true
	defer func() { m.moving = false }()
	// move moves names of the directory, and reports whether they have moved.
	move := func(c *canopyv1.MoveCommand) bool {
		c.Step, c.Dir, c.ToShard = canopyv1.MoveStep_MOVE_BEGIN, dir.ino, uint64(m.shard)
		r := m.own(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: c}})
		switch kind := fserr.Kind(r.Error); {
		case kind == fserr.NotSupported, kind == fserr.NotFound, kind == fserr.Stale: // a quota is near, or it was removed
			return false
		case kind != fserr.OK:
			m.rt.Fatalf("names do not move: %s", formatResult(r))
		}
		at := m.drive(base.SubtreeID(c.Subtree), m.rig, m.rig)
		c.Into = uint64(at.Into)
		return at.Phase != schema.MoveCancelling
	}
	lo := 1 + uint32(m.pick("lo", int(shard.BorderEnd)-1))
	split := &canopyv1.MoveCommand{Subtree: 1, Lo: lo, Hi: shard.BorderEnd}
	if !move(split) {
		return
	}
	middle := lo + (shard.BorderEnd-lo)/2
	for _, r := range []shard.Range{{Lo: middle, Hi: shard.BorderEnd}, {Lo: lo, Hi: middle}} {
		if r.Lo < r.Hi && !move(&canopyv1.MoveCommand{Subtree: split.Into, Lo: r.Lo, Hi: r.Hi, Into: 1}) {
			m.rt.Fatalf("the names %v do not come back", r)
		}
	}
}
