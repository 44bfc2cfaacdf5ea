package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/loadtest/scale"
)

const scaleHelp = `Measure how creates and stats scale with the number of metadata nodes. It starts a cluster of
its own on this machine (nothing that runs is touched) and gives each metadata node a share of
a CPU by a control group, so that a small machine stands for several. For each number of nodes
it works in separate directories, each pinned to one node's shard, and in one directory that is
split over all of them. It needs root, and canopy, mds and mdsctl beside it or in --bin.

The report has a series for each number of nodes, the efficiency against the first, and for
each what limited it: where it was not the nodes' shares, the number says nothing about them.`

func scaleCommand() *cobra.Command {
	var out output
	cfg := scale.Config{}
	c := &cobra.Command{
		Use: "scale", Short: "How creates and stats scale with metadata nodes", Long: scaleHelp, Args: cobra.NoArgs,
		Example: "  loadtest scale\n  loadtest scale --nodes 1,2,4,8 --share 0.1 --plot scale.svg",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if cfg.Bin == "" {
				name, err := os.Executable()
				if err != nil {
					return err
				}
				cfg.Bin = filepath.Dir(name)
			}
			bar := out.bar()
			defer bar.End()
			r := newReport("scale", map[string]string{
				"nodes": strings.Trim(fmt.Sprint(cfg.Nodes), "[]"), "share": fmt.Sprint(cfg.Share), "workers": fmt.Sprint(cfg.Workers, " for each node"), "for": cfg.For.String()})
			var err error
			if r.Series, r.Ratios, r.Notes, err = scale.Run(c.Context(), cfg, bar); err != nil {
				return err
			}
			bar.End()
			return out.report(c.OutOrStdout(), r)
		},
	}
	out.bind(c, true)
	f := c.Flags()
	f.IntSliceVar(&cfg.Nodes, "nodes", []int{1, 2, 4, 8}, "numbers of metadata nodes, powers of two")
	f.Float64Var(&cfg.Share, "share", 0.1, "of a CPU, for each node")
	f.IntVar(&cfg.Workers, "workers", 64, "threads of the load for each node")
	f.DurationVar(&cfg.For, "for", 10*time.Second, "how long files are made")
	f.IntVar(&cfg.Rounds, "rounds", 2, "how often stat goes over them")
	f.StringVar(&cfg.Bin, "bin", "", "directory with canopy, mds and mdsctl (default: where this program is)")
	f.StringVar(&cfg.Dir, "dir", "", "where the cluster keeps its data (default: the temporary directory)")
	return c
}
