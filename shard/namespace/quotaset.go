package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// countNow is up to how many names one operation counts itself: about 4 ms. Of a
// larger tree the holder counts a snapshot, while operations go on.
const countNow = 4096

// setQuota sets or removes the bounds of a directory.
func setQuota(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetSetQuota()
	if !identityOf(op.Cred).isRoot() {
		return nil, fserr.Permission
	}
	d, err := b.directory(base.Ino(c.Dir))
	if err != nil {
		return nil, err
	}
	q := b.sub.quotas[d.Ino]
	switch {
	case c.Remove && (q == nil || q.Tally):
		return nil, fserr.NoData
	case c.Remove:
		return &canopyv1.Result{Attr: b.dirAttr(d)}, b.dropQuota(d.Ino)
	case d.Removed:
		return nil, fserr.NotFound
	case q == nil && b.sub.id != base.RootSubtree:
		return refuse(fserr.NotSupported, "it lies in a subtree of its own: quotas are of the root's subtree alone")
	case d.split():
		return refuse(fserr.NotSupported, "it is split: its names lie in several subtrees, and a quota counts one")
	case c.MaxBytes == 0 && c.MaxInodes == 0 || max(c.MaxBytes, c.MaxInodes) > schema.MaxFileSize:
		return nil, fserr.Invalid
	}
	if q == nil {
		some, err := b.leadsElsewhere()
		if err != nil {
			return nil, err
		}
		if some || b.sub.move != nil && b.sub.move.OfNames() {
			return refuse(fserr.NotSupported, "a part of the tree lies in another subtree, where no quota of this one counts")
		}
	}
	if q == nil {
		if q, err = b.openAccount(d.Ino); err != nil {
			return nil, err
		}
	}
	q.MaxBytes, q.MaxInodes, q.Tally = c.MaxBytes, c.MaxInodes, false
	b.touchQuota(q)
	return &canopyv1.Result{Attr: b.dirAttr(d), Quotas: []*canopyv1.Quota{quotaProto(q.dir, &q.Quota)}}, nil
}

// openAccount begins to count what lies below a directory. A small tree is counted
// at once. Of a larger one the account first takes what changes from here on; the
// holder adds what was there before (quotaCounted).
func (b *batch) openAccount(dir base.Ino) (*quota, error) {
	if err := b.listNames(); err != nil {
		return nil, err
	}
	t, err := b.countTree(dir, b.m.cfg.CountNow)
	if err != nil {
		return nil, err
	}
	q := &quota{dir: dir, Quota: schema.Quota{ID: uint64(b.newIno()), SinceNS: b.nowNS}}
	if t.whole {
		q.Counted = true
		if q.Usage, err = b.usageOf(t); err != nil {
			return nil, err
		}
	}
	b.sub.quotas[dir] = q
	b.touchQuota(q)
	return q, b.quotasChanged()
}

// dropQuota ends a directory's account, if it has one.
func (b *batch) dropQuota(dir base.Ino) error {
	q := b.sub.quotas[dir]
	if q == nil {
		return nil
	}
	q.gone = true
	delete(b.sub.quotas, dir)
	if err := b.w.Delete(schema.QuotaKey(b.id, b.subtree, dir)); err != nil {
		return err
	}
	return b.quotasChanged()
}

// quotasChanged follows a new or removed account.
func (b *batch) quotasChanged() error {
	clear(b.sub.above)
	b.sub.Quotas = uint64(len(b.sub.quotas))
	b.quotas = b.sub.Quotas > 0
	return b.set(schema.SubtreeKey(b.id, b.sub.id), &b.sub.Subtree)
}

// quotaCounted adds what the holder found on a snapshot: all that was below the
// directory, less what the account said there. Since the account took every change
// from its beginning on, the sum is what is there now.
func (b *batch) quotaCounted(c *canopyv1.QuotaCountedCommand) (*canopyv1.Result, error) {
	q := b.sub.quotas[base.Ino(c.Dir)]
	if q == nil || q.ID != c.Id || q.Counted {
		return &canopyv1.Result{}, nil
	}
	q.Usage.Inodes += c.Inodes
	q.Usage.Bytes += c.Bytes
	q.Usage.Crossing += c.Crossing
	q.Counted, q.SinceNS = true, b.nowNS
	b.touchQuota(q)
	return &canopyv1.Result{}, nil
}

