package memfs

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/loadtest/child"
)

// unmountTimeout is how long a busy mount is waited for before it is detached.
const unmountTimeout = 5 * time.Second

// Serve mounts the file system on dir as Canopy's mount does, says so on out,
// and serves it until in ends or ctx is done; then it unmounts. It is what a
// process of its own runs: a program that uses a mount that it serves itself
// can come to a standstill.
func Serve(ctx context.Context, dir string, opts mountopt.Options, in io.Reader, out io.Writer) error {
	m, err := mountopt.Serve(New(opts), mountopt.Config{Dir: dir, Source: "memory", Options: opts})
	if err != nil {
		return err
	}
	err = child.Ready(ctx, "ready", in, out, m.Done())
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), unmountTimeout)
	defer cancel()
	return errors.Join(err, m.Unmount(stopping))
}

// Mounted is a file system in memory that another process serves.
type Mounted struct {
	*child.Process
	Dir string
}

// Start makes a directory below parent ("" is the system's for temporary
// files) and mounts a file system in memory on it, served by the command that
// spawn returns, which must call Serve with its standard input and output.
func Start(ctx context.Context, parent string, spawn func(ctx context.Context, dir string) *exec.Cmd) (*Mounted, error) {
	dir, err := os.MkdirTemp(parent, "canopy-memfs-")
	if err != nil {
		return nil, err
	}
	p, err := child.Start(spawn(ctx, dir))
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	return &Mounted{Process: p, Dir: dir}, nil
}

// Close unmounts, waits for the process and removes the directory.
func (m *Mounted) Close() error {
	err := m.Process.Close()
	// A process that was killed leaves a dead mount; else there is none (EINVAL).
	if e := unix.Unmount(m.Dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); e != nil && e != unix.EINVAL && e != unix.EPERM {
		err = errors.Join(err, &os.PathError{Op: "unmount", Path: m.Dir, Err: e})
	}
	return errors.Join(err, os.Remove(m.Dir))
}
