package main

import (
	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/loadtest/simulate"
)

const simulateHelp = `Show what a balancer does to a cluster, without a cluster: thousands of nodes, millions of
directories and billions of files as a model, in which the policy is the same code that decides in a
cluster (balancer/policy). Each workload runs with no balancer, with even spreading, with each
directory placed by a hash, and with the policy; where one directory is hot, also with it split by
hand beforehand. The same seed gives the same run.

Workloads: hot, cold, alternate, alternate-one (4 small nodes), uniform, skewed, moving, checkpoint,
herd, import, nodes. --plot draws one file for each: FILE-WORKLOAD.svg if there are several.`

func simulateCommand() *cobra.Command {
	var out output
	var steps bool
	cfg := simulate.Config{}
	c := &cobra.Command{
		Use: "simulate", Short: "What a balancer does, in a model of a cluster", Long: simulateHelp, Args: cobra.NoArgs,
		Example: "  loadtest simulate\n  loadtest simulate --workload hot --steps\n  loadtest simulate --workload skewed --nodes 2000 --seed 7 --plot skewed.svg",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			bar := out.bar()
			defer bar.End()
			all, err := simulate.Run(cfg, func(workload string) { bar.Begin("simulating "+workload, 0) })
			if err != nil {
				return err
			}
			bar.End()
			if out.plot != "" {
				for i := range all {
					if err := all[i].WritePlot(simulate.PlotFile(out.plot, all[i].Workload, len(all) > 1)); err != nil {
						return err
					}
				}
			}
			if done, err := out.json(c.OutOrStdout(), all); done || err != nil {
				return err
			}
			return simulate.WriteText(c.OutOrStdout(), all, steps)
		},
	}
	out.bind(c, false)
	f := c.Flags()
	f.StringVar(&out.plot, "plot", "", "draw each workload into a file, FILE.svg or FILE.png")
	f.StringVar(&cfg.Workload, "workload", simulate.All, "which one, or all")
	f.Uint64Var(&cfg.Seed, "seed", 1, "of the workloads")
	f.IntVar(&cfg.Nodes, "nodes", 200, "metadata nodes, where the workload does not say how many")
	f.BoolVar(&steps, "steps", false, "also print what the policy did, and why")
	return c
}
