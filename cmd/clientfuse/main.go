package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/cmd/internal/cli"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case mountHelper:
		os.Exit(helperMain(os.Args, os.Stderr))
	case umountHelper:
		os.Exit(unmountMain(os.Args, os.Stderr))
	}
	os.Exit(cli.Main(newCommand()))
}

func newCommand() *cobra.Command {
	var m mounter
	cmd := &cobra.Command{
		Use:   "clientfuse [flags] MOUNTPOINT",
		Short: "Mount a Canopy cluster",
		Long: `Mount a Canopy cluster on an empty directory, in the foreground. Ctrl-C or
umount(8) ends it.

Options behind -o: ro, noatime, nodiratime, relatime, strictatime, sync, dirsync,
nodev, nosuid, noexec, allow_other, acl, consistency=strict or
consistency=relaxed=DURATION, cache_inodes=N, subdir=/path.`,
		Example: `  clientfuse ./mnt
  clientfuse --cluster 10.0.0.1:7100,10.0.0.2:7100 -o ro,consistency=relaxed=1s /mnt/canopy`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("want one MOUNTPOINT, got %d arguments (see %s --help)", len(args), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.run(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&m.cluster, "cluster", "", "HOST:PORT[,HOST:PORT...] of metadata nodes (default: $CANOPY_CLUSTER, else the canopy up of this machine)")
	f.StringVar(&m.source, "source", "", "what /proc/mounts shows as mounted (default: canopy:ID of the cluster)")
	f.StringArrayVarP(&m.options, "options", "o", nil, "mount options, separated by commas")
	f.StringVar(&m.subdir, "subdir", "", "directory of the namespace to mount (default: all)")
	f.StringVar(&m.http, "http", "", "HOST:PORT for /metrics, /healthz and /debug/pprof (default: none)")
	f.StringVar(&m.logFile, "log-file", "", "append the log to this file (default: standard error)")
	f.Int64Var(&m.writeBuffer, "write-buffer", 0, "bytes that may wait in memory to be written (default 128 MiB)")
	f.StringArrayVar(&m.labels, "label", nil, "KEY=VALUE, where this machine is (zone, rack, host): bytes are read from the nearest replica")
	m.common.Bind(cmd)
	return cmd
}
