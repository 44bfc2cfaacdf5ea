package daemon

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/mds"
)

// MDS returns the command that runs a metadata node.
func MDS() *cobra.Command {
	var common cli.Daemon
	config := mds.Config{}
	var node uint64
	var cache, reserve string
	cmd := &cobra.Command{
		Use:   "mds",
		Short: "Run a metadata node: replicas of shards, serving the namespace",
		Long: `Run a metadata node. The first start of a cluster waits for --bootstrap-nodes
nodes, which then make --bootstrap-shards shards of --bootstrap-replicas
replicas; give all nodes the same three numbers. Later starts ignore them.

A state directory that is older than what the cluster saw of it is refused;
--rebuild discards it and lets the node join its shards again.`,
		Example: `  mds --data /srv/mds --etcd 10.0.0.1:2379 --listen 10.0.0.2:7400 --raft-listen 10.0.0.2:7401 \
      --bootstrap-nodes 3 --bootstrap-replicas 3`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case config.DataDir == "":
				return errors.New("--data is needed: the node's state directory")
			case len(config.Etcd) == 0:
				return errors.New("--etcd is needed: HOST:PORT[,HOST:PORT...] of the cluster's etcd")
			}
			if err := cli.CheckLabels(config.Labels); err != nil {
				return err
			}
			logger, err := common.Logger(os.Stderr)
			if err != nil {
				return err
			}
			if config.CacheBytes, err = cli.ParseSize("--cache", cache); err != nil {
				return err
			}
			if config.DiskReserve, err = diskReserve(reserve); err != nil {
				return err
			}
			config.Node = base.NodeID(node)
			config.Logger = logger
			registry := newRegistry()
			config.Registerer, config.Gatherer = registry, registry
			return RunMDS(cmd.Context(), config, func(s *mds.Server) {
				announce(cmd, "mds "+s.Node().String())(s.Addr(), s.HTTPAddr())
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&config.DataDir, "data", "", "state directory")
	f.StringSliceVar(&config.Etcd, "etcd", nil, "etcd endpoints, HOST:PORT[,HOST:PORT...]")
	f.StringVar(&config.Listen, "listen", "127.0.0.1:7400", "gRPC address")
	f.StringVar(&config.RaftListen, "raft-listen", "127.0.0.1:7401", "Raft address")
	f.StringVar(&config.HTTPListen, "http", "", "address of metrics, health and pprof; empty: none")
	f.StringVar(&config.Advertise, "advertise", "", "gRPC address that others use, if not --listen")
	f.StringVar(&config.RaftAdvertise, "raft-advertise", "", "Raft address that others use, if not --raft-listen")
	f.Uint64Var(&node, "node", 0, "node id; 0: the one in --data, or the next free one")
	f.StringArrayVar(&config.Labels, "label", nil, "KEY=VALUE, e.g. rack=r1")
	f.IntVar(&config.Bootstrap.Nodes, "bootstrap-nodes", 1, "nodes to wait for when the cluster is new")
	f.IntVar(&config.Bootstrap.Replicas, "bootstrap-replicas", 1, "replicas of each shard when the cluster is new: 1, 3 or 5")
	f.IntVar(&config.Bootstrap.Shards, "bootstrap-shards", 1, "shards when the cluster is new")
	f.DurationVar(&config.SessionTimeout, "session-timeout", 30*time.Second, "a client not heard of for so long loses its session")
	f.DurationVar(&config.Heartbeat, "heartbeat", 5*time.Second, "between the server's heartbeats to a client")
	f.DurationVar(&config.OrphanGrace, "orphan-grace", 15*time.Second, "how long an unlinked file is kept at least")
	f.DurationVar(&config.LeaseDuration, "lease", 0, "duration of a shard's lease; 0: 1.2s")
	f.StringVar(&cache, "cache", "256M", "memory for what is read often of the store; the process takes more beside it")
	f.StringVar(&reserve, "disk-reserve", "", "with less free below --data, shards take nothing new (ENOSPC); default 512M, or a quarter of a small disk")
	f.Var((*off)(&config.NoHeat), "heat", "count what keeps the shards busy, for mdsctl top: on or off")
	f.BoolVar(&config.Rebuild, "rebuild", false, "discard the state directory and join the shards again")
	common.Bind(cmd)
	return cmd
}

// diskReserve reads --disk-reserve; 0 is the default.
func diskReserve(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := cli.ParseSize("--disk-reserve", text)
	return uint64(n), err
}

// off is a flag that is on or off, and true when it is off.
type off bool

// String implements pflag.Value.
func (o *off) String() string {
	if *o {
		return "off"
	}
	return "on"
}

// Set implements pflag.Value.
func (o *off) Set(text string) error {
	if text != "on" && text != "off" {
		return errors.New("want on or off")
	}
	*o = text == "off"
	return nil
}

// Type implements pflag.Value.
func (o *off) Type() string { return "on|off" }
