// Package posix is Canopy's POSIX suite: what programs rely on, asked of a mount
// directory with real system calls. It knows nothing of Canopy and passes on ext4
// and tmpfs too, which proves that the tests are right.
//
// The mount must be served by another process: a test that touches mapped memory
// of a file that its own process serves can stop the Go runtime.
package posix

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// check is one test. dir is an empty directory of its own.
type check struct {
	name string
	run  func(t *testing.T, dir string)
}

// Run runs the suite in dir, an empty directory of the file system under test.
// As root it also tests permissions, as other users, who must be able to reach
// dir (see Dir).
func Run(t *testing.T, dir string) {
	wantReachable(t, dir)
	for _, group := range []struct {
		name   string
		checks []check
	}{
		{"create", createChecks()},
		{"remove", removeChecks()},
		{"rename", renameChecks()},
		{"attributes", attributeChecks()},
		{"atime", atimeChecks()},
		{"names", nameChecks()},
		{"listing", listingChecks()},
		{"data", dataChecks()},
		{"sparse", sparseChecks()},
		{"mapping", mappingChecks()},
		{"xattr", xattrChecks()},
		{"permission", permissionChecks()},
		{"acl", aclChecks()},
		{"lock", lockChecks()},
	} {
		t.Run(group.name, func(t *testing.T) { runChecks(t, dir, group.name, group.checks) })
	}
}

// Dir makes a directory for a mount that other users can reach, unlike
// t.TempDir, and removes it at the test's end.
func Dir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "canopy-posix-")
	must(t, "mkdir", err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, "chmod", os.Chmod(dir, 0o755))
	return dir
}

func wantReachable(t *testing.T, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	var st unix.Stat_t
	if err := as(t, bob, func() error { return unix.Stat(dir+"/.", &st) }); err != nil {
		t.Fatalf("other users cannot reach %s (%v): the suite needs a directory whose parents all may search", dir, err)
	}
}

func runChecks(t *testing.T, dir, group string, checks []check) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			own := filepath.Join(dir, group+"-"+strings.ReplaceAll(c.name, " ", "-"))
			// The directory's mode must not hang on the caller's umask.
			if err := errors.Join(os.Mkdir(own, 0o755), os.Chmod(own, 0o755)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.RemoveAll(own); err != nil {
					t.Errorf("cleaning up: %v", err)
				}
			})
			c.run(t, own)
		})
	}
}

// want fails unless err is the errno; 0 is success.
func want(t *testing.T, what string, err error, errno syscall.Errno) {
	t.Helper()
	var got syscall.Errno
	if err != nil && !errors.As(err, &got) {
		t.Fatalf("%s: %v is no errno", what, err)
	}
	if got != errno {
		t.Errorf("%s: %s, want %s", what, errnoName(got), errnoName(errno))
	}
}

func errnoName(e syscall.Errno) string {
	if e == 0 {
		return "success"
	}
	return unix.ErrnoName(e)
}

// must fails the test at once on an error.
func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// write makes a file with the bytes.
func write(t *testing.T, path, data string) {
	t.Helper()
	must(t, "write", os.WriteFile(path, []byte(data), 0o644))
}

// wantFile fails unless the file has the bytes.
func wantFile(t *testing.T, path, data string) {
	t.Helper()
	got, err := os.ReadFile(path)
	must(t, "read", err)
	if string(got) != data {
		t.Errorf("%s holds %s, want %s", filepath.Base(path), brief(string(got)), brief(data))
	}
}

func brief(s string) string {
	if len(s) > 60 {
		s = s[:60] + "..."
	}
	return "\"" + strings.ReplaceAll(s, "\x00", "\\0") + "\""
}

// open opens with raw flags; the descriptor is closed at the test's end.
func open(t *testing.T, path string, flags int) int {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
	must(t, "open "+filepath.Base(path), err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func lstat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	must(t, "lstat "+filepath.Base(path), unix.Lstat(path, &st))
	return st
}

func fstat(t *testing.T, fd int) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	must(t, "fstat", unix.Fstat(fd, &st))
	return st
}

func wantMode(t *testing.T, path string, mode uint32) {
	t.Helper()
	if got := lstat(t, path).Mode; got != mode {
		t.Errorf("%s has mode %o, want %o", filepath.Base(path), got, mode)
	}
}

func wantLinks(t *testing.T, path string, n uint64) {
	t.Helper()
	if got := uint64(lstat(t, path).Nlink); got != n {
		t.Errorf("%s has %d links, want %d", filepath.Base(path), got, n)
	}
}

func wantAbsent(t *testing.T, path string) {
	t.Helper()
	var st unix.Stat_t
	want(t, "lstat "+filepath.Base(path), unix.Lstat(path, &st), syscall.ENOENT)
}

// user is who a part of a test runs as.
type user struct {
	uid, gid int
	groups   []int
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to act as other users")
	}
}

// as runs fn as the user, on a thread of its own that ends with it: the kernel
// keeps credentials by thread. fn must not start goroutines.
func as(t *testing.T, u user, fn func() error) error {
	t.Helper()
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := become(u); err != nil {
			result <- err
			return
		}
		result <- fn()
	}()
	return <-result
}

func become(u user) error {
	groups := make([]uint32, len(u.groups)+1) // one more: its address must exist
	for i, g := range u.groups {
		groups[i] = uint32(g)
	}
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS, uintptr(len(u.groups)), uintptr(unsafe.Pointer(&groups[0])), 0},
		{unix.SYS_SETRESGID, uintptr(u.gid), uintptr(u.gid), uintptr(u.gid)},
		{unix.SYS_SETRESUID, uintptr(u.uid), uintptr(u.uid), uintptr(u.uid)},
	} {
		if _, _, e := syscall.RawSyscall(call[0], call[1], call[2], call[3]); e != 0 {
			return e
		}
	}
	runtime.KeepAlive(groups)
	return nil
}
