package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

func quotaProto(dir base.Ino, q *schema.Quota) *canopyv1.Quota {
	p := &canopyv1.Quota{Dir: uint64(dir), MaxBytes: q.MaxBytes, MaxInodes: q.MaxInodes, Counting: !q.Counted, Tally: q.Tally}
	if q.Counted {
		p.Bytes, p.Inodes = uint64(q.Usage.Bytes), uint64(q.Usage.Inodes)
	}
	return p
}

// quotaOf returns a directory's account, nil if it has none.
func (v *view) quotaOf(dir base.Ino) (*schema.Quota, error) {
	b, found, err := v.r.Get(schema.QuotaKey(v.id, v.subtree, dir))
	if err != nil || !found {
		return nil, err
	}
	return schema.DecodeQuota(b)
}

// quotasFor returns the quotas that hold for an object, the innermost first: of a
// file with several names those above each name. What has no name has none.
func (v *view) quotasFor(o *object) ([]*canopyv1.Quota, error) {
	if !v.quotas {
		return nil, nil
	}
	var dirs []base.Ino
	switch o.home {
	case inHeader:
		dirs = []base.Ino{o.dir.Ino}
	case inDentry:
		dirs = []base.Ino{o.entry.dir}
	case inRecord:
		var err error
		if dirs, err = v.namesOf(o.inode.Ino); err != nil {
			return nil, err
		}
	}
	var all []*canopyv1.Quota
	seen := map[base.Ino]bool{}
	for _, dir := range dirs {
		for depth := 0; !seen[dir]; depth++ {
			seen[dir] = true
			q, err := v.quotaOf(dir)
			if err != nil {
				return nil, err
			}
			if q != nil && !q.Tally {
				all = append(all, quotaProto(dir, q))
			}
			if dir == v.root {
				break
			}
			d, err := v.directory(dir)
			if err == fserr.Stale && depth > 0 {
				break // above a removed directory, which somebody is in
			}
			if err != nil {
				return nil, err
			}
			if d.ParentSubtree != v.subtree {
				break // a detached part: there are no quotas above it here
			}
			dir = d.Parent
		}
	}
	return all, nil
}

// getQuota answers the quotas that hold for an object and the room they leave.
func getQuota(v *view, op *canopyv1.Op) (*canopyv1.Result, error) {
	o, err := v.resolve(op.GetGetQuota().Place)
	if err != nil {
		return nil, err
	}
	r := v.answer(o)
	if r.Quotas, err = v.quotasFor(o); err != nil {
		return nil, err
	}
	room := noBound
	for _, q := range r.Quotas {
		if !q.Counting && q.MaxBytes > 0 {
			room = min(room, left(q.MaxBytes, int64(q.Bytes)))
		}
	}
	r.RoomBytes = &room
	return r, nil
}

// listQuotas answers all quotas of the subtree.
func listQuotas(v *view, _ *canopyv1.Op) (*canopyv1.Result, error) {
	r := &canopyv1.Result{}
	lo, hi := schema.KindRange(v.id, v.subtree, schema.KindQuota)
	return r, v.r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		q, err := schema.DecodeQuota(value)
		if err != nil {
			return false, err
		}
		if dir, _, _ := schema.InoOf(key); !q.Tally {
			r.Quotas = append(r.Quotas, quotaProto(base.Ino(dir), q))
		}
		return true, nil
	})
}

// boundStatFS narrows the size of the file system to that of the quotas that hold
// for a place, of bytes and of inodes the one that leaves the least.
func (v *view) boundStatFS(s *canopyv1.StatFs, p *canopyv1.Place) error {
	if p == nil || !v.quotas {
		return nil
	}
	o, err := v.resolve(p)
	if err != nil {
		return err
	}
	quotas, err := v.quotasFor(o)
	if err != nil {
		return err
	}
	for _, q := range quotas {
		if q.Counting {
			continue
		}
		if free := left(q.MaxBytes, int64(q.Bytes)); q.MaxBytes > 0 && (s.QuotaBytes == 0 || free < s.QuotaFreeBytes) {
			s.QuotaBytes, s.QuotaFreeBytes = q.MaxBytes, free
		}
		if free := left(q.MaxInodes, int64(q.Inodes)); q.MaxInodes > 0 && free < s.FreeFiles {
			s.Files, s.FreeFiles = q.MaxInodes, free
		}
	}
	return nil
}
