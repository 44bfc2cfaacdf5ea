package policy

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/canopyfs/canopy/internal/base"
)

// splittable reports whether a directory may be split or merged at all: nothing of it is
// pinned (P9), it is not "/" (P10), and nothing of it moves or was just moved (P6).
func (m *model) splittable(d *Dir) bool {
	if d.Pinned || d.Ino == base.RootIno {
		return false
	}
	free := func(id base.SubtreeID) bool {
		t, ok := m.subtrees[id]
		n := m.holder(id)
		return ok && !m.v.Subtrees[t].Pinned && !m.moving[id] && n >= 0 && m.quiet[n] == "" && m.v.Nodes[n].State != Dead
	}
	if !free(d.Subtree) {
		return false
	}
	for _, f := range d.Fragments {
		if !free(f.Subtree) {
			return false
		}
	}
	return true
}

// splits adds the split of a directory that is felt at node n, if it is worth a look (P8): it is
// busy, mostly with what is about single names, and the hashes of names part that work. One that
// was cut by hand into another number than a power of two is left to hands.
func (m *model) splits(all []Step, n int, d *Dir) []Step {
	if !m.splittable(d) {
		return all
	}
	var wanted float64
	for j := range d.parts() {
		at, b := m.part(d, j)
		low, _ := m.share(at, b)
		wanted += low
	}
	f := d.parts()
	if wanted < m.s.SplitShare*float64(f) || f&(f-1) != 0 {
		return all
	}
	rate := d.Ops.All()
	if rate == 0 || d.Ops.ByName()/rate < m.s.SplitByName {
		m.note("%s at %.2f: not split, %.0f of %.0f operations/s are about single names", d.Path, wanted, d.Ops.ByName(), rate)
		return all
	}
	var nodes []int
	k := m.fragmentsFor(d, int(wanted/m.s.SplitPart+0.999))
	m.targets(n, func(to int) bool {
		if m.lightest(to) != nil && !m.hasPart(d, to) {
			nodes = append(nodes, to)
		}
		return len(nodes) < k-f
	})
	for len(nodes) < k-f {
		k /= 2
	}
	if k <= f {
		return all
	}
	if widest := widest(d, k); widest > m.s.SplitWidest {
		m.note("%s at %.2f: not split into %d, %.2f of its creates would be in one fragment", d.Path, wanted, k, widest)
		return all
	}
	s, l := m.cut(d, k, nodes)
	for _, x := range l {
		if x.node == n {
			s.Relief = -x.low
		}
	}
	s.Gain = m.gain(l, -1) * (1 - m.s.SplitScatter) * d.Ops.ByName() / rate
	s.explain = func() string {
		return fmt.Sprintf("%s; %s is %.2f of that by %.0f creates and %.0f other operations/s, and becomes %d fragments: %s; moving its names takes %v",
			m.state(n), d.Path, wanted, d.Ops.Create, rate-d.Ops.Create, k, m.effect(l), tenths(s.Took))
	}
	return append(all, s)
}

// fragmentsFor returns a power of two of fragments: as many as wanted, at least twice what there are.
func (m *model) fragmentsFor(d *Dir, want int) int {
	f := d.parts()
	k := min(want, max(m.s.MaxParts, 2*f), m.s.MaxFragments)
	if k <= f {
		k = 2 * f
	}
	k = 1 << bits.Len(uint(k-1))
	for k > m.s.MaxFragments {
		k /= 2
	}
	return k
}

// part returns where fragment j of a directory is served, and its work.
func (m *model) part(d *Dir, j int) (node int, busy Load) {
	if len(d.Fragments) == 0 {
		return m.holder(d.Subtree), d.Busy
	}
	return m.holder(d.Fragments[j].Subtree), d.Fragments[j].Busy
}

// hasPart reports whether a node serves a fragment of the directory.
func (m *model) hasPart(d *Dir, node int) bool {
	for j := range d.parts() {
		if at, _ := m.part(d, j); at == node {
			return true
		}
	}
	return false
}

// bucketShare returns how much of a directory's work is in part i of k, by its creates.
func bucketShare(d *Dir, i, k int) float64 {
	var sum, part float64
	for b, x := range d.Creates {
		// What of bucket b = [b, b+1)/Buckets lies in [i, i+1)/k.
		lo, hi := max(float64(b)/Buckets, float64(i)/float64(k)), min(float64(b+1)/Buckets, float64(i+1)/float64(k))
		sum += x
		part += x * max(0, hi-lo) * Buckets
	}
	if sum == 0 {
		return 1 / float64(k)
	}
	return part / sum
}

// widest returns the share of the busiest of k fragments.
func widest(d *Dir, k int) (most float64) {
	for i := range k {
		most = max(most, bucketShare(d, i, k))
	}
	return most
}

