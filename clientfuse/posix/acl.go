package posix

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func aclChecks() []check {
	return []check{
		{"set and get", checkACL},
		{"mode", checkACLMode},
		{"errors", checkACLErrors},
		{"users groups and mask", checkACLClasses},
		{"directories", checkACLDirectories},
		{"default", checkACLDefault},
		{"set-group-id", checkACLSetGID},
		{"goes along", checkACLMoves},
	}
}

const (
	accessACL  = "system.posix_acl_access"
	defaultACL = "system.posix_acl_default"
)

// setACL sets an ACL as setfacl writes it in short, e.g. "u::rw-,u:5:r--,g::r--,m::r--,o::---".
func setACL(p, name, text string) error {
	value := binary.LittleEndian.AppendUint32(nil, 2)
	for entry := range strings.SplitSeq(text, ",") {
		f := strings.Split(entry, ":")
		tag, id := map[string]uint16{"u": 1, "g": 4, "m": 16, "o": 32}[f[0]], uint32(1<<32-1)
		if f[1] != "" {
			tag *= 2
			if _, err := fmt.Sscan(f[1], &id); err != nil {
				return err
			}
		}
		var perm uint16
		for i, c := range f[2] {
			if c != '-' {
				perm |= 4 >> i
			}
		}
		value = binary.LittleEndian.AppendUint16(value, tag)
		value = binary.LittleEndian.AppendUint16(value, perm)
		value = binary.LittleEndian.AppendUint32(value, id)
	}
	return unix.Lsetxattr(p, name, value, 0)
}

// getACL returns an ACL as setACL takes it, "" if there is none.
func getACL(t *testing.T, p, name string) string {
	t.Helper()
	buf := make([]byte, 5000)
	n, err := unix.Lgetxattr(p, name, buf)
	if err == syscall.ENODATA {
		return ""
	}
	must(t, "get "+name, err)
	var entries []string
	for b := buf[4:n]; len(b) > 0; b = b[8:] {
		tag, perm := binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint16(b[2:])
		s := map[uint16]string{1: "u:", 2: "u:", 4: "g:", 8: "g:", 16: "m:", 32: "o:"}[tag]
		if tag == 2 || tag == 8 {
			s += fmt.Sprint(binary.LittleEndian.Uint32(b[4:]))
		}
		s += ":"
		for i, c := range "rwx" {
			if perm&(4>>i) == 0 {
				c = '-'
			}
			s += string(c)
		}
		entries = append(entries, s)
	}
	return strings.Join(entries, ",")
}

func wantACL(t *testing.T, p, name, text string) {
	t.Helper()
	if got := getACL(t, p, name); got != text {
		t.Errorf("%s of %s is %q, want %q", name, filepath.Base(p), got, text)
	}
}

// aclFile makes a file of root's, or skips where ACLs are not supported.
func aclFile(t *testing.T, dir string) string {
	t.Helper()
	needRoot(t)
	p := filepath.Join(dir, "f")
	owned(t, p, user{}, 0o640)
	if _, err := unix.Getxattr(p, accessACL, nil); err == syscall.EOPNOTSUPP {
		t.Skip("no ACLs here")
	}
	return p
}

func checkACL(t *testing.T, dir string) {
	p := aclFile(t, dir)
	wantACL(t, p, accessACL, "")
	const text = "u::rw-,u:1001:rw-,u:1002:---,g::r--,g:5005:rwx,m::rwx,o::---"
	before := lstat(t, p)
	step()
	must(t, "set", setACL(p, accessACL, text))
	wantACL(t, p, accessACL, text)
	if after := lstat(t, p); !later(after.Ctim, before.Ctim) || after.Mtim != before.Mtim {
		t.Errorf("setting an ACL: ctime %v -> %v, mtime %v -> %v", before.Ctim, after.Ctim, before.Mtim, after.Mtim)
	}
	buf := make([]byte, 100)
	n, err := unix.Listxattr(p, buf)
	must(t, "listxattr", err)
	if !slices.Contains(strings.Split(string(buf[:n]), "\x00"), accessACL) {
		t.Errorf("not among the attributes: %q", buf[:n])
	}
	must(t, "remove", unix.Removexattr(p, accessACL))
	wantACL(t, p, accessACL, "")
	must(t, "remove again", unix.Removexattr(p, accessACL))
}

