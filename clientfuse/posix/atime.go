package posix

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func atimeChecks() []check {
	return []check{
		{"relatime", checkRelatime},
		{"what reads", checkWhatReads},
		{"set while read", checkAtimeSet},
	}
}

// needAtime skips a test of a mount whose reads move no atime.
func needAtime(t *testing.T, dir string) {
	t.Helper()
	var st unix.Statfs_t
	must(t, "statfs", unix.Statfs(dir, &st))
	if st.Flags&(unix.ST_NOATIME|unix.ST_NODIRATIME|unix.ST_RDONLY) != 0 {
		t.Skip("mounted noatime, nodiratime or ro")
	}
}

// setTimes sets atime and mtime, as long ago as they say; ctime is now.
func setTimes(t *testing.T, p string, atime, mtime time.Duration) {
	t.Helper()
	now := time.Now()
	ts := []unix.Timespec{unix.NsecToTimespec(now.Add(-atime).UnixNano()), unix.NsecToTimespec(now.Add(-mtime).UnixNano())}
	must(t, "utimensat", unix.UtimesNanoAt(unix.AT_FDCWD, p, ts, unix.AT_SYMLINK_NOFOLLOW))
}

// atimeMoves does something and fails unless p's atime moved or not, as wanted; the
// other times must not.
func atimeMoves(t *testing.T, what, p string, moves bool, act func()) {
	t.Helper()
	before := lstat(t, p)
	step()
	act()
	after := lstat(t, p)
	if got := later(after.Atim, before.Atim); got != moves {
		t.Errorf("%s: atime moved: %v, want %v (%v -> %v)", what, got, moves, before.Atim, after.Atim)
	}
	if after.Mtim != before.Mtim || after.Ctim != before.Ctim {
		t.Errorf("%s moved mtime or ctime", what)
	}
}

// checkRelatime: a read moves atime if it is not newer than mtime and ctime, and no
// other read does.
func checkRelatime(t *testing.T, dir string) {
	needAtime(t, dir)
	p := filepath.Join(dir, "f")
	write(t, p, "text")
	read := func() { wantFile(t, p, "text") }
	atimeMoves(t, "stat", p, false, func() { lstat(t, p) })
	atimeMoves(t, "the first read", p, true, read)
	atimeMoves(t, "the second", p, false, read)
	step()
	must(t, "chmod", unix.Chmod(p, 0o600))
	atimeMoves(t, "a read after chmod", p, true, read)
	atimeMoves(t, "the second", p, false, read)
	step()
	write(t, p, "text")
	atimeMoves(t, "a read after a write", p, true, read)
	atimeMoves(t, "the second", p, false, read)

	// ctime is now; an atime of the future is newer than everything.
	setTimes(t, p, -time.Hour, time.Hour)
	atimeMoves(t, "a read with a new atime", p, false, read)
	setTimes(t, p, -time.Hour, -2*time.Hour)
	before := lstat(t, p)
	step()
	read()
	if after := lstat(t, p); !later(before.Atim, after.Atim) || after.Mtim != before.Mtim {
		t.Errorf("with an mtime newer than it, a read left the atime at %v", after.Atim)
	}
	setTimes(t, p, 48*time.Hour, 96*time.Hour)
	atimeMoves(t, "a read with an atime of two days ago", p, true, read)
}

