package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/canopyfs/canopy/balancer/policy"
)

// Options are those of a run.
type Options struct {
	Nodes    int    // of the workloads that may have any number
	Seed     uint64 // of the workload
	Settings policy.Settings
}

// MaxNodes bounds a run.
const MaxNodes = 10_000

// Check returns what is wrong with the options.
func (o *Options) Check() error {
	if o.Nodes < 20 || o.Nodes > MaxNodes {
		return fmt.Errorf("--nodes %d: want 20 to %d", o.Nodes, MaxNodes)
	}
	return o.Settings.Check()
}

// Compare runs a workload with each balancer that it is for.
func Compare(name string, opt Options) ([]*Outcome, error) {
	i := slices.IndexFunc(workloads, func(w workload) bool { return w.name == name })
	if i < 0 {
		return nil, fmt.Errorf("--workload %q: want all, or one of %s", name, strings.Join(Workloads(), ", "))
	}
	if err := opt.Check(); err != nil {
		return nil, err
	}
	var all []*Outcome
	for _, b := range balancerNames {
		if b != Hand || workloads[i].hand > 0 {
			all = append(all, run(&workloads[i], b, opt))
		}
	}
	return all, nil
}

// run simulates one workload with one balancer.
func run(wl *workload, balancer string, opt Options) *Outcome {
	sc := wl.build(opt)
	w := sc.world
	o := &Outcome{Workload: wl.name, Balancer: balancer, Seconds: wl.seconds, LastStep: -1, Within: true, about: map[thing]int{}, were: map[place]bool{}}
	w.stats = o
	w.index()
	var d decider = idle{}
	switch balancer {
	case Policy:
		d = &byPolicy{settings: opt.Settings}
	case Even:
		d = evenly{}
	case Hash:
		w.scatterAll()
	case Hand:
		w.splitByHand(sc.hot, wl.hand)
	}
	for w.now = 0; w.now < wl.seconds; w.now++ {
		if sc.change != nil {
			sc.change(w)
		}
		w.elect()
		w.copy()
		w.solve()
		o.second(w)
		if w.now%observeEvery == 0 {
			for _, s := range d.decide(w) {
				w.start(s)
			}
		}
	}
	o.end(w)
	return o
}

// splitByHand splits a directory into k fragments over the coolest nodes, its own first.
func (w *world) splitByHand(unit, k int) {
	home := w.holder(w.units[unit].parts[0].subtree)
	cool := w.coolest()
	cool = slices.DeleteFunc(cool, func(n int) bool { return n == home })
	for j := 1; j < k; j++ {
		w.cut(unit, part{lo: float64(j) / float64(k), hi: float64(j+1) / float64(k)}, w.lightest(cool[(j-1)%len(cool)]))
	}
}
