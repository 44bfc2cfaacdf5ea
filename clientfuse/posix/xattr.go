package posix

import (
	"bytes"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func xattrChecks() []check {
	return []check{
		{"set and get", checkXattr},
		{"list", checkXattrList},
		{"sizes", checkXattrSizes},
		{"directories and links", checkXattrObjects},
	}
}

// xattrFile makes a file, or skips where user attributes are not supported.
func xattrFile(t *testing.T, dir string) string {
	t.Helper()
	p := filepath.Join(dir, "f")
	write(t, p, "x")
	if err := unix.Setxattr(p, "user.probe", []byte("1"), 0); err == syscall.EOPNOTSUPP {
		t.Skip("no extended attributes here")
	}
	must(t, "removexattr", unix.Removexattr(p, "user.probe"))
	return p
}

func getxattr(p, name string) (string, error) {
	buf := make([]byte, 70_000)
	n, err := unix.Lgetxattr(p, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func checkXattr(t *testing.T, dir string) {
	p := xattrFile(t, dir)
	_, err := getxattr(p, "user.a")
	want(t, "get of an absent attribute", err, syscall.ENODATA)
	want(t, "remove of an absent attribute", unix.Removexattr(p, "user.a"), syscall.ENODATA)
	want(t, "XATTR_REPLACE of an absent attribute", unix.Setxattr(p, "user.a", []byte("v"), unix.XATTR_REPLACE), syscall.ENODATA)
	before := lstat(t, p)
	step()
	must(t, "set", unix.Setxattr(p, "user.a", []byte("one"), unix.XATTR_CREATE))
	if after := lstat(t, p); !later(after.Ctim, before.Ctim) {
		t.Error("setxattr did not change ctime")
	}
	want(t, "XATTR_CREATE again", unix.Setxattr(p, "user.a", []byte("two"), unix.XATTR_CREATE), syscall.EEXIST)
	must(t, "replace", unix.Setxattr(p, "user.a", []byte("two\x00\xff"), unix.XATTR_REPLACE))
	if v, err := getxattr(p, "user.a"); err != nil || v != "two\x00\xff" {
		t.Errorf("value %q, %v", v, err)
	}
	must(t, "empty value", unix.Setxattr(p, "user.empty", nil, 0))
	if v, err := getxattr(p, "user.empty"); err != nil || v != "" {
		t.Errorf("empty value %q, %v", v, err)
	}
	must(t, "rename", unix.Rename(p, p+"2"))
	must(t, "link", unix.Link(p+"2", p+"3"))
	if v, err := getxattr(p+"3", "user.a"); err != nil || v != "two\x00\xff" {
		t.Errorf("after rename and link: %q, %v", v, err)
	}
	must(t, "remove", unix.Removexattr(p+"2", "user.a"))
	_, err = getxattr(p+"3", "user.a")
	want(t, "get after remove", err, syscall.ENODATA)
}

func listxattr(t *testing.T, p string) []string {
	t.Helper()
	buf := make([]byte, 70_000)
	n, err := unix.Llistxattr(p, buf)
	must(t, "listxattr", err)
	var names []string
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if strings.HasPrefix(name, "user.") {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}

func checkXattrList(t *testing.T, dir string) {
	p := xattrFile(t, dir)
	for _, name := range []string{"user.c", "user.a", "user.b"} {
		must(t, "set", unix.Setxattr(p, name, []byte(name), 0))
	}
	if got := strings.Join(listxattr(t, p), " "); got != "user.a user.b user.c" {
		t.Errorf("list: %s", got)
	}
	n, err := unix.Llistxattr(p, nil)
	if err != nil || n < 21 {
		t.Errorf("size of the list: %d, %v", n, err)
	}
	_, err = unix.Llistxattr(p, make([]byte, 5))
	want(t, "list into a small buffer", err, syscall.ERANGE)
}

func checkXattrSizes(t *testing.T, dir string) {
	p := xattrFile(t, dir)
	value := bytes.Repeat([]byte("v"), 1000)
	must(t, "set", unix.Setxattr(p, "user.big", value, 0))
	n, err := unix.Lgetxattr(p, "user.big", nil)
	if err != nil || n != 1000 {
		t.Errorf("size of the value: %d, %v", n, err)
	}
	_, err = unix.Lgetxattr(p, "user.big", make([]byte, 999))
	want(t, "get into a small buffer", err, syscall.ERANGE)
	want(t, "a value that is too large", unix.Setxattr(p, "user.huge", make([]byte, 65537), 0), syscall.E2BIG)
	long := "user." + strings.Repeat("n", 250)
	must(t, "the longest name", unix.Setxattr(p, long, []byte("v"), 0))
	want(t, "a name that is too long", unix.Setxattr(p, long+"n", []byte("v"), 0), syscall.ERANGE)
}

func checkXattrObjects(t *testing.T, dir string) {
	p := xattrFile(t, dir)
	must(t, "set on a directory", unix.Setxattr(dir, "user.d", []byte("dir"), 0))
	if v, err := getxattr(dir, "user.d"); err != nil || v != "dir" {
		t.Errorf("of a directory: %q, %v", v, err)
	}
	l := filepath.Join(dir, "l")
	must(t, "symlink", unix.Symlink("f", l))
	want(t, "user attribute of a symbolic link", unix.Lsetxattr(l, "user.x", []byte("v"), 0), syscall.EPERM)
	must(t, "through the link", unix.Setxattr(l, "user.x", []byte("v"), 0))
	if v, err := getxattr(p, "user.x"); err != nil || v != "v" {
		t.Errorf("through the link: %q, %v", v, err)
	}
	if os.Geteuid() == 0 {
		must(t, "trusted attribute", unix.Setxattr(p, "trusted.t", []byte("v"), 0))
		_, err := getxattr(p, "trusted.t")
		want(t, "get of a trusted attribute", err, 0)
	}
	fd := open(t, p, unix.O_RDWR)
	must(t, "fsetxattr", unix.Fsetxattr(fd, "user.f", []byte("fd"), 0))
	must(t, "unlink", unix.Unlink(p))
	buf := make([]byte, 10)
	if n, err := unix.Fgetxattr(fd, "user.f", buf); err != nil || string(buf[:n]) != "fd" {
		t.Errorf("of an unlinked file: %q, %v", buf[:n], err)
	}
}
