// Package mounted mounts a file system in a process of its own, as a floor to
// compare with: a program that uses a mount that it serves itself can come to a
// standstill.
package mounted

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/loadtest/child"
)

// unmountTimeout is how long a busy mount is waited for before it is detached.
const unmountTimeout = 5 * time.Second

// Serve mounts the file system as Canopy's mount does, says so on out, and serves
// it until in ends or ctx is done; then it unmounts. It is what the process runs.
func Serve(ctx context.Context, fs fuse.RawFileSystem, cfg mountopt.Config, in io.Reader, out io.Writer) error {
	m, err := mountopt.Serve(fs, cfg)
	if err != nil {
		return err
	}
	err = child.Ready(ctx, "ready", in, out, m.Done())
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), unmountTimeout)
	defer cancel()
	return errors.Join(err, m.Unmount(stopping))
}

// FS is a file system that another process serves.
type FS struct {
	*child.Process
	Dir string // where it is mounted
}

// Start makes a directory below parent ("" is the system's for temporary files),
// named by prefix, and mounts a file system on it, served by the command that
// spawn returns, which must call Serve with its standard input and output.
func Start(ctx context.Context, parent, prefix string, spawn func(ctx context.Context, dir string) *exec.Cmd) (*FS, error) {
	dir, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return nil, err
	}
	p, err := child.Start(spawn(ctx, dir))
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	return &FS{Process: p, Dir: dir}, nil
}

// Close unmounts, waits for the process and removes the directory.
func (m *FS) Close() error {
	err := m.Process.Close()
	// A process that was killed leaves a dead mount; else there is none (EINVAL).
	if e := unix.Unmount(m.Dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); e != nil && e != unix.EINVAL && e != unix.EPERM {
		err = errors.Join(err, &os.PathError{Op: "unmount", Path: m.Dir, Err: e})
	}
	return errors.Join(err, os.Remove(m.Dir))
}
