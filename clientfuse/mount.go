package clientfuse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Config says what to mount where. Client and Dir are required.
type Config struct {
	// Client should be connected with Relaxed = 0: the kernel's time-outs already
	// are what Options.Relaxed allows. It stays the caller's: close it after Unmount.
	Client *client.Client
	// Source is what /proc/mounts shows as mounted; "": "canopy:" and the cluster's id.
	Source string
	// Dir is the mount point: an empty directory.
	Dir string
	// Options: start from mountopt.Default().
	Options mountopt.Options
	// Logger: default is to discard.
	Logger *slog.Logger
	// Registerer receives the mount's metrics, if not nil.
	Registerer prometheus.Registerer
}

// Server is a running mount.
type Server struct {
	mount *mountopt.Mount
}

// Mount mounts the cluster's namespace, or Options.Subdir of it, and serves it.
// ctx bounds mounting alone. The calling process must not touch files of its own
// mount.
func Mount(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Client == nil {
		return nil, errors.New("mount: no client")
	}
	source := cfg.Source
	if source == "" {
		source = "canopy:" + cfg.Client.ClusterID()
	}
	return mountBackend(ctx, clientBackend{cfg.Client}, source, cfg)
}

// mountBackend mounts any backend; source is what /proc/mounts shows, to which
// the subdirectory is added behind '#' if it is not in it.
func mountBackend(ctx context.Context, b backend, source string, cfg Config) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	root, err := walk(ctx, b, cfg.Options.Subdir)
	if err != nil {
		return nil, err
	}
	f, err := newFileSystem(b, root, cfg)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", cfg.Dir, err)
	}
	if sub := path.Clean("/" + cfg.Options.Subdir); sub != "/" && !strings.Contains(source, ":/") {
		source += "#" + sub
	}
	m, err := mountopt.Serve(f, mountopt.Config{Dir: cfg.Dir, Source: source, Options: cfg.Options, Logger: cfg.Logger, Locks: true})
	if err != nil {
		f.close()
		return nil, err
	}
	f.mount.Store(m)
	return &Server{mount: m}, nil
}

// walk returns the directory that subdir leads to from the root, with the
// superuser's rights. The caller keeps the reference for the mount's life.
func walk(ctx context.Context, b backend, subdir string) (inode, error) {
	n := b.Root()
	held := false
	for name := range strings.SplitSeq(path.Clean("/"+subdir), "/") {
		if name == "" {
			continue
		}
		next, _, _, err := b.Lookup(ctx, client.Cred{}, n, name)
		if held {
			n.Release()
		}
		if errors.Is(err, fserr.NotFound) {
			return nil, fmt.Errorf("mount: there is no directory %s in the namespace", subdir)
		}
		if err != nil {
			return nil, fmt.Errorf("mount: %s: %w", subdir, err)
		}
		n, held = next, true
		if !n.IsDir() {
			n.Release()
			return nil, fmt.Errorf("mount: %s is not a directory of the namespace", subdir)
		}
	}
	return n, nil
}

// Dir returns the mount point, absolute.
func (s *Server) Dir() string { return s.mount.Dir() }

// Done is closed when the mount is gone, whoever unmounted it.
func (s *Server) Done() <-chan struct{} { return s.mount.Done() }

// Wait returns when the mount is gone, whoever unmounted it.
func (s *Server) Wait() { s.mount.Wait() }

// Unmount unmounts. While the mount is busy it tries until ctx ends; then it
// detaches the mount, so that nobody new finds it, and says so in its error.
func (s *Server) Unmount(ctx context.Context) error { return s.mount.Unmount(ctx) }
