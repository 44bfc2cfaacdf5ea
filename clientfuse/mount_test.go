package clientfuse

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/internal/await"
)

// mountLine returns the line of /proc/mounts for dir.
func mountLine(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[1] == dir {
			return line
		}
	}
	return ""
}

func stat(t *testing.T, p string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		t.Fatalf("%s: %v", p, err)
	}
	return st
}

func TestMountShowsWhatWasAsked(t *testing.T) {
	s := serve(t, 1, "ro,noatime,noexec,nosuid")
	line := mountLine(t, s.dirs[0])
	if !strings.HasPrefix(line, "canopy:test "+s.dirs[0]+" fuse.canopy ro,nosuid,noexec,noatime,") {
		t.Errorf("/proc/mounts: %s", line)
	}
	for _, option := range []string{"default_permissions", "allow_other"} {
		if !strings.Contains(line, option) {
			t.Errorf("%s is missing: %s", option, line)
		}
	}
	if err := os.WriteFile(filepath.Join(s.dirs[0], "f"), nil, 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a write to a read-only mount: %v", err)
	}
}

// TestDeviceAndSetuid: unlike fusermount, root's mount forbids neither unless asked to.
func TestDeviceAndSetuid(t *testing.T) {
	s := serve(t, 1, "rw")
	if line := mountLine(t, s.dirs[0]); strings.Contains(line, "nodev") || strings.Contains(line, "nosuid") {
		t.Errorf("/proc/mounts: %s", line)
	}
	null := filepath.Join(s.dirs[0], "null")
	if err := unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	if n, err := os.ReadFile(null); err != nil || len(n) != 0 {
		t.Errorf("reading the null device: %d bytes, %v", len(n), err)
	}
}

// TestSubdirectory (K15): node id 1 is that directory, under its own number.
func TestSubdirectory(t *testing.T) {
	whole, sub := serve(t, 1, "rw"), serve(t, 1, "subdir=/sub")
	if line := mountLine(t, sub.dirs[0]); !strings.HasPrefix(line, "canopy:test#/sub ") &&
		!strings.HasPrefix(line, `canopy:test\043/sub `) {
		t.Errorf("/proc/mounts: %s", line)
	}
	if a, b := stat(t, filepath.Join(whole.dirs[0], "sub")), stat(t, sub.dirs[0]); a.Ino != b.Ino {
		t.Errorf("inode %d of the whole, %d as a root", a.Ino, b.Ino)
	}
	if st := stat(t, filepath.Join(sub.dirs[0], "inside")); st.Mode != unix.S_IFREG|0o644 {
		t.Errorf("mode %o", st.Mode)
	}
	if err := os.Mkdir(filepath.Join(sub.dirs[0], "d"), 0o755); err != nil {
		t.Error(err)
	}
	fs := newMemFS()
	for path, says := range map[string]string{"/absent": "no directory /absent", "/file": "not a directory"} {
		fs.makeLocked(client.Cred{}, fs.root, "file", unix.S_IFREG|0o644)
		if _, err := walk(context.Background(), fs, path); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestMountTwice(t *testing.T) {
	s := serve(t, 1, "rw")
	if _, err := mountopt.CheckDir(s.dirs[0]); err == nil || !strings.Contains(err.Error(), "already mounted") {
		t.Errorf("a second mount: %v", err)
	}
}

// TestDeadMount: a mount whose process was killed is refused with a word on why,
// and touched by nobody.
func TestDeadMount(t *testing.T) {
	s := serve(t, 1, "rw")
	s.cmd.Process.Kill()
	s.cmd.Wait()
	s.cmd = nil
	defer unix.Unmount(s.dirs[0], unix.MNT_DETACH)
	if _, err := mountopt.CheckDir(s.dirs[0]); err == nil || !strings.Contains(err.Error(), "already mounted") {
		t.Errorf("on a dead mount: %v", err)
	}
}

// TestBusyUnmount: it is detached, and says so; the file that is open works on
// until the process ends.
func TestBusyUnmount(t *testing.T) {
	s := serve(t, 1, "rw")
	f, err := os.Create(filepath.Join(s.dirs[0], "f"))
	if err != nil {
		t.Fatal(err)
	}
	s.stdin.Close()
	answer, _ := s.out.ReadString('\n')
	if !strings.Contains(answer, "was busy: it is detached") {
		t.Errorf("it says %q", answer)
	}
	if line := mountLine(t, s.dirs[0]); line != "" {
		t.Errorf("still mounted: %s", line)
	}
	s.cmd.Wait()
	s.cmd = nil
	f.Close()
}

// TestReadAhead: root's mounts read ahead as far as stated.
func TestReadAhead(t *testing.T) {
	s := serve(t, 1, "rw")
	st := stat(t, s.dirs[0])
	name := "/sys/class/bdi/" + itoa(unix.Major(st.Dev)) + ":" + itoa(unix.Minor(st.Dev)) + "/read_ahead_kb"
	b, err := os.ReadFile(name)
	if err != nil {
		t.Skip(err)
	}
	if got := strings.TrimSpace(string(b)); got != itoa(mountopt.ReadAheadBytes>>10) {
		t.Errorf("%s: %s", name, got)
	}
}

// start runs a shell command as a child that t.Cleanup ends.
func start(t *testing.T, script string, args ...string) (*exec.Cmd, chan error) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd, ended
}

// waitBlocked returns when the process waits for an answer of the mount.
func waitBlocked(t *testing.T, pid int) {
	t.Helper()
	await.Until(t, patience, "the process waits for the mount", func() bool { return isBlocked(pid) })
}

func isBlocked(pid int) bool {
	b, _ := os.ReadFile("/proc/" + itoa(uint32(pid)) + "/wchan")
	return strings.Contains(string(b), "fuse") || strings.Contains(string(b), "request_wait")
}

// patience bounds the waits that only a broken program, or a machine with much else
// to do, makes long.
const patience = 60 * time.Second

// TestKillWhileClusterIsDown (K12): kill -9 ends a process whose request is not
// answered; so do other signals that end a process.
func TestKillWhileClusterIsDown(t *testing.T) {
	s := serve(t, 1, "rw", "block")
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT} {
		cmd, ended := start(t, `exec touch "$1"`, filepath.Join(s.dirs[0], "f"))
		waitBlocked(t, cmd.Process.Pid)
		cmd.Process.Signal(sig)
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatalf("%v does not end the process", sig)
		}
	}
	// One signal that is caught, and then one that kills: the kernel reports
	// only the first.
	cmd, ended := start(t, `trap : USR1; : > "$1"`, filepath.Join(s.dirs[0], "f"))
	waitBlocked(t, cmd.Process.Pid)
	cmd.Process.Signal(syscall.SIGUSR1)
	await.Throughout(t, 2*watchEvery, "the process waits on", func() bool {
		select {
		case <-ended:
			return false
		default:
			return true
		}
	})
	cmd.Process.Kill()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("SIGKILL after another signal does not end the process")
	}
}

