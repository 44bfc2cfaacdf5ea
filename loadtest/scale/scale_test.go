package scale

import (
	"strings"
	"testing"
	"time"

	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/cgroup"
	"github.com/canopyfs/canopy/loadtest/hist"
)

func TestSettingsThatAreRefused(t *testing.T) {
	good := Config{Bin: "/nowhere", Nodes: []int{1, 2}, Share: 0.1, Workers: 4, For: time.Second, Rounds: 1}
	for want, change := range map[string]func(*Config){
		"--nodes":    func(c *Config) { c.Nodes = nil },
		"ascending":  func(c *Config) { c.Nodes = []int{4, 1} },
		"--nodes 3":  func(c *Config) { c.Nodes = []int{1, 3} },
		"--share":    func(c *Config) { c.Share = 1.5 },
		"--workers":  func(c *Config) { c.Workers = 0 },
		"--for":      func(c *Config) { c.For = 0 },
		"--rounds":   func(c *Config) { c.Rounds = 0 },
		"go build -": func(*Config) {}, // as root; else it says that root is needed
	} {
		c := good
		change(&c)
		err := c.Check()
		if err == nil || !strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "needs root") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func phase(dirs string, rate float64) loadtest.Phase {
	return loadtest.Phase{Phase: "create", Dirs: dirs, Ops: int64(rate), OpsPerSec: rate, Latency: hist.Latency{P50US: rate}}
}

func TestEfficiencies(t *testing.T) {
	series := []loadtest.Series{
		{Phases: []loadtest.Phase{phase(Separate, 100), phase(Split, 50)}},
		{Phases: []loadtest.Phase{phase(Separate, 190), phase(Split, 100)}},
		{Phases: []loadtest.Phase{phase(Separate, 300), phase(Split, 200)}},
	}
	got := efficiencies([]int{1, 2, 4}, series)
	for i, want := range []float64{0.95, 1, 0.75, 1} {
		if got[i].Value != want || got[i].Target != 0 != (i >= 2) {
			t.Errorf("%d: %+v, want %v", i, got[i], want)
		}
	}
}

func TestSum(t *testing.T) {
	got := sum(Separate, "create", []*loadtest.Series{{Phases: []loadtest.Phase{phase("own", 10)}}, {Phases: []loadtest.Phase{phase("own", 30)}}})
	if got.Ops != 40 || got.OpsPerSec != 40 || got.Latency.P50US != 30 || got.Dirs != Separate {
		t.Errorf("%+v", got)
	}
}

// TestLimits: a rate that was not bounded by the nodes' shares is said to be none of
// theirs.
func TestLimits(t *testing.T) {
	at := time.Unix(100, 0)
	for want, throttled := range map[string]int64{"limited by the nodes' shares": 90, "not the nodes' shares": 10} {
		after := usage{at: at.Add(time.Second), nodes: []cgroup.Usage{{Periods: 100, Throttled: throttled}}, load: time.Second}
		if got := limits(Split, 1, usage{at: at, nodes: make([]cgroup.Usage, 1)}, after); !strings.Contains(got, want) || !strings.Contains(got, "1.00 CPUs") {
			t.Errorf("%s", got)
		}
	}
}
