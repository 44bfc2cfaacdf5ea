package posix

import (
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func renameChecks() []check {
	return []check{
		{"plain", checkRename},
		{"over", checkRenameOver},
		{"over an open file", checkRenameOverOpen},
		{"directories", checkRenameDirectory},
		{"into itself", checkRenameIntoItself},
		{"hard links", checkRenameLinks},
		{"noreplace", checkRenameNoReplace},
		{"exchange", checkRenameExchange},
		{"whiteout", checkRenameWhiteout},
		{"sticky numbers", checkRenameKeepsInode},
	}
}

func checkRename(t *testing.T, dir string) {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	want(t, "rename of an absent file", unix.Rename(a, b), syscall.ENOENT)
	write(t, a, "x")
	must(t, "rename onto itself", unix.Rename(a, a))
	must(t, "rename", unix.Rename(a, b))
	wantAbsent(t, a)
	wantFile(t, b, "x")
	want(t, "rename into an absent directory", unix.Rename(b, filepath.Join(dir, "no", "c")), syscall.ENOENT)
	must(t, "mkdir", unix.Mkdir(filepath.Join(dir, "d"), 0o755))
	must(t, "rename into a directory", unix.Rename(b, filepath.Join(dir, "d", "c")))
	wantFile(t, filepath.Join(dir, "d", "c"), "x")
	must(t, "symlink", unix.Symlink("d", filepath.Join(dir, "l")))
	must(t, "rename of a symbolic link", unix.Rename(filepath.Join(dir, "l"), filepath.Join(dir, "m")))
	wantMode(t, filepath.Join(dir, "m"), unix.S_IFLNK|0o777)
}

func checkRenameOver(t *testing.T, dir string) {
	a, b, d := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "d")
	write(t, a, "new")
	write(t, b, "old")
	must(t, "rename over a file", unix.Rename(a, b))
	wantFile(t, b, "new")
	wantAbsent(t, a)
	must(t, "mkdir", unix.Mkdir(d, 0o755))
	want(t, "rename of a file over a directory", unix.Rename(b, d), syscall.EISDIR)
	want(t, "rename of a directory over a file", unix.Rename(d, b), syscall.ENOTDIR)
	e := filepath.Join(dir, "e")
	must(t, "mkdir", unix.Mkdir(e, 0o755))
	must(t, "rename over an empty directory", unix.Rename(d, e))
	wantAbsent(t, d)
	must(t, "mkdir", unix.Mkdir(d, 0o755))
	write(t, filepath.Join(e, "f"), "")
	if err := unix.Rename(d, e); err != syscall.ENOTEMPTY && err != syscall.EEXIST {
		t.Errorf("rename over a full directory: %v", err)
	}
}

func checkRenameOverOpen(t *testing.T, dir string) {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "new")
	write(t, b, "old")
	fd := open(t, b, unix.O_RDWR)
	must(t, "rename", unix.Rename(a, b))
	buf := make([]byte, 8)
	if n, err := unix.Pread(fd, buf, 0); err != nil || string(buf[:n]) != "old" {
		t.Errorf("the replaced file reads %q, %v", buf[:n], err)
	}
	if st := fstat(t, fd); st.Nlink != 0 {
		t.Errorf("the replaced file has %d links", st.Nlink)
	}
	_, err := unix.Pwrite(fd, []byte("OLDER"), 0)
	must(t, "write to the replaced file", err)
	wantFile(t, b, "new")
}

func checkRenameDirectory(t *testing.T, dir string) {
	p, q := filepath.Join(dir, "p"), filepath.Join(dir, "q")
	for _, d := range []string{p, q, filepath.Join(p, "d"), filepath.Join(p, "d", "e")} {
		must(t, "mkdir", unix.Mkdir(d, 0o755))
	}
	write(t, filepath.Join(p, "d", "e", "f"), "deep")
	wantLinks(t, p, 3)
	wantLinks(t, q, 2)
	must(t, "rename", unix.Rename(filepath.Join(p, "d"), filepath.Join(q, "n")))
	wantLinks(t, p, 2)
	wantLinks(t, q, 3)
	wantFile(t, filepath.Join(q, "n", "e", "f"), "deep")
	up, qq := lstat(t, filepath.Join(q, "n", "..")), lstat(t, q)
	if up.Ino != qq.Ino {
		t.Errorf(".. leads to %d, want %d", up.Ino, qq.Ino)
	}
}

func checkRenameIntoItself(t *testing.T, dir string) {
	d := filepath.Join(dir, "d")
	must(t, "mkdir", unix.Mkdir(d, 0o755))
	must(t, "mkdir", unix.Mkdir(filepath.Join(d, "e"), 0o755))
	want(t, "rename into itself", unix.Rename(d, filepath.Join(d, "x")), syscall.EINVAL)
	want(t, "rename below itself", unix.Rename(d, filepath.Join(d, "e", "x")), syscall.EINVAL)
	want(t, "rename over an ancestor", unix.Rename(filepath.Join(d, "e"), d), syscall.ENOTEMPTY)
}

