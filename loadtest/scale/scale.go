// Package scale measures how creates and stats scale with the number of metadata
// nodes on one machine: each node gets a small share of a CPU, so that the machine
// stands for several. The nodes' work is in directories that are pinned to one shard
// each, and then in one directory that is split over all of them.
package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/cgroup"
	"github.com/canopyfs/canopy/loadtest/library"
	"github.com/canopyfs/canopy/loadtest/meta"
	"github.com/canopyfs/canopy/loadtest/proc"
	"github.com/canopyfs/canopy/loadtest/progress"
	"github.com/canopyfs/canopy/loadtest/target"
)

// Config says what is measured.
type Config struct {
	Bin     string        // directory with canopy, mds and mdsctl
	Dir     string        // where the cluster keeps its data; empty: the temporary directory
	Nodes   []int         // numbers of nodes, ascending
	Share   float64       // of a CPU, for each node
	Workers int           // for each node
	For     time.Duration // of each phase of creates
	Rounds  int           // of stat
}

// maxItems bounds what one worker makes.
const maxItems = 50_000

// Check returns what is wrong with the settings.
func (c *Config) Check() error {
	switch {
	case len(c.Nodes) == 0 || !slices.IsSorted(c.Nodes) || c.Nodes[0] < 1 || c.Nodes[len(c.Nodes)-1] > 64:
		return fmt.Errorf("--nodes %v: want ascending numbers, 1 to 64", c.Nodes)
	case c.Share <= 0 || c.Share > 1:
		return fmt.Errorf("--share %v: want a part of a CPU, above 0 and at most 1", c.Share)
	case c.Workers < 1 || c.Workers*c.Nodes[len(c.Nodes)-1] > meta.MaxWorkers:
		return fmt.Errorf("--workers %d for each node: want at least 1, and at most %d in all", c.Workers, meta.MaxWorkers)
	case c.For <= 0:
		return fmt.Errorf("--for %v: want a positive time", c.For)
	case c.Rounds < 1:
		return fmt.Errorf("--rounds %d: want at least 1", c.Rounds)
	}
	for _, n := range c.Nodes {
		if n&(n-1) != 0 {
			return fmt.Errorf("--nodes %d: a directory splits into a power of two", n)
		}
	}
	if os.Geteuid() != 0 {
		return errors.New("loadtest scale needs root: each node gets a control group for its CPU")
	}
	for _, name := range []string{"canopy", "mds", "mdsctl"} {
		if _, err := os.Stat(filepath.Join(c.Bin, name)); err != nil {
			return fmt.Errorf("%s is not in %s: go build -o %s ./cmd/... makes it", name, c.Bin, c.Bin)
		}
	}
	probe, err := cgroup.New(fmt.Sprintf("canopy-scale-probe-%d", os.Getpid()), c.Share)
	if err != nil {
		return err
	}
	return probe.Remove()
}

// The kinds of directories, as phases name them.
const (
	Separate = "separate"
	Split    = "split"
)

// aim is the efficiency that Canopy aims for at the largest number of nodes.
const aim = 0.8

// Run starts a cluster, measures, and ends it. It returns a series for each number of
// nodes, the efficiencies against the first, and what limited each.
func Run(ctx context.Context, cfg Config, bar *progress.Bar) (series []loadtest.Series, ratios []loadtest.Ratio, notes []string, err error) {
	if err := cfg.Check(); err != nil {
		return nil, nil, nil, err
	}
	bar.Begin("starting the cluster", 0)
	c, err := startCluster(ctx, &cfg)
	if err != nil {
		return nil, nil, nil, err
	}
	defer func() {
		bar.Begin("ending the cluster", 0)
		err = errors.Join(err, c.close())
	}()
	for _, n := range cfg.Nodes {
		s := loadtest.Series{Name: nodesText(n), Target: fmt.Sprintf("library, %.0f %% of a CPU for each node", 100*cfg.Share)}
		for _, kind := range []string{Separate, Split} {
			phases, why, err := c.measure(ctx, kind, n, bar)
			if err != nil {
				return nil, nil, nil, fmt.Errorf("%s, %s: %w", nodesText(n), kind, err)
			}
			s.Phases = append(s.Phases, phases...)
			notes = append(notes, why...)
		}
		series = append(series, s)
	}
	return series, efficiencies(cfg.Nodes, series), notes, nil
}

