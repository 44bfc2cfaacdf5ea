package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/clientfuse"
	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/internal/local"
)

// up is what the flags of `canopy up` were set to.
type up struct {
	common  cli.Daemon
	plan    plan
	data    string
	mount   string
	options string
}

func newUpCommand() *cobra.Command {
	var u up
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a whole cluster on this machine, and mount it",
		Long: `Run a whole cluster on this machine: etcd, metadata nodes, a layout service and
data servers, and mount it. Ctrl-C unmounts and ends everything; started again
on the same --data, everything is still there.

The numbers of nodes, replicas, shards and data servers and the addresses are
fixed by the first start on a data directory.`,
		Example: `  canopy up --mount ./mnt
  canopy up --data ./three --nodes 3 --replicas 3 --mount ./mnt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return u.run(cmd.Context(), cmd.OutOrStdout(), cmd.Flags().Changed)
		},
	}
	f := cmd.Flags()
	f.StringVar(&u.data, "data", "./canopy-data", "where everything is kept")
	f.StringVar(&u.mount, "mount", "", "mount point; made if missing; empty: no mount")
	f.StringVarP(&u.options, "options", "o", "", "mount options, e.g. ro,noatime,consistency=relaxed=1s")
	f.IntVar(&u.plan.Nodes, "nodes", 1, "metadata nodes; more than one: each is a process of its own")
	f.IntVar(&u.plan.Replicas, "replicas", 1, "replicas of each shard: 1, 3 or 5")
	f.IntVar(&u.plan.Shards, "shards", 1, "shards")
	f.IntVar(&u.plan.DataServers, "data-servers", defaultDataServers, "data servers")
	f.StringVar(&u.plan.Listen, "listen", defaultListen, "address of the first metadata node; the others follow it; port 0: free ones")
	f.StringSliceVar(&u.plan.Etcd, "etcd", nil, "an etcd that stands already, HOST:PORT[,HOST:PORT...]; empty: an embedded one")
	u.common.Bind(cmd)
	return cmd
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}

func (u *up) run(ctx context.Context, out io.Writer, given func(string) bool) (err error) {
	began := time.Now()
	if !given("log-level") {
		u.common.LogLevel = "warn" // what is printed here is for people
	}
	logger, err := u.common.Logger(os.Stderr)
	if err != nil {
		return err
	}
	options := mountopt.Default()
	if u.options != "" {
		if err := options.Set(u.options); err != nil {
			return fmt.Errorf("-o: %w", err)
		}
	}
	if err := u.prepareMount(); err != nil {
		return err
	}
	dir, err := filepath.Abs(u.data)
	if err != nil {
		return err
	}
	release, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer release()
	p, err := settle(dir, u.plan, given, func(etcd []string) error { return reachEtcd(ctx, etcd) })
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	c := &cluster{
		plan: p, dir: dir, logger: logger, stderr: os.Stderr, registry: registry, parts: newParts(logger), memory: wire.NewMemory(),
		daemon: daemonFlags{logLevel: u.common.LogLevel, logFormat: u.common.LogFormat},
	}
	defer func() { err = errors.Join(err, c.parts.stop()) }()
	starting, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the cluster did not start within %v: see the log with --log-level info", startTimeout))
	defer cancel()
	if err := c.start(starting); err != nil {
		return err
	}
	return u.serve(ctx, starting, c, options, began, out)
}

// prepareMount makes the mount point if it is missing and checks it before
// anything is started.
func (u *up) prepareMount() error {
	if u.mount == "" {
		return nil
	}
	// What exists and is no directory, a mount whose server is gone too, CheckDir explains.
	if err := os.MkdirAll(u.mount, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("--mount: %w", err)
	}
	dir, err := mountopt.CheckDir(u.mount)
	if err == nil {
		err = mountopt.CheckDevice()
	}
	if err != nil {
		return fmt.Errorf("--mount: %w", err)
	}
	u.mount = dir
	return nil
}

// serve connects, mounts, says so, and waits for the end.
func (u *up) serve(ctx, starting context.Context, c *cluster, options mountopt.Options, began time.Time, out io.Writer) (err error) {
	label := u.mount
	if label == "" {
		label = "canopy up"
	}
	cl, err := client.Connect(starting, client.Config{
		Cluster: c.address(), Mount: label, Memory: c.memory, Logger: c.logger.With("part", "client"), Registerer: c.registerer("client"),
	})
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		err = errors.Join(err, cl.Close(closing))
	}()
	if _, err := cl.GetAttr(starting, client.Cred{}, cl.Root()); err != nil {
		return fmt.Errorf("the root directory does not answer: %w", err)
	}
	var mounted *clientfuse.Server
	if u.mount != "" {
		mounted, err = clientfuse.Mount(starting, clientfuse.Config{
			Client: cl, Dir: u.mount, Options: options, Logger: c.logger.With("part", "mount"), Registerer: c.registerer("mount"),
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, unmount(mounted)) }()
	}
	remove, err := u.publish(c, cl.ClusterID())
	if err != nil {
		return err
	}
	defer remove()
	printReady(out, c, u.mount, time.Since(began))
	gone := make(chan struct{})
	if mounted != nil {
		go func() { mounted.Wait(); close(gone) }()
	}
	select {
	case <-ctx.Done():
		fmt.Fprintln(out, "stopping")
		return nil
	case <-gone:
		fmt.Fprintln(out, u.mount+" was unmounted; stopping")
		return nil
	case err := <-c.parts.failed:
		return err
	}
}

// unmount gives programs that still use the mount a moment to end.
func unmount(m *clientfuse.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return m.Unmount(ctx)
}

func (u *up) publish(c *cluster, id string) (remove func(), err error) {
	in := local.Instance{Cluster: id, Address: c.address(), Data: c.dir, Pid: os.Getpid()}
	if u.mount != "" {
		in.Mounts = []string{u.mount}
	}
	return local.Publish(local.RunDir(), in)
}
