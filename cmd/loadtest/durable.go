package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/loadtest/durable"
	"github.com/canopyfs/canopy/loadtest/meta"
	"github.com/canopyfs/canopy/loadtest/target"
)

// durableFlags are those of meta --durable-check.
type durableFlags struct {
	check     bool
	journal   string
	seconds   time.Duration
	every     time.Duration
	opTimeout time.Duration
	maxGap    time.Duration
	dirs      int
}

func (d *durableFlags) bind(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&d.check, "durable-check", false, "no phases: make unique names while servers are killed, and keep a --journal for loadtest verify")
	f.StringVar(&d.journal, "journal", "", "with --durable-check: file for what was acknowledged; it must not exist")
	f.DurationVar(&d.seconds, "for", 30*time.Second, "with --durable-check: how long")
	f.DurationVar(&d.every, "every", time.Second, "with --durable-check: print throughput and the longest gap this often")
	f.DurationVar(&d.opTimeout, "op-timeout", 30*time.Second, "with --durable-check: give an operation up after this time (library)")
	f.DurationVar(&d.maxGap, "max-gap", 0, "with --durable-check: fail if nothing was acknowledged for longer (0: no limit)")
	f.IntVar(&d.dirs, "journal-dirs", 4, "with --durable-check: directories that the names are spread over")
}

func (d *durableFlags) validate(workers int) error {
	switch {
	case d.journal == "":
		return errors.New("--durable-check needs --journal FILE")
	case d.seconds <= 0 || d.every <= 0 || d.opTimeout <= 0 || d.maxGap < 0:
		return errors.New("--for, --every and --op-timeout want positive times")
	case d.dirs < 1 || d.dirs > 1024:
		return fmt.Errorf("--journal-dirs %d: want 1 to 1024", d.dirs)
	case workers < 1 || workers > meta.MaxWorkers:
		return fmt.Errorf("--workers %d: want 1 to %d", workers, meta.MaxWorkers)
	}
	return nil
}

func (m *metaFlags) runDurable(c *cobra.Command) error {
	d := &m.durable
	if err := errors.Join(m.out.check(), d.validate(m.workers)); err != nil {
		return err
	}
	if err := m.where.resolve(); err != nil {
		return err
	}
	ctx := c.Context()
	tg, err := m.where.open(ctx)
	if err != nil {
		return err
	}
	h := durable.Header{Path: m.where.path, Root: m.where.root, Base: base("durable"), Dirs: d.dirs, Workers: m.workers}
	if m.where.byLibrary() {
		h.Cluster = m.where.address
	}
	j, err := durable.CreateJournal(d.journal, h)
	if err != nil {
		return errors.Join(err, tg.Close(ctx))
	}
	ticks := c.OutOrStdout()
	if m.out.format == "json" {
		ticks = c.ErrOrStderr()
	}
	r, err := durable.Write(ctx, tg, j, durable.Options{
		Header: h, Duration: d.seconds, OpTimeout: d.opTimeout, Every: d.every,
		Tick: func(t durable.Tick) { printTick(ticks, t, d.every) },
	})
	err = errors.Join(err, j.Close())
	closing, cancel := closeContext(ctx)
	defer cancel()
	if e := tg.Close(closing); e != nil && err == nil {
		fmt.Fprintf(c.ErrOrStderr(), "loadtest: closing the client: %v\n", e)
	}
	if err != nil {
		return err
	}
	return m.showDurable(c.OutOrStdout(), r)
}

func printTick(w io.Writer, t durable.Tick, every time.Duration) {
	fmt.Fprintf(w, "%6.1f s  %8.0f ops/s  longest gap %.3f s  unknown %d", t.At.Seconds(), float64(t.Ops)/every.Seconds(), t.LongestGap.Seconds(), t.Unknown)
	if t.Gap > time.Second {
		fmt.Fprintf(w, "  NO SERVICE for %.1f s", t.Gap.Seconds())
	}
	fmt.Fprintln(w)
}

