package posix

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func attributeChecks() []check {
	return []check{
		{"times", checkTimes},
		{"utimens", checkUtimens},
		{"chmod", checkChmod},
		{"chown", checkChown},
		{"truncate", checkTruncate},
		{"set-id bits", checkSetID},
		{"statfs", checkStatfs},
		{"birth time", checkBirth},
	}
}

// step waits until the clock by which file times are taken has moved: the
// kernel's own is as coarse as its tick.
func step() { time.Sleep(10 * time.Millisecond) }

// checkTimes: which operation moves which time of what.
func checkTimes(t *testing.T, dir string) {
	f := filepath.Join(dir, "f")
	write(t, f, "x")
	moved := func(what string, p string, act func() error, mtime, ctime bool) {
		t.Helper()
		before := lstat(t, p)
		step()
		must(t, what, act())
		after := lstat(t, p)
		if got := later(after.Mtim, before.Mtim); got != mtime {
			t.Errorf("%s: mtime of %s moved: %v, want %v", what, filepath.Base(p), got, mtime)
		}
		if got := later(after.Ctim, before.Ctim); got != ctime {
			t.Errorf("%s: ctime of %s moved: %v, want %v", what, filepath.Base(p), got, ctime)
		}
	}
	fd := open(t, f, unix.O_RDWR)
	// A network file system may stamp the bytes when they reach the server.
	moved("write", f, func() error { _, err := unix.Write(fd, []byte("y")); return errors.Join(err, unix.Fsync(fd)) }, true, true)
	moved("chmod", f, func() error { return unix.Chmod(f, 0o600) }, false, true)
	moved("truncate", f, func() error { return unix.Truncate(f, 100) }, true, true)
	moved("link", f, func() error { return unix.Link(f, filepath.Join(dir, "g")) }, false, true)
	moved("unlink of a second name", f, func() error { return unix.Unlink(filepath.Join(dir, "g")) }, false, true)
	moved("rename", f, func() error { return unix.Rename(f, f) }, false, false)
	moved("create", dir, func() error { return unix.Mknod(filepath.Join(dir, "n"), unix.S_IFREG|0o644, 0) }, true, true)
	moved("unlink", dir, func() error { return unix.Unlink(filepath.Join(dir, "n")) }, true, true)
	moved("mkdir", dir, func() error { return unix.Mkdir(filepath.Join(dir, "d"), 0o755) }, true, true)
	moved("rmdir", dir, func() error { return unix.Rmdir(filepath.Join(dir, "d")) }, true, true)
	moved("symlink", dir, func() error { return unix.Symlink("x", filepath.Join(dir, "s")) }, true, true)
	moved("rename within", dir, func() error { return unix.Rename(filepath.Join(dir, "s"), filepath.Join(dir, "s2")) }, true, true)
	moved("stat", dir, func() error { var st unix.Stat_t; return unix.Stat(f, &st) }, false, false)
	moved("write to a file", dir, func() error { _, err := unix.Write(fd, []byte("z")); return err }, false, false)
}

func checkUtimens(t *testing.T, dir string) {
	f, l := filepath.Join(dir, "f"), filepath.Join(dir, "l")
	write(t, f, "x")
	must(t, "symlink", unix.Symlink("f", l))
	set := func(p string, a, m unix.Timespec, flags int) {
		t.Helper()
		must(t, "utimensat", unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{a, m}, flags))
	}
	a, m := unix.Timespec{Sec: 1e9, Nsec: 123456789}, unix.Timespec{Sec: 2e9, Nsec: 987654321}
	set(f, a, m, 0)
	if st := lstat(t, f); st.Atim != a || st.Mtim != m {
		t.Errorf("times %v %v, want %v %v", st.Atim, st.Mtim, a, m)
	}
	omit := unix.Timespec{Nsec: unix.UTIME_OMIT}
	set(f, omit, unix.Timespec{Sec: 5}, 0)
	if st := lstat(t, f); st.Atim != a || st.Mtim.Sec != 5 || st.Mtim.Nsec != 0 {
		t.Errorf("UTIME_OMIT: times %v %v", st.Atim, st.Mtim)
	}
	before := time.Now().Add(-5 * time.Second).Unix()
	set(f, unix.Timespec{Nsec: unix.UTIME_NOW}, omit, 0)
	if st := lstat(t, f); st.Atim.Sec < before || st.Mtim.Sec != 5 {
		t.Errorf("UTIME_NOW: times %v %v", st.Atim, st.Mtim)
	}
	old := unix.Timespec{Sec: -1000, Nsec: 7}
	set(f, old, old, 0)
	if st := lstat(t, f); st.Mtim != old {
		t.Errorf("before 1970: %v, want %v", st.Mtim, old)
	}
	set(l, a, m, unix.AT_SYMLINK_NOFOLLOW)
	if st := lstat(t, l); st.Mtim != m {
		t.Errorf("of a symbolic link: %v, want %v", st.Mtim, m)
	}
	if st := lstat(t, f); st.Mtim != old {
		t.Error("the link's target changed too")
	}
	fd := open(t, f, unix.O_RDWR)
	_, err := unix.Write(fd, []byte("new"))
	must(t, "write", err)
	must(t, "fsync", unix.Fsync(fd))
	set(f, a, m, 0)
	if st := fstat(t, fd); st.Mtim != m {
		t.Errorf("set after a write: %v, want %v", st.Mtim, m)
	}
}

