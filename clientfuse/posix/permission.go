package posix

import (
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func permissionChecks() []check {
	return []check{
		{"owner group other", checkClasses},
		{"supplementary groups", checkGroups},
		{"search", checkSearch},
		{"write of the directory", checkDirectoryWrite},
		{"sticky", checkSticky},
		{"only the owner", checkOwnerOnly},
		{"chown", checkChownRights},
		{"create without rights to the file", checkCreateReadOnly},
		{"access", checkAccess},
		{"writes clear privileges", checkWriteClears},
		{"chown of nothing", checkChownNothing},
	}
}

var (
	alice = user{uid: 1001, gid: 1001}
	bob   = user{uid: 1002, gid: 1002}
)

// opens returns what open(2) with the flags answers to the user.
func opens(t *testing.T, u user, p string, flags int) error {
	t.Helper()
	return as(t, u, func() error {
		fd, err := unix.Open(p, flags, 0o644)
		if err == nil {
			unix.Close(fd)
		}
		return err
	})
}

// owned makes a file with owner, group and mode.
func owned(t *testing.T, p string, u user, mode uint32) {
	t.Helper()
	write(t, p, "x")
	must(t, "chown", unix.Chown(p, u.uid, u.gid))
	must(t, "chmod", unix.Chmod(p, mode))
}

func ownedDir(t *testing.T, p string, u user, mode uint32) {
	t.Helper()
	must(t, "mkdir", unix.Mkdir(p, 0o700))
	must(t, "chown", unix.Chown(p, u.uid, u.gid))
	must(t, "chmod", unix.Chmod(p, mode))
}

func checkClasses(t *testing.T, dir string) {
	needRoot(t)
	p := filepath.Join(dir, "f")
	member := user{uid: 1003, gid: 1001} // of alice's group
	for _, c := range []struct {
		mode        uint32
		who         user
		read, write syscall.Errno
	}{
		{0o600, alice, 0, 0},
		{0o600, bob, syscall.EACCES, syscall.EACCES},
		{0o640, member, 0, syscall.EACCES},
		{0o604, bob, 0, syscall.EACCES},
		{0o602, bob, syscall.EACCES, 0},
		{0o066, alice, syscall.EACCES, syscall.EACCES}, // the owner's class counts, not a better one
		{0o606, member, syscall.EACCES, syscall.EACCES},
		{0o000, user{}, 0, 0},
	} {
		owned(t, p, alice, c.mode)
		want(t, "read", opens(t, c.who, p, unix.O_RDONLY), c.read)
		want(t, "write", opens(t, c.who, p, unix.O_WRONLY), c.write)
		both := c.read
		if c.write != 0 {
			both = c.write
		}
		want(t, "read and write", opens(t, c.who, p, unix.O_RDWR), both)
		want(t, "O_TRUNC", opens(t, c.who, p, unix.O_WRONLY|unix.O_TRUNC), c.write)
	}
}

func checkGroups(t *testing.T, dir string) {
	needRoot(t)
	p, d := filepath.Join(dir, "f"), filepath.Join(dir, "d")
	owned(t, p, user{uid: 0, gid: 5005}, 0o660)
	ownedDir(t, d, user{uid: 0, gid: 5005}, 0o770)
	inside := user{uid: 1002, gid: 1002, groups: []int{4000, 5005, 6000}}
	want(t, "write by a supplementary group", opens(t, inside, p, unix.O_RDWR), 0)
	want(t, "write without it", opens(t, bob, p, unix.O_RDWR), syscall.EACCES)
	want(t, "create by a supplementary group", opens(t, inside, filepath.Join(d, "n"), unix.O_CREAT|unix.O_WRONLY), 0)
	want(t, "mkdir by a supplementary group", as(t, inside, func() error { return unix.Mkdir(filepath.Join(d, "m"), 0o755) }), 0)
	want(t, "rename by a supplementary group", as(t, inside, func() error {
		return unix.Rename(filepath.Join(d, "n"), filepath.Join(d, "o"))
	}), 0)
	want(t, "unlink by a supplementary group", as(t, inside, func() error { return unix.Unlink(filepath.Join(d, "o")) }), 0)
	want(t, "create without it", opens(t, bob, filepath.Join(d, "n"), unix.O_CREAT|unix.O_WRONLY), syscall.EACCES)
}

func checkSearch(t *testing.T, dir string) {
	needRoot(t)
	d := filepath.Join(dir, "d")
	ownedDir(t, d, alice, 0o700)
	owned(t, filepath.Join(d, "f"), bob, 0o666)
	want(t, "a file behind a closed directory", opens(t, bob, filepath.Join(d, "f"), unix.O_RDONLY), syscall.EACCES)
	var st unix.Stat_t
	want(t, "stat behind it", as(t, bob, func() error { return unix.Stat(filepath.Join(d, "f"), &st) }), syscall.EACCES)
	want(t, "stat of an absent name behind it", as(t, bob, func() error { return unix.Stat(filepath.Join(d, "x"), &st) }), syscall.EACCES)
	want(t, "listing it", opens(t, bob, d, unix.O_RDONLY|unix.O_DIRECTORY), syscall.EACCES)
	must(t, "chmod", unix.Chmod(d, 0o711))
	want(t, "with search alone: the file", opens(t, bob, filepath.Join(d, "f"), unix.O_RDONLY), 0)
	want(t, "with search alone: listing", opens(t, bob, d, unix.O_RDONLY|unix.O_DIRECTORY), syscall.EACCES)
	must(t, "chmod", unix.Chmod(d, 0o744))
	want(t, "with read alone: the file", opens(t, bob, filepath.Join(d, "f"), unix.O_RDONLY), syscall.EACCES)
	want(t, "with read alone: listing", opens(t, bob, d, unix.O_RDONLY|unix.O_DIRECTORY), 0)
}

func checkDirectoryWrite(t *testing.T, dir string) {
	needRoot(t)
	d := filepath.Join(dir, "d")
	ownedDir(t, d, alice, 0o755)
	f := filepath.Join(d, "f")
	owned(t, f, bob, 0o666)
	n := filepath.Join(d, "n")
	for what, act := range map[string]func() error{
		"unlink":  func() error { return unix.Unlink(f) },
		"mkdir":   func() error { return unix.Mkdir(n, 0o755) },
		"symlink": func() error { return unix.Symlink("x", n) },
		"link":    func() error { return unix.Link(f, n) },
		"rename":  func() error { return unix.Rename(f, n) },
		"mknod":   func() error { return unix.Mknod(n, unix.S_IFIFO|0o644, 0) },
	} {
		want(t, what+" without write permission", as(t, bob, act), syscall.EACCES)
	}
	want(t, "create without write permission", opens(t, bob, n, unix.O_CREAT|unix.O_WRONLY), syscall.EACCES)
	want(t, "O_CREAT of a file that is there", opens(t, bob, f, unix.O_CREAT|unix.O_WRONLY), 0)
	want(t, "unlink of another's file in the own directory", as(t, alice, func() error { return unix.Unlink(f) }), 0)
}

func checkSticky(t *testing.T, dir string) {
	needRoot(t)
	d := filepath.Join(dir, "tmp")
	ownedDir(t, d, user{}, 0o1777)
	a, b, da := filepath.Join(d, "alice"), filepath.Join(d, "bob"), filepath.Join(d, "dir")
	owned(t, a, alice, 0o666)
	owned(t, b, bob, 0o666)
	ownedDir(t, da, alice, 0o777)
	want(t, "unlink of another's file", as(t, bob, func() error { return unix.Unlink(a) }), syscall.EPERM)
	want(t, "rename of another's file", as(t, bob, func() error { return unix.Rename(a, a+"2") }), syscall.EPERM)
	want(t, "rename over another's file", as(t, bob, func() error { return unix.Rename(b, a) }), syscall.EPERM)
	want(t, "rmdir of another's directory", as(t, bob, func() error { return unix.Rmdir(da) }), syscall.EPERM)
	want(t, "rename of the own file", as(t, bob, func() error { return unix.Rename(b, b+"2") }), 0)
	want(t, "unlink of the own file", as(t, alice, func() error { return unix.Unlink(a) }), 0)
	must(t, "chown of the directory", unix.Chown(d, 1001, 1001))
	want(t, "unlink by the directory's owner", as(t, alice, func() error { return unix.Unlink(b + "2") }), 0)
}

func checkOwnerOnly(t *testing.T, dir string) {
	needRoot(t)
	p := filepath.Join(dir, "f")
	owned(t, p, alice, 0o666)
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	then := []unix.Timespec{{Sec: 1}, {Sec: 1}}
	utimens := func(ts []unix.Timespec) func() error {
		return func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, p, ts, 0) }
	}
	want(t, "chmod by another", as(t, bob, func() error { return unix.Chmod(p, 0o777) }), syscall.EPERM)
	want(t, "times by another", as(t, bob, utimens(then)), syscall.EPERM)
	want(t, "touch by one who may write", as(t, bob, utimens(now)), 0)
	must(t, "chmod", unix.Chmod(p, 0o644))
	want(t, "touch by one who may not", as(t, bob, utimens(now)), syscall.EACCES)
	want(t, "truncate by one who may not write", as(t, bob, func() error { return unix.Truncate(p, 0) }), syscall.EACCES)
	want(t, "chmod by the owner", as(t, alice, func() error { return unix.Chmod(p, 0o600) }), 0)
	want(t, "times by the owner", as(t, alice, utimens(then)), 0)
}

