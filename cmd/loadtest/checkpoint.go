package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/checkpoint"
)

const checkpointHelp = `Write a checkpoint as a training job does: all ranks at once, a file for each rank and then
disjoint ranges of one file. When all have synced, a manifest with checksums is written and
the checkpoint published by a rename; then every part is read back through another rank's
mount and compared.

Name a directory of each mount of the same file system: ranks take turns.`

// checkpointFlags are the flags of "loadtest checkpoint".
type checkpointFlags struct {
	out         output
	paths       []string
	size, block string
	into        string
	o           checkpoint.Options
}

func checkpointCommand() *cobra.Command {
	k := &checkpointFlags{}
	c := &cobra.Command{
		Use: "checkpoint", Short: "All ranks write at once, publish by rename, read back", Long: checkpointHelp, Args: cobra.NoArgs,
		Example: "  loadtest checkpoint --path ./mnt --ranks 8 --size 128M\n  loadtest checkpoint --path /mnt/a/ckpt,/mnt/b/ckpt --ranks 8 --into one",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := k.check(); err != nil {
				return err
			}
			return k.run(c)
		},
	}
	k.out.bind(c, false)
	fl := c.Flags()
	fl.StringSliceVar(&k.paths, "path", nil, "directories, one of each mount")
	fl.IntVar(&k.o.Ranks, "ranks", 8, "ranks that write at the same time")
	fl.StringVar(&k.size, "size", "64M", "bytes of each rank")
	fl.StringVar(&k.block, "block", "1M", "bytes of each write and read")
	fl.StringVar(&k.into, "into", "both", "files (one for each rank), one (file for all), or both")
	return c
}

func (k *checkpointFlags) check() error {
	bytes, err1 := cli.ParseSize("--size", k.size)
	blockBytes, err2 := cli.ParseSize("--block", k.block)
	if err := errors.Join(err1, err2, k.out.check()); err != nil {
		return err
	}
	if k.into != "files" && k.into != "one" && k.into != "both" {
		return fmt.Errorf("--into %s: want files, one or both", k.into)
	}
	for _, p := range k.paths {
		abs, err := filepath.Abs(p)
		if err != nil {
			return err
		}
		k.o.Dirs = append(k.o.Dirs, abs)
	}
	k.o.Bytes, k.o.BlockBytes, k.o.DropCaches = bytes, int(min(blockBytes, 1<<30)), dropIfRoot()
	return k.o.Check()
}

func (k *checkpointFlags) run(c *cobra.Command) error {
	r := newReport("checkpoint", map[string]string{
		"path": strings.Join(k.o.Dirs, ","), "ranks": fmt.Sprint(k.o.Ranks), "size": fmt.Sprint(k.o.Bytes), "block": fmt.Sprint(k.o.BlockBytes),
	})
	if k.o.DropCaches == nil {
		r.Notes = append(r.Notes, "the kernel's caches were not dropped before reading (root is needed)")
	}
	bar := k.out.bar()
	defer bar.End()
	write := map[string]float64{}
	for _, into := range []string{"files", "one"} {
		if k.into != "both" && k.into != into {
			continue
		}
		k.o.OneFile = into == "one"
		label := map[bool]string{false: "a file for each rank", true: "one file for all ranks"}[k.o.OneFile]
		bar.Begin(label, 2*k.o.Bytes*int64(k.o.Ranks))
		k.o.Count = bar.Add
		res, err := checkpoint.Run(c.Context(), k.o)
		if err != nil {
			return err
		}
		write[into] = res.WriteMB
		ms := func(d time.Duration) string { return d.Round(time.Millisecond).String() }
		r.Floors = append(r.Floors,
			loadtest.Floor{Name: label + ": write + fsync", Rate: res.WriteMB, Unit: "MB/s", Settings: map[string]string{
				"first_rank": ms(res.FirstRank), "last_rank": ms(res.Write), "publish": ms(res.Publish)}},
			loadtest.Floor{Name: label + ": read back", Rate: res.ReadMB, Unit: "MB/s"})
	}
	if k.into == "both" {
		r.CompareCheckpoint(write["one"], write["files"])
	}
	bar.End()
	return k.out.report(c.OutOrStdout(), r)
}
