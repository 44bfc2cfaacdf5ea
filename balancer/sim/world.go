package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/canopyfs/canopy/balancer/policy"
	"github.com/canopyfs/canopy/internal/base"
)

// world is the cluster. Nodes, shards and subtrees are never removed, so that their ids are
// their places, from 1.
type world struct {
	now      int // seconds
	rand     random
	nodes    []node
	shards   []shardState
	subtrees []subtree
	units    []unit
	running  []*running
	history  []policy.Past
	hot      []int // nodes with workers that wait, of this tick
	stats    *Outcome
}

type node struct {
	rack    int
	state   policy.State
	since   int
	speed   float64
	copying float64 // share of this tick
	follow  float64 // work of its followers, in the last tick
	open    float64 // work that is wanted whatever the waiting
	q       float64 // times that an operation takes its service
	util    float64
	waiting float64
	utilD   decayed
	waitD   decayed
	closed  []share // of units with workers
}

// share is a part of a unit that a node serves.
type share struct {
	unit int
	part float64
}

type shardState struct {
	replicas []int // nodes
	holder   int   // -1: nobody
	heldAt   int
	orphaned int // since when nobody
	busy     float64
	busyD    decayed
	ops      float64
}

type subtree struct {
	shard   int
	path    string
	of      base.Ino
	busy    float64
	busyD   decayed
	ops     float64
	movedAt int
	from    base.ShardID
	units   []int
}

// unit is a directory, or all directories of a subtree that are not worth a look.
type unit struct {
	path    string
	many    bool // not one directory
	dirs    int  // how many it stands for
	entries float64
	mix     mix
	rate    float64 // operations/s that are wanted
	workers float64 // that wait for each answer
	think   float64 // seconds between answer and next operation
	parts   []part  // by range
	scatter float64 // of the costs of crossing shards
	served  float64 // operations/s of this tick
	latency float64
	paused  float64 // seconds of this tick
	busyD   decayed
	servedD decayed
	splitAt int
	busy    float64
}

// part is the names with hashes in [lo, hi), of 1, and the subtree that they are in.
type part struct {
	lo, hi  float64
	subtree int
}

func (p part) share() float64 { return p.hi - p.lo }

// newWorld makes n nodes in racks, each with a shard that it holds, of so many replicas.
func newWorld(seed uint64, n, replicas int, speed float64) *world {
	w := &world{rand: random{seed}}
	for range n {
		w.addNode(speed)
	}
	for i := range n {
		s := shardState{holder: i}
		for r := i; len(s.replicas) < min(replicas, n); r++ {
			if apart := func(o int) bool { return w.nodes[o].rack != w.nodes[r%n].rack }; all(s.replicas, apart) {
				s.replicas = append(s.replicas, r%n)
			}
		}
		w.shards = append(w.shards, s)
	}
	root := w.addSubtree(0, "/")
	w.add(root, unit{path: "/", many: true, dirs: 100, entries: 1000, mix: mix{lookup: 1}, rate: 0.1 / lookupService * speed})
	return w
}

func all(nodes []int, f func(int) bool) bool {
	return !slices.ContainsFunc(nodes, func(n int) bool { return !f(n) })
}

// addNode adds a node that has nothing.
func (w *world) addNode(speed float64) int {
	w.nodes = append(w.nodes, node{rack: len(w.nodes) % 7, speed: speed, since: w.now, q: 1})
	return len(w.nodes) - 1
}

func (w *world) addSubtree(shard int, path string) int {
	w.subtrees = append(w.subtrees, subtree{shard: shard, path: path, movedAt: -1})
	return len(w.subtrees) - 1
}

// add puts a unit into a subtree.
func (w *world) add(tree int, u unit) int {
	if u.path == "" {
		u.path = fmt.Sprintf("%s/d%d", w.subtrees[tree].path, len(w.units))
	}
	u.parts, u.splitAt = []part{{0, 1, tree}}, -1
	w.units = append(w.units, u)
	w.subtrees[tree].units = append(w.subtrees[tree].units, len(w.units)-1)
	return len(w.units) - 1
}

// index notes which units each subtree has.
func (w *world) index() {
	for i := range w.subtrees {
		w.subtrees[i].units = w.subtrees[i].units[:0]
	}
	for i := range w.units {
		for _, p := range w.units[i].parts {
			if all := &w.subtrees[p.subtree].units; len(*all) == 0 || (*all)[len(*all)-1] != i {
				*all = append(*all, i)
			}
		}
	}
}

// holder returns the node that serves a subtree, -1 if nobody does.
func (w *world) holder(tree int) int { return w.shards[w.subtrees[tree].shard].holder }

// entries counts those of a subtree.
func (w *world) entries(tree int) (n float64) {
	for _, i := range w.subtrees[tree].units {
		for _, p := range w.units[i].parts {
			if p.subtree == tree {
				n += w.units[i].entries * p.share()
			}
		}
	}
	return n
}

// bytes counts those of a shard.
func (w *world) bytes(shard int) (n float64) {
	for t := range w.subtrees {
		if w.subtrees[t].shard == shard {
			n += w.entries(t) * entryBytes
		}
	}
	return n
}

