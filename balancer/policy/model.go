package policy

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/canopyfs/canopy/internal/base"
)

// knee is the utilisation above which waiting is taken to grow in a straight line: a
// queue that is measured is finite.
const knee = 0.9

// strain is how many operations wait, on average, at a server with the utilisation or
// demand u: that of a queue with one server and random arrivals.
func strain(u float64) float64 {
	switch {
	case u <= 0:
		return 0
	case u <= knee:
		return u * u / (1 - u)
	}
	return knee*knee/(1-knee) + (2*knee-knee*knee)/((1-knee)*(1-knee))*(u-knee)
}

// unstrain returns the utilisation at which w operations wait, at most knee.
func unstrain(w float64) float64 { return min(knee, (math.Sqrt(w*w+4*w)-w)/2) }

// maxPressure bounds how much more is wanted of a node than it serves.
const maxPressure = 7

// demand is what is wanted of a node: its utilisation; or that at which as many operations
// wait as do, as in one with a slow disk; and more if a long queue tells that what
// is served is not all.
func demand(util, waiting float64, s *Settings) float64 {
	pressure := min(maxPressure, max(0, waiting-strain(knee))/s.QueueDeep)
	return max(util, unstrain(waiting)) * (1 + pressure)
}

// load is a change of a node's demand: the least and the most that it can be.
type load struct {
	node      int
	low, high float64
}

type loads []load

// add adds a change, one for each node.
func (l *loads) add(node int, low, high float64) {
	for i := range *l {
		if x := &(*l)[i]; x.node == node {
			x.low, x.high = x.low+low, x.high+high
			return
		}
	}
	*l = append(*l, load{node, low, high})
}

// model is a view with what follows from it, and what the plan so far uses up.
type model struct {
	v        *View
	s        *Settings
	nodes    map[base.NodeID]int
	shards   map[base.ShardID]int
	subtrees map[base.SubtreeID]int
	give     []float64 // least demand lately, by node
	take     []float64 // most
	held     [][]int   // shards, by the node that has the lease, the busiest first
	under    [][]int   // subtrees, by shard, the busiest first
	dirs     [][]int   // directories, by subtree
	replicas []int     // by node
	root     []bool    // by node: it has the lease of the root's shard
	names    [3]int    // distinct names of each kind of failure domain
	quiet    []string  // by node: why it takes part in nothing now
	order    []int     // nodes, by what can be put on them, the coolest first
	moving   map[base.SubtreeID]bool
	changing map[base.ShardID]bool
	left     Budget
	plan     Plan
}

func newModel(v *View, s *Settings) *model {
	n := len(v.Nodes)
	m := &model{v: v, s: s, nodes: make(map[base.NodeID]int, n), shards: make(map[base.ShardID]int, len(v.Shards)),
		subtrees: make(map[base.SubtreeID]int, len(v.Subtrees)), give: make([]float64, n), take: make([]float64, n), held: make([][]int, n),
		replicas: make([]int, n), root: make([]bool, n), quiet: make([]string, n),
		under: make([][]int, len(v.Shards)), dirs: make([][]int, len(v.Subtrees)), moving: map[base.SubtreeID]bool{}, changing: map[base.ShardID]bool{}}
	for i := range v.Nodes {
		x := &v.Nodes[i]
		m.nodes[x.ID] = i
		m.give[i] = demand(x.Util.Floor, s.floor(x.Waiting), s)
		m.take[i] = max(m.give[i], demand(x.Util.Peak, x.Waiting.Peak, s))
	}
	for i := range v.Shards {
		x := &v.Shards[i]
		m.shards[x.ID] = i
		if at, ok := m.nodes[x.Holder]; ok {
			m.held[at] = append(m.held[at], i)
		}
		for _, r := range x.Replicas {
			if at, ok := m.nodes[r]; ok {
				m.replicas[at]++
			}
		}
	}
	for i := range v.Subtrees {
		x := &v.Subtrees[i]
		m.subtrees[x.ID] = i
		if at, ok := m.shards[x.Shard]; ok {
			m.under[at] = append(m.under[at], i)
			if h, ok := m.nodes[v.Shards[at].Holder]; ok && x.ID == base.RootSubtree {
				m.root[h] = true
			}
		}
	}
	for i := range v.Dirs {
		if at, ok := m.subtrees[v.Dirs[i].Subtree]; ok {
			m.dirs[at] = append(m.dirs[at], i)
		}
	}
	m.sort()
	for level := range m.names {
		distinct := map[string]bool{}
		for i := range v.Nodes {
			if name := v.Nodes[i].Domain[level]; name != "" {
				distinct[name] = true
			}
		}
		m.names[level] = len(distinct)
	}
	m.left = s.Hourly(n)
	m.left = Budget{m.left.Moves - v.Spent.Moves, m.left.Bytes - v.Spent.Bytes, m.left.Pause - v.Spent.Pause}
	m.occupy()
	return m
}

