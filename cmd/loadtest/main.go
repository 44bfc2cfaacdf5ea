package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/cmd/internal/cli"
)

func main() { os.Exit(cli.Main(newRoot())) }

const rootHelp = `loadtest measures file systems: Canopy through a mount (--path) or by its library
(--cluster, --library), or any other that is mounted, and what Canopy's parts do by
themselves on the same machine (the floor).`

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use: "loadtest", Short: "Measure file systems", Long: rootHelp,
		Example: "  loadtest meta --path ./mnt --processes 32\n  loadtest meta --library --workers 64 --dirs shared\n" +
			"  loadtest list --path ./mnt --entries 100000\n  loadtest data --path ./mnt --size 1G\n  loadtest checkpoint --path ./mnt --ranks 8\n  loadtest floor -o json",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q: see loadtest --help", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.AddCommand(metaCommand(), listCommand(), dataCommand(), checkpointCommand(), floorCommand(), scaleCommand(), simulateCommand(), verifyCommand(), historyCommand(), checkCommand(), childCommand())
	return root
}
