package namespace

import (
	"math"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// Bounds on locks: beyond them ENOLCK. What ends with a client's session is
// bounded by them, too.
const (
	maxLockRanges   = 4096    // of one owner in one file
	maxLockOwners   = 1 << 14 // in one file
	maxLockedInodes = 1 << 16 // of one client in one subtree
)

// heldLocks are the locks of one owner in one file.
type heldLocks struct {
	owner schema.LockOwner
	*schema.Locks
}

// locksOf reads all locks of a file, by kind, client and owner.
func (v *view) locksOf(o *object) ([]heldLocks, error) {
	if o.isDir() || !o.inode.Locked {
		return nil, nil
	}
	var all []heldLocks
	file := v.key(o)
	lo, hi := schema.LockRangeOf(file)
	err := v.r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		l, err := schema.DecodeLocks(value)
		owner, _ := schema.LockOf(file, key)
		all = append(all, heldLocks{owner, l})
		return true, err
	})
	return all, err
}

// lockOf reads a lock from a message, nil error if it makes sense.
func lockOf(m *canopyv1.Lock, client base.ClientID) (schema.LockOwner, schema.LockRange, error) {
	owner := schema.LockOwner{Kind: schema.LockKind(m.GetKind()), Client: client, Owner: m.GetOwner()}
	r := schema.LockRange{Start: m.GetStart(), Last: m.GetLast(), Exclusive: m.GetExclusive(), PID: m.GetPid(), Handle: m.GetHandle()}
	if m.GetKind() != canopyv1.LockKind_LOCK_POSIX && m.GetKind() != canopyv1.LockKind_LOCK_FLOCK || r.Start > r.Last || r.Last > schema.LockEnd {
		return owner, r, fserr.Invalid
	}
	return owner, r, nil
}

func lockProto(o schema.LockOwner, r schema.LockRange) *canopyv1.Lock {
	return &canopyv1.Lock{Client: uint64(o.Client), Owner: o.Owner, Kind: canopyv1.LockKind(o.Kind), Exclusive: r.Exclusive,
		Start: r.Start, Last: r.Last, Pid: r.PID, Handle: r.Handle}
}

// conflicting returns the lock of another owner that r meets first.
func conflicting(all []heldLocks, owner schema.LockOwner, r schema.LockRange) (first *canopyv1.Lock) {
	start := uint64(math.MaxUint64)
	for _, h := range all {
		if h.owner.Kind != owner.Kind || h.owner == owner {
			continue
		}
		if c, ok := h.Conflict(r); ok && c.Start < start {
			first, start = lockProto(h.owner, c), c.Start
		}
	}
	return first
}

// getLock answers as F_GETLK does, or lists all locks.
func getLock(v *view, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetGetLock()
	o, err := v.resolve(c.Place)
	if err != nil {
		return nil, err
	}
	all, err := v.locksOf(o)
	if err != nil {
		return nil, err
	}
	res := v.answer(o)
	if c.Lock == nil {
		for _, h := range all {
			for _, r := range h.Ranges {
				res.Locks = append(res.Locks, lockProto(h.owner, r))
			}
		}
		return res, nil
	}
	owner, r, err := lockOf(c.Lock, base.ClientID(c.Lock.Client))
	if err != nil {
		return nil, err
	}
	if l := conflicting(all, owner, r); l != nil {
		res.Locks = []*canopyv1.Lock{l}
	}
	return res, nil
}

// setLock takes a lock or gives it back. That the caller waits is the holder's
// affair: here it gets the lock or WOULD_BLOCK.
func setLock(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetSetLock()
	owner, r, err := lockOf(c.Lock, b.client)
	if err != nil {
		return nil, err
	}
	o, err := b.resolve(c.Place)
	if err != nil {
		return nil, err
	}
	if _, err := o.file(); err != nil {
		return nil, err
	}
	all, err := b.locksOf(o)
	if err != nil {
		return nil, err
	}
	mine := heldLocks{owner, &schema.Locks{}}
	for _, h := range all {
		if h.owner == owner {
			mine = h
		}
	}
	fresh := len(mine.Ranges) == 0
	switch {
	case c.Unlock && fresh:
		return b.answer(o), nil
	case c.Unlock:
		mine.Clear(r.Start, r.Last)
	case conflicting(all, owner, r) != nil:
		return nil, fserr.WouldBlock
	default:
		mine.Set(r)
	}
	if len(mine.Ranges) > maxLockRanges || fresh && b.tooManyLocks(all) {
		return nil, fserr.NoLocks
	}
	if fresh {
		all = append(all, mine)
	}
	return b.answer(o), b.saveLocks(o, all, mine)
}

// tooManyLocks reports whether no further owner may have locks in a file.
func (b *batch) tooManyLocks(all []heldLocks) bool {
	return len(all) >= maxLockOwners || !hasClient(all, b.client) && b.sub.locked[b.client] >= maxLockedInodes
}

func hasClient(all []heldLocks, client base.ClientID) bool {
	for _, h := range all {
		if h.owner.Client == client && len(h.Ranges) > 0 {
			return true
		}
	}
	return false
}

// dropLocks gives back what was taken through an open file of the client.
func dropLocks(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetDropLocks()
	if c.Handle == 0 {
		return nil, fserr.Invalid
	}
	o, err := b.resolve(c.Place)
	if err != nil {
		return nil, err
	}
	all, err := b.locksOf(o)
	if err != nil {
		return nil, err
	}
	for _, h := range all {
		if h.owner.Client != b.client {
			continue
		}
		before := len(h.Ranges)
		if h.Drop(c.Handle); len(h.Ranges) == before {
			continue
		}
		if err := b.saveLocks(o, all, h); err != nil {
			return nil, err
		}
	}
	return b.answer(o), nil
}

