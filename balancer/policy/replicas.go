package policy

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/canopyfs/canopy/internal/base"
)

// repair plans what replicas need whatever the load is (P11, P12): those on nodes that are
// lost or being emptied go elsewhere, missing ones are made, those that would fail
// together are parted, full disks are relieved.
func (m *model) repair(limit int) {
	for _, what := range []func(*Shard) (from base.NodeID, why string, needed bool){m.lost, m.missing, m.together, m.onFullDisk} {
		for i := range m.v.Shards {
			x := &m.v.Shards[i]
			if len(m.plan.Steps) >= limit {
				return
			}
			if m.changing[x.ID] {
				continue
			}
			if from, why, needed := what(x); needed {
				m.rehome(x, from, why)
			}
		}
	}
}

// lost finds a replica on a node that is dead for long, or being emptied.
func (m *model) lost(x *Shard) (base.NodeID, string, bool) {
	for _, id := range x.Replicas {
		i, ok := m.nodes[id]
		if !ok {
			continue
		}
		n := &m.v.Nodes[i]
		if n.State == Draining || n.State == Dead && m.v.Now-n.Since >= m.s.DeadFor {
			return id, fmt.Sprintf("node %v is %v for %s", id, n.State, ago(m.v.Now-n.Since)), true
		}
	}
	return 0, "", false
}

func (m *model) missing(x *Shard) (base.NodeID, string, bool) {
	return 0, fmt.Sprintf("shard %v has %d of %d replicas", x.ID, len(x.Replicas), x.Want), len(x.Replicas) < x.Want
}

// together finds a replica that shares a failure domain with another of the shard, where
// a node in a better one could have it. The holder's is the last choice.
func (m *model) together(x *Shard) (base.NodeID, string, bool) {
	total := 0
	for _, id := range x.Replicas {
		total += m.sharing(x, id, 0)
	}
	if total <= m.leastSharing(len(x.Replicas)) {
		return 0, "", false
	}
	all := slices.Clone(x.Replicas)
	slices.SortFunc(all, func(a, b base.NodeID) int {
		return cmp.Or(cmp.Compare(m.sharing(x, b, 0), m.sharing(x, a, 0)), cmp.Compare(holds(x, a), holds(x, b)), cmp.Compare(a, b))
	})
	for _, id := range all {
		now := m.sharing(x, id, 0)
		if now == 0 {
			break
		}
		if to := m.place(x, id); to >= 0 && m.quietOf(id) == "" && m.sharing(x, m.v.Nodes[to].ID, id) < now {
			return id, fmt.Sprintf("the replica of shard %v on node %v shares failure domains with others: %d, on node %v it would be %d",
				x.ID, id, now, m.v.Nodes[to].ID, m.sharing(x, m.v.Nodes[to].ID, id)), true
		}
	}
	return 0, "", false
}

// quietOf tells why a node takes part in nothing now.
func (m *model) quietOf(id base.NodeID) string {
	if i, ok := m.nodes[id]; ok {
		return m.quiet[i]
	}
	return ""
}

func holds(x *Shard, id base.NodeID) int {
	if x.Holder == id {
		return 1
	}
	return 0
}

// onFullDisk finds a replica on a disk that is too full, of a shard that others hold.
func (m *model) onFullDisk(x *Shard) (base.NodeID, string, bool) {
	for _, id := range x.Replicas {
		i, ok := m.nodes[id]
		if !ok || id == x.Holder || m.v.Nodes[i].full() <= m.s.DiskHigh || m.quiet[i] != "" || x.Bytes == 0 {
			continue
		}
		if to := m.place(x, id); to >= 0 && m.keeps(x, id, to) {
			return id, fmt.Sprintf("the disk of node %v is %.0f%% full, at most %.0f%% is wanted", id, 100*m.v.Nodes[i].full(), 100*m.s.DiskHigh), true
		}
	}
	return 0, "", false
}

