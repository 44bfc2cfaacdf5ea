// Package child runs parts of a measurement in processes of their own: a
// server that would otherwise share the runtime (and the CPU account) of the
// load. The child says one line when it is ready and lives until its standard
// input ends, so that it never outlives the run, however that ends.
package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// stopTimeout is how long a child that was asked to end may take.
const stopTimeout = 10 * time.Second

// Process is a child that has said that it is ready.
type Process struct {
	Line string // what it said
	cmd  *exec.Cmd
	in   io.WriteCloser
	said *tail
}

// Start starts cmd and waits for its line. When the context of
// exec.CommandContext is done, the child's input ends, and it is killed if that
// does not help. (No signal: a terminal's Ctrl-C reaches the child too, and a
// second one would end it before it has cleaned up.)
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, said: &tail{}}
	cmd.Stderr = p.said
	cmd.Cancel = func() error {
		_ = p.in.Close() // again, if Close was first
		return nil
	}
	cmd.WaitDelay = stopTimeout
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		p.Line = strings.TrimSpace(line)
		return p, nil
	}
	_ = p.in.Close() // ends the process
	exit := cmd.Wait()
	if text := p.said.String(); text != "" {
		return nil, errors.New(text)
	}
	return nil, errors.Join(errors.New("a process of the measurement ended before it was ready"), exit)
}

// Pid returns the child's process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Close asks the child to end and waits for it.
func (p *Process) Close() error {
	_ = p.in.Close() // tells the process to end
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w %s", err, p.said.String())
	}
	return nil
}

// Ready says the child's line on out, and returns when in has ended or ctx or
// done is done.
func Ready(ctx context.Context, line string, in io.Reader, out io.Writer, done <-chan struct{}) error {
	if _, err := fmt.Fprintln(out, line); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _, _ = io.Copy(io.Discard, in) }() // ends with the process at the latest
	select {
	case <-ended:
	case <-ctx.Done():
	case <-done:
	}
	return nil
}

// tail keeps the end of what a child says on standard error.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

const tailBytes = 4 << 10

// Write takes all of p.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - tailBytes; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

// String returns what was kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.kept))
}
