package meta

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/hist"
	"github.com/canopyfs/canopy/loadtest/proc"
	"github.com/canopyfs/canopy/loadtest/target"
)

// Listing is a run that lists one large directory.
type Listing struct {
	Base    string // directory below the target
	Entries int
	Makers  int // how many create the entries at the same time
	Rounds  int
	// Filler makes and removes the entries, below the same directory as the
	// target: a library can do so much faster than a mount, on which the kernel
	// serialises changes of one directory. nil: the target itself.
	Filler target.Target
	// DropCaches is called before each listing; may be nil.
	DropCaches func() error
}

// Check returns what is wrong with the settings.
func (l *Listing) Check() error {
	switch {
	case l.Entries < 1 || l.Entries > MaxItems:
		return fmt.Errorf("--entries %d: want 1 to %d", l.Entries, MaxItems)
	case l.Makers < 1 || l.Makers > MaxWorkers:
		return fmt.Errorf("--workers %d: want 1 to %d", l.Makers, MaxWorkers)
	case l.Rounds < 1:
		return fmt.Errorf("--rounds %d: want at least 1", l.Rounds)
	}
	return nil
}

// RunListing makes the directory, lists it by names and as `ls -l` does, each
// round with caches dropped, and removes it.
func RunListing(ctx context.Context, tg target.Target, l Listing, env Env) (s *loadtest.Series, err error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	if l.Filler == nil {
		l.Filler = tg
	}
	detached := context.WithoutCancel(ctx)
	defer func() {
		removing, cancel := context.WithTimeout(detached, listingRemoveTimeout)
		defer cancel()
		// What many remove at once is gone when RemoveAll looks; what could not be
		// removed so, it tries again and reports.
		_ = l.each(removing, "removing entries", env, func(ctx context.Context, d target.Dir, name string) error { return d.Unlink(ctx, name) })
		err = errors.Join(err, l.Filler.RemoveAll(removing, l.Base))
	}()
	if err := l.Filler.MkdirAll(ctx, l.Base); err != nil {
		return nil, err
	}
	err = l.each(ctx, "making entries", env, func(ctx context.Context, d target.Dir, name string) error { return d.Create(ctx, name) })
	if err != nil {
		return nil, err
	}
	s = &loadtest.Series{Name: env.Name, Target: tg.Describe()}
	for _, phase := range []string{ReadDir, List} {
		env.Bar.Begin(phase, int64(l.Rounds))
		p, err := l.measure(ctx, tg, phase, env)
		if err != nil {
			return nil, err
		}
		s.Phases = append(s.Phases, p)
	}
	return s, nil
}

// listingRemoveTimeout bounds the removal of a directory of millions.
const listingRemoveTimeout = 30 * time.Minute

// each does something with every entry's name, many at a time.
func (l *Listing) each(ctx context.Context, label string, env Env, do func(ctx context.Context, d target.Dir, name string) error) error {
	d, err := l.Filler.Dir(ctx, l.Base)
	if err != nil {
		return err
	}
	env.Bar.Begin(label, int64(l.Entries))
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range l.Makers {
		g.Go(func() error {
			for i := next.Add(1); i <= int64(l.Entries) && ctx.Err() == nil; i = next.Add(1) {
				if err := do(ctx, d, itemName(letterFile, 0, int(i))); err != nil {
					return err
				}
				env.Bar.Add(1)
			}
			return ctx.Err()
		})
	}
	return errors.Join(g.Wait(), d.Close())
}

func (l *Listing) measure(ctx context.Context, tg target.Target, phase string, env Env) (loadtest.Phase, error) {
	p := loadtest.Phase{Phase: phase, Dirs: Shared}
	h := hist.New()
	var own time.Duration
	used := make([]time.Duration, len(env.Groups))
	for range l.Rounds {
		if l.DropCaches != nil {
			if err := l.DropCaches(); err != nil {
				return p, err
			}
		}
		// Opened after the drop: a new handle, as a new ls has it.
		d, err := tg.Dir(ctx, l.Base)
		if err != nil {
			return p, err
		}
		before, err := proc.Sample("/proc", env.Groups)
		if err != nil {
			return p, err
		}
		cpu, start := proc.Self(), time.Now()
		n := 0
		if phase == List {
			n, err = d.ListAttrs(ctx)
		} else {
			n, err = d.List(ctx, nil)
		}
		took := time.Since(start)
		own += proc.Self() - cpu
		after, err2 := proc.Sample("/proc", env.Groups)
		if err := errors.Join(err, err2, d.Close()); err != nil {
			return p, err
		}
		if n != l.Entries {
			return p, fmt.Errorf("%s of %s shows %d entries, %d were made", phase, l.Base, n, l.Entries)
		}
		for i := range used {
			used[i] += after[i] - before[i]
		}
		h.Record(took)
		p.Ops++
		p.Entries += int64(n)
		p.Seconds += took.Seconds()
		env.Bar.Add(1)
	}
	p.OpsPerSec, p.EntriesPerSec = float64(p.Ops)/p.Seconds, float64(p.Entries)/p.Seconds
	p.Latency = h.Latency()
	p.CPU = append(p.CPU, loadtest.NewCPU("load", own, p.Entries))
	for i, g := range env.Groups {
		p.CPU = append(p.CPU, loadtest.NewCPU(g.Who, used[i], p.Entries))
	}
	return p, nil
}
