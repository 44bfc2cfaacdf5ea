package mdsctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
)

const (
	// topInterval is between two looks of --watch.
	topInterval = 2 * time.Second
	// topAsked is how many directories and clients of a shard are asked for at least, so
	// that those of several shards can be added up.
	topAsked = 100
	// topPathAge is how long a path is believed: a directory can be renamed.
	topPathAge = 15 * time.Second
)

// topWindows are the half-lives of --window.
var topWindows = []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute}

// top is one run of the command.
type top struct {
	*app
	cl     *inspect.Cluster
	by     string
	window time.Duration
	n      int
	watch  bool

	paths   map[uint64]string
	pathsAt time.Time
}

func (a *app) topCommand() *cobra.Command {
	t := &top{app: a}
	c := &cobra.Command{
		Use: "top", Short: "What is hot: directories, clients, operations, shards, nodes", Args: noArgs,
		Long: "Show what keeps the metadata shards busy now: which directory, who makes it busy, at which\n" +
			"shard and node it lies, and what a split or a move would do.\n\n" +
			"Each shard's holder counts operations, and a count halves with each --window: 10s shows what\n" +
			"happens now, 10m what has been going on. Counting begins anew with a new holder. OPS/S of\n" +
			"120+15 means 120 at least and 135 at most: memory is bounded, and what is rarely used is\n" +
			"forgotten. Operations are those in a directory itself, not below it.\n\n" +
			"  TIME      share of the time that the shard works\n" +
			"  QUEUE     how long an operation waits for its turn, on average\n" +
			"  CONFLICT  how long it waits for others: locks, renames over shards, moves\n" +
			"  BUSY      work of a shard, in percent of one processor\n\n" +
			"--watch shows it again every 2 s; on a terminal it fills the screen, and keys change it:\n" +
			"d, c, o, s, n the table, w the window, q ends it. A shard that does not answer is shown as\n" +
			"such.",
		Example: "  mdsctl top\n  mdsctl top --by client --window 10s --watch\n  mdsctl top -o json | jq -r '.dirs[0].path'",
		RunE: func(c *cobra.Command, _ []string) error {
			if topBy[t.by] == nil {
				return fmt.Errorf("--by %s: want one of %s", t.by, strings.Join(slices.Sorted(maps.Keys(topBy)), ", "))
			}
			if !slices.Contains(topWindows, t.window) {
				return fmt.Errorf("--window %v: want 10s, 1m or 10m", t.window)
			}
			if t.n < 1 {
				return fmt.Errorf("-n %d: want at least 1", t.n)
			}
			return t.run(c.Context())
		},
	}
	c.Flags().StringVar(&t.by, "by", "dir", "dir, client, op, shard or node")
	c.Flags().DurationVar(&t.window, "window", time.Minute, "half-life of counts: 10s, 1m or 10m")
	c.Flags().BoolVar(&t.watch, "watch", false, "show it again every 2 s")
	c.Flags().IntVarP(&t.n, "number", "n", 10, "how many directories or clients")
	return c
}

func (t *top) run(ctx context.Context) error {
	return t.withCluster(ctx, func(cl *inspect.Cluster) error {
		t.cl = cl
		switch out, terminal := t.env.Stdout.(*os.File); {
		case !t.watch:
			return t.once(ctx)
		case terminal && t.output == "table" && term.IsTerminal(int(out.Fd())):
			return t.onScreen(ctx, out)
		}
		return t.inBlocks(ctx)
	})
}

// once shows one look.
func (t *top) once(ctx context.Context) error {
	r, err := t.look(ctx)
	if err != nil {
		return err
	}
	return t.emit(r, func(x *table) { r.write(x, t.by) })
}

// inBlocks shows one look after the other, each with its time, until ctx ends.
func (t *top) inBlocks(ctx context.Context) error {
	for first := true; ; first = false {
		r, err := t.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil: // it may come back
			_, err = fmt.Fprintf(t.env.Stderr, "mdsctl: %s\n", oneLine(err))
		case t.output == "json":
			err = t.emit(r, nil)
		default:
			_, err = fmt.Fprintf(t.env.Stdout, "%s\n%s\n", time.Now().Format(time.RFC3339), r.text(t.by))
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(topInterval):
		}
	}
}

// text is one look as `top` prints it.
func (r *topReport) text(by string) string {
	var out bytes.Buffer
	t := &table{w: tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)}
	r.write(t, by)
	_ = t.w.Flush() // a buffer takes everything
	return out.String()
}

// look asks all shards. Without an answer of any it is an error.
func (t *top) look(ctx context.Context) (*topReport, error) {
	if t.paths != nil {
		_ = t.cl.Refresh(ctx) // else what is known of the cluster has to do
	}
	all := t.cl.Heat(ctx, t.window, max(topAsked, 2*t.n))
	var failed []error
	for _, s := range all {
		if s.Err != nil {
			failed = append(failed, fmt.Errorf("shard %v: %w", s.Shard, s.Err))
		}
	}
	if len(failed) == len(all) && len(all) > 0 {
		return nil, errors.Join(failed...)
	}
	r := newTopReport(t.cl.Map(), all, t.window.Seconds(), t.n)
	t.resolve(ctx, r)
	return r, nil
}

// resolve puts paths for the numbers of directories, as far as they can be found out
// soon: heat is for clusters that are not well, too.
func (t *top) resolve(ctx context.Context, r *topReport) {
	if t.paths == nil || time.Since(t.pathsAt) > topPathAge {
		t.paths, t.pathsAt = map[uint64]string{uint64(base.RootIno): "/"}, time.Now()
	}
	var unknown []uint64
	want := func(ino uint64) {
		if _, asked := t.paths[ino]; !asked && !slices.Contains(unknown, ino) {
			unknown = append(unknown, ino)
		}
	}
	for i := range r.Dirs {
		if len(r.Dirs[i].Places) > 0 {
			want(r.Dirs[i].Ino)
		}
	}
	for i := range r.Clients {
		for k := range r.Clients[i].Dirs[:min(2, len(r.Clients[i].Dirs))] {
			want(r.Clients[i].Dirs[k].Ino)
		}
	}
	if len(unknown) > 0 {
		t.pathsOf(ctx, unknown)
	}
	for i := range r.Dirs {
		if p := t.paths[r.Dirs[i].Ino]; p != "" {
			r.Dirs[i].Path = p
		}
	}
	for i := range r.Clients {
		for k := range r.Clients[i].Dirs {
			d := &r.Clients[i].Dirs[k]
			d.Path = t.paths[d.Ino]
		}
	}
}

// pathsOf asks for paths, which takes a client of its own for a moment.
func (t *top) pathsOf(ctx context.Context, inos []uint64) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	for _, ino := range inos {
		t.paths[ino] = "" // asked once; it can be gone, or no directory
	}
	if t.dirPaths != nil {
		t.dirPaths(ctx, inos, t.paths)
		return
	}
	asked := &app{env: t.env, cluster: t.cl.From(), timeout: t.timeout}
	_ = asked.reach(ctx, "/", true, func(c *client.Client, _ *client.Inode, _ *client.Attr, _ string) error {
		for _, ino := range inos {
			t.paths[ino], _ = c.DirPath(ctx, base.Ino(ino))
		}
		return nil
	}) // what was not found out is shown by number, or its name alone
}
