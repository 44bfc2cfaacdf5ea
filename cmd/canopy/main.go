// Command canopy runs a whole Canopy cluster: `canopy up`. It also has every
// daemon as a subcommand, which is how `up --nodes N` starts the metadata nodes
// as processes of their own. See canopy --help.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/cmd/internal/daemon"
)

func main() {
	cmd := newCommand()
	if calledByMount(cmd, os.Args[1:]) {
		fmt.Fprintln(os.Stderr, noMountHelper)
		os.Exit(1)
	}
	os.Exit(cli.Main(cmd))
}

const noMountHelper = `canopy: "mount -t fuse.canopy" lacks its helper: install it with ` +
	`ln -s "$(command -v clientfuse)" /sbin/mount.fuse.canopy, or mount with clientfuse --cluster ADDRESS MOUNTPOINT`

// calledByMount tells whether this is `canopy SOURCE MOUNTPOINT -o ...`: what
// mount(8) ends in, by way of libfuse's mount.fuse, when /sbin has no
// mount.fuse.canopy.
func calledByMount(cmd *cobra.Command, args []string) bool {
	if len(args) < 2 || !filepath.IsAbs(args[1]) {
		return false
	}
	return !slices.ContainsFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == args[0] || c.HasAlias(args[0]) }) &&
		args[0] != "help" && args[0] != "completion"
}

func newCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "canopy",
		Short: "A file system whose metadata scales",
		Long:  "A file system whose metadata scales. Start with: canopy up --mount ./mnt",
	}
	cmd.AddCommand(newUpCommand(), daemon.MDS(), daemon.LayoutService(), daemon.DataServer())
	return cmd
}