// checkACLMode: the mode shows owner, mask and others, and chmod changes them.
func checkACLMode(t *testing.T, dir string) {
	p := aclFile(t, dir)
	must(t, "set", setACL(p, accessACL, "u::rwx,u:1001:rw-,g::r--,m::rw-,o::--x"))
	wantMode(t, p, unix.S_IFREG|0o761)
	must(t, "chmod", unix.Chmod(p, 0o604))
	wantACL(t, p, accessACL, "u::rw-,u:1001:rw-,g::r--,m::---,o::r--")
	must(t, "chmod", unix.Chmod(p, 0o670))
	wantACL(t, p, accessACL, "u::rw-,u:1001:rw-,g::r--,m::rwx,o::---")
	must(t, "what the mode can say", setACL(p, accessACL, "u::rw-,g::rw-,o::r--"))
	wantACL(t, p, accessACL, "")
	wantMode(t, p, unix.S_IFREG|0o664)
}

func checkACLErrors(t *testing.T, dir string) {
	p := aclFile(t, dir)
	must(t, "chmod", unix.Chmod(p, 0o666))
	const text = "u::rw-,u:1001:rw-,g::r--,m::rw-,o::---"
	want(t, "by another", as(t, bob, func() error { return setACL(p, accessACL, text) }), syscall.EPERM)
	must(t, "chown", unix.Chown(p, bob.uid, bob.gid))
	want(t, "by the owner", as(t, bob, func() error { return setACL(p, accessACL, text) }), 0)
	want(t, "removed by another", as(t, alice, func() error { return unix.Removexattr(p, accessACL) }), syscall.EPERM)
	want(t, "named ones without a mask", setACL(p, accessACL, "u::rw-,u:1001:rw-,g::r--,o::---"), syscall.EINVAL)
	want(t, "without others", setACL(p, accessACL, "u::rw-,g::r--"), syscall.EINVAL)
	want(t, "out of order", setACL(p, accessACL, "g::r--,u::rw-,o::---"), syscall.EINVAL)
	want(t, "a default one of a file", setACL(p, defaultACL, text), syscall.EACCES)
	want(t, "no ACL at all", unix.Setxattr(p, accessACL, []byte("abc"), 0), syscall.EINVAL)
	want(t, "of another version", unix.Setxattr(p, accessACL, []byte{9, 0, 0, 0}, 0), syscall.EOPNOTSUPP)
	l := filepath.Join(dir, "l")
	must(t, "symlink", unix.Symlink("f", l))
	want(t, "of a symbolic link", setACL(l, accessACL, text), syscall.EOPNOTSUPP)
}

func checkACLClasses(t *testing.T, dir string) {
	p := aclFile(t, dir)
	carol := user{uid: 1003, gid: 1003, groups: []int{5005}}
	for _, c := range []struct {
		acl               string
		who               user
		read, write, both syscall.Errno
	}{
		{"u::---,u:1001:rw-,g::---,m::rw-,o::---", alice, 0, 0, 0},
		{"u::---,u:1001:rw-,g::---,m::r--,o::---", alice, 0, syscall.EACCES, syscall.EACCES}, // the mask bounds her
		{"u::rw-,u:1001:rw-,g::---,m::rw-,o::---", bob, syscall.EACCES, syscall.EACCES, syscall.EACCES},
		{"u::rw-,u:1001:---,g::rw-,m::rw-,o::rw-", alice, syscall.EACCES, syscall.EACCES, syscall.EACCES}, // her entry counts, not a better one
		{"u::rw-,g::r--,g:5005:-w-,m::rwx,o::rw-", carol, syscall.EACCES, 0, syscall.EACCES},
		{"u::rw-,g::r--,g:1003:r--,g:5005:-w-,m::rwx,o::rw-", carol, 0, 0, syscall.EACCES}, // one group or the other
		{"u::rw-,g::rw-,g:5005:r--,m::rwx,o::---", user{uid: 1004, gid: 0}, 0, 0, 0},
		{"u::rw-,u:1001:r--,g::---,m::r--,o::rw-", bob, 0, 0, 0},
		{"u::---,u:1001:---,g::---,m::rwx,o::---", user{}, 0, 0, 0},
	} {
		must(t, "set", setACL(p, accessACL, c.acl))
		want(t, c.acl+": read", opens(t, c.who, p, unix.O_RDONLY), c.read)
		want(t, c.acl+": write", opens(t, c.who, p, unix.O_WRONLY), c.write)
		want(t, c.acl+": both", opens(t, c.who, p, unix.O_RDWR), c.both)
		want(t, c.acl+": access", as(t, c.who, func() error { return unix.Access(p, unix.R_OK|unix.W_OK) }), c.both)
	}
	must(t, "an empty mask", setACL(p, accessACL, "u::rw-,u:1001:rw-,g::---,m::---,o::r--"))
	want(t, "an empty mask: the mode decides", opens(t, alice, p, unix.O_RDONLY), 0)
}

