package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/internal/local"
	"github.com/canopyfs/canopy/loadtest/history"
	"github.com/canopyfs/canopy/loadtest/history/check"
	"github.com/canopyfs/canopy/loadtest/history/work"
)

// ways are the flags that say by which ways a history's clients go.
type ways struct {
	cluster   string
	library   bool
	libraries int
	paths     []string
}

func (w *ways) bind(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&w.cluster, "cluster", "", "host:port[,host:port...] of metadata nodes, for clients of the library")
	f.BoolVar(&w.library, "library", false, "clients of the library, on CANOPY_CLUSTER or this machine's canopy up")
	f.IntVar(&w.libraries, "libraries", 2, "how many connected libraries the clients share")
	f.StringSliceVar(&w.paths, "path", nil, "where --root is mounted; several mounts can be given")
}

// open connects by all ways.
func (w *ways) open(ctx context.Context, h *history.Header) (all []work.System, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(ctx, all))
			all = nil
		}
	}()
	if w.cluster == "" && !w.library && len(w.paths) == 0 {
		return nil, errors.New("say by which way: --cluster HOST:PORT, --library or --path DIR, or several of these")
	}
	if w.libraries < 1 || w.libraries > work.MaxClients {
		return nil, fmt.Errorf("--libraries %d: want 1 to %d", w.libraries, work.MaxClients)
	}
	if w.cluster != "" || w.library {
		address, err := local.Find(w.cluster)
		if err != nil {
			return nil, err
		}
		for range w.libraries {
			l, err := work.OpenLibrary(ctx, address, h)
			if err != nil {
				return all, err
			}
			all = append(all, l)
		}
	}
	for _, p := range w.paths {
		abs, err := filepath.Abs(p)
		if err != nil {
			return all, err
		}
		m, err := work.OpenMount(abs, h)
		if err != nil {
			return all, err
		}
		all = append(all, m)
	}
	return all, nil
}

func closeAll(ctx context.Context, all []work.System) error {
	closing, cancel := closeContext(ctx)
	defer cancel()
	var errs []error
	for _, s := range all {
		errs = append(errs, s.Close(closing))
	}
	return errors.Join(errs...)
}

type historyFlags struct {
	ways   ways
	out    output
	cfg    work.Config
	seed   uint64
	root   string
	base   string
	dirs   int
	record string
	keep   bool
	part   time.Duration
}

const historyHelp = `Let clients use the same few names at once, by the library and by mounts, write down what each
asked, when, and what it was answered, and check whether a linearizable file system can have
given these answers: creates, lookups, renames (also without replacing, exchanging, over another
directory), links, removals, extended attributes of files and directories, appended records and
listings. It is meant to run while servers are killed and the run's directories (d0, d1, ...
below --name) are split, moved and merged.

--record FILE keeps the history: ` + "`loadtest check FILE`" + ` checks it again, and with --cluster or --path
compares it with what is there then. An interrupt ends the load early; what was recorded is
checked. Exit code 1 if an answer cannot be.`

func historyCommand() *cobra.Command {
	m := &historyFlags{}
	c := &cobra.Command{
		Use: "history", Short: "Record what clients were answered and check that it is linearizable", Long: historyHelp, Args: cobra.NoArgs,
		Example: "  loadtest history --library --for 60s\n  loadtest history --cluster node1:7400 --path /mnt/a --path /mnt/b --clients 16 --record h.jsonl\n  loadtest check h.jsonl",
		RunE:    func(c *cobra.Command, _ []string) error { return m.run(c) },
	}
	m.ways.bind(c)
	m.out.bind(c, false)
	f := c.Flags()
	f.StringVar(&m.root, "root", "/", "directory of the namespace to work in")
	f.StringVar(&m.base, "name", "", "name of the run's directory (default: one of its own)")
	f.DurationVar(&m.cfg.For, "for", 30*time.Second, "how long")
	f.IntVar(&m.cfg.Clients, "clients", 12, "how many clients, over all ways")
	f.DurationVar(&m.cfg.Pause, "pause", 2*time.Millisecond, "of each client between two operations, about")
	f.DurationVar(&m.cfg.OpTimeout, "op-timeout", time.Minute, "give an operation up after this time (library)")
	f.IntVar(&m.dirs, "dirs", 5, "directories that the names lie in")
	f.Uint64Var(&m.seed, "seed", 0, "of the clients' choices (default: by the clock)")
	f.StringVar(&m.record, "record", "", "file for the history; it must not exist")
	f.BoolVar(&m.keep, "keep", false, "leave the run's directory")
	f.DurationVar(&m.part, "part-timeout", time.Minute, "bound of the search in one part of the history")
	return c
}