// cut returns the split of a directory into k fragments. Of each range that is cut the first
// part stays; the others go to the nodes, one to each.
func (m *model) cut(d *Dir, k int, nodes []int) (Step, loads) {
	t := &m.v.Subtrees[m.subtrees[d.Subtree]]
	f := d.parts()
	s := Step{Kind: Split, Shard: t.Shard, Subtree: d.Subtree, Dir: d.Ino, Path: d.Path, Fragments: k, Cost: m.s.StepCharge}
	var l loads
	var entries int64
	for j := range f {
		at, busy := m.part(d, j)
		low, high := m.share(at, busy)
		have := d.Entries
		if f > 1 {
			have = d.Fragments[j].Entries
		}
		whole := bucketShare(d, j, f)
		for i := 1; i < k/f; i++ {
			share := 1 / float64(k/f)
			if whole > 0 {
				share = bucketShare(d, j*k/f+i, k) / whole
			}
			to := nodes[len(s.To)]
			speed := m.on(at, to)
			l.add(at, -low*share, -high*share)
			l.add(to, low*share*speed, high*share*speed)
			part := have / int64(k/f)
			took := m.copyTime(part) + m.s.MovePause
			entries, s.Took = entries+part, s.Took+took
			s.Cost += m.copying(at, took) + m.copying(to, took) + waitCost(d.Ops.All(), m.s.MovePause)
			s.To = append(s.To, m.lightest(to).ID)
		}
	}
	s.Spend = Budget{len(s.To), m.bytesOf(t, entries), time.Duration(len(s.To)) * m.s.MovePause}
	return s, l
}

// grown splits directories whose fragments have more entries than one should (P8).
func (m *model) grown(limit int) {
	for i := range m.v.Dirs {
		d := &m.v.Dirs[i]
		f := d.parts()
		each := d.Entries / int64(f)
		if each <= m.s.SplitEntries || f&(f-1) != 0 || 2*f > m.s.MaxFragments || len(m.plan.Steps) >= limit || !m.splittable(d) {
			continue
		}
		k := m.fragmentsFor(d, int(d.Entries/m.s.SplitEntries)+1)
		var nodes []int
		for _, to := range m.order {
			if len(nodes) < k-f && m.takes(to) == "" && m.lightest(to) != nil && !m.hasPart(d, to) {
				nodes = append(nodes, to)
			}
		}
		for len(nodes) < k-f {
			k /= 2
		}
		if k <= f {
			m.note("%s: %d entries in %d fragments, and no nodes for more", d.Path, d.Entries, f)
			continue
		}
		s, _ := m.cut(d, k, nodes)
		s.explain = func() string {
			return fmt.Sprintf("%s has %d entries in %d fragments, at most %d each is wanted: it becomes %d; moving names takes %v",
				d.Path, d.Entries, f, m.s.SplitEntries, k, tenths(s.Took))
		}
		m.offer(&s)
	}
}

// offer takes a step that is not for relief, unless it is too early or beyond the budget.
func (m *model) offer(s *Step) bool {
	why := ""
	switch factor, early := m.impatience(s); {
	case factor != 1:
		why = early
	case !s.Spend.within(m.left):
		why = fmt.Sprintf("it takes %v, and %v are left of this hour's", s.Spend, m.left)
	default:
		m.accept(s)
		return true
	}
	m.note("%v: %s", s, why)
	return false
}

// cold merges what was split and is not needed so any more (P8): cold for MergeAfter, which
// doubles with each split of the last day but the first.
func (m *model) cold(limit int) {
	for i := range m.v.Dirs {
		d := &m.v.Dirs[i]
		if len(d.Fragments) < 2 || d.ColdSince == 0 || len(m.plan.Steps) >= limit || d.Entries > m.s.SplitEntries/2 {
			continue
		}
		splits := 0
		for j := range m.v.History {
			if p := &m.v.History[j]; p.Kind == Split && p.Dir == d.Ino && !p.Failed {
				splits++
			}
		}
		after := m.s.MergeAfter << min(max(0, splits-1), 6)
		if m.v.Now-d.ColdSince < after || !m.splittable(d) {
			continue
		}
		m.merge(d, after)
	}
}

func (m *model) merge(d *Dir, after time.Duration) {
	home := m.holder(d.Subtree)
	if why := m.takes(home); why != "" {
		m.note("%s: not merged, its node %v %s", d.Path, m.v.Nodes[home].ID, why)
		return
	}
	t := &m.v.Subtrees[m.subtrees[d.Subtree]]
	s := Step{Kind: Merge, Shard: t.Shard, Subtree: d.Subtree, Dir: d.Ino, Path: d.Path, Fragments: 1, Cost: m.s.StepCharge,
		Gain: m.s.FragmentCharge * float64(len(d.Fragments)-1)}
	var entries int64
	for _, f := range d.Fragments[1:] {
		took := m.copyTime(f.Entries) + m.s.MovePause
		at := m.holder(f.Subtree)
		if m.take[at] > m.s.Ceiling {
			m.note("%s: not merged, node %v with a fragment of it is busy", d.Path, m.v.Nodes[at].ID)
			return
		}
		entries, s.Took = entries+f.Entries, s.Took+took
		s.Cost += m.copying(at, took) + m.copying(home, took)
	}
	n := len(d.Fragments) - 1
	s.Spend = Budget{n, m.bytesOf(t, entries), time.Duration(n) * m.s.MovePause}
	s.explain = func() string {
		return fmt.Sprintf("%s in %d fragments has done less than %.2f of a node's work for %v (now %.3f), and %v is enough: its %d names go home to shard %v",
			d.Path, n+1, m.s.MergeShare, ago(m.v.Now-d.ColdSince), d.Busy.Short, after, entries, t.Shard)
	}
	m.offer(&s)
}