// checkRenameLinks: two names of one file; rename of one over the other does nothing.
func checkRenameLinks(t *testing.T, dir string) {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "x")
	must(t, "link", unix.Link(a, b))
	must(t, "rename", unix.Rename(a, b))
	wantLinks(t, a, 2)
	wantLinks(t, b, 2)
	c := filepath.Join(dir, "c")
	write(t, c, "y")
	must(t, "rename over one of two names", unix.Rename(c, b))
	wantLinks(t, a, 1)
	wantFile(t, a, "x")
	wantFile(t, b, "y")
}

func checkRenameNoReplace(t *testing.T, dir string) {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "a")
	write(t, b, "b")
	at := unix.AT_FDCWD
	want(t, "NOREPLACE over a file", unix.Renameat2(at, a, at, b, unix.RENAME_NOREPLACE), syscall.EEXIST)
	wantFile(t, b, "b")
	c := filepath.Join(dir, "c")
	must(t, "NOREPLACE", unix.Renameat2(at, a, at, c, unix.RENAME_NOREPLACE))
	wantFile(t, c, "a")
}

func checkRenameExchange(t *testing.T, dir string) {
	f, d := filepath.Join(dir, "f"), filepath.Join(dir, "d")
	write(t, f, "file")
	must(t, "mkdir", unix.Mkdir(d, 0o755))
	write(t, filepath.Join(d, "x"), "inside")
	at := unix.AT_FDCWD
	want(t, "EXCHANGE with an absent name",
		unix.Renameat2(at, f, at, filepath.Join(dir, "no"), unix.RENAME_EXCHANGE), syscall.ENOENT)
	must(t, "EXCHANGE", unix.Renameat2(at, f, at, d, unix.RENAME_EXCHANGE))
	wantFile(t, d, "file")
	wantFile(t, filepath.Join(f, "x"), "inside")
	wantLinks(t, dir, 3)
	sub := filepath.Join(f, "sub")
	must(t, "mkdir", unix.Mkdir(sub, 0o755))
	want(t, "EXCHANGE with an ancestor", unix.Renameat2(at, sub, at, f, unix.RENAME_EXCHANGE), syscall.EINVAL)
	want(t, "unknown flags", unix.Renameat2(at, d, at, d+"2", 1<<10), syscall.EINVAL)
}

// checkRenameWhiteout: what fuse-overlayfs and the like leave behind for a name
// that a lower layer has, too.
func checkRenameWhiteout(t *testing.T, dir string) {
	a, b, d := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "d")
	write(t, a, "a")
	write(t, b, "b")
	must(t, "mkdir", unix.Mkdir(d, 0o755))
	before := lstat(t, a)
	at := unix.AT_FDCWD
	want(t, "WHITEOUT and EXCHANGE", unix.Renameat2(at, a, at, b, unix.RENAME_WHITEOUT|unix.RENAME_EXCHANGE), syscall.EINVAL)
	want(t, "WHITEOUT and NOREPLACE", unix.Renameat2(at, a, at, b, unix.RENAME_WHITEOUT|unix.RENAME_NOREPLACE), syscall.EEXIST)
	must(t, "WHITEOUT", unix.Renameat2(at, a, at, b, unix.RENAME_WHITEOUT))
	wantFile(t, b, "a")
	if lstat(t, b).Ino != before.Ino {
		t.Error("the file has another number")
	}
	wantWhiteout := func(p string) {
		t.Helper()
		if st := lstat(t, p); st.Mode != unix.S_IFCHR || st.Rdev != 0 || st.Nlink != 1 || st.Ino == before.Ino {
			t.Errorf("%s: mode %o, device %d, %d links", filepath.Base(p), st.Mode, st.Rdev, st.Nlink)
		}
	}
	wantWhiteout(a)
	must(t, "WHITEOUT of a directory", unix.Renameat2(at, d, at, filepath.Join(dir, "e"), unix.RENAME_WHITEOUT|unix.RENAME_NOREPLACE))
	wantWhiteout(d)
	wantMode(t, filepath.Join(dir, "e"), unix.S_IFDIR|0o755)
	wantLinks(t, dir, 3)
	must(t, "unlink of a whiteout", unix.Unlink(a))
	wantAbsent(t, a)
}

func checkRenameKeepsInode(t *testing.T, dir string) {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "x")
	before := lstat(t, a)
	fd := open(t, a, unix.O_RDONLY)
	must(t, "rename", unix.Rename(a, b))
	after := lstat(t, b)
	if after.Ino != before.Ino || fstat(t, fd).Ino != before.Ino {
		t.Errorf("inode %d became %d", before.Ino, after.Ino)
	}
	if after.Mtim != before.Mtim {
		t.Error("rename changed the file's mtime")
	}
	write(t, b, "through the new name")
	buf := make([]byte, 7)
	if n, err := unix.Pread(fd, buf, 0); err != nil || string(buf[:n]) != "through" {
		t.Errorf("the old descriptor reads %q, %v", buf[:n], err)
	}
}