// sort puts the busiest first, and the coolest nodes.
func (m *model) sort() {
	busiest := func(of func(int) float64) func(a, b int) int {
		return func(a, b int) int { return cmp.Or(cmp.Compare(of(b), of(a)), cmp.Compare(a, b)) }
	}
	for _, x := range m.held {
		slices.SortFunc(x, busiest(func(i int) float64 { return m.v.Shards[i].Busy.Floor }))
	}
	for _, x := range m.under {
		slices.SortFunc(x, busiest(func(i int) float64 { return m.v.Subtrees[i].Busy.Floor }))
	}
	for _, x := range m.dirs {
		slices.SortFunc(x, busiest(func(i int) float64 { return m.v.Dirs[i].Busy.Floor }))
	}
	m.order = make([]int, len(m.v.Nodes))
	for i := range m.order {
		m.order[i] = i
	}
	slices.SortFunc(m.order, func(a, b int) int {
		return cmp.Or(cmp.Compare(m.rank(a), m.rank(b)), cmp.Compare(a, b))
	})
}

// rank is lower for nodes that are sooner given something. What is hot is put beside
// the root last of all (P10).
func (m *model) rank(node int) float64 {
	if m.root[node] {
		return m.take[node] + 100
	}
	return m.take[node]
}

// occupy notes who takes part in something already: steps that run, and those of
// which the loads do not show the effect yet (P6). Who was relieved and is still wanted
// for more than it has, with what went subtracted, may give again at once.
func (m *model) occupy() {
	mark := func(s *Step, why string) {
		for _, n := range m.involved(s) {
			m.quiet[n] = why
		}
	}
	relieved := map[int]bool{}
	for i := range m.v.History {
		p := &m.v.History[i]
		if m.v.Now-p.Ended >= m.s.Settle {
			continue
		}
		mark(&p.Step, "took part in a "+p.Kind.String()+" "+ago(m.v.Now-p.Ended)+" ago")
		if n, ok := m.nodes[p.For]; ok && !p.Failed {
			m.give[n] = max(0, m.give[n]-p.Relief)
			relieved[n] = true
		}
	}
	for n := range relieved {
		if m.give[n] > 1 {
			m.quiet[n] = ""
		}
	}
	for i := range m.v.Running {
		s := &m.v.Running[i]
		mark(s, "takes part in a "+s.Kind.String()+" that runs")
		m.claim(s)
	}
}

// claim keeps what a step is about from further steps.
func (m *model) claim(s *Step) {
	switch s.Kind {
	case TransferLease, MoveReplica:
		m.changing[s.Shard] = true
		return
	}
	m.moving[s.Subtree] = true
	if d := m.dir(s.Dir); d != nil && s.Kind != Carve {
		for _, f := range d.Fragments {
			m.moving[f.Subtree] = true
		}
	}
}

func (m *model) dir(ino base.Ino) *Dir {
	i, ok := slices.BinarySearchFunc(m.v.Dirs, ino, func(d Dir, ino base.Ino) int { return cmp.Compare(d.Ino, ino) })
	if !ok || ino == 0 {
		return nil
	}
	return &m.v.Dirs[i]
}

// involved returns the nodes that a step works at.
func (m *model) involved(s *Step) (all []int) {
	add := func(id base.NodeID) {
		if i, ok := m.nodes[id]; ok {
			all = append(all, i)
		}
	}
	holder := func(id base.ShardID) {
		if i, ok := m.shards[id]; ok {
			add(m.v.Shards[i].Holder)
		}
	}
	add(s.FromNode)
	add(s.ToNode)
	holder(s.Shard)
	for _, id := range s.To {
		holder(id)
	}
	if d := m.dir(s.Dir); d != nil && s.Kind != Carve {
		for _, f := range d.Fragments {
			if at, ok := m.subtrees[f.Subtree]; ok {
				holder(m.v.Subtrees[at].Shard)
			}
		}
	}
	return all
}

// holder returns the node that serves a subtree, -1 if it is not known.
func (m *model) holder(id base.SubtreeID) int {
	if t, ok := m.subtrees[id]; ok {
		if x, ok := m.shards[m.v.Subtrees[t].Shard]; ok {
			if n, ok := m.nodes[m.v.Shards[x].Holder]; ok {
				return n
			}
		}
	}
	return -1
}

