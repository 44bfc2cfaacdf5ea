package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/canopyfs/canopy/internal/base"
)

// leases adds the transfers of a shard's lease from node n to a replica: nothing is copied.
func (m *model) leases(all []Step, n int, x *Shard) []Step {
	if m.changing[x.ID] {
		return all
	}
	low, high := m.share(n, x.Busy)
	if low < m.s.MinShare {
		return all
	}
	root, before := m.rootOf(x), len(all)
	beside := -1 // the candidate that puts it beside the root (P10)
	for _, r := range x.Replicas {
		to, ok := m.nodes[r]
		if !ok || to == n || m.takes(to) != "" || m.give[n]-m.take[to] < m.s.MinDifference {
			continue
		}
		k := m.on(n, to)
		if m.fills(to, low*k) {
			continue
		}
		l := loads{{n, -low, -high}, {to, low * k, high * k}}
		if m.root[to] {
			beside = len(all)
		}
		rootTo := -1
		if root {
			rootTo = to
		}
		all = append(all, Step{Kind: TransferLease, Shard: x.ID, FromNode: x.Holder, ToNode: r, Relief: low, Gain: m.gain(l, rootTo), Took: m.s.LeasePause,
			Cost: m.s.LeaseCharge + waitCost(x.Ops, m.s.LeasePause), Spend: Budget{Moves: 1, Pause: m.s.LeasePause},
			explain: func() string {
				return fmt.Sprintf("%s; shard %v is %.2f of that, and its replica on node %v can serve it: %s", m.state(n), x.ID, low, r, m.effect(l))
			}})
	}
	if beside >= 0 && len(all) > before+1 {
		all = slices.Delete(all, beside, beside+1)
	}
	return all
}

// rootOf reports whether the shard has the root's subtree.
func (m *model) rootOf(x *Shard) bool {
	t, ok := m.subtrees[base.RootSubtree]
	return ok && m.v.Subtrees[t].Shard == x.ID
}

// carriedAway adds the move of the holder's replica of a shard to a node that has no lease
// of any, with the lease: the way to nodes that are new.
func (m *model) carriedAway(all []Step, n int, x *Shard) []Step {
	if m.changing[x.ID] || m.rootOf(x) {
		return all
	}
	bytes := m.size(x)
	low, high := m.share(n, x.Busy)
	if low < m.s.MinShare {
		return all
	}
	m.targets(n, func(to int) bool {
		if len(m.held[to]) > 0 || !m.canHost(x, to) || !m.keeps(x, x.Holder, to) {
			return true
		}
		k := m.on(n, to)
		if m.fills(to, low*k) {
			return true
		}
		l := loads{{n, -low, -high}, {to, low * k, high * k}}
		took := m.copyTime(bytes / m.s.EntryBytes)
		all = append(all, Step{Kind: MoveReplica, Shard: x.ID, FromNode: x.Holder, ToNode: m.v.Nodes[to].ID, Relief: low, Gain: m.gain(l, -1), Took: took,
			Cost:  m.s.StepCharge + waitCost(x.Ops, m.s.LeasePause) + m.copying(n, took) + m.copying(to, took),
			Spend: Budget{Moves: 1, Bytes: bytes, Pause: m.s.LeasePause},
			explain: func() string {
				return fmt.Sprintf("%s; shard %v is %.2f of that, and goes to node %v with its lease: %s; copying %d MiB takes %v",
					m.state(n), x.ID, low, m.v.Nodes[to].ID, m.effect(l), bytes>>20, tenths(took))
			}})
		return false
	})
	return all
}

// moved is what a migration and a carve have in common: a unit of work at node n that
// goes to another shard.
func (m *model) moved(all []Step, n int, unit Step, entries int64, bytes int64, rate float64, busy Load, worth float64) []Step {
	low, high := m.share(n, busy)
	if low < m.s.MinShare {
		return all
	}
	count := 0
	m.targets(n, func(to int) bool {
		x := m.lightest(to)
		if x == nil {
			return true
		}
		if m.root[to] && count > 0 {
			return false // P10
		}
		k := m.on(n, to)
		if m.fills(to, low*k) {
			return true
		}
		count++
		l := loads{{n, -low, -high}, {to, low * k, high * k}}
		s := unit
		s.To, s.Took = []base.ShardID{x.ID}, m.copyTime(entries)
		s.Relief = low
		s.Gain = m.gain(l, -1) * worth
		s.Cost = m.s.StepCharge + waitCost(rate, m.s.MovePause) + m.copying(n, s.Took) + m.copying(to, s.Took)
		s.Spend = Budget{Moves: 1, Bytes: bytes, Pause: m.s.MovePause}
		s.explain = func() string {
			return fmt.Sprintf("%s; %s is %.2f of that, and goes to shard %v on node %v: %s; copying %d entries takes %v",
				m.state(n), s.Path, low, x.ID, m.v.Nodes[to].ID, m.effect(l), entries, tenths(s.Took))
		}
		all = append(all, s)
		return count < 2
	})
	return all
}

// migrations adds the moves of a whole subtree. The root's stays (P10), and what is pinned (P9).
func (m *model) migrations(all []Step, n int, t *Subtree) []Step {
	if t.Pinned || t.ID == base.RootSubtree || m.moving[t.ID] {
		return all
	}
	if t.Of != 0 {
		if d := m.dir(t.Of); d == nil || d.Pinned {
			return all
		}
	}
	unit := Step{Kind: Migrate, Shard: t.Shard, Subtree: t.ID, Path: t.Path}
	return m.moved(all, n, unit, t.Entries, m.bytesOf(t, t.Entries), t.Ops.All(), t.Busy, 1)
}

// carves adds the moves of a directory with all below it, which becomes a subtree.
func (m *model) carves(all []Step, n int, d *Dir) []Step {
	t := &m.v.Subtrees[m.subtrees[d.Subtree]]
	if d.Pinned || t.Pinned || d.Root || d.Ino == base.RootIno || d.parts() > 1 || t.Of != 0 || m.moving[t.ID] {
		return all
	}
	entries, busy := d.below()
	unit := Step{Kind: Carve, Shard: t.Shard, Subtree: t.ID, Dir: d.Ino, Path: d.Path}
	return m.moved(all, n, unit, entries, m.bytesOf(t, entries), d.Ops.All(), busy, 1-m.s.CarveScatter)
}

// effect describes what becomes of the nodes: what is wanted of each, of its capacity.
func (m *model) effect(l loads) string {
	const most = 5
	var parts []string
	for i, x := range l {
		if i == most {
			parts = append(parts, fmt.Sprintf("%d more", len(l)-most))
			break
		}
		before := m.give[x.node]
		if x.low > 0 {
			before = m.take[x.node]
		}
		parts = append(parts, fmt.Sprintf("node %v %.2f to %.2f", m.v.Nodes[x.node].ID, before, max(0, before+x.low)))
	}
	return strings.Join(parts, ", ")
}
