package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/bulk"
	"github.com/canopyfs/canopy/loadtest/floor"
	"github.com/canopyfs/canopy/loadtest/hist"
	"github.com/canopyfs/canopy/loadtest/meta"
	"github.com/canopyfs/canopy/loadtest/mounted"
	"github.com/canopyfs/canopy/loadtest/proc"
	"github.com/canopyfs/canopy/loadtest/progress"
	"github.com/canopyfs/canopy/loadtest/small"
	raftfloor "github.com/canopyfs/canopy/shard/raftgroup/floor"
)

// floorFlags say how floors are taken.
type floorFlags struct {
	with         string
	dir          string
	duration     time.Duration
	recordBytes  int
	replicas     int
	mountOptions string

	callers     int
	replicasSet bool
	options     mountopt.Options
}

// bind adds the flags for a command that compares with floors.
func (f *floorFlags) bind(c *cobra.Command) {
	c.Flags().StringVar(&f.with, "with-floor", "auto", "measure the floor in the same run and print ratios: yes, no, or auto (if the target is Canopy)")
	c.Flags().Lookup("with-floor").NoOptDefVal = "yes"
	f.bindHow(c)
}

func (f *floorFlags) bindHow(c *cobra.Command) {
	c.Flags().StringVar(&f.dir, "floor-dir", "", "directory on the disk to compare with (default: that of this machine's canopy up, else of temporary files)")
	c.Flags().DurationVar(&f.duration, "floor-duration", defaultDuration, "how long each floor is measured")
	c.Flags().IntVar(&f.recordBytes, "record-bytes", floor.RecordBytes(), "size of a record of the bare log (default: that of a create)")
	c.Flags().IntVar(&f.replicas, "replicas", 1, "replicas of the bare log: 1, 3 or 5 (default by the library: those of the cluster)")
	c.Flags().StringVar(&f.mountOptions, "mount-options", "", "options of the file system in memory, as behind clientfuse -o (give those of the mount that it is compared with)")
}

// wanted checks the flags and says whether floors are taken.
func (f *floorFlags) wanted(canopy bool) (bool, error) {
	if err := f.check(); err != nil {
		return false, err
	}
	switch f.with {
	case "yes":
		return true, nil
	case "no":
		return false, nil
	case "auto":
		return canopy, nil
	}
	return false, fmt.Errorf("--with-floor=%s: want yes, no or auto", f.with)
}

func (f *floorFlags) check() error {
	f.options = mountopt.Default()
	switch {
	case f.duration < 100*time.Millisecond:
		return fmt.Errorf("--floor-duration %v: want at least 100ms", f.duration)
	case f.recordBytes < 1 || f.recordBytes > 1<<20:
		return fmt.Errorf("--record-bytes %d: want 1 to 1048576", f.recordBytes)
	case f.replicas != 1 && f.replicas != 3 && f.replicas != 5:
		return fmt.Errorf("--replicas %d: want 1, 3 or 5", f.replicas)
	case f.dir != "":
		if st, err := os.Stat(f.dir); err != nil || !st.IsDir() {
			return fmt.Errorf("--floor-dir %s: not a directory", f.dir)
		}
	}
	if f.mountOptions == "" {
		return nil
	}
	if err := f.options.Set(f.mountOptions); err != nil {
		return fmt.Errorf("--mount-options: %w", err)
	}
	return nil
}

// settle chooses the directory.
func (f *floorFlags) settle(w *where) {
	if f.dir == "" {
		f.dir = w.dataDir()
	}
	if f.dir == "" {
		f.dir = os.TempDir()
	}
}

func (f *floorFlags) diskSettings() map[string]string {
	s := map[string]string{"dir": f.dir}
	if kind, err := proc.FSType(f.dir); err == nil {
		s["fs"] = kind
	}
	return s
}

func notTaken(name string, err error) loadtest.Floor {
	return loadtest.Floor{Name: name, NotTaken: err.Error()}
}

