package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// moveHandOff is a move's commit point (PROTOCOLS E2): the target's log holds the
// last batch, which is named here, and from here on this shard redirects.
func (b *batch) moveHandOff(c *canopyv1.MoveCommand) (*canopyv1.Result, error) {
	s := b.sub
	switch {
	case s.move.Phase > schema.MoveFrozen && s.move.Phase != schema.MoveCancelling && s.move.Batches == c.Batches:
		return b.moveResult(), nil
	case s.move.Phase != schema.MoveFrozen:
		return refuse(fserr.OldEpoch, "it is not frozen")
	case s.Intents > 0: // no intent crosses a hand-off (PROTOCOLS E4)
		return refuse(fserr.OldEpoch, "transactions are not decided")
	case s.move.OfNames():
		return b.namesHandOff(c)
	}
	s.move.Phase, s.move.Batches = schema.MoveHandedOff, c.Batches
	b.m.moved.Add(1)
	b.m.recordings.set(s.id, nil)
	b.record()
	if !s.carves() {
		s.State, s.ToShard, s.Epoch = schema.HandedOff, s.move.To, s.move.Epoch
		return b.saveMove()
	}
	s.State, s.Carve.Done = schema.Active, true
	if err := b.carveBorder(c); err != nil {
		return nil, err
	}
	if err := b.carveRows(); err != nil {
		return nil, err
	}
	n := b.counters()
	n.Files -= c.Counts.GetFiles()
	n.Directories -= c.Counts.GetDirectories()
	n.Bytes -= c.Counts.GetBytes()
	s.policies.forget()
	clear(s.above)
	s.members = nil // the forwards count from here on
	for id, d := range b.dirs {
		if id.subtree == s.id && !d.dirty {
			delete(b.dirs, id) // read before they went
		}
	}
	return b.saveMove()
}

// carveBorder rewrites what crosses the border of a carve on this side: the names
// of directories that went, and the parents of those that stayed (PROTOCOLS E6).
func (b *batch) carveBorder(c *canopyv1.MoveCommand) error {
	into := b.sub.move.Into
	b.carve.Done = false // look as if nothing had gone
	for _, n := range c.Names {
		d, err := b.directory(base.Ino(n.Dir))
		if isElsewhere(err) {
			continue // of a split directory: the name is not here, and what is goes by forwards
		}
		if err != nil {
			return borderErr(err)
		}
		found, err := b.find(d, n.Name)
		if isElsewhere(err) {
			continue
		}
		if err != nil {
			return err
		}
		if !found.found() || found.Ino != base.Ino(n.Ino) || found.Kind != schema.Directory {
			continue
		}
		found.Subtree = into
		if err := b.set(schema.DentryKey(b.id, b.subtree, d.Ino, found.at), found.Dentry); err != nil {
			return err
		}
	}
	for _, ino := range c.Children {
		d, err := b.directory(base.Ino(ino))
		if err != nil {
			return borderErr(err)
		}
		d.ParentSubtree = into
		b.touch(d)
	}
	return nil
}

// borderErr makes a broken state of a directory that must be there: nothing
// changes between the last batch and the hand-off.
func borderErr(err error) error {
	if kind, ok := err.(fserr.Kind); ok {
		return brokenState(kind, &canopyv1.Place{})
	}
	return err
}

