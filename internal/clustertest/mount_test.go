package clustertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/canopyfs/canopy/clientfuse/posix"
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
		case <-time.After(20 * time.Second):
			t.Errorf("clientfuse did not end after the unmount")
		}
	})
	eventually(t, 20*time.Second, "the second mount is there", func() error {
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
	t.Run("OneMount", func(t *testing.T) { posix.Run(t, c.mount) })
	t.Run("GoFuse", func(t *testing.T) { posix.RunGoFuse(t, c.mount) })
	t.Run("TwoMounts", func(t *testing.T) { posix.RunCrossMount(t, c.mount, other) })
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
