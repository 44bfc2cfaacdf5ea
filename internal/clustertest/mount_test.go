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
	_, dir := c.anotherMount(t, flags...)
	return dir
}

// anotherMount is secondMount for who wants the process, too.
func (c *cluster) anotherMount(t *testing.T, flags ...string) (*process, string) {
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
	return p, dir
}

func TestPOSIX(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true, "-o", "acl")
	other := c.secondMount(t, "-o", "acl")
	// In a process of its own: the suites set the umask, which the processes that
	// other tests start would inherit, and open files that these would keep open.
	cmd := exec.Command(bin("posix.test"), "-test.v", "-test.run", "^TestGivenDirectory$")
	cmd.Env = append(os.Environ(), "CANOPY_POSIX_DIR="+c.mount, "CANOPY_POSIX_DIR2="+other)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"across", "locks", "own", "go-fuse"} {
		if !strings.Contains(string(out), "--- PASS: TestGivenDirectory/"+part) {
			t.Errorf("the part %q did not run", part)
		}
	}
	c.mdsctl(t, "fsck")
}

// TestACLMounts: an ACL that was set through a mount that shows them counts on one
// that does not, and on one that keeps attributes.
func TestACLMounts(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true, "-o", "acl")
	plain, kept := c.secondMount(t), c.secondMount(t, "-o", "acl,consistency=relaxed=1s")
	dir := filepath.Join(c.mount, "d")
	file := filepath.Join(dir, "f")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(dir, 0o755))
	must(os.Chmod(dir, 0o755))
	must(os.WriteFile(file, []byte("text"), 0o644))
	reads := func(mount string, uid uint32) error {
		cmd := exec.Command("cat", filepath.Join(mount, "d", "f"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return cmd.Run()
	}
	for _, mount := range []string{c.mount, plain, kept} {
		must(reads(mount, 1001))
	}
	// u::rw-, u:1001:---, g::r--, m::rw-, o::r--
	const denied = "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x00\x00\xe9\x03\x00\x00\x04\x00\x04\x00\xff\xff\xff\xff" +
		"\x10\x00\x06\x00\xff\xff\xff\xff\x20\x00\x04\x00\xff\xff\xff\xff"
	must(syscall.Setxattr(file, "system.posix_acl_access", []byte(denied), 0))
	for _, mount := range []string{c.mount, plain} {
		if reads(mount, 1001) == nil {
			t.Errorf("%s lets in whom the ACL denies", mount)
		}
		must(reads(mount, 1002))
	}
	eventually(t, "the relaxed mount knows the ACL", func() error {
		if reads(kept, 1001) == nil {
			return syscall.EAGAIN
		}
		return nil
	})
	buf := make([]byte, 200)
	for _, p := range []string{file, dir} {
		p = strings.Replace(p, c.mount, plain, 1)
		if _, err := syscall.Getxattr(p, "system.posix_acl_access", buf); err != syscall.EOPNOTSUPP {
			t.Errorf("a mount without the option answers %v", err)
		}
		if n, err := syscall.Listxattr(p, buf); err != nil || n != 0 {
			t.Errorf("a mount without the option lists %q, %v", buf[:max(n, 0)], err)
		}
	}
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