func checkChmod(t *testing.T, dir string) {
	f := filepath.Join(dir, "f")
	write(t, f, "x")
	for _, mode := range []uint32{0, 0o777, 0o640, 0o1755, 0o6711, 0o7777} {
		must(t, "chmod", unix.Chmod(f, mode))
		wantMode(t, f, unix.S_IFREG|mode)
	}
	fd := open(t, f, unix.O_RDONLY)
	must(t, "fchmod", unix.Fchmod(fd, 0o644))
	wantMode(t, f, unix.S_IFREG|0o644)
	want(t, "chmod of an absent file", unix.Chmod(filepath.Join(dir, "x"), 0o644), syscall.ENOENT)
}

func checkChown(t *testing.T, dir string) {
	needRoot(t)
	f, l := filepath.Join(dir, "f"), filepath.Join(dir, "l")
	write(t, f, "x")
	must(t, "symlink", unix.Symlink("f", l))
	must(t, "chown", unix.Chown(f, 1000, 1001))
	must(t, "lchown", unix.Lchown(l, 2000, 2001))
	must(t, "chown of the group alone", unix.Chown(f, -1, 1002))
	must(t, "chown of nothing", unix.Chown(f, -1, -1))
	if st := lstat(t, f); st.Uid != 1000 || st.Gid != 1002 {
		t.Errorf("owner %d:%d", st.Uid, st.Gid)
	}
	if st := lstat(t, l); st.Uid != 2000 || st.Gid != 2001 {
		t.Errorf("the link's owner %d:%d", st.Uid, st.Gid)
	}
}

func checkTruncate(t *testing.T, dir string) {
	f := filepath.Join(dir, "f")
	write(t, f, "0123456789")
	must(t, "truncate", unix.Truncate(f, 4))
	wantFile(t, f, "0123")
	must(t, "truncate to longer", unix.Truncate(f, 8))
	wantFile(t, f, "0123\x00\x00\x00\x00")
	fd := open(t, f, unix.O_RDWR)
	must(t, "ftruncate", unix.Ftruncate(fd, 2))
	must(t, "ftruncate", unix.Ftruncate(fd, 6))
	wantFile(t, f, "01\x00\x00\x00\x00")
	ro := open(t, f, unix.O_RDONLY)
	want(t, "ftruncate of a descriptor for reading", unix.Ftruncate(ro, 0), syscall.EINVAL)
	want(t, "truncate below zero", unix.Truncate(f, -1), syscall.EINVAL)
	want(t, "truncate of a directory", unix.Truncate(dir, 0), syscall.EISDIR)
	want(t, "truncate of an absent file", unix.Truncate(filepath.Join(dir, "x"), 0), syscall.ENOENT)
	// A hole made by truncation stays one after a write behind it.
	must(t, "ftruncate", unix.Ftruncate(fd, 0))
	_, err := unix.Pwrite(fd, []byte("end"), 3)
	must(t, "write", err)
	wantFile(t, f, "\x00\x00\x00end")
}

// checkSetID: what a file loses when somebody changes it (FUSE K1).
func checkSetID(t *testing.T, dir string) {
	needRoot(t)
	f := filepath.Join(dir, "f")
	someone := user{uid: 1000, gid: 1000}
	fresh := func(mode uint32) {
		t.Helper()
		write(t, f, "x")
		must(t, "chown", unix.Chown(f, 1000, 1000))
		must(t, "chmod", unix.Chmod(f, mode))
	}
	fresh(0o6777)
	must(t, "write as the owner", as(t, someone, func() error {
		fd, err := unix.Open(f, unix.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte("y"))
		return err
	}))
	wantMode(t, f, unix.S_IFREG|0o777)
	fresh(0o6777)
	must(t, "truncate as the owner", as(t, someone, func() error { return unix.Truncate(f, 0) }))
	wantMode(t, f, unix.S_IFREG|0o777)
	fresh(0o6777)
	must(t, "O_TRUNC as the owner", as(t, someone, func() error {
		fd, err := unix.Open(f, unix.O_WRONLY|unix.O_TRUNC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}))
	wantMode(t, f, unix.S_IFREG|0o777)
	fresh(0o6777)
	must(t, "chown", unix.Chown(f, 1001, 1001))
	wantMode(t, f, unix.S_IFREG|0o777)
	fresh(0o2644) // without group execution setgid means something else, and stays
	must(t, "chown", unix.Chown(f, 1001, 1001))
	wantMode(t, f, unix.S_IFREG|0o2644)
	fresh(0o644)
	must(t, "chmod by an owner outside the group", unix.Chown(f, 1000, 4321))
	must(t, "chmod", as(t, someone, func() error { return unix.Chmod(f, 0o2755) }))
	wantMode(t, f, unix.S_IFREG|0o755)
}

func checkStatfs(t *testing.T, dir string) {
	var st unix.Statfs_t
	must(t, "statfs", unix.Statfs(dir, &st))
	if st.Bsize <= 0 || st.Blocks == 0 || st.Bavail > st.Blocks || st.Namelen != 255 {
		t.Errorf("statfs: %+v", st)
	}
}

func checkBirth(t *testing.T, dir string) {
	f := filepath.Join(dir, "f")
	write(t, f, "x")
	var stx unix.Statx_t
	must(t, "statx", unix.Statx(unix.AT_FDCWD, f, 0, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &stx))
	if stx.Mask&unix.STATX_BTIME == 0 {
		t.Skip("no birth times here")
	}
	if now := time.Now().Unix(); stx.Btime.Sec > now+5 || stx.Btime.Sec < now-60 {
		t.Errorf("born at %d, now is %d", stx.Btime.Sec, now)
	}
	if st := lstat(t, f); st.Ino != stx.Ino || uint32(stx.Mode) != st.Mode || stx.Nlink != uint32(st.Nlink) {
		t.Errorf("statx %+v differs from stat %+v", stx, st)
	}
}
