package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/meta"
)

type metaFlags struct {
	where   where
	out     output
	floors  floorFlags
	durable durableFlags
	cfg     meta.Config
	dirs    string
	workers int
}

const metaHelp = `Run mdtest's phases: mkdir, create, stat, open+close, readdir, rename, unlink, rmdir, in a
directory per worker and in one that all share ("ls -l" is a phase on request).

--workers N are threads; --processes N are processes with --workers threads each (1 if not
given), which start every phase together. Through a mount, threads and processes make system
calls with whole paths. By the library, each process has one client that its workers share.

stat, open+close and listings go --rounds times over their items. Warm-up does all phases
with --warmup items per worker beforehand, unmeasured. --verify lists the directories after
each change: every name that was acknowledged is there exactly once.`

func metaCommand() *cobra.Command {
	m := &metaFlags{}
	c := &cobra.Command{
		Use: "meta", Short: "mdtest's phases: create, stat, readdir, rename, unlink ...", Long: metaHelp, Args: cobra.NoArgs,
		Example: "  loadtest meta --path ./mnt --processes 32 --items 500\n  loadtest meta --library --workers 64 --dirs shared --plot library.svg\n" +
			"  loadtest meta --path /mnt/other --server-pids 123,456 --with-floor\n  loadtest meta --path ./mnt --durable-check --journal j --for 60s",
		RunE: func(c *cobra.Command, _ []string) error { return m.run(c) },
	}
	m.where.bind(c, true)
	m.out.bind(c, true)
	m.floors.bind(c)
	m.durable.bind(c)
	f := c.Flags()
	f.IntVar(&m.workers, "workers", 8, "threads (of each process)")
	f.IntVar(&m.cfg.Processes, "processes", 0, "worker processes; 0: threads of this one")
	f.IntVar(&m.cfg.Items, "items", 1000, "files and directories of each worker")
	f.IntVar(&m.cfg.Warmup, "warmup", 50, "the same before measuring")
	f.IntVar(&m.cfg.Rounds, "rounds", 1, "how often stat, open+close and listings go over their items")
	f.DurationVar(&m.cfg.Limit, "limit", 0, "end mkdir and create after this time (0: all items)")
	f.StringVar(&m.dirs, "dirs", "both", "shared, own or both")
	f.StringSliceVar(&m.cfg.Phases, "phases", meta.Phases(), "which phases")
	f.BoolVar(&m.cfg.Verify, "verify", false, "compare listings with what was acknowledged")
	f.BoolVar(&m.cfg.Keep, "keep", false, "leave the run's directory")
	return c
}

// settle fills in the settings that follow from several flags.
func (m *metaFlags) settle(c *cobra.Command) error {
	if err := m.out.check(); err != nil {
		return err
	}
	if err := m.where.resolve(); err != nil {
		return err
	}
	m.cfg.Workers = m.workers
	if m.cfg.Processes > 0 && !c.Flags().Changed("workers") {
		m.cfg.Workers = 1
	}
	if m.cfg.Warmup > m.cfg.Items && !c.Flags().Changed("warmup") {
		m.cfg.Warmup = m.cfg.Items
	}
	switch m.dirs {
	case "both":
		m.cfg.Dirs = []string{meta.Own, meta.Shared}
	default:
		m.cfg.Dirs = []string{m.dirs}
	}
	m.cfg.Path, m.cfg.Root, m.cfg.Relaxed = m.where.path, m.where.root, m.where.relaxed
	if m.where.byLibrary() {
		m.cfg.Cluster = m.where.address
	}
	m.cfg.Base = base("meta")
	return m.cfg.Check()
}

func (m *metaFlags) settings() map[string]string {
	s := map[string]string{
		"workers": fmt.Sprint(m.cfg.Workers), "processes": fmt.Sprint(m.cfg.Processes), "items": fmt.Sprint(m.cfg.Items),
		"rounds": fmt.Sprint(m.cfg.Rounds), "dirs": strings.Join(m.cfg.Dirs, "+"), "verify": fmt.Sprint(m.cfg.Verify),
	}
	if m.where.byLibrary() {
		s["consistency"] = "strict"
		if m.cfg.Relaxed > 0 {
			s["consistency"] = "relaxed=" + m.cfg.Relaxed.String()
		}
	}
	return s
}

func (m *metaFlags) run(c *cobra.Command) error {
	if m.durable.check {
		return m.runDurable(c)
	}
	if err := m.settle(c); err != nil {
		return err
	}
	floors, err := m.floors.wanted(m.where.canopy())
	if err != nil {
		return err
	}
	ctx := c.Context()
	r := newReport("meta", m.settings())
	found := m.where.processes(ctx)
	r.Notes = found.Notes
	bar := m.out.bar()
	defer bar.End()
	env := meta.Env{Open: open, Spawn: spawnWorker, Bar: bar, Groups: found.Groups, Name: loadtest.SeriesTarget}
	measured, err := meta.Run(ctx, m.cfg, env)
	if err != nil {
		return err
	}
	r.Series = append(r.Series, *measured)
	if floors {
		if err := m.addFloors(ctx, r, env, found.Replicas); err != nil {
			return err
		}
	}
	bar.End()
	return m.out.report(c.OutOrStdout(), r)
}

// addFloors measures in the same run what the report compares with.
func (m *metaFlags) addFloors(ctx context.Context, r *loadtest.Report, env meta.Env, replicas int) error {
	f := &m.floors
	f.settle(&m.where)
	if m.where.byLibrary() {
		if !f.replicasSet {
			f.replicas = max(replicas, 1)
		}
		f.callers = m.cfg.Total()
		r.Floors = append(r.Floors, f.raft(ctx, env.Bar), f.stream(ctx, env.Bar))
		r.CompareLibrary(&r.Series[0], f.replicas)
		return ctx.Err()
	}
	r.Floors = append(r.Floors, f.fdatasync(ctx, env.Bar, false), f.fdatasync(ctx, env.Bar, true))
	series, note := f.memory(ctx, env, func(dir string, env meta.Env) (*loadtest.Series, error) {
		cfg := m.cfg
		cfg.Path, cfg.Keep, cfg.Verify = dir, false, false
		return meta.Run(ctx, cfg, env)
	})
	if series == nil {
		r.Notes = append(r.Notes, note)
		return ctx.Err()
	}
	r.Series = append(r.Series, *series)
	r.CompareMount(&r.Series[0], series)
	return ctx.Err()
}

const defaultDuration = 3 * time.Second
