package posix

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func dataChecks() []check {
	return []check{
		{"sparse", checkSparse},
		{"append", checkAppend},
		{"parallel appends", checkParallelAppends},
		{"random", checkRandom},
		{"two descriptors", checkTwoDescriptors},
		{"parallel ranges", checkParallelRanges},
		{"large", checkLarge},
		{"direct", checkDirect},
		{"seek data", checkSeekData},
		{"read and write at the end", checkEnd},
		{"copy", checkCopy},
	}
}

func checkSparse(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	fd := open(t, p, unix.O_CREAT|unix.O_RDWR)
	const far = 5<<30 + 12345
	_, err := unix.Pwrite(fd, []byte("far"), far)
	must(t, "write", err)
	_, err = unix.Pwrite(fd, []byte("near"), 0)
	must(t, "write", err)
	if st := fstat(t, fd); st.Size != far+3 {
		t.Errorf("size %d, want %d", st.Size, int64(far+3))
	}
	buf := make([]byte, 1<<16)
	n, err := unix.Pread(fd, buf, 1<<30)
	if err != nil || n != len(buf) || !bytes.Equal(buf, make([]byte, len(buf))) {
		t.Errorf("a hole reads %d bytes, %v, not all zero", n, err)
	}
	n, err = unix.Pread(fd, buf, far-2)
	if err != nil || string(buf[:n]) != "\x00\x00far" {
		t.Errorf("the end reads %q, %v", buf[:n], err)
	}
	must(t, "fsync", unix.Fsync(fd))
	if st := fstat(t, fd); st.Blocks*512 > 64<<20 {
		t.Errorf("a hole takes %d blocks", st.Blocks)
	}
}

func checkAppend(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	write(t, p, "start-")
	a, b := open(t, p, unix.O_WRONLY|unix.O_APPEND), open(t, p, unix.O_WRONLY|unix.O_APPEND)
	for i := range 6 {
		fd := a
		if i%2 == 1 {
			fd = b
		}
		_, err := unix.Write(fd, fmt.Appendf(nil, "%d", i))
		must(t, "append", err)
	}
	_, err := unix.Seek(a, 0, unix.SEEK_SET)
	must(t, "seek", err)
	_, err = unix.Write(a, []byte("-end"))
	must(t, "append after a seek", err)
	wantFile(t, p, "start-012345-end")
	must(t, "truncate", unix.Truncate(p, 5))
	_, err = unix.Write(b, []byte("!"))
	must(t, "append after a truncation", err)
	wantFile(t, p, "start!")
}

