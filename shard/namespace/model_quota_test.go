package namespace

import (
	"maps"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// bound is a quota as the oracle has it. What it holds is counted anew each time.
type bound struct {
	bytes, inodes uint64
	counted       bool
}

// use is what lies below a directory: each node once, whatever its names.
func (n *node) use() (inodes, bytes uint64) {
	seen := map[*node]bool{}
	var walk func(*node)
	walk = func(d *node) {
		for _, c := range d.children {
			if seen[c] {
				continue
			}
			seen[c] = true
			inodes++
			if c.kind == schema.TypeFile {
				bytes += c.size
			}
			walk(c)
		}
	}
	walk(n)
	return inodes, bytes
}

// bounded does what changes the tree, and takes it back if a quota forbids it: what
// grows may not pass a bound.
func (o *oracle) bounded(do func() fserr.Kind) fserr.Kind {
	type use struct{ inodes, bytes uint64 }
	before := map[*node]use{}
	for _, n := range o.all {
		if n.bound != nil && n.bound.counted {
			i, b := n.use()
			before[n] = use{i, b}
		}
	}
	if len(before) == 0 {
		return do()
	}
	saved := map[*node]node{}
	for _, n := range o.all {
		c := *n
		c.children = maps.Clone(n.children)
		saved[n] = c
	}
	all := len(o.all)
	kind := do()
	if kind != fserr.OK {
		return kind
	}
	for n, was := range before {
		i, b := n.use()
		if !n.removed && (n.bound.inodes > 0 && i > was.inodes && i > n.bound.inodes || n.bound.bytes > 0 && b > was.bytes && b > n.bound.bytes) {
			o.all = o.all[:all]
			for n, s := range saved {
				*n = s
			}
			return fserr.Quota
		}
	}
	return kind
}

// drawQuota sets or removes a quota.
func (m *model) drawQuota() step {
	dir := m.dir("dir")
	c := &canopyv1.SetQuotaCall{Dir: dir.ino, Remove: m.pick("remove", 4) == 0}
	if !c.Remove {
		c.MaxInodes, c.MaxBytes = uint64(m.pick("inodes", 7)), uint64(m.pick("bytes", 4)*4000)
	}
	return step{&canopyv1.Op{Call: &canopyv1.Op_SetQuota{SetQuota: c}}, func(res *canopyv1.Result) {
		kind := fserr.OK
		switch {
		case dir.purged:
			kind = fserr.Stale
		case c.Remove && dir.bound == nil:
			kind = fserr.NoData
		case !c.Remove && dir.removed:
			kind = fserr.NotFound
		case !c.Remove && c.MaxBytes == 0 && c.MaxInodes == 0:
			kind = fserr.Invalid
		}
		if !m.expect(res, kind, "quota") {
			return
		}
		if dir.bound = nil; c.Remove {
			return
		}
		q := res.Quotas[0]
		dir.bound = &bound{c.MaxBytes, c.MaxInodes, !q.Counting}
		if inodes, bytes := dir.use(); !q.Counting && (q.Inodes != inodes || q.Bytes != bytes) {
			m.rt.Fatalf("a new quota of %d counts %d inodes and %d bytes, want %d and %d", dir.ino, q.Inodes, q.Bytes, inodes, bytes)
		}
	}}
}

// countQuotas lets the holder count what is to be counted, or apply what it counted
// some rounds ago; now and then it drops the tallies.
func (m *model) countQuotas() {
	switch {
	case m.counts == nil:
		m.count()
	case m.pick("drop", 3) == 0:
		m.dropTallies()
	default:
		m.counted()
		m.compareQuotas()
	}
}

// compareQuotas compares what all quotas hold with the oracle's count.
func (m *model) compareQuotas() {
	found := map[uint64]bool{}
	for _, q := range m.Query(&canopyv1.Op{Call: &canopyv1.Op_ListQuotas{ListQuotas: &canopyv1.ListQuotasCall{}}}).Quotas {
		found[q.Dir] = true
		for _, n := range m.o.all {
			if n.ino != q.Dir {
				continue
			}
			if n.bound == nil || n.bound.counted && q.Counting {
				m.rt.Fatalf("quota %v, the oracle has %+v", q, n.bound)
			}
			n.bound.counted = !q.Counting
			if inodes, bytes := n.use(); !q.Counting && (q.Inodes != inodes || q.Bytes != bytes) {
				m.rt.Fatalf("quota %v, want %d inodes and %d bytes", q, inodes, bytes)
			}
		}
	}
	for _, n := range m.o.all {
		if n.bound != nil && !n.removed && !found[n.ino] {
			m.rt.Fatalf("the quota of %d is gone", n.ino)
		}
	}
}

// mustWait reports whether a rename was refused because a large directory goes
// between quotas: until it is counted, or since it shares inodes with others. The
// oracle does not know which: nothing has changed then.
func (m *model) mustWait(res *canopyv1.Result, moved ...*node) bool {
	kind := fserr.Kind(res.Error)
	if kind != fserr.Busy && kind != fserr.CrossDevice {
		return false
	}
	m.dropSent(res)
	for _, n := range moved {
		if n != nil && n.isDir() && n.names() != nil && m.countNow > 0 {
			return true
		}
	}
	return false
}