// carveRows deletes the rows that workers come by, and policies, of what went: its
// new owner looks after it.
func (b *batch) carveRows() error {
	if err := b.dropRows(func(p *canopyv1.Place) bool {
		_, member := b.sub.members[base.Ino(p.Dir)]
		return member
	}); err != nil {
		return err
	}
	for dir := range b.sub.policies.set {
		if _, member := b.sub.members[dir]; member {
			delete(b.sub.policies.set, dir)
			if err := b.w.Delete(schema.PolicyKey(b.id, b.subtree, dir)); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropRows deletes what workers come by of the files at those places, and what says
// who has locks in them.
func (b *batch) dropRows(of func(*canopyv1.Place) bool) error {
	gone, files, err := b.workersRows(of)
	if err != nil {
		return err
	}
	for _, key := range gone {
		if err := b.w.Delete(key); err != nil {
			return err
		}
	}
	locks, err := b.locksOfFiles(files)
	if err != nil {
		return err
	}
	for _, key := range locks {
		client, _, _ := schema.InoOf(key)
		id := base.ClientID(client)
		if b.sub.locked[id]--; b.sub.locked[id] == 0 {
			delete(b.sub.locked, id)
		}
		if err := b.w.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

// workersRows returns the keys of locators of the files at those places, and which
// of the files have locks.
func (b *batch) workersRows(of func(*canopyv1.Place) bool) (gone [][]byte, locked map[base.Ino]bool, err error) {
	locked = map[base.Ino]bool{}
	for _, kind := range []schema.Kind{schema.KindAppend, schema.KindCut, schema.KindLocked} {
		lo, hi := schema.KindRange(b.id, b.subtree, kind)
		err := b.r.Scan(lo, hi, func(key, value []byte) (bool, error) {
			p, err := locatorPlace(key, value)
			if err != nil {
				return false, err
			}
			if of(p) {
				gone = append(gone, append([]byte(nil), key...))
				locked[base.Ino(p.Ino)] = locked[base.Ino(p.Ino)] || kind == schema.KindLocked
			}
			return true, nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return gone, locked, nil
}

// locksOfFiles returns the keys that say which clients have locks in files.
func (b *batch) locksOfFiles(files map[base.Ino]bool) (keys [][]byte, err error) {
	lo, hi := schema.KindRange(b.id, b.subtree, schema.KindLockClient)
	err = b.r.Scan(lo, hi, func(key, _ []byte) (bool, error) {
		if _, ino, _ := schema.InoOf(key); files[base.Ino(ino)] {
			keys = append(keys, append([]byte(nil), key...))
		}
		return true, nil
	})
	return keys, err
}

// moveActivated notes that the target answers for what was handed off.
func (b *batch) moveActivated(*canopyv1.MoveCommand) (*canopyv1.Result, error) {
	switch b.sub.move.Phase {
	case schema.MoveCleaning:
		return b.moveResult(), nil
	case schema.MoveHandedOff:
		b.sub.move.Phase = schema.MoveCleaning
		return b.saveMove()
	}
	return refuse(fserr.OldEpoch, "it was not handed off")
}

// moveClean deletes what was handed off: of a carve the rows of some directories,
// in order, else everything. It does nothing unless the subtree is handed off at
// just the attempt's epoch (PROTOCOLS E3).
func (b *batch) moveClean(c *canopyv1.MoveCommand) (*canopyv1.Result, error) {
	s := b.sub
	if s.move.Phase != schema.MoveCleaning {
		return refuse(fserr.OldEpoch, "nothing is to be cleaned")
	}
	if s.move.OfNames() {
		return b.namesClean()
	}
	if !s.carves() {
		return b.cleanSubtree()
	}
	for _, ino := range c.Members {
		dir := base.Ino(ino)
		f, err := b.forwardOf(dir)
		if err != nil {
			return nil, err
		}
		if dir <= s.move.Cleaned || f == nil || f.Into != s.move.Into {
			continue
		}
		for _, of := range []func(base.ShardID, base.SubtreeID, base.Ino) (lo, hi []byte){schema.HeaderRange, schema.NamesRange} {
			lo, hi := of(b.id, s.id, dir)
			if err := b.w.DeleteRange(lo, hi); err != nil {
				return nil, err
			}
		}
		delete(b.dirs, dirID{s.id, dir})
		s.move.Cleaned = dir
	}
	return b.saveMove()
}

// cleanSubtree deletes all that is stored of a subtree that was handed off, but for
// where it went.
func (b *batch) cleanSubtree() (*canopyv1.Result, error) {
	s := b.sub
	if s.State != schema.HandedOff || s.Epoch != s.move.Epoch {
		return refuse(fserr.OldEpoch, "it is not handed off at that epoch")
	}
	if err := deleteTravelling(b.w, b.id, s.id); err != nil {
		return nil, err
	}
	move := s.move
	s.Quotas = 0
	*s = *newSubtree(s.id, s.Subtree)
	s.move = move
	return b.saveMove()
}

// deleteTravelling deletes the rows of a subtree that move with it.
func deleteTravelling(w shard.Writer, id base.ShardID, subtree base.SubtreeID) error {
	_, first := schema.KindRange(id, subtree, schema.KindSubtree)
	move, after := schema.KindRange(id, subtree, schema.KindMove)
	_, end := schema.SubtreeRange(id, subtree)
	if err := w.DeleteRange(first, move); err != nil {
		return err
	}
	return w.DeleteRange(after, end)
}
