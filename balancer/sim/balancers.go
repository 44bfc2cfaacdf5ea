package sim

import (
	"cmp"
	"slices"

	"github.com/canopyfs/canopy/balancer/policy"
	"github.com/canopyfs/canopy/internal/base"
)

// Balancers are what a run can be with, in the order of tables.
var balancerNames = []string{None, Even, Hash, Hand, Policy}

// Names of balancers.
const (
	None   = "none"        // nothing moves
	Even   = "even"        // whatever is above the mean is moved until nothing is, every 10 s
	Hash   = "static hash" // each directory lies where a hash of its path says
	Hand   = "by hand"     // the hot directory was split before it became hot
	Policy = "policy"      // balancer/policy
)

// observeEvery is how often a balancer looks, in seconds.
const observeEvery = 5

// decider decides what to begin now.
type decider interface {
	decide(w *world) []policy.Step
}

type idle struct{}

func (idle) decide(*world) []policy.Step { return nil }

// byPolicy is the real one.
type byPolicy struct {
	settings policy.Settings
	memory   policy.Memory
}

func (b *byPolicy) decide(w *world) []policy.Step {
	v := w.view()
	b.memory.Observe(v, &b.settings)
	return policy.Decide(v, &b.settings).Steps
}

// evenly is what one writes first: it looks at what is hot now and moves it from nodes above
// the mean to those below, one thing for each such node, wherever it was before.
type evenly struct{}

func (evenly) decide(w *world) (steps []policy.Step) {
	if w.now%10 != 0 {
		return nil
	}
	cool := w.coolest()
	mean := 0.0
	for _, n := range cool {
		mean += w.nodes[n].utilD.short / float64(len(cool))
	}
	moving := map[int]bool{}
	for _, r := range w.running {
		moving[placeOf(r.step.Subtree)] = true
	}
	for len(cool) > 1 {
		hot, to := cool[len(cool)-1], cool[0]
		cool = cool[1 : len(cool)-1]
		excess := w.nodes[hot].utilD.short - mean
		if excess < 0.1*mean+0.02 {
			break
		}
		if s, ok := w.hottest(hot, excess, moving); ok {
			s.To = []base.ShardID{shardID(w.lightest(to))}
			s.Spend = policy.Budget{Moves: 1, Bytes: int64(w.entries(placeOf(s.Subtree)) * entryBytes)}
			steps = append(steps, s)
		}
	}
	return steps
}

// lightest returns the shard that a node does least for.
func (w *world) lightest(n int) int {
	best := -1
	for i := range w.shards {
		if w.shards[i].holder == n && (best < 0 || w.shards[i].busyD.short < w.shards[best].busyD.short) {
			best = i
		}
	}
	return best
}

// hottest returns the move of what is hottest on a node, but not more than twice what it
// has too much if there is something smaller.
func (w *world) hottest(n int, excess float64, moving map[int]bool) (policy.Step, bool) {
	type thing struct {
		step policy.Step
		busy float64
	}
	var all []thing
	for t := range w.subtrees {
		x := &w.subtrees[t]
		if t == 0 || w.holder(t) != n || len(x.units) == 0 || moving[t] {
			continue
		}
		all = append(all, thing{policy.Step{Kind: policy.Migrate, Shard: shardID(x.shard), Subtree: subtreeID(t), Path: x.path}, x.busyD.short})
		for _, i := range x.units {
			if u := &w.units[i]; !u.many && len(u.parts) == 1 && u.path != x.path {
				all = append(all, thing{policy.Step{Kind: policy.Carve, Shard: shardID(x.shard), Subtree: subtreeID(t), Dir: inoOf(i), Path: u.path}, u.busyD.short})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b thing) int { return cmp.Compare(b.busy, a.busy) })
	for _, x := range all {
		if x.busy <= 2*excess && x.busy > 0.01 {
			return x.step, true
		}
	}
	return policy.Step{}, false
}

// scatterAll places each directory by a hash of its path, and the many of each subtree over
// all shards.
func (w *world) scatterAll() {
	n := len(w.shards)
	trees := make([]int, n)
	for i := range trees {
		trees[i] = w.addSubtree(i, "/hashed")
	}
	for i := range w.units {
		u := &w.units[i]
		if u.path == "/" {
			continue
		}
		u.scatter = 1
		if !u.many {
			h := random{uint64(i)}
			u.parts[0].subtree = trees[h.below(n)]
			continue
		}
		// Many directories fall on some shards each: on how many is bounded, or a run would take too long.
		spread := min(n, 8)
		first := random{uint64(i)}
		u.parts = nil
		for j, from := 0, first.below(n); j < spread; j++ {
			u.parts = append(u.parts, part{float64(j) / float64(spread), float64(j+1) / float64(spread), trees[(from+j*(n/spread))%n]})
		}
	}
	w.index()
}
