package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/bulk"
)

const dataHelp = `Write large files with fsync through --path, drop the kernel's caches (as root), read them
back and compare every byte. With the floor, the same is done on the local disk with every
byte written twice, as a store with two copies must.`

func dataCommand() *cobra.Command {
	var w where
	var out output
	var f floorFlags
	var size, block string
	var files int
	c := &cobra.Command{
		Use: "data", Short: "Large files: write + fsync, and read", Long: dataHelp, Args: cobra.NoArgs,
		Example: "  loadtest data --path ./mnt --size 1G\n  loadtest data --path ./mnt --size 256M --files 8 -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			if w.path == "" {
				return errors.New("say where: --path DIR")
			}
			bytes, err1 := cli.ParseSize("--size", size)
			blockBytes, err2 := cli.ParseSize("--block", block)
			if err := errors.Join(err1, err2, out.check()); err != nil {
				return err
			}
			if err := w.resolve(); err != nil {
				return err
			}
			floors, err := f.wanted(w.canopy())
			if err != nil {
				return err
			}
			o := bulk.Options{Dir: w.path, Bytes: bytes, BlockBytes: int(min(blockBytes, 1<<30)), Files: files, DropCaches: dropIfRoot()}
			if err := o.Check(); err != nil {
				return err
			}
			return runData(c, &w, &out, &f, o, floors)
		},
	}
	w.bind(c, false)
	out.bind(c, false)
	f.bind(c)
	c.Flags().StringVar(&size, "size", "1G", "bytes of each file")
	c.Flags().StringVar(&block, "block", "1M", "bytes of each write and read")
	c.Flags().IntVar(&files, "files", 1, "files written and read at the same time")
	return c
}

func runData(c *cobra.Command, w *where, out *output, f *floorFlags, o bulk.Options, floors bool) error {
	ctx := c.Context()
	r := newReport("data", map[string]string{"size": fmt.Sprint(o.Bytes), "block": fmt.Sprint(o.BlockBytes), "files": fmt.Sprint(o.Files), "path": w.path})
	if o.DropCaches == nil {
		r.Notes = append(r.Notes, "the kernel's caches were not dropped before reading (root is needed)")
	}
	bar := out.bar()
	defer bar.End()
	bar.Begin("write and read", 2*o.Bytes*int64(o.Files))
	o.Count = bar.Add
	res, err := bulk.Run(ctx, o)
	if err != nil {
		return err
	}
	r.Floors = append(r.Floors,
		loadtest.Floor{Name: "target: write + fsync", Rate: res.WriteMB, Unit: "MB/s"},
		loadtest.Floor{Name: "target: read", Rate: res.ReadMB, Unit: "MB/s"})
	if floors {
		f.settle(w)
		r.Floors = append(r.Floors, f.twice(ctx, bar, o)...)
		r.CompareData(res.WriteMB, res.ReadMB)
	}
	bar.End()
	return out.report(c.OutOrStdout(), r)
}
