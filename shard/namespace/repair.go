package namespace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// mend repairs what a check found (docs/operations.md, Checking and repairing). What
// matters is looked at here (PROTOCOLS A1): it changes nothing unless what the check saw
// is still so, and then what it changes is no more what was seen. So it can be late,
// and repeated, and the namespace may be in use.
func (b *batch) mend(r *canopyv1.Repair) (*canopyv1.Result, error) {
	s := b.m.subtrees[base.SubtreeID(r.GetSubtree())]
	switch {
	case s == nil || s.State != schema.Active || uint64(s.Epoch) != r.Epoch:
		return unmended("the subtree is not what it was")
	case s.move != nil || s.Hidden > 0:
		return unmended("the subtree, or a part of it, moves")
	}
	b.enter(s)
	if r.Ino != 0 { // a transaction may be about to change it, by what it saw
		_, locked, err := b.r.Get(schema.HomeLockKey(b.id, b.subtree, base.Ino(r.Ino)))
		if err != nil {
			return nil, err
		}
		if locked {
			return unmended("a transaction changes it")
		}
	}
	do := mender(r.Kind)
	if do == nil {
		return nil, fserr.Malformed
	}
	done, err := do(b, r)
	var kind fserr.Kind
	switch {
	case errors.As(err, &kind) || isElsewhere(err):
		return unmended("it is not what it was: " + err.Error())
	case err != nil:
		return nil, err
	case !done:
		return unmended("it is not what it was")
	}
	return &canopyv1.Result{Repaired: true}, nil
}

func unmended(why string) (*canopyv1.Result, error) { return &canopyv1.Result{Detail: why}, nil }

// mender returns what does a repair, nil for what is none of the log's. It tells whether
// it changed anything, and returns an fserr.Kind only if it did not.
func mender(kind canopyv1.RepairKind) func(*batch, *canopyv1.Repair) (bool, error) {
	switch kind {
	case canopyv1.RepairKind_REPAIR_DIR_COUNTS:
		return (*batch).mendDirCounts
	case canopyv1.RepairKind_REPAIR_COUNTERS:
		return (*batch).mendCounters
	case canopyv1.RepairKind_REPAIR_QUOTA:
		return (*batch).mendQuota
	case canopyv1.RepairKind_REPAIR_LINKS:
		return (*batch).mendLinks
	case canopyv1.RepairKind_REPAIR_NAMES:
		return (*batch).mendNames
	case canopyv1.RepairKind_REPAIR_PARENT:
		return (*batch).mendParent
	case canopyv1.RepairKind_REPAIR_ROW:
		return (*batch).mendRow
	case canopyv1.RepairKind_REPAIR_CLIENTS:
		return (*batch).mendClients
	case canopyv1.RepairKind_REPAIR_RECONNECT:
		return (*batch).mendReconnect
	case canopyv1.RepairKind_REPAIR_NEW_NAME:
		return (*batch).mendNewName
	}
	return nil
}

// mendDirCounts: the version grows with every change of the names, so they are those
// that were counted.
func (b *batch) mendDirCounts(r *canopyv1.Repair) (bool, error) {
	d, err := b.copyOf(base.Ino(r.Ino))
	if err != nil || d == nil || d.Version != r.Version || len(r.Want) != 3 ||
		!slices.Equal(r.Seen, []int64{int64(d.Entries), int64(d.Subdirs), int64(d.Displaced)}) {
		return false, err
	}
	d.Entries, d.Subdirs, d.Displaced = uint64(r.Want[0]), uint64(r.Want[1]), uint64(r.Want[2])
	if d.Displaced == 0 {
		d.MaxProbe = 0
	}
	b.bumpDir(d)
	return true, nil
}

// bumpDir makes a repaired header another one than was seen.
func (b *batch) bumpDir(d *directory) {
	d.CtimeNS = b.nowNS
	d.Version++
	b.touch(d)
}

// mendedOf returns how often a subtree's counters were repaired.
func mendedOf(r shard.Reader, id base.ShardID, subtree base.SubtreeID) (uint64, error) {
	v, found, err := r.Get(schema.MendedKey(id, subtree))
	if err != nil || !found {
		return 0, err
	}
	m, err := schema.DecodeMended(v)
	return m.Times, err
}

