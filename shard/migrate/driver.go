package migrate

import (
	"context"
	"errors"
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// Source is the shard that gives a subtree away, at its holder.
type Source interface {
	// Move has the log apply a step, and returns the move after it. When it fails the
	// outcome may be unknown.
	Move(ctx context.Context, step *canopyv1.MoveCommand) (*canopyv1.Move, error)
	// Read calls fn, maybe more than once, with the state of now.
	Read(ctx context.Context, fn func(shard.Reader) error) error
	// Changed returns the keys that changed in a round of an attempt; false: they are
	// not known.
	Changed(subtree base.SubtreeID, attempt, round uint64) (keys []string, ok bool)
	// Recorded returns how many keys have changed in the round that runs.
	Recorded(subtree base.SubtreeID, attempt uint64) int
	// Policy returns the encoded layout policy that holds in a directory, nil if
	// there is none.
	Policy(r shard.Reader, subtree base.SubtreeID, dir base.Ino) ([]byte, error)
	// Waits reports whether something holds the subtree that has to end before the
	// hand-off (PROTOCOLS E4).
	Waits(r shard.Reader, subtree base.SubtreeID) (bool, error)
}

// Target is the shard that takes it in.
type Target interface {
	Import(ctx context.Context, step *canopyv1.ImportCommand) (*canopyv1.ImportResponse, error)
}

// ErrWaits says that the subtree is frozen and something in it has to end first: try
// again in a millisecond.
var ErrWaits = errors.New("migrate: waits for what holds the subtree")

const (
	membersAtOnce = 1024
	cleanAtOnce   = 64
	maxRounds     = 24
	// FreezeLimit is how long operations wait at most; then the copy goes on.
	FreezeLimit = 2 * time.Second
	// JoinLimit is how long names wait for a fragment whose subtree moves by itself.
	JoinLimit = 10 * time.Second
)

// Limits bound what one step does. Others than the defaults are for tests.
type Limits struct {
	BatchBytes int
	WalkNames  int // names of directories that one step of the walk looks at, about
	// CalmKeys is a round so small that another one would be no smaller: what changed
	// meanwhile is fewer keys still, and they are what operations wait for.
	CalmKeys uint64
	// RotateKeys is how many keys may have changed before they are sent, though the copy is
	// not complete: what is recorded is memory. A move whose writers are faster than that
	// for long begins again, as MaxRecorded of the source says.
	RotateKeys int
	// Border is how many names and directories the hand-off of a carve rewrites at most:
	// they are one entry.
	Border int
}

var defaults = Limits{BatchBytes: 512 << 10, WalkNames: 4096, CalmKeys: 512, RotateKeys: 1 << 16, Border: 1 << 14}

// Progress is how far a Driver is.
type Progress struct {
	Entries, Bytes, Changed uint64
	Members                 uint64 // directories of a carve
	Rounds                  uint32
	// Copying is the time that sending took, Pause how long operations waited.
	Copying, Pause time.Duration
	Entry          time.Duration // that an entry of the source takes, about
	Refused        string        // why the target does not take it: the move is cancelled
}

// Driver drives one move. Step is for one goroutine; Progress for any.
type Driver struct {
	id      base.ShardID
	subtree base.SubtreeID
	src     Source
	dst     Target
	now     func() time.Duration
	Limits  Limits
	Hash    func(name []byte) shard.Hash // another one than the format's is for tests

	move    *schema.Move  // as of the last step; nil: to be read
	walk    []base.Ino    // members whose names are to be looked at
	walked  []byte        // the last key of the first of them that was looked at
	listed  base.Ino      // the last member that was there before this driver's walk and is in it
	walking bool          // all of those are
	copy    *copying      // the attempt that this driver makes; nil: none
	dropped bool          // the target has thrown a cancelled import away
	waits   time.Duration // since when the target has not begun; 0: it has not refused

	mu       sync.Mutex
	progress Progress
}

// New returns a Driver of the move of a subtree. now is a clock that does not go
// back.
func New(id base.ShardID, subtree base.SubtreeID, src Source, dst Target, now func() time.Duration) *Driver {
	return &Driver{id: id, subtree: subtree, src: src, dst: dst, now: now, Limits: defaults, Hash: shard.NameHash}
}

// Progress returns how far the driver is.
func (d *Driver) Progress() Progress {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.progress
}

func (d *Driver) note(change func(*Progress)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.progress)
}

// Move returns the move as of the last step, nil if it is not known.
func (d *Driver) Move() *schema.Move { return d.move }

// Step does the next step: at most a few entries of one log. done: the move has
// ended. After an error the same is tried again, or what is left to do.
func (d *Driver) Step(ctx context.Context) (done bool, err error) {
	if d.move == nil {
		if err := d.load(ctx); err != nil || d.move == nil {
			return err == nil, err
		}
	}
	switch d.move.Phase {
	case schema.MoveWalking:
		err = d.stepWalk(ctx)
	case schema.MoveCopying:
		err = d.stepCopy(ctx)
	case schema.MoveFrozen:
		err = d.stepFrozen(ctx)
	case schema.MoveHandedOff:
		err = d.stepActivate(ctx)
	case schema.MoveCleaning:
		return d.stepClean(ctx)
	case schema.MoveCancelling:
		return d.stepCancel(ctx)
	}
	return false, err
}

