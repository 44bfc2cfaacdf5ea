package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/internal/local"
	"github.com/canopyfs/canopy/loadtest/library"
	"github.com/canopyfs/canopy/loadtest/meta"
	"github.com/canopyfs/canopy/loadtest/pids"
	"github.com/canopyfs/canopy/loadtest/target"
)

// where is the flags that say what is measured, and what follows from them.
type where struct {
	path, cluster, root string
	library             bool
	relaxed             time.Duration
	serverPids          []int
	mountPids           []int

	mount   local.Mount // that path lies in, if it is Canopy's
	isMount bool
	address string // of the cluster, if there is one
}

func (w *where) bind(c *cobra.Command, withLibrary bool) {
	f := c.Flags()
	f.StringVar(&w.path, "path", "", "directory to work in, of any file system")
	f.IntSliceVar(&w.serverPids, "server-pids", nil, "processes whose CPU time counts as the servers' (default: those of the cluster)")
	f.IntSliceVar(&w.mountPids, "mount-pids", nil, "processes whose CPU time counts as the mount's (default: the one that serves --path)")
	f.StringVar(&w.cluster, "cluster", "", "host:port[,host:port...] of metadata nodes: use the client library; with --path, whose servers are measured")
	if withLibrary {
		f.BoolVar(&w.library, "library", false, "use the client library on CANOPY_CLUSTER or this machine's canopy up")
		f.StringVar(&w.root, "root", "/", "directory of the namespace to work in, with the library")
		f.DurationVar(&w.relaxed, "relaxed", 0, "library: how long names and attributes may be cached (0: strict)")
	}
}

// resolve checks the flags and finds the cluster.
func (w *where) resolve() error {
	switch {
	case w.path != "" && w.library:
		return errors.New("--path and --library exclude each other")
	case w.path == "" && w.cluster == "" && !w.library:
		return errors.New("say what to measure: --path DIR, or --cluster HOST:PORT or --library for the client library")
	case w.relaxed < 0:
		return fmt.Errorf("--relaxed %v: want a time of at least 0", w.relaxed)
	}
	if w.path == "" {
		address, err := local.Find(w.cluster)
		w.address = address
		return err
	}
	abs, err := filepath.Abs(w.path)
	if err != nil {
		return err
	}
	if _, err := target.NewPath(abs); err != nil {
		return err
	}
	w.path = abs
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	mounts, err := local.Mounts(f)
	if err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return err
	}
	w.mount, w.isMount = pids.MountOf(real, mounts)
	if w.isMount || w.cluster != "" {
		// Without an address the servers' CPU time is not known, which is no error.
		w.address, _ = local.FindFor(w.cluster, real)
	}
	return nil
}

// canopy reports whether it is Canopy that is measured.
func (w *where) canopy() bool { return w.path == "" || w.isMount }

// byLibrary reports whether the client library is used.
func (w *where) byLibrary() bool { return w.path == "" }

// processes finds whose CPU time is reported.
func (w *where) processes(ctx context.Context) *pids.Found {
	ask := pids.Ask{Servers: w.serverPids, Mount: w.mountPids, Cluster: w.address}
	if w.isMount {
		ask.MountDir = w.mount.Dir
	}
	return pids.Find(ctx, ask)
}

// dataDir returns where the cluster of this machine keeps its data: floors of
// the disk are taken there. Empty if it is not known.
func (w *where) dataDir() string {
	instances, err := local.Running()
	if err != nil {
		return ""
	}
	for _, in := range instances {
		if in.Address == w.address {
			return in.Data
		}
	}
	return ""
}

// base is the name of a run's directory.
func base(command string) string {
	return "loadtest." + command + "." + strconv.Itoa(os.Getpid()) + "." + strconv.FormatInt(time.Now().UnixNano(), 36)
}

// open connects to what a run's settings name: it is a meta.Opener.
func open(ctx context.Context, cfg *meta.Config) (target.Target, error) {
	if cfg.Path != "" {
		return target.NewPath(cfg.Path)
	}
	return library.Open(ctx, library.Config{Cluster: cfg.Cluster, Root: cfg.Root, Relaxed: cfg.Relaxed})
}

func (w *where) open(ctx context.Context) (target.Target, error) {
	return open(ctx, &meta.Config{Path: w.path, Cluster: w.address, Root: w.root, Relaxed: w.relaxed})
}

// closeTimeout is how long the client may take to end at the end of a run.
const closeTimeout = 10 * time.Second

// closeContext outlives ctx, which may be done.
func closeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
}

// filler returns the library's view of the directory --path, if that lies in a
// mount of a cluster that is known; else nil.
func (w *where) filler(ctx context.Context) target.Target {
	if !w.isMount || w.address == "" {
		return nil
	}
	root, err := local.NamespacePath(w.path)
	if err != nil {
		return nil
	}
	asked, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	t, err := library.Open(asked, library.Config{Cluster: w.address, Root: root})
	if err != nil {
		return nil // the mount itself will do
	}
	return t
}
