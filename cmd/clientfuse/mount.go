package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/clientfuse"
	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/internal/local"
)

// How long things may take: to find the cluster, to leave a busy mount, to write
// the last bytes.
const (
	connectTimeout = 10 * time.Second
	unmountTimeout = 10 * time.Second
	closeTimeout   = 30 * time.Second
)

// mounter is what the flags were set to.
type mounter struct {
	common      cli.Daemon
	cluster     string
	source      string
	options     []string
	subdir      string
	http        string
	logFile     string
	writeBuffer int64
	labels      []string
}

// run mounts on dir and serves until ctx ends or somebody unmounts.
func (m *mounter) run(ctx context.Context, dir string, out io.Writer) (err error) {
	ready := startedBy(os.Getenv)
	defer func() { ready.report(err) }()
	logger, closeLog, err := m.logger()
	if err != nil {
		return err
	}
	defer closeLog()
	options, err := m.mountOptions()
	if err != nil {
		return err
	}
	if err := cli.CheckLabels(m.labels); err != nil {
		return err
	}
	dir, err = mountopt.CheckDir(dir)
	if err != nil {
		return err
	}
	address, err := local.Find(m.cluster)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	stopHTTP, err := serveHTTP(m.http, registry, logger)
	if err != nil {
		return err
	}
	defer stopHTTP()
	c, err := m.connect(ctx, address, dir, logger, registry)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeClient(c)) }()
	starting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	server, err := clientfuse.Mount(starting, clientfuse.Config{
		Client: c, Source: m.source, Dir: dir, Options: options, Logger: logger, Registerer: registry,
	})
	if err != nil {
		return err
	}
	forget := recordPid(dir, logger)
	defer forget()
	unmounter := "umount"
	if os.Geteuid() != 0 {
		unmounter = "fusermount3 -u"
	}
	fmt.Fprintf(out, "mounted %s on %s (%s); unmount with: %s %s\n", c.ClusterID(), dir, options, unmounter, dir)
	ready.report(nil)
	select {
	case <-server.Done():
		return nil
	case <-ctx.Done():
		return unmount(c, server)
	}
}

func (m *mounter) mountOptions() (mountopt.Options, error) {
	options := mountopt.Default()
	for _, list := range m.options {
		if err := options.Set(list); err != nil {
			return options, err
		}
	}
	if m.subdir != "" {
		if err := options.Set("subdir=" + m.subdir); err != nil {
			return options, err
		}
	}
	return options, nil
}

func (m *mounter) connect(ctx context.Context, address, dir string, logger *slog.Logger, reg prometheus.Registerer) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	// Relaxed stays 0: what may be kept, the kernel keeps.
	c, err := client.Connect(ctx, client.Config{
		Cluster: address, Mount: dir, Labels: m.labels, WriteBufferBytes: m.writeBuffer, Logger: logger, Registerer: reg,
	})
	if errors.Is(err, fserr.Invalid) {
		return nil, err
	}
	if fserr.KindOf(err) == fserr.WrongVersion {
		return nil, fmt.Errorf("the cluster at %s refuses this client: %w", address, err)
	}
	if err != nil {
		return nil, fmt.Errorf("no cluster answers at %s (is it running, and is the address right?): %w", address, err)
	}
	return c, nil
}

// logger returns where the log goes, and what to call when it is done.
func (m *mounter) logger() (*slog.Logger, func(), error) {
	w, end := io.Writer(os.Stderr), func() {}
	if m.logFile != "" {
		f, err := os.OpenFile(m.logFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, nil, fmt.Errorf("--log-file: %w", err)
		}
		w, end = f, func() { f.Close() }
	}
	logger, err := m.common.Logger(w)
	return logger, end, err
}

// unmount makes what was written durable and leaves. The mount may be busy:
// then it is detached, and its users keep what they have open until the process
// ends, which is now.
func unmount(c *client.Client, server *clientfuse.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), unmountTimeout)
	defer cancel()
	return errors.Join(c.Flush(ctx, true), server.Unmount(ctx))
}

func closeClient(c *client.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(c.Flush(ctx, true), c.Close(ctx))
}
