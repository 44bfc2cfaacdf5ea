package posix

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLocalFileSystem proves the tests on a file system that is known to be
// right.
func TestLocalFileSystem(t *testing.T) { Run(t, Dir(t)) }

// mount mounts something that needs no server, or skips.
func mount(t *testing.T, source, dir, kind string, flags uintptr, data string) {
	t.Helper()
	if err := unix.Mount(source, dir, kind, flags, data); err != nil {
		t.Skipf("mounting: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
}

// TestTmpfs runs it on the other file system that every Linux has.
func TestTmpfs(t *testing.T) {
	dir := Dir(t)
	mount(t, "tmpfs", dir, "tmpfs", 0, "mode=755")
	Run(t, dir)
}

// TestCrossMountOnOneFileSystem: a directory and a bind mount of it.
func TestCrossMountOnOneFileSystem(t *testing.T) {
	a, b := Dir(t), Dir(t)
	mount(t, a, b, "", unix.MS_BIND, "")
	RunCrossMount(t, a, b)
}

// TestUnreachable: the suite says what is wrong with a directory that only root
// can reach, instead of failing everywhere.
func TestUnreachable(t *testing.T) {
	needRoot(t)
	dir := Dir(t)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := as(t, bob, func() error { return unix.Stat(dir+"/.", &st) }); err != unix.EACCES {
		t.Errorf("stat as another user: %v, want EACCES", err)
	}
}