// checkWhatReads: by which calls a file, a directory and a link are read.
func checkWhatReads(t *testing.T, dir string) {
	needAtime(t, dir)
	p := filepath.Join(dir, "f")
	write(t, p, "some text")
	old := func(p string) { setTimes(t, p, 48*time.Hour, 96*time.Hour); step() }
	fd := open(t, p, unix.O_RDWR)
	buf := make([]byte, 4)
	call := func(what string, moves bool, act func() error) {
		t.Helper()
		old(p)
		atimeMoves(t, what, p, moves, func() { must(t, what, act()) })
	}
	read := func() error { _, err := unix.Pread(fd, buf, 0); return err }
	call("pread", true, read)
	call("open", false, func() error { return unix.Close(open2(t, p, unix.O_RDONLY)) })
	call("lseek to the end", false, func() error { _, err := unix.Seek(fd, 0, io.SeekEnd); return err })
	call("fstat", false, func() error { fstat(t, fd); return nil })
	call("pread by O_NOATIME", false, func() error {
		fd := open2(t, p, unix.O_RDONLY|unix.O_NOATIME)
		defer unix.Close(fd)
		_, err := unix.Pread(fd, buf, 0)
		return err
	})
	call("copying from it", true, func() error {
		dst := open2(t, filepath.Join(dir, "copy"), unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC)
		defer unix.Close(dst)
		src, off := open2(t, p, unix.O_RDONLY), int64(0)
		defer unix.Close(src)
		_, err := unix.Sendfile(dst, src, &off, 4)
		return err
	})

	d := filepath.Join(dir, "d")
	must(t, "mkdir", unix.Mkdir(d, 0o755))
	write(t, filepath.Join(d, "x"), "")
	old(d)
	atimeMoves(t, "listing", d, true, func() { _, err := os.ReadDir(d); must(t, "listing", err) })
	atimeMoves(t, "listing again", d, false, func() { _, err := os.ReadDir(d); must(t, "listing", err) })
	old(d)
	atimeMoves(t, "a walk through it", d, false, func() { lstat(t, filepath.Join(d, "x")) })

	l := filepath.Join(dir, "l")
	must(t, "symlink", unix.Symlink("f", l))
	step()
	atimeMoves(t, "readlink", l, true, func() { _, err := os.Readlink(l); must(t, "readlink", err) })

	mapped := filepath.Join(dir, "mapped")
	write(t, mapped, "mapped text")
	old(mapped)
	atimeMoves(t, "a read of its mapping", mapped, true, func() {
		if got := readMapping(t, mapped); got != 'm' {
			t.Errorf("the mapping reads %q", got)
		}
	})
}

// open2 is open without an end of its own.
func open2(t *testing.T, p string, flags int) int {
	t.Helper()
	fd, err := unix.Open(p, flags|unix.O_CLOEXEC, 0o644)
	must(t, "open", err)
	return fd
}

// readMapping opens a file, maps it and reads its first byte.
func readMapping(t *testing.T, p string) byte {
	t.Helper()
	fd := open2(t, p, unix.O_RDONLY)
	defer unix.Close(fd)
	m, err := unix.Mmap(fd, 0, 4, unix.PROT_READ, unix.MAP_SHARED)
	must(t, "mmap", err)
	defer unix.Munmap(m)
	return m[0]
}

// checkAtimeSet: an atime that is set after a read stays, whatever happens to the
// file next.
func checkAtimeSet(t *testing.T, dir string) {
	needAtime(t, dir)
	p := filepath.Join(dir, "f")
	for i, change := range []func() error{
		func() error { return nil },
		func() error { return unix.Chmod(p, 0o600) },
		func() error { return os.WriteFile(p, []byte("more"), 0o644) },
		func() error { return unix.Truncate(p, 2) },
		func() error { return unix.Rename(p, p+"2") },
	} {
		write(t, p, "text")
		step()
		wantFile(t, p, "text")
		setTimes(t, p, 96*time.Hour, 48*time.Hour)
		want := lstat(t, p).Atim
		must(t, "change", change())
		if i == 4 {
			must(t, "rename back", unix.Rename(p+"2", p))
		}
		if got := lstat(t, p).Atim; got != want {
			t.Errorf("change %d: atime %v, was set to %v", i, got, want)
		}
	}
}

// crossAtime: a read through one mount moves the atime that the other shows, soon;
// also one of what the mount has cached.
func crossAtime(t *testing.T, a, b string) {
	needAtime(t, a)
	p := filepath.Join(a, "f")
	write(t, p, "text")
	wantFile(t, p, "text")
	fd := open(t, p, unix.O_RDONLY)
	buf := make([]byte, 4)
	for i := range 3 {
		setTimes(t, filepath.Join(b, "f"), 48*time.Hour, 96*time.Hour)
		before := lstat(t, p)
		if _, err := unix.Pread(fd, buf, 0); err != nil {
			t.Fatal(err)
		}
		after := lstat(t, p)
		if !later(after.Atim, before.Atim) {
			t.Errorf("round %d: a read of what is cached did not move the atime", i)
		}
		eventually(t, "the other mount's atime", func() error {
			if st := lstat(t, filepath.Join(b, "f")); later(after.Atim, st.Atim) {
				return fmt.Errorf("is %v, not %v", st.Atim, after.Atim)
			}
			return nil
		})
	}
}
