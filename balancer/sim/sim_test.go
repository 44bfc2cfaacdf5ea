package sim

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/canopyfs/canopy/balancer/policy"
)

// TestScripts runs testdata/*. The directive
//
//	compare WORKLOAD [n=NODES] [seed=N] [steps]
//
// runs a workload with each balancer and shows the table; with steps, what the policy
// did and why. What every run with the policy has to keep to is asserted besides, and what
// its numbers have to be is in TestNumbers.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		t.Parallel()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			opt := Options{Nodes: 40, Seed: 1, Settings: policy.Default()}
			if d.HasArg("n") {
				d.ScanArgs(t, "n", &opt.Nodes)
			}
			if d.HasArg("seed") {
				var seed int
				d.ScanArgs(t, "seed", &seed)
				opt.Seed = uint64(seed)
			}
			name := d.CmdArgs[0].Key
			all, err := Compare(name, opt)
			if err != nil {
				return err.Error() + "\n"
			}
			keeps(t, all)
			numbers(t, name, all)
			var b strings.Builder
			if err := WriteTable(&b, all); err != nil {
				t.Fatal(err)
			}
			if d.HasArg("steps") {
				for _, s := range find(all, Policy).Steps {
					fmt.Fprintf(&b, "%d s: %s\n  because %s\n", s.Second, s.What, s.Why)
				}
			}
			return b.String()
		})
	})
}

func find(all []*Outcome, balancer string) *Outcome {
	for _, o := range all {
		if o.Balancer == balancer {
			return o
		}
	}
	return nil
}

// keeps asserts what holds for every workload: in no minute the policy serves less by more than
// a twentieth than doing nothing does, and in no five minutes later (a copy costs first and
// brings something then); it is within its budget; nothing goes
// to and fro, nor is anything moved more than three times; and it comes to rest: nothing begins in the last fifth of a workload that does
// not change by then.
func keeps(t *testing.T, all []*Outcome) {
	t.Helper()
	none, o := find(all, None), find(all, Policy)
	rate, _ := o.Worst(none, 60)
	_, latency := o.Worst(none, 300)
	if rate < 0.95 || latency > 1.05 {
		t.Errorf("%s: a minute with %.3f of the operations, or five with %.3f of the latency, of doing nothing", o.Workload, rate, latency)
	}
	if o.Ops < 0.999*none.Ops {
		t.Errorf("%s: %.0f operations, %.0f without", o.Workload, o.Ops, none.Ops)
	}
	if !o.Within {
		t.Errorf("%s: more than the budget: %d moves, %.0f MiB", o.Workload, o.Moves, o.MiB)
	}
	if o.Returns > 0 || o.Most > 3 {
		t.Errorf("%s: %d moves back to where something was, %d of one thing", o.Workload, o.Returns, o.Most)
	}
	restless := map[string]bool{"moving": true, "cold": true}
	if !restless[o.Workload] && o.LastStep > o.Seconds*4/5 {
		t.Errorf("%s: steps at %d s of %d", o.Workload, o.LastStep, o.Seconds)
	}
	for _, s := range o.Steps {
		if s.Why == "" {
			t.Errorf("%s: %s without a reason", o.Workload, s.What)
		}
	}
}

// numbers asserts what a cluster has to reach, too.
func numbers(t *testing.T, name string, all []*Outcome) {
	t.Helper()
	none, o, hand := find(all, None), find(all, Policy), find(all, Hand)
	settings := policy.Default()
	better := map[string]bool{"hot": true, "cold": true, "skewed": true, "moving": true, "herd": true, "import": true, "nodes": true}
	if better[name] && !(o.MeanMS < 0.98*none.MeanMS && o.Ops >= 0.999*none.Ops) {
		t.Errorf("%s: %.3f ms and %.0f operations, without %.3f ms and %.0f", name, o.MeanMS, o.Ops, none.MeanMS, none.Ops)
	}
	switch name {
	case "hot":
		if r := o.RateAt(begins+60) / hand.RateAt(begins+60); r < 0.8 || o.Splits != 1 || o.Moves != 3 {
			t.Errorf("after 60 s %.2f of what a split by hand gives, by %d splits and %d moves", r, o.Splits, o.Moves)
		}
	case "cold":
		limit := coolsDown + int(settings.MergeAfter/time.Second) + 60
		if o.Merges != 1 || o.LastStep > limit {
			t.Errorf("%d merges, the last step at %d s; want one by %d s", o.Merges, o.LastStep, limit)
		}
	case "alternate", "alternate-one":
		if o.Moves > 2 {
			t.Errorf("%d moves", o.Moves)
		}
	case "uniform":
		if o.Moves != 0 {
			t.Errorf("%d moves for a load that is the same everywhere", o.Moves)
		}
	case "herd":
		if r := o.LastMin / hand.LastMin; r < 0.9 {
			t.Errorf("%.2f of what a split by hand gives", r)
		}
	case "import":
		if o.Entries < 100_000_000 {
			t.Errorf("%d entries", o.Entries)
		}
	}
}

func TestSameSeedSameRun(t *testing.T) {
	opt := Options{Nodes: 20, Seed: 7, Settings: policy.Default()}
	a, err := Compare("moving", opt)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := Compare("moving", opt)
	if !reflect.DeepEqual(a, b) {
		t.Error("two runs with one seed differ")
	}
	opt.Seed++
	if c, _ := Compare("moving", opt); reflect.DeepEqual(a[0].Samples, c[0].Samples) {
		t.Error("another seed is the same run")
	}
}

func TestWrongOptions(t *testing.T) {
	for want, opt := range map[string]Options{
		"--nodes 1: want 20 to 10000": {Nodes: 1, Settings: policy.Default()},
		"felt 0: want a part":         {Nodes: 50},
	} {
		if _, err := Compare("hot", opt); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := Compare("none", Options{}); err == nil || !strings.Contains(err.Error(), `--workload "none": want all, or one of hot, cold`) {
		t.Errorf("%v", err)
	}
}

// TestQueue: the model's waiting is that of a queue, and workers that wait for answers
// never ask for more than there is.
func TestQueue(t *testing.T) {
	w := newWorld(1, 1, 1, 1)
	w.stats = &Outcome{about: map[thing]int{}, were: map[place]bool{}}
	i := w.add(0, unit{mix: mix{create: 1}})
	for _, workers := range []float64{1, 10, 20, 100, 10_000} {
		w.units[i].workers = workers
		for range 3 {
			w.solve()
		}
		u, n := &w.units[i], &w.nodes[0]
		if in := u.served * (createWait + createService*n.q); in < 0.999*workers || in > 1.001*workers {
			t.Errorf("%v workers, of which %.2f are somewhere", workers, in)
		}
		if n.util > 1 || n.util < 0.1 {
			t.Errorf("%v workers: utilisation %.3f", workers, n.util)
		}
	}
}
