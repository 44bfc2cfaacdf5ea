package memfs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/canopyfs/canopy/clientfuse/mountopt"
)

// ready is what a process that serves the file system says when it is mounted.
const ready = "ready"

// stopTimeout is how long Mounted.Close waits before it kills the process.
const stopTimeout = 10 * time.Second

// Serve mounts the file system on dir, says so on out, and serves it until in
// ends or ctx is done; then it unmounts. It is what a process of its own runs:
// a program that uses a mount that it serves itself can come to a standstill.
func Serve(ctx context.Context, dir string, opts mountopt.Options, in io.Reader, out io.Writer) error {
	m, err := mountopt.Serve(New(opts), mountopt.Config{Dir: dir, Source: "memory", Options: opts})
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _, _ = io.Copy(io.Discard, in) }() // ends with the process at the latest
	_, err = fmt.Fprintln(out, ready)
	if err == nil {
		select {
		case <-ended:
		case <-ctx.Done():
		case <-m.Done():
			return nil // unmounted by someone else
		}
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout/2)
	defer cancel()
	return errors.Join(err, m.Unmount(stopping))
}

// Mounted is a file system in memory that another process serves.
type Mounted struct {
	Dir string
	cmd *exec.Cmd
	in  io.WriteCloser
}

// Start makes a directory below parent ("" is the system's for temporary
// files) and mounts a file system in memory on it, served by the command that
// spawn returns, which must call Serve with its standard input and output.
func Start(ctx context.Context, parent string, spawn func(ctx context.Context, dir string) *exec.Cmd) (*Mounted, error) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return nil, errors.New("no /dev/fuse on this machine")
	}
	dir, err := os.MkdirTemp(parent, "canopy-memfs-")
	if err != nil {
		return nil, err
	}
	m := &Mounted{Dir: dir, cmd: spawn(ctx, dir)}
	var said strings.Builder
	if m.cmd.Stderr == nil {
		m.cmd.Stderr = &said
	}
	// When ctx is done the process is asked to unmount before it is killed.
	m.cmd.Cancel = func() error { return m.cmd.Process.Signal(os.Interrupt) }
	m.cmd.WaitDelay = stopTimeout
	if err := m.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("%w %s", err, strings.TrimSpace(said.String())), os.Remove(dir))
	}
	return m, nil
}

func (m *Mounted) start() (err error) {
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) == ready {
		return nil
	}
	_ = m.in.Close() // ends the process
	return errors.Join(fmt.Errorf("the process that serves it said %q", line), err, m.cmd.Wait())
}

// Pid returns the process that serves it.
func (m *Mounted) Pid() int { return m.cmd.Process.Pid }

// Close unmounts, waits for the process and removes the directory.
func (m *Mounted) Close() error {
	_ = m.in.Close() // tells the process to end
	return errors.Join(m.cmd.Wait(), os.Remove(m.Dir))
}
