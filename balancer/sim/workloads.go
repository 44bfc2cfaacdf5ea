package sim

import (
	"fmt"
	"math"
)

// workload is a kind of load on a cluster.
type workload struct {
	name    string
	about   string
	seconds int
	hand    int // fragments of the hot directory when it was split by hand; 0: there is none
	build   func(Options) *scenario
}

// scenario is a workload that begins.
type scenario struct {
	world  *world
	hot    int          // the unit that is hot
	change func(*world) // before each second
}

// Workloads returns the names of all workloads.
func Workloads() (names []string) {
	for _, w := range workloads {
		names = append(names, w.name)
	}
	return names
}

// About says what a workload is.
func About(name string) string {
	for _, w := range workloads {
		if w.name == name {
			return w.about
		}
	}
	return ""
}

var workloads = []workload{
	{"hot", "one directory that 64 workers create into, on one of 4 nodes with a tenth of the speed", 600, 4, hot},
	{"cold", "the same for two minutes; then nobody comes any more", 1000, 4, cold},
	{"alternate", "two directories on two of 4 nodes, of which one and then the other is hot for 20 s", 600, 0, alternate},
	{"alternate-one", "the same, both on one node", 600, 0, alternateOne},
	{"uniform", "all nodes are busy alike, a little more and a little less", 600, 0, uniform},
	{"skewed", "few subtrees have most of the load, and lie anywhere", 900, 0, skewed},
	{"moving", "every 3 minutes 400 workers go on to another directory", 900, 0, moving},
	{"checkpoint", "20 jobs of 500 workers write a checkpoint for 10 s each minute", 600, 0, checkpoint},
	{"herd", "10,000 clients come to one directory at once", 600, 16, herd},
	{"import", "100 M files come into 8 directories of one subtree, by 300 workers each", 1200, 0, importing},
	{"nodes", "nodes are lost, become slow and are added, under load", 1200, 0, changing},
}

// small is 4 nodes with a tenth of the speed, as loadtest scale makes them, and a subtree
// on each.
func small(opt Options) (w *world, trees []int) {
	w = newWorld(opt.Seed, 4, 1, 0.1)
	for i := range 4 {
		t := w.addSubtree(i, fmt.Sprintf("/p%d", i+1))
		trees = append(trees, t)
		w.add(t, unit{many: true, dirs: 1000, entries: 100_000, mix: mix{0.1, 0.85, 0.05}, rate: 50})
	}
	return w, trees
}

// begins is when what is to come comes.
const begins = 10

func creators(workers float64) unit {
	return unit{entries: 1000, mix: mix{create: 1}, workers: workers}
}

func hot(opt Options) *scenario {
	w, trees := small(opt)
	i := w.add(trees[1], creators(0))
	return &scenario{w, i, func(w *world) {
		if w.now == begins {
			w.units[i].workers = 64
		}
	}}
}

// coolsDown is when nobody comes any more to the directory of the workload cold.
const coolsDown = begins + 120

func cold(opt Options) *scenario {
	s := hot(opt)
	warm := s.change
	s.change = func(w *world) {
		warm(w)
		if w.now == coolsDown {
			w.units[s.hot].workers, w.units[s.hot].rate = 0, 5
		}
	}
	return s
}

func alternating(opt Options, first, second int) *scenario {
	w, trees := small(opt)
	a, b := w.add(trees[first], creators(0)), w.add(trees[second], creators(0))
	return &scenario{w, a, func(w *world) {
		w.units[a].workers, w.units[b].workers = 64, 0
		if w.now/20%2 == 1 {
			w.units[a].workers, w.units[b].workers = 0, 64
		}
	}}
}

func alternate(opt Options) *scenario    { return alternating(opt, 1, 2) }
func alternateOne(opt Options) *scenario { return alternating(opt, 1, 1) }

// usual is what most files see.
var usual = mix{0.15, 0.8, 0.05}