func checkChownRights(t *testing.T, dir string) {
	needRoot(t)
	p := filepath.Join(dir, "f")
	owned(t, p, alice, 0o644)
	both := user{uid: 1001, gid: 1001, groups: []int{7007}}
	want(t, "giving a file away", as(t, alice, func() error { return unix.Chown(p, 1002, -1) }), syscall.EPERM)
	want(t, "to a group of others", as(t, alice, func() error { return unix.Chown(p, -1, 7007) }), syscall.EPERM)
	want(t, "to a group of one's own", as(t, both, func() error { return unix.Chown(p, -1, 7007) }), 0)
	want(t, "by another", as(t, bob, func() error { return unix.Chown(p, -1, 1002) }), syscall.EPERM)
	if st := lstat(t, p); st.Uid != 1001 || st.Gid != 7007 {
		t.Errorf("owner %d:%d", st.Uid, st.Gid)
	}
}

// checkCreateReadOnly: who makes a file may write to it through that descriptor,
// whatever its mode is.
func checkCreateReadOnly(t *testing.T, dir string) {
	needRoot(t)
	must(t, "chmod", unix.Chmod(dir, 0o777))
	p := filepath.Join(dir, "f")
	must(t, "create and write", as(t, alice, func() error {
		fd, err := unix.Open(p, unix.O_CREAT|unix.O_RDWR|unix.O_EXCL, 0o444)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if _, err := unix.Write(fd, []byte("written")); err != nil {
			return err
		}
		return unix.Ftruncate(fd, 4)
	}))
	wantFile(t, p, "writ")
	want(t, "opening it again", opens(t, alice, p, unix.O_WRONLY), syscall.EACCES)
	if st := lstat(t, p); st.Uid != 1001 || st.Gid != 1001 {
		t.Errorf("owner %d:%d", st.Uid, st.Gid)
	}
}

