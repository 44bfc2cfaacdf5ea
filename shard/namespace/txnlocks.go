package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// locks is how a view meets the intents of transactions (PROTOCOLS D2, D3).
type locks struct {
	any      bool         // the subtree has intents: without, nothing is read
	bypassed bool         // the holder's own commands: what they do is right before and after
	own      schema.TxnID // the transaction that asks
	past     map[schema.TxnID]bool
}

// blocked is the error of what met intents of transactions that may be decided.
type blocked struct{ by []schema.TxnID }

func (e *blocked) Error() string { return fserr.Locked.Error() }

func (e *blocked) result() *canopyv1.Result {
	r := &canopyv1.Result{Error: uint32(fserr.Locked)}
	for _, t := range e.by {
		r.BlockedBy = append(r.BlockedBy, t.Proto())
	}
	return r
}

// passes reports whether the view does not mind the intent.
func (l *locks) passes(t schema.TxnID) bool { return t == l.own || l.past[t] }

// lockAt returns the intent of another transaction at key, nil if there is none.
func (v *view) lockAt(key []byte) (*schema.Intent, error) {
	b, found, err := v.r.GetNew(key)
	if err != nil || !found {
		return nil, err
	}
	i, err := schema.DecodeIntent(b)
	if err != nil || v.locks.passes(i.Txn) {
		return nil, err
	}
	return i, nil
}

func (v *view) minds() bool { return v.locks.any && !v.locks.bypassed }

// nameLocked returns a blocked if another transaction has an intent on the name.
func (v *view) nameLocked(dir base.Ino, at base.Cookie, name []byte) error {
	if !v.minds() {
		return nil
	}
	i, err := v.lockAt(schema.IntentKey(v.id, v.subtree, dir, at, name))
	if i != nil {
		return &blocked{[]schema.TxnID{i.Txn}}
	}
	return err
}

// namesLocked is nameLocked for all names of a directory.
func (v *view) namesLocked(dir base.Ino) error {
	if !v.minds() {
		return nil
	}
	lo, hi := schema.IntentRange(v.id, v.subtree, dir)
	return v.lockedIn(lo, hi)
}

// contentLocked is namesLocked for the object of a read, if it is a directory: what
// stat shows of it tells of its names.
func (v *view) contentLocked(o *object) error {
	switch {
	case !o.isDir():
		return nil
	case o.dir.subtree == v.subtree:
		return v.namesLocked(o.dir.Ino)
	}
	there, err := v.viewIn(o.dir.subtree)
	if there == nil || err != nil {
		return err
	}
	return there.namesLocked(o.dir.Ino)
}

// lockedIn returns a blocked if other transactions have locks in [lo, hi).
func (v *view) lockedIn(lo, hi []byte) error {
	var by []schema.TxnID
	err := v.r.Scan(lo, hi, func(_, value []byte) (bool, error) {
		i, err := schema.DecodeIntent(value)
		if err == nil && !v.locks.passes(i.Txn) {
			by = append(by, i.Txn)
		}
		return len(by) < maxBlockers, err
	})
	if err == nil && len(by) > 0 {
		err = &blocked{by}
	}
	return err
}

// maxBlockers bounds the transactions that one answer names.
const maxBlockers = 256

// homeLocked returns a blocked if another transaction has locked the directory's
// header or the file's record.
func (v *view) homeLocked(ino base.Ino) error {
	if !v.minds() {
		return nil
	}
	i, err := v.lockAt(schema.HomeLockKey(v.id, v.subtree, ino))
	if i != nil {
		return &blocked{[]schema.TxnID{i.Txn}}
	}
	return err
}

// attributesLocked returns a blocked if another transaction is about to change the
// attributes that this copy of a split directory's header has: some may see at another
// fragment what they are then, and nobody may see here afterwards what they were
// (PROTOCOLS D3, F1). Home has no such lock: there the decision is the change.
func (v *view) attributesLocked(d *directory) error {
	if v.locks.bypassed || d.isHome() || d.subtree == v.subtree && !v.locks.any {
		return nil
	}
	i, err := v.lockAt(schema.HomeLockKey(v.id, d.subtree, d.Ino))
	if i != nil && i.Attributes {
		return &blocked{[]schema.TxnID{i.Txn}}
	}
	return err
}

// closing returns a blocked if another transaction is about to remove the
// directory: nothing may be made in it (PROTOCOLS D5).
func (v *view) closing(dir base.Ino) error {
	if !v.minds() {
		return nil
	}
	i, err := v.lockAt(schema.HomeLockKey(v.id, v.subtree, dir))
	if i != nil && i.Closing {
		return &blocked{[]schema.TxnID{i.Txn}}
	}
	return err
}

// mayRemove returns a blocked if transactions have locked the directory or are about
// to make names in it.
func (v *view) mayRemove(dir base.Ino) error {
	if err := v.homeLocked(dir); err != nil {
		return err
	}
	return v.namesLocked(dir)
}

// mayMoveHere reports whether a directory's move is local by PROTOCOLS D6: an
// elsewhere if a walk up leaves the subtree, a blocked if a transaction relies on
// where its directories are.
func (b *batch) mayMoveHere(m *move) error {
	for _, d := range []*directory{m.src, m.dst} {
		if _, err := b.isBelow(d, 0); err != nil {
			return err
		}
	}
	if !b.minds() {
		return nil
	}
	for _, o := range []*object{m.from, m.to} {
		if o == nil || !o.isDir() {
			continue
		}
		if err := b.homeLocked(o.dir.Ino); err != nil {
			return err
		}
	}
	lo, hi := schema.KindRange(b.id, b.subtree, schema.KindNoMoves)
	return b.lockedIn(lo, hi)
}
