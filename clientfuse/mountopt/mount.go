package mountopt

import (
	"context"
	"log/slog"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/canopyfs/canopy/internal/fserr"
)

// Subtype is the file system's name: mounts have the type "fuse.canopy".
const Subtype = "canopy"

// Config says what to mount where.
type Config struct {
	Dir     string // mount point; see CheckDir
	Source  string // first field of /proc/mounts, e.g. "canopy:<cluster>"
	Options Options
	Logger  *slog.Logger
}

// Mount is a mounted and served file system.
type Mount struct{}

// Serve mounts fs on cfg.Dir and serves it until it is unmounted, by Unmount or
// by anybody. As root it mounts by itself; otherwise with fusermount3.
//
// The process must not touch the mount's files itself (a thread that waits for
// its own process can stop the Go runtime); other processes may.
func Serve(fs fuse.RawFileSystem, cfg Config) (*Mount, error) {
	return nil, fserr.New(fserr.Internal, "mount", nil)
}

// Dir returns the mount point, absolute.
func (m *Mount) Dir() string { return "" }

// Wait returns when the file system is unmounted and the last request answered.
func (m *Mount) Wait() {}

// Unmount unmounts. While the mount is busy it tries again until ctx ends; then
// it detaches the mount (it is gone from the tree, those who use it keep it
// until they let go or this process ends) and returns an error that says so.
func (m *Mount) Unmount(ctx context.Context) error { return fserr.New(fserr.Internal, "unmount", nil) }

// CheckDir returns dir absolute with symbolic links resolved, or why nothing can
// be mounted there: missing, no directory, not empty, mounted already.
func CheckDir(dir string) (string, error) { return "", fserr.New(fserr.Internal, "mount", nil) }