// saveLocks writes the changed locks of one owner, and what tells that there are
// some: the inode's mark with its locator, and the client's index. all are the
// file's locks after the change, those of owners that have none any more too.
func (b *batch) saveLocks(o *object, all []heldLocks, changed heldLocks) error {
	key := schema.LockKey(b.key(o), changed.owner)
	if len(changed.Ranges) > 0 {
		if err := b.set(key, changed.Locks); err != nil {
			return err
		}
	} else if err := b.w.Delete(key); err != nil {
		return err
	}
	if err := b.indexLocks(o, changed.owner.Client, hasClient(all, changed.owner.Client)); err != nil {
		return err
	}
	some := false
	for _, h := range all {
		some = some || len(h.Ranges) > 0
	}
	return b.markLocked(o, some)
}

// indexLocks notes whether a client has locks in a file.
func (b *batch) indexLocks(o *object, client base.ClientID, has bool) error {
	key := schema.LockClientKey(b.id, b.subtree, client, o.inode.Ino)
	_, had, err := b.r.Get(key)
	switch {
	case err != nil || had == has:
		return err
	case has:
		b.sub.locked[client]++
		return b.set(key, schema.Empty{})
	}
	if b.sub.locked[client]--; b.sub.locked[client] == 0 {
		delete(b.sub.locked, client)
	}
	return b.w.Delete(key)
}

// markLocked notes whether a file has locks. Neither its times nor its version
// move: nothing that stat shows has changed.
func (b *batch) markLocked(o *object, locked bool) error {
	if o.inode.Locked == locked {
		return nil
	}
	o.inode.Locked = locked
	if err := b.save(o); err != nil {
		return err
	}
	if locked {
		return b.locateObject(o)
	}
	return b.w.Delete(schema.LockedKey(b.id, b.subtree, o.inode.Ino))
}

// unlockClient removes all locks of a client whose session ends, in the subtree.
func (b *batch) unlockClient(client base.ClientID) error {
	if b.sub.locked[client] == 0 {
		return nil
	}
	var inos []base.Ino
	lo, hi := schema.LockClientRange(b.id, b.subtree, client)
	err := b.r.Scan(lo, hi, func(key, _ []byte) (bool, error) {
		_, ino, _ := schema.InoOf(key)
		inos = append(inos, base.Ino(ino))
		return true, nil
	})
	if err != nil {
		return err
	}
	for _, ino := range inos {
		o, err := b.lockedObject(ino)
		if isElsewhere(err) {
			continue // carved out: what is stored here of its locks does not count
		}
		if err != nil {
			return err
		}
		if err := b.unlock(o, func(h schema.LockOwner) bool { return h.Client == client }); err != nil {
			return err
		}
	}
	return nil
}

// lockedObject finds a file that has locks by its number.
func (b *batch) lockedObject(ino base.Ino) (*object, error) {
	key := schema.LockedKey(b.id, b.subtree, ino)
	value, found, err := b.r.Get(key)
	if err != nil {
		return nil, err
	}
	p := &canopyv1.Place{Ino: uint64(ino)}
	if found {
		if p, err = locatorPlace(key, value); err != nil {
			return nil, err
		}
	}
	o, err := b.resolve(p)
	if _, ok := err.(fserr.Kind); ok || err == nil && o.isDir() {
		return nil, brokenState(err, p)
	}
	return o, err
}

// unlock gives back all locks of those owners.
func (b *batch) unlock(o *object, of func(schema.LockOwner) bool) error {
	all, err := b.locksOf(o)
	if err != nil {
		return err
	}
	for _, h := range all {
		if !of(h.owner) {
			continue
		}
		h.Ranges = nil
		if err := b.saveLocks(o, all, h); err != nil {
			return err
		}
	}
	return nil
}

// unlockAll gives back every lock of a file that goes.
func (b *batch) unlockAll(o *object) error {
	return b.unlock(o, func(schema.LockOwner) bool { return true })
}

// FileLocks are the locks of a file, for the holder, which decides who waits for
// what.
type FileLocks struct {
	Ino base.Ino
	all []heldLocks
}

// Locks reads the locks of the file at place: Stale or NotFound if it is gone, or a
// MovedError.
func (m *Machine) Locks(r shard.Reader, subtree base.SubtreeID, place *canopyv1.Place) (FileLocks, error) {
	v, err := m.holderView(r, subtree)
	if err != nil {
		return FileLocks{}, err
	}
	o, err := v.resolve(place)
	if err != nil {
		return FileLocks{}, movedError(err, place)
	}
	all, err := v.locksOf(o)
	return FileLocks{o.ino(), all}, err
}

// Blockers returns the owners whose locks keep the lock of client from being taken.
func (f FileLocks) Blockers(client base.ClientID, lock *canopyv1.Lock) []schema.LockOwner {
	owner, r, err := lockOf(lock, client)
	if err != nil {
		return nil
	}
	var out []schema.LockOwner
	for _, h := range f.all {
		if h.owner.Kind != owner.Kind || h.owner == owner {
			continue
		}
		if _, ok := h.Conflict(r); ok {
			out = append(out, h.owner)
		}
	}
	return out
}
