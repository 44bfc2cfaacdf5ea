package posix

import (
	"bytes"
	"errors"
	"math"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func sparseChecks() []check {
	return []check{
		{"fallocate", checkFallocate},
		{"holes", checkHoles},
		{"limits", checkLimits},
	}
}

const (
	keepSize  = unix.FALLOC_FL_KEEP_SIZE
	punchHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	zeroRange = unix.FALLOC_FL_ZERO_RANGE
)

// checkFallocate: bytes and size after each mode.
func checkFallocate(t *testing.T, dir string) {
	fd := open(t, filepath.Join(dir, "f"), unix.O_CREAT|unix.O_RDWR)
	const n = 300_000
	content := bytes.Repeat([]byte("x"), n)
	_, err := unix.Pwrite(fd, content, 0)
	must(t, "write", err)
	for _, step := range []struct {
		what        string
		mode        uint32
		off, length int64
		zeros       bool
		size        int64
	}{
		{"punch", punchHole, 70_000, 130_000, true, n},
		{"punch across the end", punchHole, n - 10, 1 << 20, true, n},
		{"reserve", keepSize, 100_000, 1 << 20, false, n},
		{"grow", 0, n, 100_000, false, n + 100_000},
		{"zero", zeroRange | keepSize, 10, 20, true, n + 100_000},
		{"zero and grow", zeroRange, n, 200_000, true, n + 200_000},
	} {
		err := unix.Fallocate(fd, step.mode, step.off, step.length)
		if errors.Is(err, syscall.EOPNOTSUPP) && step.mode&zeroRange != 0 {
			continue // tmpfs
		}
		must(t, step.what, err)
		content = append(content, make([]byte, max(0, step.size-int64(len(content))))...)
		if step.zeros {
			clear(content[step.off:min(step.off+step.length, int64(len(content)))])
		}
		if st := fstat(t, fd); st.Size != step.size {
			t.Errorf("%s: size %d, want %d", step.what, st.Size, step.size)
		}
		got := make([]byte, len(content)+1)
		if k, err := unix.Pread(fd, got, 0); err != nil || !bytes.Equal(got[:k], content[:min(k, len(content))]) || k != len(content) {
			t.Fatalf("%s: %d bytes, %v, or others than there should be", step.what, k, err)
		}
	}
	want(t, "a hole that changes the size", unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE, 0, 1), syscall.EOPNOTSUPP)
	want(t, "no length", unix.Fallocate(fd, 0, 0, 0), syscall.EINVAL)
	want(t, "beyond the largest file", unix.Fallocate(fd, 0, math.MaxInt64, 1), syscall.EFBIG)
	r := open(t, filepath.Join(dir, "f"), unix.O_RDONLY)
	want(t, "on a descriptor for reading", unix.Fallocate(r, 0, 0, 1), syscall.EBADF)
}

// checkHoles: st_blocks, SEEK_DATA and SEEK_HOLE after writes, a punch and
// truncations.
func checkHoles(t *testing.T, dir string) {
	fd := open(t, filepath.Join(dir, "f"), unix.O_CREAT|unix.O_RDWR)
	const mib = 1 << 20
	_, err := unix.Pwrite(fd, bytes.Repeat([]byte("x"), 4*mib), 2*mib)
	must(t, "write", err)
	must(t, "fsync", unix.Fsync(fd))
	if fstat(t, fd).Blocks == 0 {
		t.Skip("st_blocks is not kept here")
	}
	space := func(what string, want int64) {
		t.Helper()
		// The file system below may need a few blocks of its own.
		if got := fstat(t, fd).Blocks * 512; got < want || got > want+64<<10 {
			t.Errorf("%s: the file has %d bytes of space, want %d", what, got, want)
		}
	}
	space("a hole before data", 4*mib)
	must(t, "punch", unix.Fallocate(fd, punchHole, 3*mib, mib))
	space("a hole in data", 3*mib)
	for _, s := range []struct {
		from   int64
		whence int
		want   int64
	}{
		{0, unix.SEEK_HOLE, 0}, {0, unix.SEEK_DATA, 2 * mib}, {2 * mib, unix.SEEK_HOLE, 3 * mib}, {3*mib + 5, unix.SEEK_DATA, 4 * mib},
		{3*mib + 5, unix.SEEK_HOLE, 3*mib + 5}, {4 * mib, unix.SEEK_HOLE, 6 * mib},
	} {
		if at, err := unix.Seek(fd, s.from, s.whence); err != nil || at != s.want {
			t.Errorf("lseek(%d, %d): %d, %v, want %d", s.from, s.whence, at, err, s.want)
		}
	}
	must(t, "truncate", unix.Ftruncate(fd, 5*mib))
	space("cut within data", 2*mib)
	must(t, "truncate", unix.Ftruncate(fd, 100*mib))
	space("grown", 2*mib)
	must(t, "truncate", unix.Ftruncate(fd, 3*mib+mib/2))
	space("cut within a hole", mib)
	must(t, "punch all", unix.Fallocate(fd, punchHole, 0, 1<<40))
	space("punched all", 0)
}

// checkLimits: a size of 8 EiB - 1 or EFBIG, never another one.
func checkLimits(t *testing.T, dir string) {
	fd := open(t, filepath.Join(dir, "f"), unix.O_CREAT|unix.O_RDWR)
	_, err := unix.Pwrite(fd, []byte("near"), 0)
	must(t, "write", err)
	if err := unix.Ftruncate(fd, math.MaxInt64); !errors.Is(err, syscall.EFBIG) {
		must(t, "truncate", err)
		if st := fstat(t, fd); st.Size != math.MaxInt64 {
			t.Errorf("size %d", st.Size)
		}
		buf := []byte("full")
		if n, err := unix.Pread(fd, buf, math.MaxInt64-4); n != 4 || err != nil || !bytes.Equal(buf, make([]byte, 4)) {
			t.Errorf("the last bytes: %d, %v, %q", n, err, buf)
		}
		must(t, "truncate", unix.Ftruncate(fd, 4))
	}
	for _, off := range []int64{math.MaxInt64 - 1, 1 << 62} {
		if n, err := unix.Pwrite(fd, []byte("x"), off); n != 1 {
			want(t, "a write that is too far out", err, syscall.EFBIG)
		} else {
			must(t, "truncate", unix.Ftruncate(fd, 4))
		}
	}
	want(t, "truncate to less than nothing", unix.Ftruncate(fd, -1), syscall.EINVAL)
	if st := fstat(t, fd); st.Size != 4 {
		t.Errorf("size %d after writes that failed", st.Size)
	}
}