func nodesText(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprint(n, " nodes")
}

// efficiencies compare the rates with those of the first number of nodes.
func efficiencies(nodes []int, series []loadtest.Series) (all []loadtest.Ratio) {
	for i := 1; i < len(series); i++ {
		for _, p := range series[i].Phases {
			first := series[0].Find(p.Dirs, p.Phase)
			if first == nil || first.OpsPerSec == 0 {
				continue
			}
			r := loadtest.Ratio{What: fmt.Sprintf("%s, %s: efficiency at %s against %s", p.Dirs, p.Phase, nodesText(nodes[i]), nodesText(nodes[0])),
				Value: p.OpsPerSec / first.OpsPerSec * float64(nodes[0]) / float64(nodes[i])}
			if i == len(series)-1 {
				r.Target = aim
			}
			all = append(all, r)
		}
	}
	return all
}

// measure runs the phases on the first n nodes.
func (c *cluster) measure(ctx context.Context, kind string, n int, bar *progress.Bar) ([]loadtest.Phase, []string, error) {
	bar.Begin(fmt.Sprintf("%s, %s directories: preparing", nodesText(n), kind), 0)
	runs, err := c.prepare(ctx, kind, n)
	if err != nil {
		return nil, nil, err
	}
	bar.Begin(fmt.Sprintf("%s, %s directories", nodesText(n), kind), 0)
	before, err := c.usage(n)
	if err != nil {
		return nil, nil, err
	}
	all := make([]*loadtest.Series, len(runs))
	failed := make([]error, len(runs))
	var wg sync.WaitGroup
	for i, cfg := range runs {
		wg.Go(func() { all[i], failed[i] = meta.Run(ctx, cfg, meta.Env{Open: open, Name: kind}) })
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return nil, nil, err
	}
	after, err := c.usage(n)
	if err != nil {
		return nil, nil, err
	}
	var phases []loadtest.Phase
	for _, name := range []string{meta.Create, meta.Stat} {
		phases = append(phases, sum(kind, name, all))
	}
	return phases, []string{limits(kind, n, before, after)}, nil
}

// prepare makes the directories and says what runs in them.
func (c *cluster) prepare(ctx context.Context, kind string, n int) ([]meta.Config, error) {
	base := meta.Config{Cluster: c.address, Base: "load", Workers: c.cfg.Workers, Items: maxItems, Limit: c.cfg.For, Rounds: c.cfg.Rounds,
		Phases: []string{meta.Create, meta.Stat}, Keep: true}
	tg, err := library.Open(ctx, library.Config{Cluster: c.address, Root: "/"})
	if err != nil {
		return nil, err
	}
	defer tg.Close(ctx)
	pin := func(dir string, shard uint64) error {
		if err := tg.MkdirAll(ctx, dir); err != nil {
			return err
		}
		_, err := c.ctl(ctx, "policy", "set", "/"+dir, fmt.Sprint("pin=", shard))
		return err
	}
	top := fmt.Sprintf("%s.%d", kind, n)
	if kind == Split {
		if err := pin(top, c.nodes[0].shard); err != nil {
			return nil, err
		}
		base.Root, base.Dirs, base.Workers = "/"+top, []string{meta.Shared}, n*c.cfg.Workers
		base.Items = max(maxItems/n, 1)
		shared := top + "/" + base.Base + "/" + meta.Shared
		if err := tg.MkdirAll(ctx, shared); err != nil || n == 1 {
			return []meta.Config{base}, err
		}
		_, err := c.ctl(ctx, "split", "/"+shared, "--fragments", fmt.Sprint(n), "--to", c.shards(n))
		return []meta.Config{base}, err
	}
	var all []meta.Config
	for i := range n {
		dir := fmt.Sprintf("%s/%d", top, i)
		if err := pin(dir, c.nodes[i].shard); err != nil {
			return nil, err
		}
		cfg := base
		cfg.Root, cfg.Dirs = "/"+dir, []string{meta.Own}
		all = append(all, cfg)
	}
	return all, nil
}