func (b *batch) mendCounters(r *canopyv1.Repair) (bool, error) {
	times, err := mendedOf(b.r, b.id, b.subtree)
	if err != nil || len(r.Seen) != 1 || len(r.Want) != 3 || uint64(r.Seen[0]) != times {
		return false, err
	}
	c := b.counters()
	next := schema.Counters{Files: c.Files + uint64(r.Want[0]), Directories: c.Directories + uint64(r.Want[1]), Bytes: c.Bytes + uint64(r.Want[2])}
	if max(next.Files, next.Directories, next.Bytes) > math.MaxInt64 {
		return false, nil // below zero
	}
	*c = next
	return true, b.set(schema.MendedKey(b.id, b.subtree), &schema.Mended{Times: times + 1})
}

func (b *batch) mendQuota(r *canopyv1.Repair) (bool, error) {
	q := b.sub.quotas[base.Ino(r.Ino)]
	if q == nil || !q.Counted || len(r.Want) != 3 || !slices.Equal(r.Seen, []int64{int64(q.ID), q.SinceNS}) {
		return false, nil
	}
	q.Usage.Inodes += r.Want[0]
	q.Usage.Bytes += r.Want[1]
	q.Usage.Crossing += r.Want[2]
	q.SinceNS = max(b.nowNS, q.SinceNS+1)
	b.touchQuota(q)
	return true, nil
}

// mendLinks: whatever gives a file a name, or takes one, changes its record.
func (b *batch) mendLinks(r *canopyv1.Repair) (bool, error) {
	o, err := b.view.record(base.Ino(r.Ino))
	if err != nil || o.inode.Version != r.Version || len(r.Want) != 1 || r.Want[0] <= 0 || r.Want[0] > math.MaxUint32 {
		return false, err
	}
	o.inode.Nlink = uint32(r.Want[0])
	return true, b.changed(o)
}

func (b *batch) mendNames(r *canopyv1.Repair) (bool, error) {
	o, err := b.view.record(base.Ino(r.Ino))
	if err != nil || o.inode.Version != r.Version || b.m.state.Format < namesFormat || int(o.inode.Nlink) != len(r.Want) {
		return false, err
	}
	n := &schema.Names{}
	for _, dir := range r.Want {
		n.Dirs = append(n.Dirs, base.Ino(dir))
	}
	if err := b.set(schema.NamesKey(b.id, b.subtree, o.inode.Ino), n); err != nil {
		return false, err
	}
	return true, b.changed(o)
}

// isAt reports whether a header says that its directory is there.
func (d *directory) isAt(p *canopyv1.RepairPlace) bool {
	return uint64(d.Parent) == p.GetDir() && uint64(d.ParentSubtree) == p.GetSubtree() && bytes.Equal(d.Name, p.GetName())
}

// seenDir returns the directory of a repair, if its header is as it was seen; else nil.
func (b *batch) seenDir(r *canopyv1.Repair) (*directory, error) {
	d, err := b.copyOf(base.Ino(r.Ino))
	if err != nil || d == nil || !d.isHome() || d.Removed || d.Version != r.Version || !d.isAt(r.At) || d.Ino == b.root && b.subtree == base.RootSubtree {
		return nil, err
	}
	return d, nil
}

// mendParent: the name counts, if it is still there. In another subtree it is where it
// was seen twice: a move of the directory since would have changed the header.
func (b *batch) mendParent(r *canopyv1.Repair) (bool, error) {
	d, err := b.seenDir(r)
	if err != nil || d == nil || r.To == nil {
		return false, err
	}
	if base.SubtreeID(r.To.Subtree) == b.subtree {
		leads, err := b.leadsTo(base.Ino(r.To.Dir), r.To.Name, d.Ino)
		if err != nil || !leads {
			return false, err
		}
	}
	b.reparent(d, base.Ino(r.To.Dir), base.SubtreeID(r.To.Subtree), r.To.Name)
	return true, nil
}

// leadsTo reports whether a name is there and is the directory's.
func (b *batch) leadsTo(dir base.Ino, name []byte, ino base.Ino) (bool, error) {
	p, err := b.copyOf(dir)
	if err != nil || p == nil {
		return false, err
	}
	s, err := b.find(p, name)
	if stale(err) {
		return false, nil
	}
	return err == nil && s.found() && s.Kind == schema.Directory && s.Ino == ino, err
}