// large is a cluster with three replicas of each shard, four subtrees on each of 500
// directories and half a million files, and a utilisation by these.
func large(opt Options, util func(w *world, node, tree int) float64) (w *world, trees []int) {
	w = newWorld(opt.Seed, opt.Nodes, 3, 1)
	for i := range opt.Nodes {
		for j := range 4 {
			t := w.addSubtree(i, fmt.Sprintf("/p%d/%d", i+1, j))
			trees = append(trees, t)
			w.add(t, unit{many: true, dirs: 500, entries: 500_000, mix: usual, rate: util(w, i, j) / usual.service()})
		}
	}
	return w, trees
}

func flat(util float64) func(*world, int, int) float64 {
	return func(w *world, _, _ int) float64 { return util / 4 * (0.9 + 0.2*w.rand.float()) }
}

func uniform(opt Options) *scenario {
	w, _ := large(opt, flat(0.62))
	rates := make([]float64, len(w.units))
	for i := range w.units {
		rates[i] = w.units[i].rate
	}
	return &scenario{w, -1, func(w *world) {
		if w.now%10 == 0 {
			for i := range w.units {
				w.units[i].rate = rates[i] * (0.85 + 0.3*w.rand.float())
			}
		}
	}}
}

func skewed(opt Options) *scenario {
	// Zipf's law with exponent 0.8 over subtrees in any order; the largest is cut where one
	// node would be full of it.
	n := opt.Nodes * 4
	rank := make([]int, n)
	shuffle := random{opt.Seed + 1}
	for i := range rank {
		j := shuffle.below(i + 1)
		rank[i], rank[j] = rank[j], i
	}
	total := 0.0
	for i := range n {
		total += math.Pow(float64(i+1), -0.8)
	}
	w, trees := large(opt, func(_ *world, node, tree int) float64 {
		return min(0.75, 0.3*float64(opt.Nodes)*math.Pow(float64(rank[node*4+tree]+1), -0.8)/total)
	})
	for i, t := range trees {
		if rank[i] < opt.Nodes/10 { // half of what such a subtree does is in one directory
			u := &w.units[w.subtrees[t].units[0]]
			u.rate /= 2
			w.add(t, unit{entries: 50_000, mix: usual, rate: u.rate})
		}
	}
	return &scenario{w, -1, nil}
}

func moving(opt Options) *scenario {
	w, trees := large(opt, flat(0.2))
	var all []int
	for range 5 {
		all = append(all, w.add(trees[w.rand.below(len(trees))], creators(0)))
	}
	return &scenario{w, all[0], func(w *world) {
		if w.now%180 == begins {
			for i, u := range all {
				w.units[u].workers = 0
				if w.now/180 == i {
					w.units[u].workers = 400
				}
			}
		}
	}}
}

func checkpoint(opt Options) *scenario {
	w, trees := large(opt, flat(0.2))
	var jobs []int
	for range 20 {
		jobs = append(jobs, w.add(trees[w.rand.below(len(trees))], creators(0)))
	}
	return &scenario{w, jobs[0], func(w *world) {
		for i, u := range jobs {
			w.units[u].workers = 0
			if (w.now+3*i)%60 < 10 {
				w.units[u].workers = 500
			}
		}
	}}
}

func herd(opt Options) *scenario {
	w, trees := large(opt, flat(0.2))
	i := w.add(trees[w.rand.below(len(trees))], unit{entries: 10_000, mix: mix{0.5, 0.5, 0}, think: 0.05})
	return &scenario{w, i, func(w *world) {
		if w.now == 60 {
			w.units[i].workers = 10_000
		}
	}}
}

func importing(opt Options) *scenario {
	w, trees := large(opt, flat(0.15))
	t := trees[w.rand.below(len(trees))]
	var all []int
	for range 8 {
		all = append(all, w.add(t, creators(0)))
	}
	return &scenario{w, all[0], func(w *world) {
		if w.now == begins {
			for _, u := range all {
				w.units[u].workers, w.units[u].think = 300, 0.01
			}
		}
	}}
}

func changing(opt Options) *scenario {
	w, _ := large(opt, flat(0.4))
	return &scenario{w, -1, func(w *world) {
		n := opt.Nodes
		switch w.now {
		case 60:
			w.fail(n / 3)
			w.fail(n / 2)
		case 180:
			w.nodes[n/5].speed, w.nodes[n/4].speed = 0.5, 0.35
		case 300:
			for range max(1, n/50) {
				w.addNode(1)
			}
		}
	}}
}