func (m *metaFlags) showDurable(w io.Writer, r *durable.Result) error {
	if done, err := m.out.json(w, r); err != nil {
		return err
	} else if !done {
		fmt.Fprintf(w, "%d operations acknowledged in %.1f s (%.0f/s), %d with unknown outcome, %d refused\n",
			r.Ops, r.Seconds, float64(r.Ops)/r.Seconds, r.Unknown, r.Refused)
		fmt.Fprintf(w, "latency p50 %.0f us, p99 %.0f us, p99.9 %.0f us\n", r.Latency.P50US, r.Latency.P99US, r.Latency.P999US)
		for _, g := range r.Gaps {
			fmt.Fprintf(w, "no acknowledgement from %.3f s on: service back within %.3f s\n", g.Start, g.Seconds)
		}
		fmt.Fprintf(w, "longest gap in service: %.3f s\n", r.LongestGap)
		if r.FirstError != "" {
			fmt.Fprintf(w, "first error: %s\n", r.FirstError)
		}
		fmt.Fprintf(w, "compare with: loadtest verify --journal %s\n", m.durable.journal)
	}
	switch limit := m.durable.maxGap.Seconds(); {
	case r.Refused > 0:
		return fmt.Errorf("%d operations were refused that cannot fail when done once: %s", r.Refused, r.FirstError)
	case limit > 0 && r.LongestGap > limit:
		return fmt.Errorf("nothing was acknowledged for %.3f s, at most %.3f s were allowed", r.LongestGap, limit)
	}
	return nil
}

func verifyCommand() *cobra.Command {
	var w where
	var out output
	var journal string
	var remove bool
	stat := true
	c := &cobra.Command{
		Use: "verify", Short: "Compare the namespace with the journal of meta --durable-check", Args: cobra.NoArgs,
		Long: "Read the journal and list the names: every acknowledged operation shows exactly once, no\n" +
			"removed name is back, and nothing is there that nobody asked for. Operations whose outcome\nis unknown may be done or not. Exit code 1 if anything is wrong.",
		Example: "  loadtest verify --journal j\n  loadtest verify --journal j --path /other/mount --remove",
		RunE: func(c *cobra.Command, _ []string) error {
			if journal == "" {
				return errors.New("say which: --journal FILE")
			}
			if err := out.check(); err != nil {
				return err
			}
			return runVerify(c, &w, &out, journal, stat, remove)
		},
	}
	w.bind(c, true)
	out.bind(c, false)
	c.Flags().StringVar(&journal, "journal", "", "the file that meta --durable-check wrote")
	c.Flags().BoolVar(&stat, "stat", true, "ask for the attributes of each name too")
	c.Flags().BoolVar(&remove, "remove", false, "remove the run's directory if all is well")
	return c
}

func runVerify(c *cobra.Command, w *where, out *output, name string, stat, remove bool) (err error) {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("--journal: %w", err)
	}
	defer f.Close()
	h, err := durable.ReadHeader(f)
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if w.path == "" && w.cluster == "" && !w.library {
		w.path, w.cluster = h.Path, h.Cluster
	}
	if !c.Flags().Changed("root") && h.Root != "" {
		w.root = h.Root
	}
	if err := w.resolve(); err != nil {
		return err
	}
	ctx := c.Context()
	tg, err := w.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tg.Close(ctx)) }()
	v, err := durable.Verify(ctx, tg, f, stat)
	if err != nil {
		return err
	}
	return showVerdict(c, out, tg, h, v, remove)
}

func showVerdict(c *cobra.Command, out *output, tg target.Target, h durable.Header, v *durable.Verdict, remove bool) error {
	w := c.OutOrStdout()
	if done, err := out.json(w, v); err != nil {
		return err
	} else if !done {
		fmt.Fprintf(w, "%d acknowledged operations, %d with unknown outcome, %d names found\n", v.Acknowledged, v.Unknown, v.Names)
		for _, f := range v.Findings {
			fmt.Fprintf(w, "%s: %s %s\n", f.Problem, f.Path, f.Detail)
		}
	}
	if !v.OK() {
		return fmt.Errorf("the namespace differs from the journal: %v", v.Problems)
	}
	if out.format == "text" {
		fmt.Fprintln(w, "nothing acknowledged is missing, nothing was done twice")
	}
	if remove {
		return tg.RemoveAll(c.Context(), h.Base)
	}
	return nil
}