func (b *batch) reparent(d *directory, dir base.Ino, subtree base.SubtreeID, name []byte) {
	d.Parent, d.ParentSubtree, d.Name = dir, subtree, bytes.Clone(name)
	b.bumpDir(d)
	clear(b.sub.above)
	b.directoryMoved()
}

// mendRow deletes a row of which nothing is known any more.
func (b *batch) mendRow(r *canopyv1.Repair) (bool, error) {
	key := append(binary.BigEndian.AppendUint64(nil, uint64(b.id)), r.Key...)
	if of, ok := schema.SubtreeOf(key); !ok || of != b.subtree {
		return false, nil
	}
	value, found, err := b.r.Get(key)
	if err != nil || !found || valueSum(value) != r.Sum {
		return false, err
	}
	number, second, _ := schema.InoOf(key)
	switch schema.KindOf(key) {
	case schema.KindNames:
		if _, there, err := b.r.Get(schema.InodeKey(b.id, b.subtree, base.Ino(number))); err != nil || there {
			return false, err
		}
	case schema.KindPolicy:
		if d, err := b.copyOf(base.Ino(number)); err != nil || d != nil {
			return false, err
		}
		return true, b.putPolicy(base.Ino(number), nil)
	case schema.KindLockClient:
		if locked, err := b.hasLock(base.ClientID(number), base.Ino(second)); err != nil || locked {
			return false, err
		}
		client := base.ClientID(number)
		if b.sub.locked[client]--; b.sub.locked[client] <= 0 {
			delete(b.sub.locked, client)
		}
	default:
		owner := schema.OwnerOf(key)
		if owner == nil {
			return false, nil
		}
		if _, there, err := b.r.Get(owner); err != nil || there {
			return false, err
		}
	}
	return true, b.w.Delete(key)
}

// mendClients ends what clients without a session have left, as the end of their
// sessions would have.
func (b *batch) mendClients(*canopyv1.Repair) (bool, error) {
	left := false
	for client := range b.sub.windows {
		left = left || b.m.sessions[client] == nil
	}
	var dead []base.ClientID
	for client := range b.sub.locked {
		if b.m.sessions[client] == nil {
			dead = append(dead, client)
		}
	}
	slices.Sort(dead)
	for _, client := range dead {
		// What is listed and is not there would break who ends it: it is repaired first.
		if whole, err := b.locksAreThere(client); err != nil || !whole {
			return false, err
		}
	}
	if !left && len(dead) == 0 {
		return false, nil
	}
	return true, b.endStrangers(b.sub)
}

func (b *batch) locksAreThere(client base.ClientID) (bool, error) {
	var inos []base.Ino
	lo, hi := schema.LockClientRange(b.id, b.subtree, client)
	err := b.r.Scan(lo, hi, func(key, _ []byte) (bool, error) {
		_, ino, _ := schema.InoOf(key)
		inos = append(inos, base.Ino(ino))
		return true, nil
	})
	for _, ino := range inos {
		if err != nil {
			break
		}
		var locked bool
		if locked, err = b.hasLock(client, ino); err == nil && !locked {
			return false, nil
		}
	}
	return err == nil, err
}

// hasLock reports whether a client has a lock in a file.
func (v *view) hasLock(client base.ClientID, ino base.Ino) (bool, error) {
	b, found, err := v.r.Get(schema.LockedKey(v.id, v.subtree, ino))
	if err != nil || !found {
		return false, err
	}
	p, err := locatorPlace(schema.LockedKey(v.id, v.subtree, ino), b)
	if err != nil {
		return false, err
	}
	o, err := v.resolve(p)
	if stale(err) {
		return false, nil
	}
	if err != nil || o.isDir() {
		return false, err
	}
	file := v.key(o)
	lo, hi := schema.LockRangeOf(file)
	some := false
	err = v.r.Scan(lo, hi, func(key, _ []byte) (bool, error) {
		owner, _ := schema.LockOf(file, key)
		some = owner.Client == client
		return !some, nil
	})
	return some, err
}
