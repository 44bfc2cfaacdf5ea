package meta

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/proc"
	"github.com/canopyfs/canopy/loadtest/progress"
	"github.com/canopyfs/canopy/loadtest/target"
)

const (
	// startDelay is how far ahead a phase's start is announced.
	startDelay = 20 * time.Millisecond
	// removeTimeout bounds the clean-up through a library that may have lost its
	// cluster.
	removeTimeout = time.Minute
)

// Env is what a run uses besides its settings.
type Env struct {
	Open   Opener
	Spawn  Spawn         // needed with Config.Processes
	Bar    *progress.Bar // may be nil
	Groups []proc.Group  // other processes whose CPU time is reported
	Name   string        // of the series
}

type runner interface {
	run(ctx context.Context, s step) (*stepResult, error)
	close(ctx context.Context) error
}

// Run does all phases and returns what was measured. The directories that it
// made are removed, unless cfg.Keep, also when it fails.
func Run(ctx context.Context, cfg Config, env Env) (s *loadtest.Series, err error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	tg, err := env.Open(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	detached := context.WithoutCancel(ctx)
	defer func() {
		closing, cancel := context.WithTimeout(detached, closeTimeout)
		defer cancel()
		err = errors.Join(err, tg.Close(closing))
	}()
	if err := makeDirs(ctx, tg, &cfg); err != nil {
		return nil, err
	}
	if !cfg.Keep {
		defer func() {
			env.Bar.Begin("removing the run's directory", 0)
			removing, cancel := context.WithTimeout(detached, removeTimeout)
			defer cancel()
			err = errors.Join(err, tg.RemoveAll(removing, cfg.Base))
		}()
	}
	var r runner
	if cfg.Processes > 0 {
		r, err = startFleet(ctx, &cfg, env.Spawn, env.Bar.Add)
	} else {
		r, err = newCrew(ctx, &cfg, env.Open, 0, env.Bar.Add)
	}
	if err != nil {
		return nil, err
	}
	s = &loadtest.Series{Name: env.Name, Target: tg.Describe()}
	err = phases(ctx, &cfg, env, r, tg, s)
	closing, cancel := context.WithTimeout(detached, closeTimeout)
	defer cancel()
	if e := r.close(closing); err == nil {
		err = e
	}
	return s, err
}

func makeDirs(ctx context.Context, tg target.Target, cfg *Config) error {
	if err := tg.MkdirAll(ctx, cfg.Base); err != nil {
		return err
	}
	kinds := slices.Clone(cfg.Dirs)
	if cfg.Warmup > 0 {
		kinds = append(kinds, warmUp)
	}
	for _, kind := range kinds {
		for w := range cfg.Total() {
			if err := tg.MkdirAll(ctx, cfg.dirName(kind, w)); err != nil {
				return err
			}
			if kind == Shared {
				break
			}
		}
	}
	return nil
}

func phases(ctx context.Context, cfg *Config, env Env, r runner, tg target.Target, s *loadtest.Series) error {
	if cfg.Warmup > 0 {
		env.Bar.Begin("warm-up", 0)
		for _, phase := range order {
			if !slices.Contains(cfg.Phases, phase) {
				continue
			}
			if _, err := r.run(ctx, step{Phase: phase, Dirs: warmUp, StartNS: time.Now().Add(startDelay).UnixNano()}); err != nil {
				return err
			}
		}
	}
	for _, dirs := range []string{Own, Shared} {
		if !slices.Contains(cfg.Dirs, dirs) {
			continue
		}
		books := newBooks(cfg, dirs)
		for _, phase := range order {
			if !slices.Contains(cfg.Phases, phase) {
				continue
			}
			env.Bar.Begin(fmt.Sprintf("%s, %s", dirs, phase), expected(cfg, phase))
			p, result, err := measure(ctx, env, r, step{Phase: phase, Dirs: dirs})
			if err != nil {
				return err
			}
			s.Phases = append(s.Phases, p)
			if cfg.Verify {
				if err := books.check(ctx, tg, phase, result); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// expected returns how many operations a phase does if all goes well.
func expected(cfg *Config, phase string) int64 {
	n := int64(cfg.Total())
	switch phase {
	case ReadDir, List:
		return n * int64(cfg.Rounds)
	case Stat, Open:
		return n * int64(cfg.Items) * int64(cfg.Rounds)
	}
	return n * int64(cfg.Items)
}

func measure(ctx context.Context, env Env, r runner, s step) (loadtest.Phase, *stepResult, error) {
	before, err := proc.Sample("/proc", env.Groups)
	if err != nil {
		return loadtest.Phase{}, nil, err
	}
	s.StartNS = time.Now().Add(startDelay).UnixNano()
	result, err := r.run(ctx, s)
	if err != nil {
		return loadtest.Phase{}, nil, err
	}
	after, err := proc.Sample("/proc", env.Groups)
	if err != nil {
		return loadtest.Phase{}, nil, fmt.Errorf("%w (it ended during phase %s)", err, s.Phase)
	}
	seconds := max(float64(result.EndNS-result.StartNS)/1e9, 1e-9)
	p := loadtest.Phase{
		Phase: s.Phase, Dirs: s.Dirs, Ops: result.Ops, Entries: result.Entries,
		Errors: result.Errors, FirstError: result.FirstError,
		Seconds: seconds, OpsPerSec: float64(result.Ops) / seconds,
		EntriesPerSec: float64(result.Entries) / seconds,
		Latency:       result.Hist.Latency(),
	}
	p.CPU = append(p.CPU, loadtest.NewCPU("load", result.CPU, result.Ops))
	for i, g := range env.Groups {
		p.CPU = append(p.CPU, loadtest.NewCPU(g.Who, after[i]-before[i], result.Ops))
	}
	return p, result, nil
}
