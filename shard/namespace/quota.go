package namespace

import (
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// quota is an account as Apply keeps it in memory. docs/design/0006-quotas.md says
// what it counts.
type quota struct {
	schema.Quota
	dir   base.Ino
	dirty bool
	gone  bool // removed in this batch
}

// maxAbove bounds the directories of which it is remembered which quotas hold.
const maxAbove = 1 << 16

// quotasAbove returns the accounts that count what has a name in dir, the
// innermost first. It follows from the parent pointers alone, so that a directory
// that moves takes no mark along; the answers are remembered until quotas or a
// directory's place among them change.
func (b *batch) quotasAbove(dir base.Ino) ([]*quota, error) {
	s := b.sub
	if len(s.quotas) == 0 {
		return nil, nil
	}
	if above, ok := s.above[dir]; ok {
		return above, nil
	}
	var way []base.Ino
	var above []*quota
	for at := dir; ; {
		known, ok := s.above[at]
		if ok {
			above = known
			break
		}
		way = append(way, at)
		if at == b.root {
			break
		}
		if len(way) > maxDepth {
			return nil, fserr.Loop
		}
		d, err := b.directory(at)
		if err != nil {
			return nil, err
		}
		if d.ParentSubtree != b.subtree {
			break // a detached part: no quota reaches over subtrees
		}
		at = d.Parent
	}
	if len(s.above)+len(way) > maxAbove {
		clear(s.above)
	}
	for _, at := range slices.Backward(way) {
		if q := s.quotas[at]; q != nil {
			above = append([]*quota{q}, above...)
		}
		s.above[at] = above
	}
	return above, nil
}

// sameAbove reports whether two answers of quotasAbove are the same accounts.
func sameAbove(a, b []*quota) bool {
	return len(a) == len(b) && (len(a) == 0 || a[0] == b[0])
}

// change is what an operation adds to one account.
type change struct {
	q                       *quota
	inodes, bytes, crossing int64
}

// changes are what an operation adds to accounts. It is checked as a whole before
// anything is written, and charged with what it counts, in one batch.
type changes []change

func (c *changes) add(q *quota, inodes, bytes, crossing int64) {
	for i := range *c {
		if x := &(*c)[i]; x.q == q {
			x.inodes += inodes
			x.bytes += bytes
			x.crossing += crossing
			return
		}
	}
	*c = append(*c, change{q, inodes, bytes, crossing})
}

func (c *changes) addAll(above []*quota, inodes, bytes int64) {
	for _, q := range above {
		c.add(q, inodes, bytes, 0)
	}
}

// holding is an account that counts an inode with several names; crossing: not
// all of the names lie below its directory.
type holding struct {
	q        *quota
	crossing bool
}

// regroup takes an inode of so many bytes from some accounts and gives it to others.
func (c *changes) regroup(before, after []holding, bytes int64) {
	c.hold(before, -1, -bytes)
	c.hold(after, 1, bytes)
}

func (c *changes) hold(held []holding, sign, bytes int64) {
	for _, h := range held {
		crossing := int64(0)
		if h.crossing {
			crossing = sign
		}
		c.add(h.q, sign, bytes, crossing)
	}
}

// check returns Quota if what grows would pass a bound. What does not grow is
// allowed, also above a bound that was set lower than the use.
func (c changes) check() error {
	for _, x := range c {
		q := x.q
		if !q.Counted {
			continue
		}
		if x.inodes > 0 && q.MaxInodes > 0 && uint64(x.inodes) > left(q.MaxInodes, q.Usage.Inodes) ||
			x.bytes > 0 && q.MaxBytes > 0 && uint64(x.bytes) > left(q.MaxBytes, q.Usage.Bytes) {
			return fserr.Quota
		}
	}
	return nil
}

// left returns what a bound leaves of a counted use.
func left(bound uint64, used int64) uint64 {
	return bound - min(bound, uint64(used))
}

// charge adds the changes to the accounts, whatever their bounds.
func (b *batch) charge(c changes) {
	for _, x := range c {
		if x.inodes == 0 && x.bytes == 0 && x.crossing == 0 {
			continue
		}
		x.q.Usage.Inodes += x.inodes
		x.q.Usage.Bytes += x.bytes
		x.q.Usage.Crossing += x.crossing
		b.touchQuota(x.q)
	}
}

func (b *batch) touchQuota(q *quota) {
	if !q.dirty {
		q.dirty = true
		b.accounts = append(b.accounts, account{b.sub.id, q})
	}
}

// account is a changed quota and the subtree that keeps it.
type account struct {
	subtree base.SubtreeID
	*quota
}

func (b *batch) flushQuotas() error {
	for _, a := range b.accounts {
		a.dirty = false
		if a.gone {
			continue
		}
		if err := b.set(schema.QuotaKey(b.id, a.subtree, a.dir), &a.Quota); err != nil {
			return err
		}
	}
	return nil
}

// adding checks that so much more fits into dir and returns it, to be charged.
func (b *batch) adding(dir base.Ino, inodes, bytes int64) (changes, error) {
	above, err := b.quotasAbove(dir)
	if err != nil || len(above) == 0 {
		return nil, err
	}
	var c changes
	c.addAll(above, inodes, bytes)
	return c, c.check()
}

// losing returns what is credited when o loses the name that it was reached by:
// all of it with the last one, at once, however long its bytes still lie somewhere
// (FUSE K17).
func (b *batch) losing(o *object) (changes, error) {
	if len(b.sub.quotas) == 0 {
		return nil, nil
	}
	var c changes
	if o.home != inRecord {
		above, err := b.quotasAbove(o.entry.dir)
		c.addAll(above, -1, -int64(o.charged))
		return c, err
	}
	dirs, err := b.namesOf(o.inode.Ino)
	if err != nil {
		return nil, err
	}
	before, err := b.holders(dirs, b.quotasAbove)
	if err != nil {
		return nil, err
	}
	after, err := b.holders(without(dirs, o.entry.dir), b.quotasAbove)
	c.regroup(before, after, int64(o.charged))
	return c, err
}

// holders returns the accounts that count an inode with names in these directories.
func (b *batch) holders(dirs []base.Ino, above func(base.Ino) ([]*quota, error)) ([]holding, error) {
	var held []holding
	var names []int
	for _, dir := range dirs {
		chain, err := above(dir)
		if err != nil {
			return nil, err
		}
		for _, q := range chain {
			i := slices.IndexFunc(held, func(h holding) bool { return h.q == q })
			if i < 0 {
				i = len(held)
				held, names = append(held, holding{q: q}), append(names, 0)
			}
			names[i]++
		}
	}
	for i := range held {
		held[i].crossing = names[i] < len(dirs)
	}
	return held, nil
}

// holdersOf returns the accounts that count o, which is no directory.
func (b *batch) holdersOf(o *object) ([]*quota, error) {
	if len(b.sub.quotas) == 0 {
		return nil, nil
	}
	switch o.home {
	case inDentry:
		return b.quotasAbove(o.entry.dir)
	case inRecord:
		dirs, err := b.namesOf(o.inode.Ino)
		if err != nil {
			return nil, err
		}
		held, err := b.holders(dirs, b.quotasAbove)
		all := make([]*quota, len(held))
		for i, h := range held {
			all[i] = h.q
		}
		return all, err
	}
	return nil, nil // an orphan is counted nowhere
}

// chargedBytes is what a file counts in quotas: up to where bytes are or will be
// visible. Appends are charged when they are reserved.
func chargedBytes(n *schema.Inode) uint64 {
	if !n.IsFile() {
		return 0
	}
	return reservedEnd(n)
}

// mayGrow checks that quotas allow the object to count so many bytes.
func (b *batch) mayGrow(o *object, bytes uint64) error {
	if bytes <= o.charged || o.home == inOrphan {
		return nil
	}
	held, err := b.holdersOf(o)
	if err != nil {
		return err
	}
	var c changes
	c.addAll(held, 0, int64(bytes-o.charged))
	return c.check()
}

// recharge brings the accounts to what the object counts now.
func (b *batch) recharge(o *object) error {
	now := chargedBytes(o.inode)
	if now == o.charged {
		return nil
	}
	held, err := b.holdersOf(o)
	if err != nil {
		return err
	}
	var c changes
	c.addAll(held, 0, int64(now)-int64(o.charged))
	b.charge(c)
	o.charged = now
	return nil
}

// noBound is the room where no quota bounds the bytes.
const noBound = schema.MaxFileSize

// roomIn returns the bytes that accounts leave.
func roomIn(held []*quota) uint64 {
	room := noBound
	for _, q := range held {
		if q.Counted && q.MaxBytes > 0 {
			room = min(room, left(q.MaxBytes, q.Usage.Bytes))
		}
	}
	return room
}

// showRoom adds to an answer about o what quotas leave for it, if there are any.
func (b *batch) showRoom(r *canopyv1.Result, o *object) (*canopyv1.Result, error) {
	if len(b.sub.quotas) == 0 || o.isDir() || !o.inode.IsFile() {
		return r, nil
	}
	held, err := b.holdersOf(o)
	room := roomIn(held)
	r.RoomBytes = &room
	return r, err
}
