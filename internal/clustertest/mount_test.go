package clustertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// secondMount mounts the cluster once more, by the clientfuse binary.
func (c *cluster) secondMount(t *testing.T, flags ...string) string {
	t.Helper()
	dir := filepath.Join(reachable(t), "mnt2")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--cluster", c.address}, flags...)
	p := start(t, "clientfuse", append(args, dir)...)
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			_ = syscall.Unmount(dir, syscall.MNT_DETACH) // the test failed, or left a file open
		}
		select {
		case <-p.done:
		case <-time.After(patience):
			t.Errorf("clientfuse did not end after the unmount")
		}
	})
	eventually(t, "the second mount is there", func() error {
		if mounted(t, dir) {
			return nil
		}
		return syscall.EAGAIN
	})
	return dir
}

func TestPOSIX(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true)
	other := c.secondMount(t)
	// In a process of its own: the suites set the umask, which the processes that
	// other tests start would inherit, and open files that these would keep open.
	cmd := exec.Command(bin("posix.test"), "-test.v", "-test.run", "^TestGivenDirectory$")
	cmd.Env = append(os.Environ(), "CANOPY_POSIX_DIR="+c.mount, "CANOPY_POSIX_DIR2="+other)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"across", "own", "go-fuse"} {
		if !strings.Contains(string(out), "--- PASS: TestGivenDirectory/"+part) {
			t.Errorf("the part %q did not run", part)
		}
	}
	c.mdsctl(t, "fsck")
}

func TestMountScript(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true)
	cmd := exec.Command("./mount.sh", c.mount, repository())
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	c.mdsctl(t, "fsck")
	c.stop(t)
}
