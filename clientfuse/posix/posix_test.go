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
	RunLocks(t, a, b, true, false) // Linux lets readers overtake a writer
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

// TestGivenDirectory runs the suite, on FUSE go-fuse's too, in an empty directory of any mount, named
// by CANOPY_POSIX_DIR; with CANOPY_POSIX_DIR2, the same directory through a
// second mount, also what two mounts show each other. Without them it checks
// that the two directories of one file system count as two mounts of it.
func TestGivenDirectory(t *testing.T) {
	a, b := os.Getenv("CANOPY_POSIX_DIR"), os.Getenv("CANOPY_POSIX_DIR2")
	if a == "" {
		a = Dir(t)
		b = a
	}
	if b != "" {
		t.Run("across", func(t *testing.T) { RunCrossMount(t, a, b) })
		t.Run("locks", func(t *testing.T) { RunLocks(t, a, b, true, os.Getenv("CANOPY_POSIX_DIR") != "") })
	}
	if os.Getenv("CANOPY_POSIX_DIR") != "" {
		t.Run("own", func(t *testing.T) { Run(t, a) })
		var st unix.Statfs_t
		must(t, "statfs", unix.Statfs(a, &st))
		if st.Type == unix.FUSE_SUPER_MAGIC { // it asks more than local file systems promise
			t.Run("go-fuse", func(t *testing.T) { RunGoFuse(t, a) })
		}
	}
}
