package sim

import (
	"math"

	"github.com/canopyfs/canopy/balancer/policy"
	"github.com/canopyfs/canopy/internal/base"
)

// Outcome is what a run showed.
type Outcome struct {
	Workload string `json:"workload"`
	Balancer string `json:"balancer"`
	Nodes    int    `json:"nodes"`
	Seconds  int    `json:"seconds"`
	Dirs     int64  `json:"directories"`
	Entries  int64  `json:"entries"` // at the end

	Ops     float64 `json:"ops"`       // that were done
	MeanMS  float64 `json:"mean_ms"`   // of an operation
	P99MS   float64 `json:"p99_ms"`    // of operations, each taken as long as those of its directory and second
	LastMin float64 `json:"last_rate"` // operations/s of the last minute
	LastMS  float64 `json:"last_ms"`   // their mean

	Moves    int     `json:"moves"` // ranges, subtrees, replicas and leases that began to move
	Leases   int     `json:"leases"`
	Migrated int     `json:"migrations"` // carves among them
	Splits   int     `json:"splits"`
	Merges   int     `json:"merges"`
	Replicas int     `json:"replicas"`
	Failed   int     `json:"failed"`
	MiB      float64 `json:"mib_copied"`
	PauseS   float64 `json:"pause_s"`
	Most     int     `json:"most_moves_of_one"` // steps about one directory, subtree or shard
	Returns  int     `json:"returns"`           // moves of something to where it was before
	LastStep int     `json:"last_step_s"`       // when it began, -1: none
	Within   bool    `json:"within_budget"`     // of policy.Default's hour, at any time

	Samples []Sample `json:"samples"`
	Steps   []Begun  `json:"steps"`

	about map[thing]int
	were  map[place]bool
	times hist
	sum   float64
}

// Sample is what was so during some seconds.
type Sample struct {
	Second  int     `json:"s"` // the first one
	Rate    float64 `json:"rate"`
	MeanMS  float64 `json:"mean_ms"`
	Hottest float64 `json:"hottest"` // utilisation of the busiest node
	Moves   int     `json:"moves"`   // begun so far
}

// sampleSeconds is how many seconds a sample is of.
const sampleSeconds = 5

// Begun is a step, and when it began.
type Begun struct {
	Second int    `json:"s"`
	What   string `json:"what"`
	Why    string `json:"why,omitempty"`
}

// thing is what a step is about.
type thing struct {
	shard   base.ShardID
	subtree base.SubtreeID
	dir     base.Ino
}

// place is where a thing was.
type place struct {
	thing
	node int
}

func thingOf(s *policy.Step) thing {
	switch {
	case s.Kind == policy.TransferLease || s.Kind == policy.MoveReplica:
		return thing{shard: s.Shard}
	case s.Dir != 0:
		return thing{dir: s.Dir}
	}
	return thing{subtree: s.Subtree}
}

// maxSteps bounds how many steps are told one by one.
const maxSteps = 1000

// began takes down a step.
func (o *Outcome) began(w *world, r *running) {
	s := &r.step
	switch s.Kind {
	case policy.TransferLease:
		o.Leases++
	case policy.MoveReplica:
		o.Replicas++
	case policy.Migrate, policy.Carve:
		o.Migrated++
	case policy.Split:
		o.Splits++
	case policy.Merge:
		o.Merges++
	}
	for _, l := range r.legs[:min(1, len(r.legs))] {
		if s.Kind == policy.Split || s.Kind == policy.Merge {
			break
		}
		if o.were[place{thingOf(s), l.to}] {
			o.Returns++
		}
		o.were[place{thingOf(s), l.from}] = true
	}
	o.Moves += s.Spend.Moves
	o.MiB += float64(s.Spend.Bytes) / (1 << 20)
	o.LastStep = w.now
	o.about[thingOf(s)]++
	o.Most = max(o.Most, o.about[thingOf(s)])
	if len(o.Steps) < maxSteps {
		o.Steps = append(o.Steps, Begun{w.now, s.String(), s.Reason})
	}
	d := policy.Default()
	spent, hourly := w.spent(), d.Hourly(len(w.nodes))
	o.Within = o.Within && spent.Moves <= hourly.Moves && spent.Bytes <= hourly.Bytes && spent.Pause <= hourly.Pause
}

