// Command canopy runs a whole Canopy cluster: `canopy up`. It also has every
// daemon as a subcommand, which is how `up --nodes N` starts the metadata nodes
// as processes of their own. See canopy --help.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/cmd/internal/daemon"
)

func main() { os.Exit(cli.Main(newCommand())) }

func newCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "canopy",
		Short: "A file system whose metadata scales",
		Long:  "A file system whose metadata scales. Start with: canopy up --mount ./mnt",
	}
	cmd.AddCommand(newUpCommand(), daemon.MDS(), daemon.LayoutService(), daemon.DataServer())
	return cmd
}