func (f *floorFlags) raft(ctx context.Context, bar *progress.Bar) loadtest.Floor {
	bar.Begin(loadtest.FloorRaft, 0)
	cpu := proc.Self()
	res, err := raftfloor.Run(ctx, raftfloor.Options{
		Dir: f.dir, Replicas: f.replicas, Callers: f.callers, RecordBytes: f.recordBytes, Duration: f.duration, Warmup: f.duration / 4,
	})
	if err != nil {
		return notTaken(loadtest.FloorRaft, err)
	}
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	l := hist.Latency{P50US: us(res.P50), P95US: us(res.P95), P99US: us(res.P99), P999US: us(res.P999)}
	s := f.diskSettings()
	s["replicas"], s["callers"], s["record_bytes"] = fmt.Sprint(f.replicas), fmt.Sprint(f.callers), fmt.Sprint(f.recordBytes)
	s["records_per_entry"] = fmt.Sprintf("%.1f", res.RecordsPerEntry)
	// Warm-up and the making of groups are in the CPU time: it is an upper bound.
	cpuPer := loadtest.NewCPU("all, at most", proc.Self()-cpu, res.Ops)
	return loadtest.Floor{Name: loadtest.FloorRaft, Rate: res.OpsPerSec, Unit: "/s", Latency: &l, Settings: s, CPU: []loadtest.CPU{cpuPer}}
}

func (f *floorFlags) stream(ctx context.Context, bar *progress.Bar) loadtest.Floor {
	bar.Begin(loadtest.FloorStream, 0)
	res, err := floor.Stream(ctx, floor.StreamOptions{Callers: f.callers, Warmup: f.duration / 4, Duration: f.duration, Spawn: spawnStream})
	if err != nil {
		return notTaken(loadtest.FloorStream, err)
	}
	l := res.Hist.Latency()
	return loadtest.Floor{
		Name: loadtest.FloorStream, Rate: res.Rate(), Unit: "/s", Latency: &l,
		Settings: map[string]string{"callers": fmt.Sprint(f.callers), "ops_per_message": fmt.Sprintf("%.1f", res.OpsPerMessage)},
		CPU:      []loadtest.CPU{loadtest.NewCPU("client", res.ClientCPU, res.Ops), loadtest.NewCPU("server", res.ServerCPU, res.Ops)},
	}
}

func (f *floorFlags) fdatasync(ctx context.Context, bar *progress.Bar, overwrite bool) loadtest.Floor {
	name := loadtest.FloorAppend
	if overwrite {
		name = loadtest.FloorOverwrite
	}
	bar.Begin(name, 0)
	res, err := floor.Fdatasync(ctx, f.dir, overwrite, f.duration)
	if err != nil {
		return notTaken(name, err)
	}
	l := res.Hist.Latency()
	return loadtest.Floor{Name: name, Rate: res.Rate(), Unit: "/s", Latency: &l, Settings: f.diskSettings()}
}

// twice measures the local disk: every byte written twice, one copy read.
func (f *floorFlags) twice(ctx context.Context, bar *progress.Bar, o bulk.Options) []loadtest.Floor {
	o.Dir, o.Copies = f.dir, 2
	bar.Begin(loadtest.FloorTwice, 2*o.Bytes*int64(o.Files))
	o.Count = bar.Add
	res, err := bulk.Run(ctx, o)
	if err != nil {
		return []loadtest.Floor{notTaken(loadtest.FloorTwice, err), notTaken(loadtest.FloorDiskRead, err)}
	}
	return []loadtest.Floor{
		{Name: loadtest.FloorTwice, Rate: res.WriteMB, Unit: "MB/s", Settings: f.diskSettings()},
		{Name: loadtest.FloorDiskRead, Rate: res.ReadMB, Unit: "MB/s", Settings: f.diskSettings()},
	}
}

// memory mounts the file system in memory and runs a load on it. Without one
// the note says why.
func (f *floorFlags) memory(ctx context.Context, env meta.Env, load func(dir string, env meta.Env) (*loadtest.Series, error)) (s *loadtest.Series, note string) {
	env.Bar.Begin(loadtest.SeriesMemfs, 0)
	m, err := mounted.Start(ctx, "", "canopy-memfs-", func(ctx context.Context, dir string) *exec.Cmd { return spawnMemfs(ctx, dir, f.options) })
	if err != nil {
		return nil, "the floor was not taken: " + err.Error()
	}
	env.Name, env.Groups = loadtest.SeriesMemfs, []proc.Group{{Who: "mount", Pids: []int{m.Pid()}}}
	s, err = load(m.Dir, env)
	if err = errors.Join(err, m.Close()); err != nil {
		return nil, "the floor was not taken: " + err.Error()
	}
	s.Target += " (" + f.options.String() + ")"
	return s, ""
}