// leastSharing is the least that the replicas of a shard can share, taken together, by how
// many names of the widest domain there are that parts the nodes at all.
func (m *model) leastSharing(replicas int) int {
	for level, names := range m.names {
		if names < 2 {
			continue
		}
		each, more := replicas/names, replicas%names
		pairs := more*(each+1)*each/2 + (names-more)*each*(each-1)/2
		return 2 * pairs * sharingWeight[len(m.names)-level]
	}
	return 0
}

// sharingWeight is what a pair of replicas counts that shares a host, a rack or a zone.
var sharingWeight = [...]int{0, 1, 100, 10_000}

// sharing is how closely a replica on the node would lie with the others of the shard,
// that on the node without left out: each pair by the widest domain that it shares. What
// all nodes have in common parts nobody and does not count.
func (m *model) sharing(x *Shard, id, without base.NodeID) (n int) {
	i, ok := m.nodes[id]
	if !ok {
		return 0
	}
	for _, r := range x.Replicas {
		j, ok := m.nodes[r]
		if !ok || r == id || r == without {
			continue
		}
		for level, name := range m.v.Nodes[i].Domain {
			if m.names[level] > 1 && name != "" && name == m.v.Nodes[j].Domain[level] {
				n += sharingWeight[len(m.names)-level]
				break
			}
		}
	}
	return n
}

// keeps reports whether on the node the replica of the shard that is on from shares failure
// domains no more closely than where it is (P11).
func (m *model) keeps(x *Shard, from base.NodeID, node int) bool {
	return m.sharing(x, m.v.Nodes[node].ID, from) <= m.sharing(x, from, 0)
}

// canHost reports whether a node has room for a replica of the shard.
func (m *model) canHost(x *Shard, node int) bool {
	n := &m.v.Nodes[node]
	if n.State != Live || slices.Contains(x.Replicas, n.ID) || m.quiet[node] != "" {
		return false
	}
	return n.DiskBytes <= 0 || n.full() <= m.s.DiskLow && float64(n.UsedBytes+x.Bytes) <= m.s.DiskHigh*float64(n.DiskBytes)
}

// place returns the best node for the replica of the shard that is on from, or one more: the
// least sharing of failure domains, then the fewest replicas, then the coolest. -1 if there is none.
func (m *model) place(x *Shard, from base.NodeID) int {
	best := -1
	for _, i := range m.order {
		if !m.canHost(x, i) {
			continue
		}
		if best < 0 || cmp.Or(cmp.Compare(m.sharing(x, m.v.Nodes[i].ID, from), m.sharing(x, m.v.Nodes[best].ID, from)),
			cmp.Compare(m.replicas[i], m.replicas[best])) < 0 {
			best = i
		}
	}
	return best
}

func (m *model) rehome(x *Shard, from base.NodeID, why string) {
	to := m.place(x, from)
	if to < 0 {
		m.note("%s: no node can take it", why)
		return
	}
	bytes := m.size(x)
	took := m.copyTime(bytes / m.s.EntryBytes)
	s := Step{Kind: MoveReplica, Shard: x.ID, FromNode: from, ToNode: m.v.Nodes[to].ID, Took: took, Cost: m.s.LeaseCharge + m.copying(to, took),
		Spend: Budget{Moves: 1, Bytes: bytes}}
	if from == x.Holder {
		s.Spend.Pause = m.s.LeasePause
	}
	s.explain = func() string {
		return fmt.Sprintf("%s; node %v, with %d replicas, gets a copy of shard %v: %d MiB take %v", why, s.ToNode, m.replicas[to], x.ID, bytes>>20, tenths(took))
	}
	if factor, early := m.impatience(&s); factor == 0 {
		m.note("%v: %s", &s, early)
	} else if !s.Spend.within(m.left) {
		m.note("%v: it takes %v, and %v are left of this hour's", &s, s.Spend, m.left)
	} else {
		m.accept(&s)
	}
}