func checkAccess(t *testing.T, dir string) {
	needRoot(t)
	p := filepath.Join(dir, "f")
	owned(t, p, alice, 0o640)
	access := func(u user, mode uint32) error {
		return as(t, u, func() error { return unix.Access(p, mode) })
	}
	want(t, "R_OK of the owner", access(alice, unix.R_OK), 0)
	want(t, "X_OK of the owner", access(alice, unix.X_OK), syscall.EACCES)
	want(t, "R_OK of others", access(bob, unix.R_OK), syscall.EACCES)
	want(t, "F_OK of others", access(bob, unix.F_OK), 0)
	want(t, "X_OK of root without any execute bit", access(user{}, unix.X_OK), syscall.EACCES)
	want(t, "W_OK of root", access(user{}, unix.W_OK), 0)
}

// checkWriteClears: a write by somebody clears set-user-id, set-group-id where it
// means execution or the writer is not of the group, and capabilities.
func checkWriteClears(t *testing.T, dir string) {
	needRoot(t)
	member := user{uid: 1002, gid: 1002, groups: []int{5005}}
	for i, c := range []struct {
		who        user
		mode, want uint32
	}{
		{bob, 0o6777, 0o777},
		{bob, 0o2747, 0o747},
		{bob, 0o2666, 0o666},
		{member, 0o2666, 0o2666},
		{member, 0o6776, 0o776},
		{user{}, 0o6777, 0o6777},
	} {
		for _, flags := range []int{unix.O_WRONLY, unix.O_WRONLY | unix.O_APPEND} {
			p := filepath.Join(dir, "f"+string(rune('a'+i)))
			write(t, p, "x")
			must(t, "chown", unix.Chown(p, 1001, 5005))
			must(t, "chmod", unix.Chmod(p, c.mode))
			want(t, "write", as(t, c.who, func() error {
				fd, err := unix.Open(p, flags, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				_, err = unix.Write(fd, []byte("written"))
				return err
			}), 0)
			if got := lstat(t, p).Mode & 0o7777; got != c.want {
				t.Errorf("written by %d: %o became %o, want %o", c.who.uid, c.mode, got, c.want)
			}
		}
	}
	p := filepath.Join(dir, "cap")
	owned(t, p, alice, 0o757)
	const capability = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" // CAP_NET_BIND_SERVICE
	if err := unix.Setxattr(p, "security.capability", []byte(capability), 0); err == syscall.EOPNOTSUPP {
		return
	} else if err != nil {
		t.Fatal(err)
	}
	want(t, "removal by another", as(t, bob, func() error { return unix.Removexattr(p, "security.capability") }), syscall.EPERM)
	want(t, "write", as(t, bob, func() error {
		fd, err := unix.Open(p, unix.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte("written"))
		return err
	}), 0)
	_, err := getxattr(p, "security.capability")
	want(t, "capabilities after a write", err, syscall.ENODATA)
}

// checkChownNothing: chown(-1, -1) moves ctime and clears what a chown clears.
func checkChownNothing(t *testing.T, dir string) {
	needRoot(t)
	p := filepath.Join(dir, "f")
	for _, c := range []struct {
		who        user
		mode, want uint32
	}{
		{user{}, 0o6755, 0o755},
		{alice, 0o6755, 0o755},
		{alice, 0o2644, 0o2644},
		{bob, 0o644, 0o644},
	} {
		owned(t, p, alice, c.mode)
		before := lstat(t, p)
		step()
		want(t, "chown", as(t, c.who, func() error { return unix.Chown(p, -1, -1) }), 0)
		after := lstat(t, p)
		if after.Mode&0o7777 != c.want || !later(after.Ctim, before.Ctim) || after.Uid != 1001 {
			t.Errorf("by %d of %o: mode %o, want %o; ctime %v -> %v; owner %d", c.who.uid, c.mode, after.Mode, c.want, before.Ctim, after.Ctim, after.Uid)
		}
	}
	// A FUSE request does not tell it from the beginning of a write, which is allowed.
	owned(t, p, alice, 0o6755)
	fd := open(t, p, unix.O_RDONLY)
	for what, call := range map[string]func() error{
		"chown":    func() error { return unix.Chown(p, -1, -1) },
		"lchown":   func() error { return unix.Lchown(p, -1, -1) },
		"fchown":   func() error { return unix.Fchown(fd, -1, -1) },
		"fchownat": func() error { return unix.Fchownat(unix.AT_FDCWD, p, -1, -1, 0) },
	} {
		want(t, what+" by another", as(t, bob, call), syscall.EPERM)
	}
	wantMode(t, p, unix.S_IFREG|0o6755)
}
