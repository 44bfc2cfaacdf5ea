package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// child is a supervised process: started again, with growing pauses, until its
// context is done; then asked to end, and killed if it does not.
type child struct {
	name   string
	path   string
	args   []string
	stderr io.Writer
	logger *slog.Logger

	mu  sync.Mutex
	pid int
}

// stopTimeout is how long a child may take to end after SIGTERM.
const stopTimeout = 15 * time.Second

// Pause bounds between restarts.
const (
	minPause = 200 * time.Millisecond
	maxPause = 5 * time.Second
)

// run supervises until ctx is done.
func (c *child) run(ctx context.Context) error {
	pause := minPause
	for {
		began := time.Now()
		err := c.once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > 10*time.Second {
			pause = minPause
		}
		c.logger.Warn("process ended, it is started again", "name", c.name, "error", err, "pause", pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause + rand.N(pause/2)):
		}
		pause = min(pause*2, maxPause)
	}
}

func (c *child) once(ctx context.Context) error {
	// Pdeathsig is about the thread that started the child: keep it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, c.path, c.args...)
	cmd.Stderr = c.stderr
	cmd.Stdout = c.stderr
	// The group of its own keeps a terminal's Ctrl-C away from the child: the
	// parent stops the parts in order. The child does not outlive the parent.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", c.name, err)
	}
	c.setPid(cmd.Process.Pid)
	defer c.setPid(0)
	return cmd.Wait()
}

func (c *child) setPid(pid int) {
	c.mu.Lock()
	c.pid = pid
	c.mu.Unlock()
}