func (m *historyFlags) run(c *cobra.Command) error {
	if m.seed == 0 {
		m.seed = uint64(time.Now().UnixNano())
	}
	if m.base == "" {
		m.base = base("history")
	}
	h, err := work.NewHeader(m.seed, m.root, m.base, m.dirs, m.cfg.Clients)
	if err := errors.Join(err, m.out.check(), m.cfg.Check()); err != nil {
		return err
	}
	ctx := c.Context()
	systems, err := m.ways.open(ctx, &h)
	if err != nil {
		return err
	}
	recorded, err := m.work(c, &h, systems)
	ctx = context.WithoutCancel(ctx) // an interrupt ends the load; the check is what it was for
	if err != nil {
		return errors.Join(err, closeAll(ctx, systems))
	}
	r, err := check.Run(ctx, recorded, check.Options{Timeout: m.part})
	if err == nil && r.OK() && !m.keep {
		err = systems[0].RemoveAll(ctx, &h)
	}
	if err := errors.Join(err, closeAll(ctx, systems)); err != nil {
		return err
	}
	return showHistory(c, &m.out, r)
}

// work makes the history and, when all clients have ended, counts what is there.
func (m *historyFlags) work(c *cobra.Command, h *history.Header, systems []work.System) (*history.History, error) {
	ctx := c.Context()
	if err := work.Prepare(ctx, systems[0], h); err != nil {
		return nil, err
	}
	rec, err := history.NewRecorder(*h, m.record)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(c.ErrOrStderr(), "seed %d: %d clients in %s/%s for %v\n", m.seed, m.cfg.Clients, m.root, m.base, m.cfg.For)
	work.Run(ctx, rec, h, systems, m.cfg)
	err = work.Recount(context.WithoutCancel(ctx), systems[0], h, rec.Ops(), rec.Now, rec.Add)
	recorded, endErr := rec.End()
	return recorded, errors.Join(err, endErr)
}

func showHistory(c *cobra.Command, out *output, r *check.Report) error {
	done, err := out.json(c.OutOrStdout(), r)
	if err == nil && !done {
		err = r.WriteText(c.OutOrStdout())
	}
	return errors.Join(err, r.Err())
}

func checkCommand() *cobra.Command {
	var w ways
	var out output
	var part time.Duration
	c := &cobra.Command{
		Use: "check FILE", Short: "Check a history that loadtest history recorded", Args: cobra.ExactArgs(1),
		Long: "Read a history and check it again. With --cluster, --library or --path, read what is in the\n" +
			"run's directories now and hold that to the history too. Exit code 1 if an answer cannot be.",
		Example: "  loadtest check h.jsonl\n  loadtest check h.jsonl --cluster node1:7400",
		RunE: func(c *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			return runCheck(c, &w, &out, args[0], part)
		},
	}
	w.bind(c)
	out.bind(c, false)
	c.Flags().DurationVar(&part, "part-timeout", time.Minute, "bound of the search in one part of the history")
	return c
}

func runCheck(c *cobra.Command, w *ways, out *output, name string, part time.Duration) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	h, err := history.Read(f)
	if err != nil {
		return err
	}
	ctx := c.Context()
	if w.cluster != "" || w.library || len(w.paths) > 0 {
		w.libraries = 1
		systems, err := w.open(ctx, &h.Header)
		if err != nil {
			return err
		}
		err = h.Recount(func(now func() int64, add func(*history.Op)) error {
			return work.Recount(ctx, systems[0], &h.Header, h.Ops, now, add)
		})
		if err := errors.Join(err, closeAll(ctx, systems)); err != nil {
			return err
		}
	}
	r, err := check.Run(ctx, h, check.Options{Timeout: part})
	if err != nil {
		return err
	}
	return showHistory(c, out, r)
}
