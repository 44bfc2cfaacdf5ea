package clustertest

import (
	"bufio"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/canopyfs/canopy/internal/loopback"
)

// TestReaderOfOutputGoesAway: `canopy up | head` unmounts and ends in order like
// any other.
func TestReaderOfOutputGoesAway(t *testing.T) {
	t.Parallel()
	root := reachable(t)
	mnt := filepath.Join(root, "mnt")
	cmd := exec.Command(bin("canopy"), "up", "--data", filepath.Join(root, "data"), "--listen", net.JoinHostPort(loopback.Host(t), "0"), "--mount", mnt)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended already if all is well
		_ = syscall.Unmount(mnt, syscall.MNT_DETACH)
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "Ctrl-C") {
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if !mounted(t, mnt) {
		t.Fatal("nothing is mounted")
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	if mounted(t, mnt) {
		t.Error("still mounted")
	}
}
