package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/meta"
)

const listHelp = `Make one directory with many entries and list it: the names alone, and with attributes as
"ls -l" does (getdents64, then lstat and the xattr questions of ls for each name). Before each
listing the kernel's caches are dropped (as root). CPU is per 1,000 entries. On a mount of a
cluster that is known, the library makes and removes the entries, which is faster.`

func listCommand() *cobra.Command {
	var w where
	var out output
	var f floorFlags
	l := meta.Listing{}
	c := &cobra.Command{
		Use: "list", Short: "List one large directory, as ls and ls -l do", Long: listHelp, Args: cobra.NoArgs,
		Example: "  loadtest list --path ./mnt --entries 100000\n  loadtest list --library --entries 1000000 --rounds 1",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if err := w.resolve(); err != nil {
				return err
			}
			floors, err := f.wanted(w.canopy() && !w.byLibrary())
			if err != nil {
				return err
			}
			l.Base = base("list")
			if err := l.Check(); err != nil {
				return err
			}
			return runList(c, &w, &out, &f, l, floors)
		},
	}
	w.bind(c, true)
	out.bind(c, true)
	f.bind(c)
	c.Flags().IntVar(&l.Entries, "entries", 100_000, "entries of the directory")
	c.Flags().IntVar(&l.Makers, "workers", 32, "threads that make them")
	c.Flags().IntVar(&l.Rounds, "rounds", 3, "how often it is listed each way")
	return c
}

func runList(c *cobra.Command, w *where, out *output, f *floorFlags, l meta.Listing, floors bool) error {
	ctx := c.Context()
	r := newReport("list", map[string]string{"entries": fmt.Sprint(l.Entries), "rounds": fmt.Sprint(l.Rounds)})
	if !w.byLibrary() {
		if l.DropCaches = dropIfRoot(); l.DropCaches == nil {
			r.Notes = append(r.Notes, "the kernel's caches were not dropped before listing (root is needed)")
		}
	}
	found := w.processes(ctx)
	r.Notes = append(r.Notes, found.Notes...)
	tg, err := w.open(ctx)
	if err != nil {
		return err
	}
	defer tg.Close(ctx)
	if filler := w.filler(ctx); filler != nil {
		defer filler.Close(ctx)
		l.Filler = filler
	}
	bar := out.bar()
	defer bar.End()
	env := meta.Env{Open: open, Bar: bar, Groups: found.Groups, Name: loadtest.SeriesTarget}
	s, err := meta.RunListing(ctx, tg, l, env)
	if err != nil {
		return err
	}
	r.Series = append(r.Series, *s)
	if floors {
		m, note := f.memory(ctx, env, func(dir string, env meta.Env) (*loadtest.Series, error) {
			memory, err := open(ctx, &meta.Config{Path: dir})
			if err != nil {
				return nil, err
			}
			l.Filler = nil
			return meta.RunListing(ctx, memory, l, env)
		})
		if m == nil {
			r.Notes = append(r.Notes, note)
		} else {
			r.Series = append(r.Series, *m)
			r.CompareMount(&r.Series[0], m)
		}
	}
	bar.End()
	return out.report(c.OutOrStdout(), r)
}
