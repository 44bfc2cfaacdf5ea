package posix

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func createChecks() []check {
	return []check{
		{"open", checkOpen},
		{"exclusive", checkExclusive},
		{"truncate on open", checkOpenTruncate},
		{"mkdir", checkMkdir},
		{"umask", checkUmask},
		{"special files", checkMknod},
		{"symlink", checkSymlink},
		{"symlink loop", checkSymlinkLoop},
		{"not a directory", checkNotDirectory},
		{"tmpfile", checkTmpfile},
		{"setgid directory", checkSetgidDirectory},
	}
}

func checkOpen(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	_, err := unix.Open(p, unix.O_RDONLY, 0)
	want(t, "open of an absent file", err, syscall.ENOENT)
	fd := open(t, p, unix.O_CREAT|unix.O_RDWR)
	if st := fstat(t, fd); st.Mode != unix.S_IFREG|0o644 || st.Size != 0 || st.Nlink != 1 {
		t.Errorf("a new file: mode %o, size %d, %d links", st.Mode, st.Size, st.Nlink)
	}
	_, err = unix.Open(dir, unix.O_WRONLY, 0)
	want(t, "open of a directory for writing", err, syscall.EISDIR)
	_, err = unix.Open(dir, unix.O_RDWR|unix.O_CREAT, 0o644)
	want(t, "O_CREAT of a directory", err, syscall.EISDIR)
	_, err = unix.Open(p, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	want(t, "O_DIRECTORY of a file", err, syscall.ENOTDIR)
	must(t, "symlink", unix.Symlink("f", filepath.Join(dir, "link")))
	_, err = unix.Open(filepath.Join(dir, "link"), unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	want(t, "O_NOFOLLOW of a symbolic link", err, syscall.ELOOP)
	if a, b := fstat(t, open(t, filepath.Join(dir, "link"), unix.O_RDONLY)), fstat(t, fd); a.Ino != b.Ino {
		t.Errorf("through the link: inode %d, want %d", a.Ino, b.Ino)
	}
	fd2 := open(t, p, unix.O_WRONLY)
	_, err = unix.Read(fd2, make([]byte, 1))
	want(t, "read of a descriptor for writing", err, syscall.EBADF)
	fd3 := open(t, p, unix.O_RDONLY)
	_, err = unix.Write(fd3, []byte("x"))
	want(t, "write to a descriptor for reading", err, syscall.EBADF)
}

func checkExclusive(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	write(t, p, "kept")
	const flags = unix.O_CREAT | unix.O_EXCL | unix.O_RDWR
	_, err := unix.Open(p, flags|unix.O_TRUNC, 0o644)
	want(t, "O_EXCL of a file", err, syscall.EEXIST)
	wantFile(t, p, "kept")
	must(t, "symlink", unix.Symlink("nowhere", filepath.Join(dir, "dangling")))
	_, err = unix.Open(filepath.Join(dir, "dangling"), flags, 0o644)
	want(t, "O_EXCL of a dangling link", err, syscall.EEXIST)
	wantAbsent(t, filepath.Join(dir, "nowhere"))
	open(t, filepath.Join(dir, "dangling"), unix.O_CREAT|unix.O_RDWR) // through the link
	wantMode(t, filepath.Join(dir, "nowhere"), unix.S_IFREG|0o644)
}

func checkOpenTruncate(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	write(t, p, "old contents")
	fd := open(t, p, unix.O_RDWR|unix.O_TRUNC)
	if st := fstat(t, fd); st.Size != 0 {
		t.Errorf("size %d after O_TRUNC", st.Size)
	}
	_, err := unix.Write(fd, []byte("new"))
	must(t, "write", err)
	wantFile(t, p, "new")
}

func checkMkdir(t *testing.T, dir string) {
	p := filepath.Join(dir, "d")
	must(t, "mkdir", unix.Mkdir(p, 0o755))
	wantMode(t, p, unix.S_IFDIR|0o755)
	wantLinks(t, p, 2)
	want(t, "mkdir over a directory", unix.Mkdir(p, 0o755), syscall.EEXIST)
	want(t, "mkdir below an absent one", unix.Mkdir(filepath.Join(dir, "x", "y"), 0o755), syscall.ENOENT)
	write(t, filepath.Join(dir, "f"), "")
	want(t, "mkdir over a file", unix.Mkdir(filepath.Join(dir, "f"), 0o755), syscall.EEXIST)
	must(t, "mkdir", unix.Mkdir(filepath.Join(p, "sub"), 0o755))
	wantLinks(t, p, 3)
	must(t, "rmdir", unix.Rmdir(filepath.Join(p, "sub")))
	wantLinks(t, p, 2)
}

// checkUmask: the process's umask counts, whatever the file system's process has.
func checkUmask(t *testing.T, dir string) {
	old := unix.Umask(0o027)
	defer unix.Umask(old)
	fd, err := unix.Open(filepath.Join(dir, "f"), unix.O_CREAT|unix.O_WRONLY, 0o666)
	must(t, "open", err)
	unix.Close(fd)
	must(t, "mkdir", unix.Mkdir(filepath.Join(dir, "d"), 0o777))
	must(t, "mknod", unix.Mknod(filepath.Join(dir, "p"), unix.S_IFIFO|0o666, 0))
	unix.Umask(0)
	must(t, "mkdir", unix.Mkdir(filepath.Join(dir, "d0"), 0o777))
	wantMode(t, filepath.Join(dir, "f"), unix.S_IFREG|0o640)
	wantMode(t, filepath.Join(dir, "d"), unix.S_IFDIR|0o750)
	wantMode(t, filepath.Join(dir, "p"), unix.S_IFIFO|0o640)
	wantMode(t, filepath.Join(dir, "d0"), unix.S_IFDIR|0o777)
}

func checkMknod(t *testing.T, dir string) {
	for name, mode := range map[string]uint32{"fifo": unix.S_IFIFO, "socket": unix.S_IFSOCK, "file": unix.S_IFREG} {
		p := filepath.Join(dir, name)
		must(t, "mknod "+name, unix.Mknod(p, mode|0o644, 0))
		wantMode(t, p, mode|0o644)
		want(t, "mknod again", unix.Mknod(p, mode|0o644, 0), syscall.EEXIST)
	}
	if os.Geteuid() != 0 {
		return
	}
	dev := unix.Mkdev(8, 300)
	must(t, "mknod block", unix.Mknod(filepath.Join(dir, "block"), unix.S_IFBLK|0o600, int(dev)))
	if st := lstat(t, filepath.Join(dir, "block")); st.Rdev != dev || st.Mode != unix.S_IFBLK|0o600 {
		t.Errorf("block device: %o %x, want %x", st.Mode, st.Rdev, dev)
	}
}

func checkSymlink(t *testing.T, dir string) {
	for _, target := range []string{"f", "/absolute/nowhere", strings.Repeat("x", 4095), "with space\nand line", "\xff\xfe"} {
		p := filepath.Join(dir, "l")
		must(t, "symlink", unix.Symlink(target, p))
		got, err := os.Readlink(p)
		if err != nil || got != target {
			t.Errorf("readlink: %s, %v, want %s", brief(got), err, brief(target))
		}
		if st := lstat(t, p); st.Size != int64(len(target)) || st.Mode != unix.S_IFLNK|0o777 {
			t.Errorf("symbolic link: size %d, mode %o", st.Size, st.Mode)
		}
		want(t, "symlink over one", unix.Symlink(target, p), syscall.EEXIST)
		must(t, "unlink", unix.Unlink(p))
	}
	write(t, filepath.Join(dir, "f"), "")
	_, err := unix.Readlink(filepath.Join(dir, "f"), make([]byte, 10))
	want(t, "readlink of a file", err, syscall.EINVAL)
}

func checkSymlinkLoop(t *testing.T, dir string) {
	must(t, "symlink", unix.Symlink("b", filepath.Join(dir, "a")))
	must(t, "symlink", unix.Symlink("a", filepath.Join(dir, "b")))
	_, err := unix.Open(filepath.Join(dir, "a"), unix.O_RDONLY, 0)
	want(t, "open of a loop", err, syscall.ELOOP)
	_, err = unix.Open(filepath.Join(dir, "a", "x"), unix.O_RDONLY, 0)
	want(t, "walk through a loop", err, syscall.ELOOP)
}

func checkNotDirectory(t *testing.T, dir string) {
	f := filepath.Join(dir, "f")
	write(t, f, "")
	below := filepath.Join(f, "x")
	_, err := unix.Open(below, unix.O_CREAT|unix.O_RDWR, 0o644)
	want(t, "create below a file", err, syscall.ENOTDIR)
	want(t, "mkdir below a file", unix.Mkdir(below, 0o755), syscall.ENOTDIR)
	want(t, "unlink below a file", unix.Unlink(below), syscall.ENOTDIR)
	want(t, "rmdir of a file", unix.Rmdir(f), syscall.ENOTDIR)
	want(t, "symlink below a file", unix.Symlink("t", below), syscall.ENOTDIR)
	want(t, "link below a file", unix.Link(f, below), syscall.ENOTDIR)
	want(t, "rename below a file", unix.Rename(f, filepath.Join(f, "x")), syscall.ENOTDIR)
	var st unix.Stat_t
	want(t, "stat with a slash behind", unix.Stat(f+"/", &st), syscall.ENOTDIR)
}

func checkTmpfile(t *testing.T, dir string) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
	if err == syscall.EOPNOTSUPP || err == syscall.EISDIR {
		t.Skip("no O_TMPFILE here")
	}
	must(t, "O_TMPFILE", err)
	defer unix.Close(fd)
	if st := fstat(t, fd); st.Nlink != 0 {
		t.Errorf("%d links", st.Nlink)
	}
	_, err = unix.Write(fd, []byte("unnamed"))
	must(t, "write", err)
	if names := list(t, dir); len(names) != 0 {
		t.Errorf("the directory shows %q", names)
	}
	buf := make([]byte, 10)
	n, err := unix.Pread(fd, buf, 0)
	if err != nil || string(buf[:n]) != "unnamed" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	link := func(fd int, name string) error {
		return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, filepath.Join(dir, name), unix.AT_SYMLINK_FOLLOW)
	}
	must(t, "link", link(fd, "named"))
	wantFile(t, filepath.Join(dir, "named"), "unnamed")
	if a, b := fstat(t, fd), lstat(t, filepath.Join(dir, "named")); a.Ino != b.Ino || b.Nlink != 1 {
		t.Errorf("inode %d before, %d with %d links after", a.Ino, b.Ino, b.Nlink)
	}
	private, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL, 0o600)
	must(t, "O_TMPFILE with O_EXCL", err)
	defer unix.Close(private)
	want(t, "link of a file that was made with O_EXCL", link(private, "private"), syscall.ENOENT)
}

func checkSetgidDirectory(t *testing.T, dir string) {
	needRoot(t)
	must(t, "chown", unix.Chown(dir, 0, 4321))
	must(t, "chmod", unix.Chmod(dir, 0o2755))
	write(t, filepath.Join(dir, "f"), "")
	must(t, "mkdir", unix.Mkdir(filepath.Join(dir, "d"), 0o755))
	must(t, "symlink", unix.Symlink("f", filepath.Join(dir, "l")))
	for _, name := range []string{"f", "d", "l"} {
		if st := lstat(t, filepath.Join(dir, name)); st.Gid != 4321 {
			t.Errorf("%s has group %d, want the directory's", name, st.Gid)
		}
	}
	wantMode(t, filepath.Join(dir, "d"), unix.S_IFDIR|0o2755)
	wantMode(t, filepath.Join(dir, "f"), unix.S_IFREG|0o644)
}
