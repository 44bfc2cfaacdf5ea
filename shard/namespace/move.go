package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// refuse returns what a command is refused with, in words for people.
func refuse(kind fserr.Kind, why string) (*canopyv1.Result, error) {
	return &canopyv1.Result{Detail: why}, kind
}

// moveStep applies a step of a move at its source (PROTOCOLS E2). A step that was done
// already is answered as if it were done now, and one of another attempt is
// refused: whoever drives can repeat each.
func (b *batch) moveStep(c *canopyv1.MoveCommand) (*canopyv1.Result, error) {
	s := b.m.subtrees[base.SubtreeID(c.GetSubtree())]
	if s == nil {
		return nil, fserr.Moved
	}
	b.enter(s)
	if c.Step == canopyv1.MoveStep_MOVE_BEGIN {
		return b.moveBegin(c)
	}
	m := s.move
	switch {
	case m == nil:
		return refuse(fserr.NotFound, "no move of the subtree runs")
	case c.Attempt != m.Attempt: // E3: of another attempt, however late it comes
		return refuse(fserr.OldEpoch, "a step of another attempt")
	}
	step := map[canopyv1.MoveStep]func(*canopyv1.MoveCommand) (*canopyv1.Result, error){
		canopyv1.MoveStep_MOVE_MEMBERS:   b.moveMembers,
		canopyv1.MoveStep_MOVE_COPY:      b.moveCopy,
		canopyv1.MoveStep_MOVE_ROTATE:    b.moveRotate,
		canopyv1.MoveStep_MOVE_FREEZE:    b.moveFreeze,
		canopyv1.MoveStep_MOVE_THAW:      b.moveThaw,
		canopyv1.MoveStep_MOVE_HAND_OFF:  b.moveHandOff,
		canopyv1.MoveStep_MOVE_ACTIVATED: b.moveActivated,
		canopyv1.MoveStep_MOVE_CLEAN:     b.moveClean,
		canopyv1.MoveStep_MOVE_CANCEL:    b.moveCancel,
		canopyv1.MoveStep_MOVE_DROP:      b.moveDrop,
		canopyv1.MoveStep_MOVE_END:       b.moveEnd,
	}[c.Step]
	if step == nil {
		return nil, fserr.Malformed
	}
	return step(c)
}

// carves reports whether the subtree's move gives a part of it, with all that lies
// below, an id of its own.
func (s *subtree) carves() bool { return s.move != nil && !s.move.OfNames() && s.move.Into != s.id }

// nextID allocates from the counter of subtrees (PROTOCOLS A7), which numbers the
// attempts of moves, too: what is late has a lower number.
func (b *batch) nextID() uint64 {
	n := uint64(b.m.state.NextSubtree)
	b.m.state.NextSubtree++
	return n
}

// saveMove writes the move and, since its state may have changed, the subtree.
func (b *batch) saveMove() (*canopyv1.Result, error) {
	if err := b.set(schema.MoveKey(b.id, b.sub.id), b.sub.move); err != nil {
		return nil, err
	}
	if err := b.saveSubtree(); err != nil {
		return nil, err
	}
	return b.moveResult(), nil
}

func (b *batch) saveSubtree() error {
	b.enter(b.sub) // the view's copy of its state
	b.restated = true
	return b.set(schema.SubtreeKey(b.id, b.sub.id), &b.sub.Subtree)
}

func (b *batch) moveResult() *canopyv1.Result {
	r := moveProto(b.id, b.sub.id, b.sub.move)
	r.Members = uint64(len(b.sub.members))
	return &canopyv1.Result{Move: r}
}

func moveProto(id base.ShardID, subtree base.SubtreeID, m *schema.Move) *canopyv1.Move {
	return &canopyv1.Move{Subtree: uint64(subtree), Into: uint64(m.Into), Epoch: uint64(m.Epoch), Root: uint64(m.Root),
		FromShard: uint64(id), ToShard: uint64(m.To), Attempt: m.Attempt, Phase: canopyv1.MovePhase(m.Phase),
		Batches: m.Batches, StartedNs: m.StartNS, Lo: m.Names.Lo, Hi: m.Names.Hi, Join: m.Join}
}

