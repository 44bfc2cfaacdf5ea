package meta

import (
	"context"
	"sync"
	"time"

	"github.com/canopyfs/canopy/loadtest/hist"
	"github.com/canopyfs/canopy/loadtest/proc"
	"github.com/canopyfs/canopy/loadtest/target"
)

// step is one phase in one kind of directory.
type step struct {
	Phase   string `json:"phase"`
	Dirs    string `json:"dirs"`
	StartNS int64  `json:"start_ns"` // wall clock; all crews start then
}

// stepResult is what a crew, or all crews together, did in a step.
type stepResult struct {
	Ops        int64           `json:"ops"`
	Entries    int64           `json:"entries"`
	Errors     int64           `json:"errors"`
	FirstError string          `json:"first_error,omitempty"`
	StartNS    int64           `json:"start_ns"`
	EndNS      int64           `json:"end_ns"`
	CPU        time.Duration   `json:"cpu"`
	Hist       *hist.Histogram `json:"hist"`
	Workers    []changes       `json:"workers,omitempty"` // with Config.Verify
}

// changes tells which names one worker's step made, renamed or removed:
// Names[i] was done, or its outcome is not known.
type changes struct {
	Worker  int   `json:"worker"`
	Done    []int `json:"done,omitempty"`
	Unknown []int `json:"unknown,omitempty"`
}

func (r *stepResult) merge(o *stepResult) {
	r.Ops += o.Ops
	r.Entries += o.Entries
	r.Errors += o.Errors
	r.CPU += o.CPU
	if r.FirstError == "" {
		r.FirstError = o.FirstError
	}
	if r.StartNS == 0 || (o.StartNS != 0 && o.StartNS < r.StartNS) {
		r.StartNS = o.StartNS
	}
	r.EndNS = max(r.EndNS, o.EndNS)
	if r.Hist == nil {
		r.Hist = hist.New()
	}
	if o.Hist != nil {
		r.Hist.Merge(o.Hist)
	}
	r.Workers = append(r.Workers, o.Workers...)
}

// crew is the workers of one process.
type crew struct {
	cfg     *Config
	tg      target.Target
	workers []*worker
	count   func(n int64) // told of operations done
}

// Opener connects to what the settings name.
type Opener func(ctx context.Context, cfg *Config) (target.Target, error)

// newCrew connects to the target for the workers first to first+Workers-1.
func newCrew(ctx context.Context, cfg *Config, open Opener, first int, count func(int64)) (*crew, error) {
	tg, err := open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c := &crew{cfg: cfg, tg: tg, count: count}
	for i := range cfg.Workers {
		c.workers = append(c.workers, &worker{id: first + i, cfg: cfg, sets: map[string]*names{}})
	}
	return c, nil
}

func (c *crew) close(ctx context.Context) error {
	for _, w := range c.workers {
		for _, s := range w.sets {
			if s.dir != nil {
				_ = s.dir.Close() // nothing is buffered under a directory
			}
		}
	}
	return c.tg.Close(ctx)
}

// run does one step with all workers and waits for them.
func (c *crew) run(ctx context.Context, s step) (*stepResult, error) {
	for _, w := range c.workers {
		if err := w.open(ctx, c.tg, s.Dirs); err != nil {
			return nil, err
		}
	}
	cpu := proc.Self()
	results := make([]*stepResult, len(c.workers))
	var wait sync.WaitGroup
	for i, w := range c.workers {
		wait.Go(func() { results[i] = w.run(ctx, s, c.count) })
	}
	wait.Wait()
	total := &stepResult{}
	for _, r := range results {
		total.merge(r)
	}
	total.CPU = proc.Self() - cpu
	return total, ctx.Err()
}