// fail ends a node.
func (w *world) fail(n int) {
	w.nodes[n].state, w.nodes[n].since = policy.Dead, w.now
	for i := range w.shards {
		if s := &w.shards[i]; s.holder == n {
			s.holder, s.orphaned = -1, w.now
		}
	}
}

// elect gives shards without a holder one, after a while.
func (w *world) elect() {
	for i := range w.shards {
		s := &w.shards[i]
		if s.holder >= 0 || w.now-s.orphaned < failover {
			continue
		}
		for _, r := range s.replicas {
			if w.nodes[r].state != policy.Dead {
				s.holder, s.heldAt = r, w.now
				break
			}
		}
	}
}

// epoch is when the simulation begins, in the policy's time: not "never".
const epoch = 24 * time.Hour

func at(second int) time.Duration {
	if second < 0 {
		return 0
	}
	return epoch + time.Duration(second)*time.Second
}

func (d decayed) load() policy.Load {
	return policy.Load{Short: d.short, Minute: d.minute, Long: d.long, Floor: d.short, Peak: d.short}
}

func inoOf(unit int) base.Ino        { return base.Ino(unit + 2) }
func unitOf(ino base.Ino) int        { return int(ino) - 2 }
func nodeID(n int) base.NodeID       { return base.NodeID(n + 1) }
func shardID(s int) base.ShardID     { return base.ShardID(s + 1) }
func subtreeID(t int) base.SubtreeID { return base.SubtreeID(t + 1) }
func placeOf[T ~uint64](id T) int    { return int(id) - 1 }

// view is what a balancer would be told.
func (w *world) view() *policy.View {
	v := &policy.View{Now: at(w.now), History: w.history}
	for i := range w.nodes {
		n := &w.nodes[i]
		v.Nodes = append(v.Nodes, policy.Node{ID: nodeID(i), Domain: policy.Domain{"", fmt.Sprint("r", n.rack), ""}, State: n.state, Since: at(n.since),
			Util: n.utilD.load(), Waiting: n.waitD.load()})
	}
	for i := range w.shards {
		s := &w.shards[i]
		x := policy.Shard{ID: shardID(i), Want: len(s.replicas), Busy: s.busyD.load(), Ops: s.ops}
		if s.holder >= 0 {
			x.Holder = nodeID(s.holder)
		}
		if s.heldAt > 0 {
			x.HeldAt = at(s.heldAt)
		}
		for _, r := range s.replicas {
			x.Replicas = append(x.Replicas, nodeID(r))
		}
		v.Shards = append(v.Shards, x)
	}
	for i := range w.subtrees {
		t := &w.subtrees[i]
		n := int64(w.entries(i))
		v.Subtrees = append(v.Subtrees, policy.Subtree{ID: subtreeID(i), Shard: shardID(t.shard), Path: t.path, Of: t.of, Entries: n, Bytes: n * entryBytes,
			Ops: policy.Rates{Lookup: t.ops}, Busy: t.busyD.load(), MovedAt: at(t.movedAt), From: t.from})
		v.Shards[t.shard].Bytes += n * entryBytes
	}
	for i := range w.units {
		if u := &w.units[i]; !u.many {
			v.Dirs = append(v.Dirs, w.dir(i, u))
		}
	}
	for _, r := range w.running {
		v.Running = append(v.Running, r.step)
	}
	v.Spent = w.spent()
	return v
}

func (w *world) dir(i int, u *unit) policy.Dir {
	rate := u.servedD.short
	d := policy.Dir{Ino: inoOf(i), Path: u.path, Subtree: subtreeID(u.parts[0].subtree), Root: u.path == w.subtrees[u.parts[0].subtree].path,
		Entries: int64(u.entries), Busy: u.busyD.load(), SplitAt: at(u.splitAt),
		Ops: policy.Rates{Create: rate * u.mix.create, Lookup: rate * u.mix.lookup, Readdir: rate * u.mix.readdir}}
	if len(u.parts) < 2 {
		return d
	}
	for _, p := range u.parts {
		k := p.share()
		b := decayed{u.busyD.short * k, u.busyD.minute * k, u.busyD.long * k}
		d.Fragments = append(d.Fragments, policy.Fragment{Subtree: subtreeID(p.subtree), Entries: int64(u.entries * k), Busy: b.load()})
	}
	return d
}

// spent adds up what began within the last hour.
func (w *world) spent() (b policy.Budget) {
	add := func(s *policy.Step) {
		b.Moves += s.Spend.Moves
		b.Bytes += s.Spend.Bytes
		b.Pause += s.Spend.Pause
	}
	for i := range w.history {
		if at(w.now)-w.history[i].Began < time.Hour {
			add(&w.history[i].Step)
		}
	}
	for _, r := range w.running {
		add(&r.step)
	}
	return b
}

// coolest returns live nodes with a shard, the least busy first.
func (w *world) coolest() []int {
	holds := make([]bool, len(w.nodes))
	for i := range w.shards {
		if h := w.shards[i].holder; h >= 0 {
			holds[h] = true
		}
	}
	var all []int
	for i := range w.nodes {
		if holds[i] && w.nodes[i].state == policy.Live {
			all = append(all, i)
		}
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(w.nodes[a].utilD.short, w.nodes[b].utilD.short) })
	return all
}