// load reads the move from the source's state.
func (d *Driver) load(ctx context.Context) error {
	return d.src.Read(ctx, func(r shard.Reader) error {
		value, found, err := r.Get(schema.MoveKey(d.id, d.subtree))
		if d.move = nil; err != nil || !found {
			return err
		}
		d.move, err = schema.DecodeMove(value)
		return err
	})
}

// do has the source apply a step of the present attempt.
func (d *Driver) do(ctx context.Context, c *canopyv1.MoveCommand) error {
	c.Subtree, c.Attempt = uint64(d.subtree), d.move.Attempt
	began := d.now()
	now, err := d.src.Move(ctx, c)
	if err != nil {
		d.move = nil // whatever became of it is in the log
		return err
	}
	d.note(func(p *Progress) {
		p.Entry += (d.now() - began - p.Entry) / 4
		p.Members = max(p.Members, now.Members)
	})
	d.move.Phase, d.move.Attempt = schema.MovePhase(now.Phase), now.Attempt
	d.move.Batches = now.Batches
	return nil
}

// send has the target take a step of the present attempt.
func (d *Driver) send(ctx context.Context, c *canopyv1.ImportCommand) (*canopyv1.ImportResponse, error) {
	c.Subtree, c.Epoch, c.Attempt = uint64(d.move.Into), uint64(d.move.Epoch), d.move.Attempt
	c.FromShard, c.Root, c.Carve = uint64(d.id), uint64(d.move.Root), d.carves()
	c.FromSubtree, c.Lo, c.Hi, c.Join = uint64(d.subtree), d.move.Names.Lo, d.move.Names.Hi, d.move.Join
	response, err := d.dst.Import(ctx, c)
	if err != nil {
		return nil, err
	}
	if response.Error != 0 {
		return nil, &fserr.Error{Kind: fserr.Kind(response.Error), Op: "import", Path: response.Detail}
	}
	return response, nil
}

func (d *Driver) carves() bool { return !d.move.OfNames() && d.move.Into != d.subtree }

// stepWalk looks for the directories of a carve, breadth first (PROTOCOLS E6). The
// names of a directory are read after it was made a member: a directory that is
// made in it from then on is one at once, so none that is below stays out.
func (d *Driver) stepWalk(ctx context.Context) error {
	if !d.carves() {
		return d.attempt(ctx)
	}
	if !d.walking {
		return d.listWalk(ctx)
	}
	if len(d.walk) == 0 {
		return d.attempt(ctx)
	}
	var found []uint64
	var walked []byte
	looked := 0
	if err := d.src.Read(ctx, func(r shard.Reader) (err error) {
		found, looked, walked, err = d.subdirectories(r, d.walk, d.walked)
		return err
	}); err != nil {
		return err
	}
	for at := 0; at < len(found); at += membersAtOnce {
		part := found[at:min(at+membersAtOnce, len(found))]
		if err := d.do(ctx, &canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_MEMBERS, Members: part}); err != nil {
			d.walk, d.walked, d.listed, d.walking = nil, nil, 0, false
			return err
		}
	}
	d.walk, d.walked = d.walk[looked:], walked
	for _, ino := range found {
		d.walk = append(d.walk, base.Ino(ino))
	}
	return nil
}

// listWalk begins the walk at the next of the members that are there already: at first
// the root, after another driver's walk all that it found.
func (d *Driver) listWalk(ctx context.Context) error {
	var more []base.Ino
	if err := d.src.Read(ctx, func(r shard.Reader) (err error) {
		more, err = d.members(r, d.listed+1, d.Limits.WalkNames)
		return err
	}); err != nil {
		return err
	}
	d.walk = append(d.walk, more...)
	if d.walking = len(more) < d.Limits.WalkNames; !d.walking {
		d.listed = more[len(more)-1]
	}
	return nil
}

// attempt begins to copy, from the beginning.
func (d *Driver) attempt(ctx context.Context) error {
	if err := d.do(ctx, &canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_COPY}); err != nil {
		return err
	}
	d.copy = newCopying(d.move.Attempt)
	d.note(func(p *Progress) { *p = Progress{Members: p.Members, Entry: p.Entry, Refused: p.Refused} })
	return nil
}

// stepActivate makes the target answer. It is handed off: there is no way but this.
func (d *Driver) stepActivate(ctx context.Context) error {
	if _, err := d.send(ctx, &canopyv1.ImportCommand{Step: canopyv1.ImportStep_IMPORT_ACTIVATE, Batch: d.move.Batches}); err != nil {
		return err
	}
	if c := d.copy; c != nil && c.frozenAt != 0 {
		d.note(func(p *Progress) { p.Pause = d.now() - c.frozenAt })
		c.frozenAt = 0
	}
	return d.do(ctx, &canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_ACTIVATED})
}