// moveBegin begins to move the subtree, what lies below one of its directories, or
// a range of a directory's names.
func (b *batch) moveBegin(c *canopyv1.MoveCommand) (*canopyv1.Result, error) {
	s := b.sub
	switch {
	case base.ShardID(c.ToShard) == b.id && c.Hi == 0:
		return refuse(fserr.Invalid, "it is at that shard")
	case c.ToShard == 0:
		return nil, fserr.Malformed
	case s.move != nil && isMove(s.move, c) && s.move.Phase != schema.MoveCancelling:
		return b.moveResult(), nil // a repeat
	case s.move != nil:
		return refuse(fserr.Busy, "a move of its subtree runs: mdsctl migrate --status shows it")
	case s.Joins > 0: // they come into what would go
		return refuse(fserr.Busy, "names are coming into a directory of its subtree: try again when they are there")
	case s.State != schema.Active:
		return nil, fserr.Moved
	case c.Hi > 0:
		return b.namesBegin(c)
	}
	// A whole subtree goes also when of its root's names none are left in it.
	root := b.directory
	if base.Ino(c.Dir) == s.Root {
		root = func(dir base.Ino) (*directory, error) { return b.headerIn(b.subtree, dir) }
	}
	d, err := root(base.Ino(c.Dir))
	if err != nil {
		return nil, err
	}
	if d.Removed {
		return nil, fserr.NotFound
	}
	m := &schema.Move{Phase: schema.MoveWalking, Into: s.id, Epoch: s.Epoch + 1, Root: d.Ino, To: base.ShardID(c.ToShard), StartNS: b.nowNS}
	if d.Ino != s.Root {
		if d.Fragments.Split() {
			return refuse(fserr.NotSupported, "it is split: merge it first (mdsctl merge), or move the subtrees of its fragments")
		}
		if why, err := b.quotaNear(d); err != nil {
			return nil, err
		} else if why != "" {
			return refuse(fserr.NotSupported, why)
		}
		m.Into, m.Epoch = base.SubtreeID(base.NewIno(b.id, b.nextID())), 1
		s.Carve = schema.Carve{Into: m.Into}
	}
	m.Attempt = b.nextID()
	s.move, s.members = m, nil
	if s.carves() {
		s.members = map[base.Ino]struct{}{}
		if err := b.addMember(d.Ino); err != nil {
			return nil, err
		}
	}
	return b.saveMove()
}

// quotaNear says which quota keeps d from being carved: what it counts would lie in
// two subtrees.
func (b *batch) quotaNear(d *directory) (string, error) {
	above, err := b.quotasAbove(d.Ino)
	if err != nil {
		return "", err
	}
	for _, q := range above {
		if !q.gone {
			return "a quota lies on it or above it: take it away first (mdsctl quota ls)", nil
		}
	}
	for dir := range b.sub.quotas {
		at, err := b.directory(dir)
		if err != nil {
			return "", err
		}
		below, err := b.isBelow(at, d.Ino)
		if err != nil && !isElsewhere(err) {
			return "", err
		}
		if below {
			return "a quota lies below it: take it away first (mdsctl quota ls)", nil
		}
	}
	return "", nil
}

// addMember makes a directory one of those that go along (PROTOCOLS E6).
func (b *batch) addMember(dir base.Ino) error {
	m := b.sub.move
	b.sub.members[dir] = struct{}{}
	return b.set(schema.ForwardKey(b.id, b.subtree, dir), &schema.Forward{Into: m.Into, Shard: m.To, Epoch: m.Epoch})
}

// memberMade is called when a directory was made in parent: below a member it is
// one from the beginning.
func (b *batch) memberMade(parent, dir base.Ino) error {
	if _, member := b.sub.members[parent]; !member {
		return nil
	}
	return b.addMember(dir)
}

// memberRemoved is called when a directory loses its name for good. What is left of
// it stays; without its root a carve is cancelled, and so is a move of its names.
func (b *batch) memberRemoved(dir base.Ino) error {
	s := b.sub
	if m := s.move; m != nil && m.OfNames() && m.Root == dir && m.Phase <= schema.MoveFrozen {
		_, err := b.moveCancel(nil)
		return err
	}
	if _, member := s.members[dir]; !member {
		return nil
	}
	if s.move.Root == dir {
		_, err := b.moveCancel(nil)
		return err
	}
	delete(s.members, dir)
	if c := b.m.recordings.get(s.id); c != nil {
		c.add(schema.HeaderKey(b.id, s.id, dir))
	}
	return b.w.Delete(schema.ForwardKey(b.id, b.subtree, dir))
}

// moveMembers takes in directories that the walk found. Those that are gone are
// left out.
func (b *batch) moveMembers(c *canopyv1.MoveCommand) (*canopyv1.Result, error) {
	if b.sub.move.Phase != schema.MoveWalking || !b.sub.carves() {
		return refuse(fserr.OldEpoch, "the walk is over")
	}
	for _, ino := range c.Members {
		if _, member := b.sub.members[base.Ino(ino)]; member {
			continue
		}
		d, err := b.directory(base.Ino(ino))
		if err == fserr.Stale || isElsewhere(err) || err == nil && (d.Removed || d.Fragments.Split()) {
			continue // a split directory stays where its fragments are, with all that is below
		}
		if err != nil {
			return nil, err
		}
		if err := b.addMember(d.Ino); err != nil {
			return nil, err
		}
	}
	return b.moveResult(), nil
}

// moveCopy begins an attempt to copy: what changes is recorded from here on. It
// ends a freeze, if there is one.
func (b *batch) moveCopy(*canopyv1.MoveCommand) (*canopyv1.Result, error) {
	s := b.sub
	if s.move.Phase > schema.MoveFrozen {
		return refuse(fserr.OldEpoch, "it was handed off or cancelled")
	}
	s.move.Phase, s.move.Attempt = schema.MoveCopying, b.nextID()
	s.State = schema.Active
	c := &recording{attempt: s.move.Attempt, subtree: s.id, members: s.members, most: b.m.cfg.MaxRecorded, now: map[string]struct{}{}}
	if s.move.OfNames() {
		c.names = s.move
	}
	b.m.recordings.set(s.id, c)
	b.record()
	return b.saveMove()
}