// loopback mounts go-fuse's loopback over a directory of the disk and runs the load
// of small files on it.
func (f *floorFlags) loopback(ctx context.Context, o small.Options) (s *loadtest.Series, err error) {
	backing, err := os.MkdirTemp(f.dir, "canopy-loopback-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(backing)) }()
	m, err := mounted.Start(ctx, "", "canopy-loopback-", func(ctx context.Context, dir string) *exec.Cmd {
		return spawnLoopback(ctx, backing, dir, f.options)
	})
	if err != nil {
		return nil, err
	}
	o.Dir = m.Dir
	s, err = small.Run(ctx, o, loadtest.SeriesLoop)
	return s, errors.Join(err, m.Close())
}

const floorHelp = `Measure what the parts of Canopy do by themselves on this machine:
a FUSE file system that answers from memory, mounted with the flags and time-outs of
Canopy's mount; one bare gRPC stream to another process, with messages of the same size and
batching; bare Dragonboat group commit with records of the same size; fdatasync of 4 KiB
appended and overwritten; a file written twice, and read.`

func floorCommand() *cobra.Command {
	f := &floorFlags{with: "yes"}
	var out output
	cfg := meta.Config{Phases: meta.Phases(), Dirs: []string{meta.Own, meta.Shared}, Rounds: 1}
	var size string
	c := &cobra.Command{
		Use: "floor", Short: "What Canopy's parts do by themselves here", Long: floorHelp, Args: cobra.NoArgs,
		Example: "  loadtest floor\n  loadtest floor --replicas 3 --callers 64 -o json\n  loadtest floor --floor-dir /srv/canopy --processes 32",
		RunE: func(c *cobra.Command, _ []string) error {
			bytes, err := cli.ParseSize("--size", size)
			if err = errors.Join(err, out.check(), f.check()); err != nil {
				return err
			}
			if cfg.Processes > 0 && !c.Flags().Changed("workers") {
				cfg.Workers = 1
			}
			return runFloor(c, f, &out, cfg, bytes)
		},
	}
	out.bind(c, true)
	f.bindHow(c)
	c.Flags().IntVar(&f.callers, "callers", 64, "callers of the bare log and stream, each with one operation at a time")
	c.Flags().IntVar(&cfg.Workers, "workers", 8, "threads on the file system in memory")
	c.Flags().IntVar(&cfg.Processes, "processes", 0, "processes on it instead")
	c.Flags().IntVar(&cfg.Items, "items", 1000, "files and directories of each worker")
	c.Flags().IntVar(&cfg.Warmup, "warmup", 50, "the same before measuring")
	c.Flags().StringVar(&size, "size", "256M", "size of the file that is written twice")
	return c
}

func runFloor(c *cobra.Command, f *floorFlags, out *output, cfg meta.Config, bytes int64) error {
	if f.callers < 1 || f.callers > meta.MaxWorkers {
		return fmt.Errorf("--callers %d: want 1 to %d", f.callers, meta.MaxWorkers)
	}
	cfg.Base, cfg.Path = base("floor"), "memory"
	if err := cfg.Check(); err != nil {
		return err
	}
	ctx := c.Context()
	f.settle(&where{})
	r := newReport("floor", map[string]string{"workers": fmt.Sprint(cfg.Workers), "processes": fmt.Sprint(cfg.Processes), "items": fmt.Sprint(cfg.Items)})
	bar := out.bar()
	defer bar.End()
	series, note := f.memory(ctx, meta.Env{Open: open, Spawn: spawnWorker, Bar: bar}, func(dir string, env meta.Env) (*loadtest.Series, error) {
		cfg.Path = dir
		return meta.Run(ctx, cfg, env)
	})
	if series != nil {
		r.Series = append(r.Series, *series)
	} else {
		r.Notes = append(r.Notes, note)
	}
	r.Floors = append(r.Floors, f.stream(ctx, bar), f.raft(ctx, bar), f.fdatasync(ctx, bar, false), f.fdatasync(ctx, bar, true))
	r.Floors = append(r.Floors, f.twice(ctx, bar, bulk.Options{Bytes: bytes, BlockBytes: 1 << 20, Files: 1, DropCaches: dropIfRoot()})...)
	bar.End()
	if err := ctx.Err(); err != nil {
		return err
	}
	return out.report(c.OutOrStdout(), r)
}
