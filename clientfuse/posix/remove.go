package posix

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func removeChecks() []check {
	return []check{
		{"unlink", checkUnlink},
		{"rmdir", checkRmdir},
		{"hard links", checkLink},
		{"open and unlinked", checkOpenUnlinked},
		{"removed working directory", checkRemovedDirectory},
	}
}

func checkUnlink(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	want(t, "unlink of an absent file", unix.Unlink(p), syscall.ENOENT)
	write(t, p, "")
	must(t, "unlink", unix.Unlink(p))
	wantAbsent(t, p)
	d := filepath.Join(dir, "d")
	must(t, "mkdir", unix.Mkdir(d, 0o755))
	want(t, "unlink of a directory", unix.Unlink(d), syscall.EISDIR)
	must(t, "symlink", unix.Symlink("d", filepath.Join(dir, "l")))
	must(t, "unlink of a link to a directory", unix.Unlink(filepath.Join(dir, "l")))
	wantMode(t, d, unix.S_IFDIR|0o755)
	// A name can be used again at once, by something else.
	write(t, p, "again")
	must(t, "unlink", unix.Unlink(p))
	must(t, "mkdir over it", unix.Mkdir(p, 0o700))
	wantMode(t, p, unix.S_IFDIR|0o700)
}

func checkRmdir(t *testing.T, dir string) {
	d := filepath.Join(dir, "d")
	want(t, "rmdir of an absent directory", unix.Rmdir(d), syscall.ENOENT)
	must(t, "mkdir", unix.Mkdir(d, 0o755))
	write(t, filepath.Join(d, "f"), "")
	want(t, "rmdir of a full directory", unix.Rmdir(d), syscall.ENOTEMPTY)
	want(t, "rmdir of .", unix.Rmdir(d+"/."), syscall.EINVAL)
	if err := unix.Rmdir(d + "/.."); err != syscall.ENOTEMPTY && err != syscall.EBUSY {
		t.Errorf("rmdir of ..: %v", err)
	}
	must(t, "unlink", unix.Unlink(filepath.Join(d, "f")))
	must(t, "rmdir", unix.Rmdir(d))
	wantAbsent(t, d)
	must(t, "symlink", unix.Symlink(".", filepath.Join(dir, "l")))
	want(t, "rmdir of a symbolic link", unix.Rmdir(filepath.Join(dir, "l")), syscall.ENOTDIR)
}

func checkLink(t *testing.T, dir string) {
	a, b, c := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "sub", "c")
	must(t, "mkdir", unix.Mkdir(filepath.Join(dir, "sub"), 0o755))
	write(t, a, "one")
	before := lstat(t, a)
	must(t, "link", unix.Link(a, b))
	must(t, "link into another directory", unix.Link(b, c))
	for _, p := range []string{a, b, c} {
		wantLinks(t, p, 3)
		if got := lstat(t, p).Ino; got != before.Ino {
			t.Errorf("%s has inode %d, want %d", filepath.Base(p), got, before.Ino)
		}
	}
	if after := lstat(t, a); !later(after.Ctim, before.Ctim) {
		t.Error("link did not change ctime")
	}
	write(t, c, "two")
	wantFile(t, a, "two")
	want(t, "link over a name", unix.Link(a, b), syscall.EEXIST)
	want(t, "link of an absent file", unix.Link(filepath.Join(dir, "x"), filepath.Join(dir, "y")), syscall.ENOENT)
	want(t, "link of a directory", unix.Link(filepath.Join(dir, "sub"), filepath.Join(dir, "y")), syscall.EPERM)
	must(t, "chmod", unix.Chmod(b, 0o600))
	wantMode(t, a, unix.S_IFREG|0o600)
	must(t, "unlink", unix.Unlink(a))
	wantLinks(t, b, 2)
	must(t, "unlink", unix.Unlink(b))
	wantLinks(t, c, 1)
	wantFile(t, c, "two")
	// A link to a symbolic link is to the link itself.
	s, s2 := filepath.Join(dir, "s"), filepath.Join(dir, "s2")
	must(t, "symlink", unix.Symlink("nowhere", s))
	must(t, "link of a symbolic link", unix.Linkat(unix.AT_FDCWD, s, unix.AT_FDCWD, s2, 0))
	wantLinks(t, s2, 2)
}

// later reports whether a is after b.
func later(a, b unix.Timespec) bool { return a.Nano() > b.Nano() }

func checkOpenUnlinked(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	write(t, p, "bytes that stay")
	fd := open(t, p, unix.O_RDWR)
	ino := fstat(t, fd).Ino
	must(t, "unlink", unix.Unlink(p))
	wantAbsent(t, p)
	if st := fstat(t, fd); st.Nlink != 0 || st.Ino != ino {
		t.Errorf("open and unlinked: %d links, inode %d (was %d)", st.Nlink, st.Ino, ino)
	}
	buf := make([]byte, 5)
	if n, err := unix.Pread(fd, buf, 0); err != nil || string(buf[:n]) != "bytes" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	_, err := unix.Pwrite(fd, []byte("BYTES"), 0)
	must(t, "write", err)
	must(t, "ftruncate", unix.Ftruncate(fd, 5))
	must(t, "fchmod", unix.Fchmod(fd, 0o600))
	must(t, "fsync", unix.Fsync(fd))
	if st := fstat(t, fd); st.Size != 5 || st.Mode&0o777 != 0o600 {
		t.Errorf("size %d, mode %o", st.Size, st.Mode)
	}
	// The name is free for another file, which is not the same one.
	write(t, p, "other")
	if other := lstat(t, p).Ino; other == ino {
		t.Error("the new file has the old one's inode number")
	}
	if n, err := unix.Pread(fd, buf, 0); err != nil || string(buf[:n]) != "BYTES" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	wantFile(t, p, "other")
}

func checkRemovedDirectory(t *testing.T, dir string) {
	d := filepath.Join(dir, "d")
	must(t, "mkdir", unix.Mkdir(d, 0o755))
	fd := open(t, d, unix.O_RDONLY|unix.O_DIRECTORY)
	must(t, "rmdir", unix.Rmdir(d))
	_, err := unix.Openat(fd, "f", unix.O_CREAT|unix.O_RDWR, 0o644)
	want(t, "create in a removed directory", err, syscall.ENOENT)
	want(t, "mkdir in a removed directory", unix.Mkdirat(fd, "x", 0o755), syscall.ENOENT)
	var st unix.Stat_t
	want(t, "fstat", unix.Fstat(fd, &st), 0)
	if st.Nlink != 0 {
		t.Errorf("a removed directory has %d links", st.Nlink)
	}
	f := os.NewFile(uintptr(duplicate(t, fd)), d)
	defer f.Close()
	if names, _ := f.Readdirnames(-1); len(names) != 0 {
		t.Errorf("a removed directory lists %q", names)
	}
}

// duplicate duplicates a descriptor.
func duplicate(t *testing.T, fd int) int {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	must(t, "dup", err)
	return n
}