// TestOrdinarySignal (K12): it cuts no request in half.
func TestOrdinarySignal(t *testing.T) {
	s := serve(t, 1, "rw", "block")
	cmd, ended := start(t, `trap : USR1; : > "$1"`, filepath.Join(s.dirs[0], "f"))
	waitBlocked(t, cmd.Process.Pid)
	for range 5 {
		cmd.Process.Signal(syscall.SIGUSR1)
		select {
		case err := <-ended:
			t.Fatalf("the request was given up: %v", err)
		case <-time.After(watchEvery):
		}
	}
	s.ask(t, "unblock")
	if err := <-ended; err != nil {
		t.Errorf("the create: %v", err)
	}
	if st := stat(t, filepath.Join(s.dirs[0], "f")); st.Mode&unix.S_IFMT != unix.S_IFREG {
		t.Errorf("mode %o", st.Mode)
	}
}

// TestForcedUnmountWhileClusterIsDown: requests that nobody answers end with the
// mount, and the server with them.
func TestForcedUnmountWhileClusterIsDown(t *testing.T) {
	s := serve(t, 1, "rw", "block")
	cmd, ended := start(t, `exec touch "$1"`, filepath.Join(s.dirs[0], "f"))
	waitBlocked(t, cmd.Process.Pid)
	st := stat(t, s.dirs[0])
	abort := "/sys/fs/fuse/connections/" + itoa(unix.Minor(st.Dev)) + "/abort"
	if _, err := os.Stat(abort); err != nil {
		unix.Unmount(s.dirs[0], unix.MNT_FORCE) // busy, but ends what waits
	} else if err := os.WriteFile(abort, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the process waits on")
	}
}

func itoa(v uint32) string { return strconv.FormatUint(uint64(v), 10) }
