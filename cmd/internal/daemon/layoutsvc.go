package daemon

import (
	"errors"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/internal/capability"
	"github.com/canopyfs/canopy/layoutsvc"
)

// LayoutService returns the command that runs a layout service.
func LayoutService() *cobra.Command {
	var common cli.Daemon
	var config layoutsvc.Config
	cmd := &cobra.Command{
		Use:   "layoutsvc",
		Short: "Run a layout service: pools, placement groups, liveness of data servers",
		Long: `Run a layout service: it owns pools and placement groups, watches the data
servers, and streams the pool map to clients. All of its state is in etcd; run
two or three for availability: one is elected leader, the others stand by.

The default pool is made when --want-servers data servers have registered.`,
		Example: `  layoutsvc --etcd 10.0.0.1:2379,10.0.0.2:2379 --listen 10.0.0.5:7500`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(config.Etcd) == 0 {
				return errors.New("--etcd is needed: HOST:PORT[,HOST:PORT...] of the cluster's etcd")
			}
			logger, err := common.Logger(os.Stderr)
			if err != nil {
				return err
			}
			config.Logger = logger
			registry := newRegistry()
			config.Registerer, config.Gatherer = registry, registry
			config.Ready = announce(cmd, "layoutsvc")
			return layoutsvc.Run(cmd.Context(), config)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&config.Etcd, "etcd", nil, "etcd endpoints, HOST:PORT[,HOST:PORT...]")
	f.StringVar(&config.Listen, "listen", "127.0.0.1:7500", "gRPC address")
	f.StringVar(&config.HTTPListen, "http", "", "address of metrics, health and pprof; empty: none")
	f.StringVar(&config.Advertise, "advertise", "", "address that others use, if not --listen")
	f.IntVar(&config.WantServers, "want-servers", 3, "data servers to wait for before the default pool is made")
	f.IntVar(&config.Replicas, "pool-replicas", 0, "copies in the default pool; 0: two, or one with a single server")
	f.IntVar(&config.PGs, "pgs", 0, "placement groups of the default pool; 0: 32")
	f.DurationVar(&config.ServerLease, "server-lease", 3*time.Second, "how long a data server serves after its last heartbeat")
	f.DurationVar(&config.RebuildAfter, "rebuild-after", layoutsvc.DefaultRebuildAfter, "rebuild the placement groups of a data server that is gone for longer on others; below 0: never")
	f.DurationVar(&config.KeyPeriod, "capability-period", capability.DefaultPeriod, "what clients were allowed to do with bytes they have to ask for again after one to two of these")
	f.DurationVar(&config.KeyRotation, "key-rotation", layoutsvc.DefaultKeyRotation, "replace the key of capabilities when it is as old; below 0: never")
	common.Bind(cmd)
	return cmd
}

// newRegistry returns a metrics registry with the Go runtime's and the
// process's own metrics.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	registerProcess(r)
	return r
}
