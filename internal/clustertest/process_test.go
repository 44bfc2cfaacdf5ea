package clustertest

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/canopyfs/canopy/internal/await"
)

// process is a started binary.
type process struct {
	name string
	cmd  *exec.Cmd
	out  *output
	done chan struct{}
	err  error // after done
}

// output collects what a process prints.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// start starts a binary; the test's end kills it if it still runs.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{name: name, out: &output{}, done: make(chan struct{})}
	p.cmd = exec.Command(bin(name), args...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	// It does not outlive a test binary that is killed, say by a time-out.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.done
		if t.Failed() {
			t.Logf("%s printed:\n%s", name, tail(p.out.String(), 60))
		}
	})
	return p
}

func tail(s string, lines int) string {
	all := strings.Split(s, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func (p *process) signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(p.cmd.Process.Pid, s) // it may have ended just now
	}
}

// waitOutput waits until the process printed text.
func (p *process) waitOutput(t *testing.T, text string) {
	t.Helper()
	eventually(t, p.name+" prints "+text, func() error {
		if strings.Contains(p.out.String(), text) {
			return nil
		}
		select {
		case <-p.done:
			t.Fatalf("%s ended (%v) and printed:\n%s", p.name, p.err, p.out)
		default:
		}
		return errors.New("not yet")
	})
}

// stop sends SIGINT and checks that the process ends with code 0.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.signal(syscall.SIGINT)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.signal(syscall.SIGQUIT)
		<-p.done
		t.Fatalf("%s did not end after SIGINT", p.name)
	}
	if p.err != nil {
		t.Fatalf("%s ended with %v", p.name, p.err)
	}
}

// patience bounds the waits that only a broken program, or a machine with much else
// to do, makes long.
const patience = 3 * time.Minute

// eventually polls until check returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	await.Nil(t, patience, what, check)
}

// command runs a binary to its end and returns its output and exit code.
func command(t *testing.T, name string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(bin(name), args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", name, err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// must runs a binary that has to succeed.
func must(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, errOut, code := command(t, name, args...)
	if code != 0 {
		t.Fatalf("%s %s: exit %d\n%s%s", name, strings.Join(args, " "), code, out, errOut)
	}
	return out
}

var _ io.Writer = (*output)(nil)