// moveRotate ends a round of catching up; batches is its number.
func (b *batch) moveRotate(c *canopyv1.MoveCommand) (*canopyv1.Result, error) {
	if p := b.sub.move.Phase; p != schema.MoveCopying && p != schema.MoveFrozen {
		return refuse(fserr.OldEpoch, "nothing is copied")
	}
	if r := b.m.recordings.get(b.sub.id); r != nil {
		r.rotate(c.Batches)
	}
	return b.moveResult(), nil
}

// moveFreeze makes operations wait (PROTOCOLS E4).
func (b *batch) moveFreeze(*canopyv1.MoveCommand) (*canopyv1.Result, error) {
	switch b.sub.move.Phase {
	case schema.MoveFrozen:
		return b.moveResult(), nil
	case schema.MoveCopying:
		b.sub.move.Phase, b.sub.State = schema.MoveFrozen, schema.Frozen
		return b.saveMove()
	}
	return refuse(fserr.OldEpoch, "nothing is copied")
}

// moveThaw ends a freeze that took too long. The copy goes on.
func (b *batch) moveThaw(*canopyv1.MoveCommand) (*canopyv1.Result, error) {
	switch b.sub.move.Phase {
	case schema.MoveCopying:
		return b.moveResult(), nil
	case schema.MoveFrozen:
		b.sub.move.Phase, b.sub.State = schema.MoveCopying, schema.Active
		return b.saveMove()
	}
	return refuse(fserr.OldEpoch, "it was handed off or cancelled")
}

// moveCancel ends a move before the hand-off. What a carve has marked is unmarked
// in parts, by moveDrop; the copy at the target is the driver's to throw away.
func (b *batch) moveCancel(*canopyv1.MoveCommand) (*canopyv1.Result, error) {
	s := b.sub
	switch {
	case s.move.Phase == schema.MoveCancelling:
		return b.moveResult(), nil
	case s.move.Phase > schema.MoveFrozen:
		return refuse(fserr.Busy, "it was handed off: it can only be completed")
	}
	s.move.Phase, s.State, s.members = schema.MoveCancelling, schema.Active, nil
	b.m.recordings.set(s.id, nil)
	b.record()
	return b.saveMove()
}

// moveDrop takes the marks of a cancelled carve from directories.
func (b *batch) moveDrop(c *canopyv1.MoveCommand) (*canopyv1.Result, error) {
	if b.sub.move.Phase != schema.MoveCancelling {
		return refuse(fserr.OldEpoch, "it was not cancelled")
	}
	for _, ino := range c.Members {
		f, err := b.forwardOf(base.Ino(ino))
		if err != nil {
			return nil, err
		}
		if f == nil || f.Into != b.sub.move.Into {
			continue
		}
		if err := b.w.Delete(schema.ForwardKey(b.id, b.subtree, base.Ino(ino))); err != nil {
			return nil, err
		}
	}
	return b.moveResult(), nil
}

// forwardOf reads a directory's forward, nil if it has none.
func (v *view) forwardOf(dir base.Ino) (*schema.Forward, error) {
	value, found, err := v.r.Get(schema.ForwardKey(v.id, v.subtree, dir))
	if err != nil || !found {
		return nil, err
	}
	return schema.DecodeForward(value)
}

// moveEnd forgets a move that is cleaned or cancelled.
func (b *batch) moveEnd(*canopyv1.MoveCommand) (*canopyv1.Result, error) {
	s := b.sub
	if s.move.Phase != schema.MoveCleaning && s.move.Phase != schema.MoveCancelling {
		return refuse(fserr.OldEpoch, "it runs")
	}
	if s.move.OfNames() && s.move.Phase == schema.MoveCleaning && s.move.Cleaned == 0 {
		return refuse(fserr.OldEpoch, "it is not cleaned")
	}
	result := b.moveResult()
	if s.carves() {
		s.Carve = schema.Carve{}
	}
	s.move, s.members = nil, nil
	if err := b.w.Delete(schema.MoveKey(b.id, s.id)); err != nil {
		return nil, err
	}
	return result, b.saveSubtree()
}

// Moves lists the moves of the shard's subtrees to other shards.
func Moves(r shard.Reader, id base.ShardID, fn func(*canopyv1.Move)) error {
	var subtrees []base.SubtreeID
	if err := eachSubtree(r, id, func(subtree base.SubtreeID, _ schema.Subtree) { subtrees = append(subtrees, subtree) }); err != nil {
		return err
	}
	for _, subtree := range subtrees {
		value, found, err := r.Get(schema.MoveKey(id, subtree))
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		m, err := schema.DecodeMove(value)
		if err != nil {
			return err
		}
		fn(moveProto(id, subtree, m))
	}
	return nil
}