func checkACLDirectories(t *testing.T, dir string) {
	aclFile(t, dir)
	d := filepath.Join(dir, "d")
	ownedDir(t, d, user{}, 0o700)
	f := filepath.Join(d, "f")
	owned(t, f, bob, 0o666)
	n := filepath.Join(d, "n")
	want(t, "a file behind it", opens(t, alice, f, unix.O_RDONLY), syscall.EACCES)
	must(t, "set", setACL(d, accessACL, "u::rwx,u:1001:--x,g::---,m::rwx,o::---"))
	want(t, "with search", opens(t, alice, f, unix.O_RDONLY), 0)
	want(t, "with search: listing", opens(t, alice, d, unix.O_RDONLY|unix.O_DIRECTORY), syscall.EACCES)
	want(t, "with search: create", opens(t, alice, n, unix.O_CREAT|unix.O_WRONLY), syscall.EACCES)
	want(t, "with search: unlink", as(t, alice, func() error { return unix.Unlink(f) }), syscall.EACCES)
	must(t, "set", setACL(d, accessACL, "u::rwx,u:1001:-wx,g::---,m::rwx,o::---"))
	want(t, "with write: create", opens(t, alice, n, unix.O_CREAT|unix.O_WRONLY), 0)
	want(t, "with write: mkdir", as(t, alice, func() error { return unix.Mkdir(n+"d", 0o755) }), 0)
	want(t, "with write: rename", as(t, alice, func() error { return unix.Rename(f, f+"2") }), 0)
	want(t, "with write: unlink", as(t, alice, func() error { return unix.Unlink(f + "2") }), 0)
	must(t, "set", setACL(d, accessACL, "u::rwx,u:1001:r-x,g::---,m::rwx,o::---"))
	want(t, "with read: listing", as(t, alice, func() error { _, err := os.ReadDir(d); return err }), 0)
	want(t, "with read: create", opens(t, alice, n+"2", unix.O_CREAT|unix.O_WRONLY), syscall.EACCES)
	want(t, "others", opens(t, bob, n, unix.O_RDONLY), syscall.EACCES)
}

// checkACLDefault: a default ACL takes the place of the umask.
func checkACLDefault(t *testing.T, dir string) {
	aclFile(t, dir)
	defer unix.Umask(unix.Umask(0o077))
	const text = "u::rwx,u:1001:rwx,g::r-x,m::rwx,o::r-x"
	must(t, "set", setACL(dir, defaultACL, text))
	in := func(name string) string { return filepath.Join(dir, name) }
	fd, err := unix.Open(in("file"), unix.O_CREAT|unix.O_WRONLY, 0o666)
	must(t, "create", err)
	unix.Close(fd)
	must(t, "mkdir", unix.Mkdir(in("dir"), 0o775))
	must(t, "mknod", unix.Mknod(in("fifo"), unix.S_IFIFO|0o600, 0))
	must(t, "symlink", unix.Symlink("x", in("link")))
	wantACL(t, in("file"), accessACL, "u::rw-,u:1001:rwx,g::r-x,m::rw-,o::r--")
	wantMode(t, in("file"), unix.S_IFREG|0o664)
	wantACL(t, in("dir"), accessACL, text)
	wantACL(t, in("dir"), defaultACL, text)
	wantMode(t, in("dir"), unix.S_IFDIR|0o775)
	wantACL(t, in("fifo"), accessACL, "u::rw-,u:1001:rwx,g::r-x,m::---,o::---")
	wantMode(t, in("link"), unix.S_IFLNK|0o777)
	if fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o660); err == nil {
		if st := fstat(t, fd); st.Mode != unix.S_IFREG|0o660 {
			t.Errorf("O_TMPFILE has mode %o", st.Mode)
		}
		unix.Close(fd)
	}
	must(t, "what the mode can say", setACL(dir, defaultACL, "u::rwx,g::rwx,o::r-x"))
	fd, err = unix.Open(in("file2"), unix.O_CREAT|unix.O_WRONLY, 0o666)
	must(t, "create", err)
	unix.Close(fd)
	wantACL(t, in("file2"), accessACL, "")
	wantMode(t, in("file2"), unix.S_IFREG|0o664)
	must(t, "remove", unix.Removexattr(dir, defaultACL))
	must(t, "mkdir", unix.Mkdir(in("dir2"), 0o775))
	wantMode(t, in("dir2"), unix.S_IFDIR|0o700)
	wantACL(t, in("dir2"), defaultACL, "")
}

