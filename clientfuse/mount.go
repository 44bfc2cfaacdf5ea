// Package clientfuse is the mount.
package clientfuse

import (
	"context"
	"log/slog"

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
type Server struct{}

// Mount mounts the cluster's namespace, or Options.Subdir of it, and serves it.
// ctx bounds mounting alone. The calling process must not touch files of its own
// mount.
func Mount(ctx context.Context, cfg Config) (*Server, error) {
	return nil, fserr.New(fserr.Internal, "mount", nil)
}

// Dir returns the mount point, absolute.
func (s *Server) Dir() string { return "" }

// Wait returns when the mount is gone, whoever unmounted it.
func (s *Server) Wait() {}

// Unmount unmounts. While the mount is busy it tries until ctx ends; then it
// detaches the mount, so that nobody new finds it, and says so in its error.
func (s *Server) Unmount(ctx context.Context) error {
	return fserr.New(fserr.Internal, "unmount", nil)
}
