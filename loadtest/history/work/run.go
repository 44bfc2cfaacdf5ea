package work

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/canopyfs/canopy/loadtest/history"
)

// Config says what a run does.
type Config struct {
	For     time.Duration
	Clients int           // each does one operation at a time
	Pause   time.Duration // of each client between two operations, about
	// OpTimeout bounds an operation of the library; its outcome is unknown then.
	OpTimeout time.Duration
}

// Bounds of what a run may ask for.
const (
	MaxClients = 1024
	MaxDirs    = 64
)

// Check returns what is wrong with the settings.
func (c *Config) Check() error {
	switch {
	case c.For <= 0 || c.OpTimeout <= 0 || c.Pause < 0:
		return fmt.Errorf("--for and --op-timeout want positive times, --pause one of at least 0")
	case c.Clients < 1 || c.Clients > MaxClients:
		return fmt.Errorf("--clients %d: want 1 to %d", c.Clients, MaxClients)
	}
	return nil
}

// NewHeader returns the header of a run in so many directories.
func NewHeader(seed uint64, root, base string, dirs, clients int) (history.Header, error) {
	h := history.Header{Seed: seed, Root: root, Base: base, Clients: clients}
	if dirs < 2 || dirs > MaxDirs {
		return h, fmt.Errorf("--dirs %d: want 2 to %d", dirs, MaxDirs)
	}
	for i := range dirs {
		d := fmt.Sprint("d", i)
		h.Dirs, h.Logs = append(h.Dirs, d), append(h.Logs, d+"/"+logName)
	}
	return h, nil
}

// The files that every directory has throughout.
const (
	logName      = "log"
	registerName = "register"
)

// Prepare makes the files that the clients need.
func Prepare(ctx context.Context, sys System, h *history.Header) error {
	for dir := range h.Dirs {
		for _, name := range []string{logName, registerName} {
			if _, err := sys.Create(ctx, dir, name); err != nil {
				return fmt.Errorf("making %s/%s: %w", h.Dirs[dir], name, err)
			}
		}
	}
	return nil
}

// Run lets the clients work, on one system after the other, until the time is over or ctx
// is done. What is under way then is waited for: its outcome counts.
func Run(ctx context.Context, rec *history.Recorder, h *history.Header, systems []System, cfg Config) {
	running, cancel := context.WithTimeout(ctx, cfg.For)
	defer cancel()
	b := newBoard(h, cfg.Clients)
	var wait sync.WaitGroup
	for i := range cfg.Clients {
		u := &user{
			id: i, sys: systems[i%len(systems)], rec: rec, h: h, board: b, timeout: cfg.OpTimeout,
			rng: rand.New(rand.NewPCG(h.Seed, uint64(i))),
		}
		wait.Go(func() {
			for running.Err() == nil {
				u.step(context.WithoutCancel(ctx))
				pause(running, u.rng, cfg.Pause)
			}
		})
	}
	wait.Wait()
}

// pause waits about d.
func pause(ctx context.Context, rng *rand.Rand, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(time.Duration(rng.Int64N(2*int64(d)) + 1))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Recount reads all that is there after all clients have ended and gives it to add, as
// operations of no client.
func Recount(ctx context.Context, sys System, h *history.Header, ops []*history.Op, now func() int64, add func(*history.Op)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(recounters)
	read := func(op *history.Op, call func() error) {
		g.Go(func() error {
			op.Client, op.Via, op.Call = nobody, sys.Via(), now()
			err := call()
			op.Return = now()
			op.Outcome, op.Said = outcome(err)
			add(op)
			if op.Outcome == history.Unknown {
				return fmt.Errorf("recount of %s: %w", op.A, err)
			}
			return nil
		})
	}
	for dir, name := range h.Dirs {
		op := &history.Op{Kind: history.Recount, A: name}
		read(op, func() (err error) { op.Entries, err = sys.List(ctx, dir, 0); return err })
		log := &history.Op{Kind: history.Appended, A: name + "/" + logName}
		read(log, func() error {
			b, err := sys.Read(ctx, dir, logName)
			log.Entries = parseLog(b)
			return err
		})
	}
	for _, r := range registersOf(ops) {
		op := &history.Op{Kind: history.Get, A: r.key(h)}
		read(op, func() (err error) { op.Value, err = sys.GetXattr(ctx, r.dir, r.name, r.attr); return err })
	}
	return g.Wait()
}

const (
	nobody     = -1
	recounters = 8
)