// checkACLSetGID: an ACL set by who is not in the group clears set-group-id.
func checkACLSetGID(t *testing.T, dir string) {
	p := aclFile(t, dir)
	const text = "u::rwx,u:1002:r--,g::r-x,m::r-x,o::---"
	for _, c := range []struct {
		by   user
		mode uint32
	}{
		{user{uid: 1001, gid: 1001}, 0o750},
		{user{uid: 1001, gid: 1001, groups: []int{5005}}, 0o2750},
		{user{}, 0o2750},
	} {
		must(t, "chown", unix.Chown(p, 1001, 5005))
		must(t, "chmod", unix.Chmod(p, 0o2751))
		want(t, "set", as(t, c.by, func() error { return setACL(p, accessACL, text) }), 0)
		wantMode(t, p, unix.S_IFREG|c.mode)
		must(t, "remove", unix.Removexattr(p, accessACL))
	}
}

func checkACLMoves(t *testing.T, dir string) {
	p := aclFile(t, dir)
	const text = "u::rw-,u:1001:r--,g::---,m::r--,o::---"
	must(t, "set", setACL(p, accessACL, text))
	must(t, "mkdir", unix.Mkdir(filepath.Join(dir, "d"), 0o755))
	q := filepath.Join(dir, "d", "g")
	must(t, "rename", unix.Rename(p, q))
	wantACL(t, q, accessACL, text)
	must(t, "link", unix.Link(q, p))
	wantACL(t, p, accessACL, text)
	want(t, "read by the other name", opens(t, alice, p, unix.O_RDONLY), 0)
	fd := open(t, p, unix.O_RDWR)
	must(t, "unlink", unix.Unlink(p))
	must(t, "unlink", unix.Unlink(q))
	if n, err := unix.Fgetxattr(fd, accessACL, nil); err != nil || n != 4+5*8 {
		t.Errorf("of an unlinked file: %d bytes, %v", n, err)
	}
	must(t, "fchmod", unix.Fchmod(fd, 0o660))
	if st := fstat(t, fd); st.Mode != unix.S_IFREG|0o660 {
		t.Errorf("mode %o", st.Mode)
	}
}

// crossACL: what is set on one mount counts on the other from then on.
func crossACL(t *testing.T, a, b string) {
	aclFile(t, a)
	d := filepath.Join(a, "d")
	ownedDir(t, d, user{}, 0o755)
	owned(t, filepath.Join(d, "f"), user{}, 0o600)
	other := filepath.Join(b, "d", "f")
	for range 5 {
		want(t, "before", opens(t, alice, other, unix.O_RDONLY), syscall.EACCES)
		must(t, "let in", setACL(filepath.Join(d, "f"), accessACL, "u::rw-,u:1001:r--,g::---,m::r--,o::---"))
		want(t, "let in", opens(t, alice, other, unix.O_RDONLY), 0)
		must(t, "close the directory", setACL(d, accessACL, "u::rwx,u:1001:---,g::r-x,m::r-x,o::r-x"))
		want(t, "behind a closed directory", opens(t, alice, other, unix.O_RDONLY), syscall.EACCES)
		must(t, "open it", unix.Removexattr(d, accessACL))
		want(t, "behind an open directory", opens(t, alice, other, unix.O_RDONLY), 0)
		must(t, "chmod", unix.Chmod(filepath.Join(d, "f"), 0o600))
	}
	must(t, "default", setACL(d, defaultACL, "u::rwx,u:1001:rw-,g::r-x,m::rwx,o::---"))
	owned(t, filepath.Join(b, "d", "g"), user{}, 0o660)
	wantACL(t, filepath.Join(a, "d", "g"), accessACL, "u::rw-,u:1001:rw-,g::r-x,m::rw-,o::---")
	want(t, "what was made there", opens(t, alice, filepath.Join(a, "d", "g"), unix.O_RDWR), 0)
}