// share returns what a part of a node's work is of its demand: the least and the most.
func (m *model) share(node int, b Load) (low, high float64) {
	u := &m.v.Nodes[node].Util
	scale := func(busy, util, demand float64) float64 {
		if util <= 0 {
			return 0
		}
		return min(busy/util, 1) * demand
	}
	return scale(m.s.floor(b), u.Floor, m.give[node]), scale(max(b.Peak, b.Floor), max(u.Peak, u.Floor), m.take[node])
}

// on returns a node's work as work of another.
func (m *model) on(from, to int) float64 { return m.v.Nodes[from].speed() / m.v.Nodes[to].speed() }

// gain is how many operations fewer wait: the lesser of what it is by the least and by
// the most that was seen lately. Who gives is taken at its least, who gets at its most.
// As a function of what moves it is concave, so between the two it is no less. It is 0
// if somebody would get nearly as much to do as the busiest giver has (P2). rootTo is the
// node that gets the root's lease, -1 if it stays.
func (m *model) gain(l loads, rootTo int) float64 {
	most := 0.0
	for _, x := range l {
		if x.low <= 0 {
			most = max(most, m.give[x.node])
		}
	}
	var low, high float64
	for _, x := range l {
		before := m.give[x.node]
		if x.low > 0 {
			before = m.take[x.node]
			if before+x.high > most-m.s.MinDifference/2 {
				return 0
			}
		}
		was, is := m.weight(m.root[x.node]), m.weight(x.node == rootTo || rootTo < 0 && m.root[x.node])
		low += was*strain(before) - is*strain(before+x.low)
		high += was*strain(m.take[x.node]) - is*strain(m.take[x.node]+x.high)
	}
	return max(0, min(low, high))
}

func (m *model) weight(root bool) float64 {
	if root {
		return m.s.RootWeight
	}
	return 1
}

// fills reports whether a node would be full with what it gets: then only the hot spot moves
// on (P2).
func (m *model) fills(node int, low float64) bool { return m.take[node]+low > knee }

// copying is the cost of copying for a time at one node, in operation-seconds.
func (m *model) copying(node int, took time.Duration) float64 {
	return (queue(m.take[node]+m.s.CopyShare) - queue(m.take[node])) * took.Seconds()
}

// queue is strain with the curve itself up to where a node is full.
func queue(u float64) float64 {
	const full = 0.98
	if u <= full {
		return max(0, u) * max(0, u) / (1 - u)
	}
	return full*full/(1-full) + strain(u) - strain(full)
}

// copyTime is how long entries take.
func (m *model) copyTime(entries int64) time.Duration {
	return time.Duration(float64(entries) / m.s.CopyRate * float64(time.Second))
}

// bytesOf returns the bytes of entries of a subtree.
func (m *model) bytesOf(t *Subtree, entries int64) int64 {
	if t == nil || t.Bytes == 0 || t.Entries == 0 {
		return entries * m.s.EntryBytes
	}
	return int64(float64(t.Bytes) * min(1, float64(entries)/float64(t.Entries)))
}

// size returns the bytes of a shard, as far as they are known.
func (m *model) size(x *Shard) int64 {
	if x.Bytes > 0 {
		return x.Bytes
	}
	var sum int64
	for _, t := range m.under[m.shards[x.ID]] {
		sum += m.bytesOf(&m.v.Subtrees[t], m.v.Subtrees[t].Entries)
	}
	return sum
}

// waitCost is what operations lose by a pause of what they are for.
func waitCost(rate float64, pause time.Duration) float64 {
	return rate * pause.Seconds() * pause.Seconds() / 2
}

// takes tells why a node can be given no work; "" if it can.
func (m *model) takes(node int) string {
	n := &m.v.Nodes[node]
	limit := m.s.Ceiling
	if m.root[node] {
		limit = m.s.RootCeiling
	}
	switch {
	case n.State != Live:
		return "is " + n.State.String()
	case m.quiet[node] != "":
		return m.quiet[node]
	case m.take[node] > limit:
		return "is busy"
	case n.full() > m.s.DiskHigh:
		return "has a full disk"
	}
	return ""
}

// full returns the part of the disk that is used.
func (n *Node) full() float64 {
	if n.DiskBytes <= 0 {
		return 0
	}
	return float64(n.UsedBytes) / float64(n.DiskBytes)
}