// ended takes down how it ended.
func (o *Outcome) ended(_ *world, _ *running, failed bool) {
	if failed {
		o.Failed++
	}
}

// second takes down what was in a second.
func (o *Outcome) second(w *world) {
	var ops, sum float64
	for i := range w.units {
		u := &w.units[i]
		ops += u.served
		sum += u.served * u.latency
		o.times.add(u.latency, u.served)
	}
	o.Ops += ops
	o.sum += sum
	hottest := 0.0
	for i := range w.nodes {
		hottest = max(hottest, w.nodes[i].util)
	}
	if w.now%sampleSeconds == 0 {
		o.Samples = append(o.Samples, Sample{Second: w.now})
	}
	s := &o.Samples[len(o.Samples)-1]
	s.MeanMS += sum * 1000
	s.Rate += ops
	s.Hottest = max(s.Hottest, hottest)
	s.Moves = o.Moves
	if w.now%sampleSeconds == sampleSeconds-1 {
		s.MeanMS /= max(s.Rate, 1)
		s.Rate /= sampleSeconds
	}
}

// end sums up.
func (o *Outcome) end(w *world) {
	o.Nodes = len(w.nodes)
	for i := range w.units {
		o.Dirs += int64(max(1, w.units[i].dirs))
		o.Entries += int64(w.units[i].entries)
	}
	o.MeanMS = 1000 * o.sum / max(o.Ops, 1)
	o.P99MS = 1000 * o.times.quantile(0.99)
	last := o.Samples[max(0, len(o.Samples)-60/sampleSeconds):]
	var sum, ops float64
	for _, s := range last {
		ops += s.Rate
		sum += s.Rate * s.MeanMS
	}
	o.LastMin, o.LastMS = ops/float64(len(last)), sum/max(ops, 1)
}

// RateAt returns the rate during the sample that the second is in.
func (o *Outcome) RateAt(second int) float64 { return o.Samples[second/sampleSeconds].Rate }

// Worst returns the least rate of any so many seconds as a part of the other run's in the
// same seconds, and the largest mean latency in the same way.
func (o *Outcome) Worst(than *Outcome, seconds int) (rate, latency float64) {
	n := seconds / sampleSeconds
	rate = math.Inf(1)
	for i := 0; i+n <= len(o.Samples) && i+n <= len(than.Samples); i += n {
		a, b := together(o.Samples[i:i+n]), together(than.Samples[i:i+n])
		if b.Rate > 0 {
			rate = min(rate, a.Rate/b.Rate)
		}
		if b.MeanMS > 0 {
			latency = max(latency, a.MeanMS/b.MeanMS)
		}
	}
	return rate, latency
}

// together sums up samples.
func together(all []Sample) (m Sample) {
	for _, s := range all {
		m.Rate += s.Rate
		m.MeanMS += s.Rate * s.MeanMS
	}
	m.MeanMS /= max(m.Rate, 1)
	return m
}

// hist counts operations by latency, in steps of a tenth.
type hist struct{ counts [200]float64 }

const histLeast = 1e-5

func (h *hist) add(latency, ops float64) {
	i := 0
	if latency > histLeast {
		i = min(len(h.counts)-1, int(math.Log(latency/histLeast)/math.Log(1.1)))
	}
	h.counts[i] += ops
}

func (h *hist) quantile(part float64) float64 {
	var all, sum float64
	for _, c := range h.counts {
		all += c
	}
	for i, c := range h.counts {
		if sum += c; sum >= part*all {
			return histLeast * math.Pow(1.1, float64(i)+0.5)
		}
	}
	return 0
}
