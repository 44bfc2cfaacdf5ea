package posix

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// crossCheck is one test of two mounts; a and b are one empty directory.
type crossCheck struct {
	name string
	run  func(t *testing.T, a, b string)
}

// RunCrossMount tests what two strict mounts of one file system show each other.
// a and b are the same, empty directory, seen through each of them.
func RunCrossMount(t *testing.T, a, b string) {
	wantReachable(t, a)
	wantReachable(t, b)
	for _, c := range []crossCheck{
		{"names", crossNames},
		{"attributes", crossAttributes},
		{"atime", crossAtime},
		{"close to open", crossCloseToOpen},
		{"reader that stays open", crossOpenReader},
		{"growing file", crossGrowing},
		{"truncation", crossTruncation},
		{"exclusive create", crossExclusive},
		{"appends", crossAppends},
		{"unlinked while open", crossUnlinked},
		{"replace by rename", crossReplace},
		{"directory moved", crossMovedDirectory},
		{"walk", crossWalk},
		{"listing", crossListing},
		{"mapping", crossMapping},
		{"parallel ranges", crossRanges},
		{"permission", crossPermission},
		{"acl", crossACL},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := "cross-" + strings.ReplaceAll(c.name, " ", "-")
			must(t, "mkdir", os.Mkdir(filepath.Join(a, name), 0o755))
			must(t, "chmod", os.Chmod(filepath.Join(a, name), 0o755))
			t.Cleanup(func() {
				if err := os.RemoveAll(filepath.Join(a, name)); err != nil {
					t.Errorf("cleaning up: %v", err)
				}
			})
			c.run(t, filepath.Join(a, name), filepath.Join(b, name))
		})
	}
}

func crossNames(t *testing.T, a, b string) {
	for i := range 20 {
		n := fmt.Sprintf("n%d", i)
		wantAbsent(t, filepath.Join(b, n))
		write(t, filepath.Join(a, n), n)
		wantFile(t, filepath.Join(b, n), n)
		must(t, "rename", unix.Rename(filepath.Join(b, n), filepath.Join(b, n+"x")))
		wantAbsent(t, filepath.Join(a, n))
		if x, y := lstat(t, filepath.Join(a, n+"x")), lstat(t, filepath.Join(b, n+"x")); x.Ino != y.Ino {
			t.Errorf("inode %d there, %d here", x.Ino, y.Ino)
		}
		must(t, "unlink", unix.Unlink(filepath.Join(a, n+"x")))
		wantAbsent(t, filepath.Join(b, n+"x"))
		must(t, "mkdir", unix.Mkdir(filepath.Join(b, n+"x"), 0o755))
		wantMode(t, filepath.Join(a, n+"x"), unix.S_IFDIR|0o755)
	}
}

func crossAttributes(t *testing.T, a, b string) {
	write(t, filepath.Join(a, "f"), "x")
	for _, mode := range []uint32{0o600, 0o644, 0o755} {
		must(t, "chmod", unix.Chmod(filepath.Join(a, "f"), mode))
		wantMode(t, filepath.Join(b, "f"), unix.S_IFREG|mode)
	}
	ts := []unix.Timespec{{Sec: 11}, {Sec: 22}}
	must(t, "utimens", unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(b, "f"), ts, 0))
	if st := lstat(t, filepath.Join(a, "f")); st.Mtim.Sec != 22 {
		t.Errorf("mtime %v", st.Mtim)
	}
	must(t, "link", unix.Link(filepath.Join(a, "f"), filepath.Join(a, "g")))
	wantLinks(t, filepath.Join(b, "f"), 2)
}

// crossCloseToOpen: what close acknowledged, every other mount's open sees.
func crossCloseToOpen(t *testing.T, a, b string) {
	for i := range 20 {
		src, dst := a, b
		if i%2 == 1 {
			src, dst = b, a
		}
		text := string(bytes.Repeat([]byte{byte('a' + i)}, 1+i*3000))
		write(t, filepath.Join(src, "f"), text)
		wantFile(t, filepath.Join(dst, "f"), text)
	}
	// The same size, in place.
	for i := range 10 {
		f, err := os.OpenFile(filepath.Join(a, "f"), os.O_WRONLY, 0)
		must(t, "open", err)
		text := fmt.Sprintf("round %d", i)
		_, err = f.WriteAt([]byte(text), 100)
		must(t, "write", err)
		must(t, "close", f.Close())
		data, err := os.ReadFile(filepath.Join(b, "f"))
		must(t, "read", err)
		if string(data[100:107]) != text {
			t.Errorf("round %d reads %q", i, data[100:107])
		}
	}
}

