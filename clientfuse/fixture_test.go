package clientfuse

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/clientfuse/posix"
)

// The mounts of these tests are served by a child process: a process must not
// touch files that it serves itself.

const serveEnv = "CANOPY_TEST_SERVE"

func TestMain(m *testing.M) {
	if dirs := os.Getenv(serveEnv); dirs != "" {
		os.Exit(serveMemory(strings.Split(dirs, "\n"), os.Args[1:]))
	}
	os.Exit(m.Run())
}

// serveMemory mounts one memFS on all dirs until its standard input ends.
// Arguments: the mount options, and "block" to hold every create.
func serveMemory(dirs, args []string) int {
	fs := newMemFS()
	options := mountopt.Default()
	if err := options.Set(args[0]); err != nil {
		fmt.Println(err)
		return 1
	}
	if len(args) > 1 && args[1] == "block" {
		fs.block = make(chan struct{})
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var servers []*Server
	failed := 0
	for _, dir := range dirs {
		s, err := mountBackend(context.Background(), fs, "canopy:test", Config{Dir: dir, Options: options, Logger: logger})
		if err != nil {
			fmt.Println(err)
			return 1
		}
		servers = append(servers, s)
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	for _, s := range servers {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		if err := s.Unmount(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			failed = 1
		}
		cancel()
	}
	return failed
}

func needFuse(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse")
	}
}

// served is a child process with mounts.
type served struct {
	dirs  []string
	cmd   *exec.Cmd
	stdin io.Closer
}

// serve mounts a memFS, the same one, at n places with the options.
func serve(t *testing.T, n int, options string, more ...string) *served {
	t.Helper()
	needFuse(t)
	s := &served{}
	for range n {
		s.dirs = append(s.dirs, posix.Dir(t))
	}
	s.cmd = exec.Command(os.Args[0], append([]string{options}, more...)...)
	s.cmd.Env = append(os.Environ(), serveEnv+"="+strings.Join(s.dirs, "\n"))
	s.cmd.Stderr = os.Stderr
	stdin, err := s.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.stdin = stdin
	t.Cleanup(func() { s.end(t) })
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	if line != "ready\n" {
		t.Fatalf("the child did not mount: %q", line)
	}
	return s
}

// end unmounts; whatever happens, no mount and no process is left.
func (s *served) end(t *testing.T) {
	if s.cmd == nil {
		return
	}
	s.wantUnused(t)
	s.stdin.Close()
	done := make(chan error, 1)
	go func() { done <- s.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("the child: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the child does not end: killed")
		s.cmd.Process.Kill()
		<-done
	}
	s.cmd = nil
	for _, dir := range s.dirs {
		unix.Unmount(dir, unix.MNT_DETACH)
	}
}

// wantUnused fails if this process still has files of the mounts open.
func (s *served) wantUnused(t *testing.T) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Error(err)
	}
	for _, fd := range fds {
		target, _ := os.Readlink("/proc/self/fd/" + fd.Name())
		for _, dir := range s.dirs {
			if strings.HasPrefix(target, dir) {
				t.Errorf("%s is still open", target)
			}
		}
	}
}
