package posix

import (
	"bytes"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func mappingChecks() []check {
	return []check{
		{"read", checkMapRead},
		{"shared write", checkMapShared},
		{"private write", checkMapPrivate},
		{"append handle", checkMapAppend},
		{"unlinked", checkMapUnlinked},
	}
}

// mapFile maps the first length bytes; it is unmapped at the test's end.
func mapFile(t *testing.T, fd, length, protection, flags int) []byte {
	t.Helper()
	m, err := unix.Mmap(fd, 0, length, protection, flags)
	must(t, "mmap", err)
	t.Cleanup(func() { unix.Munmap(m) })
	return m
}

const twoPages = 8192

func checkMapRead(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	text := bytes.Repeat([]byte("mapped. "), twoPages/8)
	write(t, p, string(text))
	fd := open(t, p, unix.O_RDWR)
	m := mapFile(t, fd, twoPages, unix.PROT_READ, unix.MAP_SHARED)
	if !bytes.Equal(m, text) {
		t.Error("the mapping differs from the file")
	}
	_, err := unix.Pwrite(fd, []byte("WRITTEN."), 4096)
	must(t, "write", err)
	if got := string(m[4096:4104]); got != "WRITTEN." {
		t.Errorf("after write(2) the mapping shows %q", got)
	}
}

func checkMapShared(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	fd := open(t, p, unix.O_CREAT|unix.O_RDWR)
	must(t, "ftruncate", unix.Ftruncate(fd, twoPages))
	m := mapFile(t, fd, twoPages, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	copy(m[100:], "through the mapping")
	copy(m[twoPages-3:], "end")
	buf := make([]byte, 19)
	if _, err := unix.Pread(fd, buf, 100); err != nil || string(buf) != "through the mapping" {
		t.Errorf("read(2) shows %q, %v", buf, err)
	}
	must(t, "msync", unix.Msync(m, unix.MS_SYNC))
	must(t, "munmap", unix.Munmap(mapAgain(t, fd)))
	fresh := open(t, p, unix.O_RDONLY)
	if _, err := unix.Pread(fresh, buf, 100); err != nil || string(buf) != "through the mapping" {
		t.Errorf("another descriptor reads %q, %v", buf, err)
	}
	if st := fstat(t, fresh); st.Size != twoPages {
		t.Errorf("size %d", st.Size)
	}
}

// mapAgain maps the file a second time and writes through it.
func mapAgain(t *testing.T, fd int) []byte {
	t.Helper()
	m, err := unix.Mmap(fd, 0, twoPages, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, "mmap", err)
	if got := string(m[100:119]); got != "through the mapping" {
		t.Errorf("the second mapping shows %q", got)
	}
	return m
}

func checkMapPrivate(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	write(t, p, string(bytes.Repeat([]byte("p"), twoPages)))
	m := mapFile(t, open(t, p, unix.O_RDONLY), twoPages, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	copy(m, "mine alone")
	wantFile(t, p, string(bytes.Repeat([]byte("p"), twoPages)))
}

// checkMapAppend: a mapping of a descriptor for appending writes in place.
func checkMapAppend(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	write(t, p, string(bytes.Repeat([]byte("-"), 4096)))
	fd := open(t, p, unix.O_RDWR|unix.O_APPEND)
	m := mapFile(t, fd, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	copy(m[10:], "in place")
	must(t, "msync", unix.Msync(m, unix.MS_SYNC))
	_, err := unix.Write(fd, []byte("appended"))
	must(t, "append", err)
	expect := bytes.Repeat([]byte("-"), 4096)
	copy(expect[10:], "in place")
	wantFile(t, p, string(expect)+"appended")
}

func checkMapUnlinked(t *testing.T, dir string) {
	p := filepath.Join(dir, "f")
	write(t, p, string(bytes.Repeat([]byte("u"), twoPages)))
	fd, err := unix.Open(p, unix.O_RDWR, 0)
	must(t, "open", err)
	m := mapFile(t, fd, twoPages, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, "close", unix.Close(fd))
	must(t, "unlink", unix.Unlink(p))
	if m[5000] != 'u' {
		t.Error("the mapping of an unlinked file lost its bytes")
	}
	m[5000] = 'v'
	must(t, "msync", unix.Msync(m, unix.MS_SYNC))
}