// shards are those of the first n nodes, as mdsctl takes them.
func (c *cluster) shards(n int) string {
	var all []string
	for _, x := range c.nodes[:n] {
		all = append(all, fmt.Sprint(x.shard))
	}
	return strings.Join(all, ",")
}

func open(ctx context.Context, cfg *meta.Config) (target.Target, error) {
	return library.Open(ctx, library.Config{Cluster: cfg.Cluster, Root: cfg.Root})
}

// sum adds up what runs side by side did in a phase; of latencies it takes the worst.
func sum(kind, phase string, runs []*loadtest.Series) loadtest.Phase {
	total := loadtest.Phase{Phase: phase, Dirs: kind}
	for _, s := range runs {
		for _, p := range s.Phases {
			if p.Phase != phase {
				continue
			}
			total.Ops += p.Ops
			total.Errors += p.Errors
			total.OpsPerSec += p.OpsPerSec
			total.Seconds = max(total.Seconds, p.Seconds)
			if total.FirstError == "" {
				total.FirstError = p.FirstError
			}
			total.Latency.P50US = max(total.Latency.P50US, p.Latency.P50US)
			total.Latency.P95US = max(total.Latency.P95US, p.Latency.P95US)
			total.Latency.P99US = max(total.Latency.P99US, p.Latency.P99US)
			total.Latency.P999US = max(total.Latency.P999US, p.Latency.P999US)
			total.Latency.MaxUS = max(total.Latency.MaxUS, p.Latency.MaxUS)
		}
	}
	return total
}

// usage is what the nodes, the load and the machine had used at a moment.
type usage struct {
	at    time.Time
	nodes []cgroup.Usage
	load  time.Duration
	base  time.Duration
}

func (c *cluster) usage(n int) (u usage, err error) {
	u.at = time.Now()
	for _, x := range c.nodes[:n] {
		one, err := x.group.Usage()
		if err != nil {
			return u, err
		}
		u.nodes = append(u.nodes, one)
	}
	used, err := proc.Sample("/proc", []proc.Group{{Who: "load", Pids: []int{os.Getpid()}}, {Who: "base", Pids: []int{c.base.cmd.Process.Pid}}})
	if err != nil {
		return u, err
	}
	u.load, u.base = used[0], used[1]
	return u, nil
}

// busy is the part of their periods in which nodes that are the limit use their share
// up.
const busy = 0.5

// limits says what kept the rates from being higher.
func limits(kind string, n int, before, after usage) string {
	var sums cgroup.Usage
	for i := range after.nodes {
		d := after.nodes[i].Less(before.nodes[i])
		sums.Periods += d.Periods
		sums.Throttled += d.Throttled
	}
	throttled := float64(sums.Throttled) / float64(max(sums.Periods, 1))
	seconds := after.at.Sub(before.at).Seconds()
	load, base := (after.load-before.load).Seconds()/seconds, (after.base-before.base).Seconds()/seconds
	why := "the nodes' shares of the CPU"
	if throttled < busy {
		why = fmt.Sprintf("not the nodes' shares: the load, the disk or the machine's %d CPUs", runtime.NumCPU())
	}
	return fmt.Sprintf("%s, %s: limited by %s (nodes used their share up in %.0f %% of its periods; the load took %.2f CPUs, etcd and the rest %.2f)",
		kind, nodesText(n), why, 100*throttled, load, base)
}
