package daemon

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/dataserver"
)

// DataServer returns the command that runs a data server.
func DataServer() *cobra.Command {
	var common cli.Daemon
	var config dataserver.Config
	cmd := &cobra.Command{
		Use:   "dataserver",
		Short: "Run a data server: the bytes of files on this machine's disk",
		Long: `Run a data server: it keeps columns of files, with checksums, below --data, and
replicates them with the other servers of each placement group.`,
		Example: `  dataserver --data /srv/canopy --layoutsvc 10.0.0.5:7500 --listen 10.0.0.7:7600 --label rack=r1`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config.DataDir == "" {
				return errors.New("--data is needed: the directory for the bytes")
			}
			if len(config.LayoutServices) == 0 {
				return errors.New("--layoutsvc is needed: HOST:PORT[,HOST:PORT...] of layout services")
			}
			if err := cli.CheckLabels(config.Labels); err != nil {
				return err
			}
			logger, err := common.Logger(os.Stderr)
			if err != nil {
				return err
			}
			config.Logger = logger
			registry := newRegistry()
			config.Registerer, config.Gatherer = registry, registry
			config.Ready = func(server uint64, address, httpAddress string) {
				announce(cmd, fmt.Sprintf("dataserver %d", server))(address, httpAddress)
			}
			return dataserver.Run(cmd.Context(), config)
		},
	}
	f := cmd.Flags()
	f.StringVar(&config.DataDir, "data", "", "directory for the bytes")
	f.StringSliceVar(&config.LayoutServices, "layoutsvc", nil, "layout services, HOST:PORT[,HOST:PORT...]")
	f.StringVar(&config.Listen, "listen", "127.0.0.1:7600", "gRPC address")
	f.StringVar(&config.HTTPListen, "http", "", "address of metrics, health and pprof; empty: none")
	f.StringVar(&config.Advertise, "advertise", "", "address that others use, if not --listen")
	f.StringArrayVar(&config.Labels, "label", nil, "KEY=VALUE, e.g. rack=r1; zone, rack and host are failure domains")
	f.IntVar(&config.Workers, "workers", 0, "requests executed at a time; 0: 32")
	f.Int64Var(&config.QueuedBytes, "queued-bytes", 0, "bound on the payload of requests in memory; 0: 128 MiB")
	f.Int64Var(&config.RecoveryRate, "recovery-rate", dataserver.DefaultRecoveryRate, "bytes per second that are sent to servers that have missed something; below 0: no bound")
	common.Bind(cmd)
	return cmd
}
