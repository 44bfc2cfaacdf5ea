package posix

import (
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func lockChecks() []check {
	return []check{
		{"flock", checkFlock},
		{"open file description locks", checkOFD},
	}
}

func checkFlock(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	write(t, p, "")
	a, b := open(t, p, unix.O_RDWR), open(t, p, unix.O_RDWR)
	must(t, "exclusive", unix.Flock(a, unix.LOCK_EX))
	want(t, "exclusive again", unix.Flock(b, unix.LOCK_EX|unix.LOCK_NB), syscall.EWOULDBLOCK)
	want(t, "shared", unix.Flock(b, unix.LOCK_SH|unix.LOCK_NB), syscall.EWOULDBLOCK)
	must(t, "unlock", unix.Flock(a, unix.LOCK_UN))
	must(t, "shared", unix.Flock(a, unix.LOCK_SH))
	must(t, "shared by two", unix.Flock(b, unix.LOCK_SH|unix.LOCK_NB))
}

func checkOFD(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	write(t, p, "0123456789")
	a, b := open(t, p, unix.O_RDWR), open(t, p, unix.O_RDWR)
	lock := func(fd int, kind int16, start, length int64) error {
		l := unix.Flock_t{Type: kind, Start: start, Len: length}
		return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &l)
	}
	must(t, "write lock", lock(a, unix.F_WRLCK, 0, 5))
	want(t, "overlapping", lock(b, unix.F_RDLCK, 4, 3), syscall.EAGAIN)
	must(t, "beside it", lock(b, unix.F_WRLCK, 5, 5))
	must(t, "unlock", lock(a, unix.F_UNLCK, 0, 5))
	must(t, "now free", lock(b, unix.F_RDLCK, 0, 5))
}