// tallyDone drops the tally of a directory that nobody moved.
func (b *batch) tallyDone(c *canopyv1.TallyDoneCommand) (*canopyv1.Result, error) {
	q := b.sub.quotas[base.Ino(c.Dir)]
	if q == nil || q.ID != c.Id || !q.Tally {
		return &canopyv1.Result{}, nil
	}
	return &canopyv1.Result{}, b.dropQuota(q.dir)
}

// tree is what a count of all below a directory found.
type tree struct {
	whole  bool // false: there are more names than were to be counted
	dirs   map[base.Ino]bool
	links  map[base.Ino]int64 // bytes of the inodes with records that have names here
	inodes int64              // all others below the directory
	bytes  int64              // of these
}

// countTree counts what lies below a directory, up to a number of names; 0: all.
func (v *view) countTree(root base.Ino, limit int) (*tree, error) {
	t := &tree{dirs: map[base.Ino]bool{root: true}, links: map[base.Ino]int64{}}
	left := []base.Ino{root}
	names := 0
	for len(left) > 0 {
		dir := left[len(left)-1]
		left = left[:len(left)-1]
		err := v.scanEntries(dir, 0, schema.LastCookie, func(_ base.Cookie, value []byte) (bool, error) {
			if names++; limit > 0 && names > limit {
				return false, nil
			}
			e, err := schema.DecodeDentry(value)
			if err != nil {
				return false, err
			}
			switch e.Kind {
			case schema.Link:
				t.links[e.Ino] = 0
			case schema.Directory:
				t.inodes++
				t.dirs[e.Ino] = true
				left = append(left, e.Ino)
			default:
				t.inodes++
				t.bytes += int64(chargedBytes(e.Inode))
			}
			return true, nil
		})
		if err != nil || limit > 0 && names > limit {
			return t, err
		}
	}
	for ino := range t.links {
		o, err := v.record(ino)
		if err != nil {
			return nil, err
		}
		t.links[ino] = int64(o.charged)
	}
	t.whole = true
	return t, nil
}

// usageOf returns what an account of the tree's directory holds.
func (v *view) usageOf(t *tree) (schema.Usage, error) {
	u := schema.Usage{Inodes: t.inodes + int64(len(t.links)), Bytes: t.bytes}
	for ino, bytes := range t.links {
		u.Bytes += bytes
		dirs, err := v.namesOf(ino)
		if err != nil {
			return u, err
		}
		for _, dir := range dirs {
			if !t.dirs[dir] {
				u.Crossing++
				break
			}
		}
	}
	return u, nil
}

// The functions below are for the holder.

// QuotaInfo is an account. ToCount: a CountQuota and the command that it returns
// are due.
type QuotaInfo struct {
	Dir     base.Ino
	ID      uint64
	ToCount bool
	Tally   bool
	SinceNS int64 // when it began or was counted
}

// Quotas lists the accounts of a subtree.
func Quotas(r shard.Reader, id base.ShardID, subtree base.SubtreeID, fn func(QuotaInfo) bool) error {
	lo, hi := schema.KindRange(id, subtree, schema.KindQuota)
	return r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		q, err := schema.DecodeQuota(value)
		if err != nil {
			return false, err
		}
		dir, _, _ := schema.InoOf(key)
		return fn(QuotaInfo{base.Ino(dir), q.ID, !q.Counted, q.Tally, q.SinceNS}), nil
	})
}

// CountQuota counts what lies below an account's directory on r, one snapshot, and
// returns the command that completes the account; nil if there is nothing to do.
func (m *Machine) CountQuota(r shard.Reader, subtree base.SubtreeID, dir base.Ino) (*canopyv1.QuotaCountedCommand, error) {
	v := &view{r: r, id: m.cfg.Shard, hash: m.cfg.Hash, subtree: subtree}
	q, err := v.quotaOf(dir)
	if err != nil || q == nil || q.Counted {
		return nil, err
	}
	t, err := v.countTree(dir, 0)
	if err != nil {
		return nil, err
	}
	u, err := v.usageOf(t)
	if err != nil {
		return nil, err
	}
	return &canopyv1.QuotaCountedCommand{Subtree: uint64(subtree), Dir: uint64(dir), Id: q.ID,
		Inodes: u.Inodes - q.Usage.Inodes, Bytes: u.Bytes - q.Usage.Bytes, Crossing: u.Crossing - q.Usage.Crossing}, nil
}
