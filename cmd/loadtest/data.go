package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/bulk"
	"github.com/canopyfs/canopy/loadtest/progress"
	"github.com/canopyfs/canopy/loadtest/small"
)

const dataHelp = `Do the four loads by which AI clusters accept storage, through --path: write large files
with fsync; read them back; make very many small files and read them in random order; make
and delete small files with many threads in one directory. The kernel's caches are dropped
before reading (as root), and every byte is compared.

With the floor, the large files are also written to the local disk, every byte twice as a
store with two copies must, and the small ones through go-fuse's loopback over that disk.
--small-sync calls fsync before close, on both sides: then both are durable.`

// The loads of "loadtest data".
const (
	loadLarge = "large"
	loadSmall = "small"
)

// dataFlags are the flags of "loadtest data".
type dataFlags struct {
	w           where
	out         output
	f           floorFlags
	loads       []string
	size, block string
	smallSize   string
	bulk        bulk.Options
	small       small.Options
}

func dataCommand() *cobra.Command {
	d := &dataFlags{}
	c := &cobra.Command{
		Use: "data", Short: "Large files and small ones: write, read, create + delete", Long: dataHelp, Args: cobra.NoArgs,
		Example: "  loadtest data --path ./mnt --size 1G\n  loadtest data --path ./mnt --loads large --size 256M --files 8 -o json\n" +
			"  loadtest data --path ./mnt --loads small --small-files 20000 --small-size 100K --workers 32",
		RunE: func(c *cobra.Command, _ []string) error {
			floors, err := d.check()
			if err != nil {
				return err
			}
			return d.run(c, floors)
		},
	}
	d.w.bind(c, false)
	d.out.bind(c, false)
	d.f.bind(c)
	fl := c.Flags()
	fl.StringSliceVar(&d.loads, "loads", []string{loadLarge, loadSmall}, "large files, small files")
	fl.StringVar(&d.size, "size", "1G", "large: bytes of each file")
	fl.StringVar(&d.block, "block", "1M", "large: bytes of each write and read")
	fl.IntVar(&d.bulk.Files, "files", 1, "large: files written and read at the same time")
	fl.IntVar(&d.small.Files, "small-files", 2000, "small: files in all")
	fl.StringVar(&d.smallSize, "small-size", "100K", "small: bytes of each file")
	fl.IntVar(&d.small.Dirs, "small-dirs", 16, "small: directories that they are spread over")
	fl.IntVar(&d.small.Workers, "workers", 16, "small: threads")
	fl.BoolVar(&d.small.Sync, "small-sync", true, "small: fsync before close")
	return c
}

// check reads the flags and says whether floors are taken.
func (d *dataFlags) check() (floors bool, err error) {
	if d.w.path == "" {
		return false, errors.New("say where: --path DIR")
	}
	for _, l := range d.loads {
		if l != loadLarge && l != loadSmall {
			return false, fmt.Errorf("--loads %q: want %s, %s or both", l, loadLarge, loadSmall)
		}
	}
	bytes, err1 := cli.ParseSize("--size", d.size)
	blockBytes, err2 := cli.ParseSize("--block", d.block)
	smallBytes, err3 := cli.ParseSize("--small-size", d.smallSize)
	if err := errors.Join(err1, err2, err3, d.out.check()); err != nil {
		return false, err
	}
	if err := d.w.resolve(); err != nil {
		return false, err
	}
	drop := dropIfRoot()
	d.bulk.Dir, d.bulk.Bytes, d.bulk.BlockBytes, d.bulk.DropCaches = d.w.path, bytes, int(min(blockBytes, 1<<30)), drop
	d.small.Dir, d.small.SizeBytes, d.small.DropCaches = d.w.path, int(min(smallBytes, 1<<30)), drop
	if err := errors.Join(d.bulk.Check(), d.small.Check()); err != nil {
		return false, err
	}
	return d.f.wanted(d.w.canopy())
}

func (d *dataFlags) run(c *cobra.Command, floors bool) error {
	r := newReport("data", map[string]string{
		"path": d.w.path, "size": fmt.Sprint(d.bulk.Bytes), "block": fmt.Sprint(d.bulk.BlockBytes), "files": fmt.Sprint(d.bulk.Files),
		"small_files": fmt.Sprint(d.small.Files), "small_size": fmt.Sprint(d.small.SizeBytes), "small_dirs": fmt.Sprint(d.small.Dirs),
		"small_sync": fmt.Sprint(d.small.Sync), "workers": fmt.Sprint(d.small.Workers),
	})
	if d.bulk.DropCaches == nil {
		r.Notes = append(r.Notes, "the kernel's caches were not dropped before reading (root is needed)")
	}
	bar := d.out.bar()
	defer bar.End()
	if floors {
		d.f.settle(&d.w)
	}
	ctx := c.Context()
	if slices.Contains(d.loads, loadLarge) {
		if err := d.large(ctx, r, bar, floors); err != nil {
			return err
		}
	}
	if slices.Contains(d.loads, loadSmall) {
		if err := d.smallFiles(ctx, r, bar, floors); err != nil {
			return err
		}
	}
	bar.End()
	return d.out.report(c.OutOrStdout(), r)
}

func (d *dataFlags) large(ctx context.Context, r *loadtest.Report, bar *progress.Bar, floors bool) error {
	bar.Begin("large: write and read", 2*d.bulk.Bytes*int64(d.bulk.Files))
	d.bulk.Count = bar.Add
	res, err := bulk.Run(ctx, d.bulk)
	if err != nil {
		return err
	}
	r.Floors = append(r.Floors,
		loadtest.Floor{Name: "target: write + fsync", Rate: res.WriteMB, Unit: "MB/s"},
		loadtest.Floor{Name: "target: read", Rate: res.ReadMB, Unit: "MB/s"})
	if floors {
		r.Floors = append(r.Floors, d.f.twice(ctx, bar, d.bulk)...)
		r.CompareData(res.WriteMB, res.ReadMB)
	}
	return ctx.Err()
}

func (d *dataFlags) smallFiles(ctx context.Context, r *loadtest.Report, bar *progress.Bar, floors bool) error {
	all := 3 * int64(d.small.Files)
	bar.Begin("small: write, read, create + delete", all)
	d.small.Count = bar.Add
	s, err := small.Run(ctx, d.small, loadtest.SeriesTarget)
	if err != nil {
		return err
	}
	r.Series = append(r.Series, *s)
	if !floors {
		return nil
	}
	bar.Begin(loadtest.SeriesLoop, all)
	loop, err := d.f.loopback(ctx, d.small)
	if err != nil {
		r.Notes = append(r.Notes, "the loopback was not measured: "+err.Error())
		return ctx.Err()
	}
	r.Series = append(r.Series, *loop)
	r.CompareSmall(s, loop)
	return nil
}
