package clientfuse

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/client"
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

// serveMemory mounts one memFS, which has a directory /sub with a file in it, on
// all dirs until its standard input ends. Arguments: the mount options, and
// "block" to hold every create. It obeys lines on standard input: see command.
func serveMemory(dirs, args []string) int {
	fs := newMemFS()
	sub, _ := fs.makeLocked(client.Cred{}, fs.root, "sub", unix.S_IFDIR|0o755)
	fs.makeLocked(client.Cred{}, sub, "inside", unix.S_IFREG|0o644)
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
	var registries []*prometheus.Registry
	for _, dir := range dirs {
		reg := prometheus.NewRegistry()
		s, err := mountBackend(context.Background(), fs, "canopy:test", Config{Dir: dir, Options: options, Logger: logger, Registerer: reg})
		if err != nil {
			fmt.Println(err)
			return 1
		}
		servers, registries = append(servers, s), append(registries, reg)
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		command(in.Text(), fs, registries)
	}
	failed := 0
	for _, s := range servers {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		if err := s.Unmount(ctx); err != nil {
			fmt.Println(err)
			failed = 1
		}
		cancel()
	}
	return failed
}

// command answers one line to one line.
func command(line string, fs *memFS, registries []*prometheus.Registry) {
	switch line {
	case "counts":
		var all []map[string]uint64
		for _, reg := range registries {
			all = append(all, counts(reg))
		}
		answer, _ := json.Marshal(all)
		fmt.Println(string(answer))
	case "inodes":
		fmt.Println(inodes(registries[0]))
	case "unblock":
		close(fs.block)
		fmt.Println("unblocked")
	}
}

// counts returns how many requests of each kind a mount has answered.
func counts(reg *prometheus.Registry) map[string]uint64 {
	found := make(map[string]uint64)
	families, _ := reg.Gather()
	for _, f := range families {
		if f.GetName() == "canopy_fuse_request_seconds" {
			for _, m := range f.GetMetric() {
				found[m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
			}
		}
	}
	return found
}

// inodes returns how many inodes the kernel knows of a mount.
func inodes(reg *prometheus.Registry) int {
	families, _ := reg.Gather()
	for _, f := range families {
		if f.GetName() == "canopy_fuse_inodes" {
			return int(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	return -1
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
	stdin io.WriteCloser
	out   *bufio.Reader
}

// ask sends the child a line and returns its answer.
func (s *served) ask(t *testing.T, line string) string {
	t.Helper()
	if _, err := io.WriteString(s.stdin, line+"\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := s.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(answer)
}

// counts returns how many requests of each kind the first mount has answered.
func (s *served) counts(t *testing.T) map[string]uint64 {
	t.Helper()
	var all []map[string]uint64
	if err := json.Unmarshal([]byte(s.ask(t, "counts")), &all); err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// during returns how many requests of each kind act caused.
func (s *served) during(t *testing.T, act func()) map[string]uint64 {
	t.Helper()
	before := s.counts(t)
	act()
	after := s.counts(t)
	for k := range after {
		after[k] -= before[k]
	}
	return after
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
	s.stdin, s.out = stdin, bufio.NewReader(stdout)
	t.Cleanup(func() { s.end(t) })
	line, _ := s.out.ReadString('\n')
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