// stepClean deletes what went, in parts.
func (d *Driver) stepClean(ctx context.Context) (done bool, err error) {
	var members []base.Ino
	if d.carves() {
		if err := d.src.Read(ctx, func(r shard.Reader) (err error) {
			members, err = d.members(r, d.move.Cleaned+1, cleanAtOnce)
			return err
		}); err != nil {
			return false, err
		}
	}
	if len(members) > 0 || !d.carves() {
		if err := d.do(ctx, &canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_CLEAN, Members: numbers(members)}); err != nil {
			return false, err
		}
	}
	if len(members) > 0 {
		d.move.Cleaned = members[len(members)-1]
		return false, nil
	}
	return d.end(ctx)
}

// stepCancel throws away what the target has, then the marks of a carve.
func (d *Driver) stepCancel(ctx context.Context) (done bool, err error) {
	d.copy = nil
	if !d.dropped {
		if _, err := d.send(ctx, &canopyv1.ImportCommand{Step: canopyv1.ImportStep_IMPORT_CANCEL}); err != nil && fserr.KindOf(err) != fserr.OldEpoch {
			return false, err
		}
		d.dropped = true
	}
	var members []base.Ino
	if d.carves() {
		if err := d.src.Read(ctx, func(r shard.Reader) (err error) {
			members, err = d.members(r, 0, membersAtOnce)
			return err
		}); err != nil {
			return false, err
		}
	}
	if len(members) > 0 {
		return false, d.do(ctx, &canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_DROP, Members: numbers(members)})
	}
	return d.end(ctx)
}

func (d *Driver) end(ctx context.Context) (done bool, err error) {
	last := *d.move
	if err := d.do(ctx, &canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_END}); err != nil {
		return false, err // that it is gone shows when it is read
	}
	d.move = &last
	return true, nil
}

// members returns directories of the carve from first on, in order.
func (d *Driver) members(r shard.Reader, first base.Ino, most int) (all []base.Ino, err error) {
	_, hi := schema.KindRange(d.id, d.subtree, schema.KindForward)
	err = r.Scan(schema.ForwardKey(d.id, d.subtree, first), hi, func(key, value []byte) (bool, error) {
		f, err := schema.DecodeForward(value)
		if err != nil {
			return false, err
		}
		if dir, _, _ := schema.InoOf(key); f.Into == d.move.Into {
			all = append(all, base.Ino(dir))
		}
		return len(all) < most, nil
	})
	return all, err
}

// subdirectories returns the directories that have names in the first of dirs, of the very
// first behind the key after. It looks at about Limits.WalkNames names: how many of dirs it
// has done with, and the last key of the next one that it has looked at, nil if at none. A
// directory that is renamed from behind that key to before it is as if it had been moved in.
func (d *Driver) subdirectories(r shard.Reader, dirs []base.Ino, after []byte) (found []uint64, looked int, at []byte, err error) {
	left := d.Limits.WalkNames
	for ; looked < len(dirs) && left > 0; looked++ {
		left-- // of one without names, too
		lo, hi := schema.NamesRange(d.id, d.subtree, dirs[looked])
		if after != nil {
			lo = append(after, 0)
		}
		var here []base.Ino
		more := false
		err := r.Scan(lo, hi, func(key, value []byte) (bool, error) {
			if left <= 0 {
				more = true
				return false, nil
			}
			left--
			at = append(at[:0], key...)
			if !schema.IsSelf(key) || schema.DentryKindOf(value) != schema.Directory {
				return true, nil
			}
			e, err := schema.DecodeDentry(value)
			if err == nil && e.Subtree == d.subtree {
				here = append(here, e.Ino)
			}
			return true, err
		})
		if err != nil {
			return nil, 0, nil, err
		}
		for _, ino := range here {
			split, err := d.isSplit(r, ino)
			if err != nil {
				return nil, 0, nil, err
			}
			if !split {
				found = append(found, uint64(ino))
			}
		}
		if more && len(at) > 0 {
			return found, looked, at, nil
		}
		after, at = nil, nil
	}
	return found, looked, nil, nil
}

// isSplit reports whether a directory has names in several subtrees: it stays where
// it is, with all that is below.
func (d *Driver) isSplit(r shard.Reader, dir base.Ino) (bool, error) {
	value, found, err := r.Get(schema.HeaderKey(d.id, d.subtree, dir))
	if err != nil || !found {
		return false, err
	}
	h, err := schema.DecodeHeader(value)
	return err == nil && h.Fragments.Split(), err
}

func numbers(inos []base.Ino) []uint64 {
	out := make([]uint64, len(inos))
	for i, ino := range inos {
		out[i] = uint64(ino)
	}
	return out
}