// crossOpenReader: one that stays open reads the new bytes too.
func crossOpenReader(t *testing.T, a, b string) {
	write(t, filepath.Join(a, "f"), "0000000000")
	r := open(t, filepath.Join(b, "f"), unix.O_RDONLY)
	buf := make([]byte, 10)
	for i := range 10 {
		text := fmt.Sprintf("%010d", i)
		f, err := os.OpenFile(filepath.Join(a, "f"), os.O_WRONLY, 0)
		must(t, "open", err)
		_, err = f.WriteAt([]byte(text), 0)
		must(t, "write", err)
		must(t, "close", f.Close())
		if _, err := unix.Pread(r, buf, 0); err != nil || string(buf) != text {
			t.Errorf("reads %q, %v, want %q", buf, err, text)
		}
	}
}

// crossGrowing is tail -f: no NULs where another mount's lines are (FUSE K8).
func crossGrowing(t *testing.T, a, b string) {
	w, err := os.OpenFile(filepath.Join(a, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(t, "open", err)
	defer w.Close()
	r, err := os.Open(filepath.Join(b, "log"))
	must(t, "open", err)
	defer r.Close()
	var all []byte
	for i := range 40 {
		line := fmt.Sprintf("line %d\n", i)
		_, err := w.WriteString(line)
		must(t, "append", err)
		must(t, "fsync", w.Sync())
		all = append(all, line...)
		got, err := io.ReadAll(r)
		must(t, "read", err)
		if string(got) != line {
			t.Fatalf("the reader got %q, want %q", got, line)
		}
	}
	wantFile(t, filepath.Join(b, "log"), string(all))
}

func crossTruncation(t *testing.T, a, b string) {
	write(t, filepath.Join(a, "f"), "0123456789")
	wantFile(t, filepath.Join(b, "f"), "0123456789")
	must(t, "truncate", unix.Truncate(filepath.Join(b, "f"), 3))
	wantFile(t, filepath.Join(a, "f"), "012")
	must(t, "truncate", unix.Truncate(filepath.Join(a, "f"), 6))
	wantFile(t, filepath.Join(b, "f"), "012\x00\x00\x00")
}

// crossExclusive: of all who create one name with O_EXCL, one succeeds.
func crossExclusive(t *testing.T, a, b string) {
	for i := range 30 {
		var wg sync.WaitGroup
		results := make(chan error, 8)
		for w := range 8 {
			dir := a
			if w%2 == 1 {
				dir = b
			}
			wg.Go(func() {
				fd, err := unix.Open(filepath.Join(dir, fmt.Sprintf("lock%d", i)), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, 0o644)
				if err == nil {
					unix.Close(fd)
				}
				results <- err
			})
		}
		wg.Wait()
		close(results)
		won := 0
		for err := range results {
			if err == nil {
				won++
			} else if !errors.Is(err, syscall.EEXIST) {
				t.Errorf("O_EXCL: %v", err)
			}
		}
		if won != 1 {
			t.Errorf("round %d: %d made the file", i, won)
		}
	}
}

func crossAppends(t *testing.T, a, b string) {
	const workers, lines = 4, 50
	var wg sync.WaitGroup
	for w := range workers {
		dir := a
		if w%2 == 1 {
			dir = b
		}
		wg.Go(func() {
			f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				t.Error(err)
				return
			}
			for i := range lines {
				if _, err := fmt.Fprintf(f, "worker %d line %d %s\n", w, i, bytes.Repeat([]byte{byte('a' + w)}, i*7)); err != nil {
					t.Error(err)
				}
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	checkLines(t, filepath.Join(a, "log"), workers, lines)
	checkLines(t, filepath.Join(b, "log"), workers, lines)
}

func crossUnlinked(t *testing.T, a, b string) {
	write(t, filepath.Join(a, "f"), "still here")
	r := open(t, filepath.Join(a, "f"), unix.O_RDWR)
	must(t, "unlink", unix.Unlink(filepath.Join(b, "f")))
	wantAbsent(t, filepath.Join(a, "f"))
	buf := make([]byte, 10)
	if n, err := unix.Pread(r, buf, 0); err != nil || string(buf[:n]) != "still here" {
		t.Errorf("reads %q, %v", buf[:n], err)
	}
	if st := fstat(t, r); st.Nlink != 0 {
		t.Errorf("%d links", st.Nlink)
	}
	everyCall(t, r)
	if st := fstat(t, r); st.Nlink != 0 {
		t.Errorf("%d links after all calls", st.Nlink)
	}
	// One that another mount renames away, and replaces.
	write(t, filepath.Join(a, "g"), "still here")
	g := open(t, filepath.Join(a, "g"), unix.O_RDWR)
	must(t, "rename", unix.Rename(filepath.Join(b, "g"), filepath.Join(b, "h")))
	write(t, filepath.Join(b, "g"), "another")
	everyCall(t, g)
	wantFile(t, filepath.Join(a, "g"), "another")
	wantMode(t, filepath.Join(b, "h"), unix.S_IFREG|0o640)
}

// everyCall makes every call that a descriptor takes, of a file of 10 bytes.
func everyCall(t *testing.T, fd int) {
	t.Helper()
	_, err := unix.Pwrite(fd, []byte("STILL"), 0)
	must(t, "write", err)
	must(t, "fsync", unix.Fsync(fd))
	must(t, "fchmod", unix.Fchmod(fd, 0o640))
	must(t, "fchown", unix.Fchown(fd, os.Getuid(), os.Getgid()))
	must(t, "futimes", unix.Futimes(fd, []unix.Timeval{{Sec: 1000}, {Sec: 2000}}))
	if err := unix.Fsetxattr(fd, "user.k", []byte("v"), 0); !errors.Is(err, syscall.EOPNOTSUPP) {
		must(t, "fsetxattr", err)
		value := make([]byte, 10)
		if n, err := unix.Fgetxattr(fd, "user.k", value); err != nil || string(value[:n]) != "v" {
			t.Errorf("fgetxattr: %q, %v", value[:max(n, 0)], err)
		}
	}
	if st := fstat(t, fd); st.Mode != unix.S_IFREG|0o640 || st.Mtim.Sec != 2000 || st.Atim.Sec != 1000 {
		t.Errorf("mode %o, mtime %d, atime %d", st.Mode, st.Mtim.Sec, st.Atim.Sec)
	}
	must(t, "fallocate", unix.Fallocate(fd, 0, 0, 20))
	must(t, "punch", unix.Fallocate(fd, punchHole, 5, 1))
	must(t, "ftruncate", unix.Ftruncate(fd, 8))
	buf := make([]byte, 20)
	if n, err := unix.Pread(fd, buf, 0); err != nil || string(buf[:n]) != "STILL\x00he" {
		t.Errorf("reads %q, %v", buf[:max(n, 0)], err)
	}
}

// crossReplace: whoever opens a name that is replaced by rename finds the old
// or the new file, never none and never a mixture.
func crossReplace(t *testing.T, a, b string) {
	text := func(i int) string { return string(bytes.Repeat([]byte{byte('a' + i%26)}, 5000)) }
	write(t, filepath.Join(a, "f"), text(0))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(stop)
		for i := range 60 {
			if err := os.WriteFile(filepath.Join(a, "f.tmp"), []byte(text(i)), 0o644); err != nil {
				t.Error(err)
			}
			if err := os.Rename(filepath.Join(a, "f.tmp"), filepath.Join(a, "f")); err != nil {
				t.Error(err)
			}
		}
	})
	for running := true; running; {
		select {
		case <-stop:
			running = false
		default:
		}
		data, err := os.ReadFile(filepath.Join(b, "f"))
		if err != nil {
			t.Fatalf("the reader: %v", err)
		}
		if len(data) != 5000 || !bytes.Equal(data, bytes.Repeat(data[:1], 5000)) {
			t.Fatalf("the reader got a mixture: %s", brief(string(data)))
		}
	}
	wg.Wait()
}

func crossMovedDirectory(t *testing.T, a, b string) {
	must(t, "mkdir", os.MkdirAll(filepath.Join(a, "p", "d"), 0o755))
	must(t, "mkdir", os.Mkdir(filepath.Join(a, "q"), 0o755))
	d := open(t, filepath.Join(a, "p", "d"), unix.O_RDONLY|unix.O_DIRECTORY)
	must(t, "rename by the other", unix.Rename(filepath.Join(b, "p", "d"), filepath.Join(b, "q", "e")))
	fd, err := unix.Openat(d, "f", unix.O_CREAT|unix.O_WRONLY, 0o644)
	must(t, "create in the moved directory", err)
	unix.Close(fd)
	wantMode(t, filepath.Join(b, "q", "e", "f"), unix.S_IFREG|0o644)
	wantAbsent(t, filepath.Join(a, "p", "d"))
}

func crossListing(t *testing.T, a, b string) {
	var names []string
	dir := open(t, b, unix.O_RDONLY|unix.O_DIRECTORY)
	for i := range 30 {
		names = append(names, fmt.Sprintf("n%d", i))
		write(t, filepath.Join(a, names[i]), "")
		// A descriptor that stays open shows it after rewinding, though no path
		// is walked meanwhile.
		_, err := unix.Seek(dir, 0, unix.SEEK_SET)
		must(t, "rewind", err)
		if got := len(listAll(t, dir, 4096)); got != len(names)+2 {
			t.Errorf("after rewinding %d entries, want %d", got, len(names)+2)
		}
		wantNames(t, b, names)
	}
}

func crossMapping(t *testing.T, a, b string) {
	write(t, filepath.Join(a, "f"), string(make([]byte, twoPages)))
	fd := open(t, filepath.Join(a, "f"), unix.O_RDWR)
	m := mapFile(t, fd, twoPages, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	copy(m[4000:], "across the page border, through a mapping"+string(make([]byte, 100)))
	must(t, "msync", unix.Msync(m, unix.MS_SYNC))
	must(t, "fsync", unix.Fsync(fd))
	data, err := os.ReadFile(filepath.Join(b, "f"))
	must(t, "read", err)
	if got := string(data[4000:4041]); got != "across the page border, through a mapping" {
		t.Errorf("the other reads %q", got)
	}
}

func crossRanges(t *testing.T, a, b string) {
	const span = 300_000
	write(t, filepath.Join(a, "f"), "")
	var wg sync.WaitGroup
	for w, dir := range []string{a, b, a, b} {
		wg.Go(func() {
			f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_WRONLY, 0)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := f.WriteAt(bytes.Repeat([]byte{byte('A' + w)}, span), int64(w*span)); err != nil {
				t.Error(err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, dir := range []string{a, b} {
		data, err := os.ReadFile(filepath.Join(dir, "f"))
		must(t, "read", err)
		if len(data) != 4*span {
			t.Fatalf("size %d, want %d", len(data), 4*span)
		}
		for w := range 4 {
			if !bytes.Equal(data[w*span:(w+1)*span], bytes.Repeat([]byte{byte('A' + w)}, span)) {
				t.Errorf("range %d differs", w)
			}
		}
	}
}

// crossPermission: a directory that one mount closes is closed on the other.
func crossPermission(t *testing.T, a, b string) {
	needRoot(t)
	must(t, "mkdir", os.Mkdir(filepath.Join(a, "d"), 0o755))
	write(t, filepath.Join(a, "d", "f"), "secret")
	want(t, "while open to all", opens(t, bob, filepath.Join(b, "d", "f"), unix.O_RDONLY), 0)
	must(t, "chmod", unix.Chmod(filepath.Join(a, "d"), 0o700))
	want(t, "after it was closed", opens(t, bob, filepath.Join(b, "d", "f"), unix.O_RDONLY), syscall.EACCES)
}