// checkParallelAppends: no line is lost or torn.
func checkParallelAppends(t *testing.T, dir string) {
	p := filepath.Join(dir, "log")
	const workers, lines = 6, 60
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			f, err := os.OpenFile(p, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			for i := range lines {
				if _, err := fmt.Fprintf(f, "worker %d line %d %s\n", w, i, bytes.Repeat([]byte{byte('a' + w)}, i*7)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	checkLines(t, p, workers, lines)
}

// checkLines fails unless the log holds each line of each worker, in the
// worker's order.
func checkLines(t *testing.T, p string, workers, lines int) {
	t.Helper()
	data, err := os.ReadFile(p)
	must(t, "read", err)
	next := make([]int, workers)
	for _, line := range bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) {
		var w, i int
		if _, err := fmt.Sscanf(string(line), "worker %d line %d", &w, &i); err != nil || w < 0 || w >= workers {
			t.Fatalf("a torn line: %s", brief(string(line)))
		}
		if whole := fmt.Sprintf("worker %d line %d %s", w, i, bytes.Repeat([]byte{byte('a' + w)}, i*7)); string(line) != whole {
			t.Fatalf("a torn line: %s", brief(string(line)))
		}
		if i != next[w] {
			t.Fatalf("worker %d: line %d where %d is due", w, i, next[w])
		}
		next[w]++
	}
	for w, n := range next {
		if n != lines {
			t.Errorf("worker %d: %d lines, want %d", w, n, lines)
		}
	}
}

// checkRandom writes, truncates and reads at random, beside a copy in memory.
func checkRandom(t *testing.T, dir string) {
	const limit = 3 << 20
	rnd := rand.New(rand.NewSource(7))
	p := filepath.Join(dir, "f")
	fd := open(t, p, unix.O_CREAT|unix.O_RDWR)
	var model []byte
	for i := range 300 {
		off, length := rnd.Intn(limit), rnd.Intn(200_000)
		switch op := rnd.Intn(10); {
		case op < 6:
			data := make([]byte, length)
			rnd.Read(data)
			_, err := unix.Pwrite(fd, data, int64(off))
			must(t, "write", err)
			if end := off + length; end > len(model) && length > 0 {
				model = append(model, make([]byte, end-len(model))...)
			}
			copy(model[min(off, len(model)):], data)
		case op < 7:
			must(t, "truncate", unix.Ftruncate(fd, int64(off)))
			if off <= len(model) {
				model = model[:off:off]
			} else {
				model = append(model, make([]byte, off-len(model))...)
			}
		default:
			buf := make([]byte, length)
			n, err := unix.Pread(fd, buf, int64(off))
			must(t, "read", err)
			expect := model[min(off, len(model)):min(off+length, len(model))]
			if !bytes.Equal(buf[:n], expect) {
				t.Fatalf("step %d: %d bytes at %d differ (want %d)", i, n, off, len(expect))
			}
		}
		if st := fstat(t, fd); st.Size != int64(len(model)) {
			t.Fatalf("step %d: size %d, want %d", i, st.Size, len(model))
		}
	}
	got, err := os.ReadFile(p)
	must(t, "read", err)
	if !bytes.Equal(got, model) {
		t.Error("the whole file differs")
	}
}

// checkTwoDescriptors: what one wrote the other reads at once.
func checkTwoDescriptors(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	w, r := open(t, p, unix.O_CREAT|unix.O_WRONLY), open(t, p, unix.O_RDONLY)
	for i := range 30 {
		text := fmt.Sprintf("%04d", i)
		_, err := unix.Pwrite(w, []byte(text), int64(i*1000))
		must(t, "write", err)
		buf := make([]byte, 4)
		if n, err := unix.Pread(r, buf, int64(i*1000)); err != nil || string(buf[:n]) != text {
			t.Fatalf("read %q, %v, want %q", buf[:n], err, text)
		}
		if st := fstat(t, r); st.Size != int64(i*1000+4) {
			t.Fatalf("size %d, want %d", st.Size, i*1000+4)
		}
	}
}

func checkParallelRanges(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	write(t, p, "")
	const workers, span = 8, 700_001
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			f, err := os.OpenFile(p, os.O_WRONLY, 0)
			if err != nil {
				t.Error(err)
				return
			}
			chunk := bytes.Repeat([]byte{byte('A' + w)}, span)
			if _, err := f.WriteAt(chunk, int64(w*span)); err != nil {
				t.Error(err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	data, err := os.ReadFile(p)
	must(t, "read", err)
	if len(data) != workers*span {
		t.Fatalf("size %d, want %d", len(data), workers*span)
	}
	for w := range workers {
		if !bytes.Equal(data[w*span:(w+1)*span], bytes.Repeat([]byte{byte('A' + w)}, span)) {
			t.Errorf("range %d differs", w)
		}
	}
}

func checkLarge(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	f, err := os.Create(p)
	must(t, "create", err)
	rnd, sum := rand.New(rand.NewSource(3)), sha256.New()
	buf := make([]byte, 1<<20+17)
	for range 20 {
		rnd.Read(buf)
		sum.Write(buf)
		_, err := f.Write(buf)
		must(t, "write", err)
	}
	must(t, "fsync", f.Sync())
	must(t, "close", f.Close())
	data, err := os.ReadFile(p)
	must(t, "read", err)
	if got := sha256.Sum256(data); len(data) != 20*len(buf) || !bytes.Equal(got[:], sum.Sum(nil)) {
		t.Errorf("%d bytes read back differ from %d written", len(data), 20*len(buf))
	}
}

func checkDirect(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	fd, err := unix.Open(p, unix.O_CREAT|unix.O_RDWR|unix.O_DIRECT, 0o644)
	if err == syscall.EINVAL {
		t.Skip("no O_DIRECT here")
	}
	must(t, "open", err)
	defer unix.Close(fd)
	page, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	must(t, "mmap", err)
	defer unix.Munmap(page)
	copy(page, bytes.Repeat([]byte("direct!\n"), 1024))
	_, err = unix.Pwrite(fd, page, 4096)
	must(t, "write", err)
	back := make([]byte, 8)
	n, err := unix.Pread(open(t, p, unix.O_RDONLY), back, 4096)
	if err != nil || string(back[:n]) != "direct!\n" {
		t.Errorf("buffered read %q, %v", back[:n], err)
	}
	clear(page)
	n, err = unix.Pread(fd, page, 4096)
	if err != nil || n != 8192 || string(page[8184:]) != "direct!\n" {
		t.Errorf("direct read of %d bytes, %v", n, err)
	}
}

func checkSeekData(t *testing.T, dir string) {
	fd := open(t, filepath.Join(dir, "f"), unix.O_CREAT|unix.O_RDWR)
	_, err := unix.Pwrite(fd, bytes.Repeat([]byte("x"), 4096), 1<<20)
	must(t, "write", err)
	size := int64(1<<20 + 4096)
	if off, err := unix.Seek(fd, 1<<20, unix.SEEK_DATA); err != nil || off != 1<<20 {
		t.Errorf("SEEK_DATA in data: %d, %v", off, err)
	}
	if off, err := unix.Seek(fd, 1<<20, unix.SEEK_HOLE); err != nil || off != size {
		t.Errorf("SEEK_HOLE in data: %d, %v, want the end", off, err)
	}
	_, err = unix.Seek(fd, size, unix.SEEK_DATA)
	want(t, "SEEK_DATA at the end", err, syscall.ENXIO)
	_, err = unix.Seek(fd, size+1, unix.SEEK_HOLE)
	want(t, "SEEK_HOLE beyond the end", err, syscall.ENXIO)
	if off, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil || off != size {
		t.Errorf("SEEK_END: %d, %v", off, err)
	}
}

func checkEnd(t *testing.T, dir string) {
	fd := open(t, filepath.Join(dir, "f"), unix.O_CREAT|unix.O_RDWR)
	buf := make([]byte, 10)
	if n, err := unix.Read(fd, buf); n != 0 || err != nil {
		t.Errorf("read of an empty file: %d, %v", n, err)
	}
	_, err := unix.Write(fd, []byte("abc"))
	must(t, "write", err)
	if n, err := unix.Pread(fd, buf, 1); n != 2 || err != nil {
		t.Errorf("read across the end: %d, %v", n, err)
	}
	if n, err := unix.Pread(fd, buf, 100); n != 0 || err != nil {
		t.Errorf("read beyond the end: %d, %v", n, err)
	}
	if n, err := unix.Write(fd, nil); n != 0 || err != nil {
		t.Errorf("write of nothing: %d, %v", n, err)
	}
	_, err = unix.Pwrite(fd, []byte("x"), -1)
	want(t, "write at a negative place", err, syscall.EINVAL)
}

func checkCopy(t *testing.T, dir string) {
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	data := bytes.Repeat([]byte("0123456789abcdef"), 40_000)
	must(t, "write", os.WriteFile(src, data, 0o644))
	in, out := open(t, src, unix.O_RDONLY), open(t, dst, unix.O_CREAT|unix.O_RDWR)
	for left := len(data); left > 0; {
		n, err := unix.CopyFileRange(in, nil, out, nil, left, 0)
		if err != nil || n == 0 {
			t.Fatalf("copy_file_range: %d, %v", n, err)
		}
		left -= n
	}
	got, err := os.ReadFile(dst)
	must(t, "read", err)
	if !bytes.Equal(got, data) {
		t.Error("the copy differs")
	}
}
