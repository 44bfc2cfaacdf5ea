package clientfuse

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/client"
)

// TestListingsAtOnce (K6, F3): of listings of one directory that are at the same
// position, each shows what was there when it began, whether they are of two threads, of
// two processes, or of one thread; one that goes on in another thread is still the same.
func TestListingsAtOnce(t *testing.T) {
	f, m := newTestFS(t)
	f.groups.proc = t.TempDir()
	// reads has a thread wait in getdents of a process's descriptor.
	reads := func(tid, process uint32, fd int) {
		t.Helper()
		dir := filepath.Join(f.groups.proc, fmt.Sprint(tid))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"syscall": fmt.Sprintf("%d %#x 0x7f0000000000 0x8000 0x0 0x0 0x0 0x7ffd00000000 0x7f0000000000\n", unix.SYS_GETDENTS64, fd),
			"status":  fmt.Sprintf("Name:\tlister\nTgid:\t%d\nPid:\t%d\n", process, tid),
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	made := 0
	makeName := func() {
		m.makeLocked(client.Cred{}, m.root, fmt.Sprintf("%020d", made), syscall.S_IFREG)
		made++
	}
	for range 12 {
		makeName()
	}
	type thread struct {
		tid, process uint32
		fd           int
	}
	// shows reads a listing on to its end, and returns how many names it showed in all.
	shows := func(by thread, offset uint64, names int) int {
		for {
			reads(by.tid, by.process, by.fd)
			p := page(t, f, by.tid, offset, 300)
			if len(p) == 0 {
				return names
			}
			names, offset = names+len(p), p[len(p)-1].Off
		}
	}
	for what, x := range map[string]struct{ older, newer, later thread }{
		"two threads":             {thread{7, 7, 3}, thread{8, 7, 4}, thread{7, 7, 3}},
		"two processes":           {thread{17, 17, 3}, thread{18, 18, 3}, thread{17, 17, 3}},
		"one thread":              {thread{27, 27, 3}, thread{27, 27, 4}, thread{27, 27, 3}},
		"one that changes thread": {thread{37, 37, 3}, thread{38, 37, 4}, thread{38, 37, 3}},
	} {
		reads(x.older.tid, x.older.process, x.older.fd)
		first := page(t, f, x.older.tid, 0, 300)
		wantOlder := made + 2 // and the dots
		makeName()
		reads(x.newer.tid, x.newer.process, x.newer.fd)
		second := page(t, f, x.newer.tid, 0, 300)
		wantNewer := made + 2
		makeName()
		at := first[len(first)-1].Off
		if second[len(second)-1].Off != at {
			t.Fatal("the listings are not at the same position")
		}
		if n := shows(x.later, at, len(first)); n != wantOlder {
			t.Errorf("%s: the older listing shows %d names, want %d", what, n, wantOlder)
		}
		if n := shows(x.newer, at, len(second)); n != wantNewer {
			t.Errorf("%s: the newer listing shows %d names, want %d", what, n, wantNewer)
		}
	}
	// A listing was given up, and its descriptor used again.
	by := thread{47, 47, 3}
	reads(by.tid, by.process, by.fd)
	page(t, f, by.tid, 0, 300)
	makeName()
	first := page(t, f, by.tid, 0, 300)
	if n := shows(by, first[len(first)-1].Off, len(first)); n != made+2 {
		t.Errorf("a listing on a descriptor that is used again shows %d names, want %d", n, made+2)
	}
	// Nothing is known of whose it is: nothing is missing.
	first = page(t, f, 99, 0, 300)
	makeName()
	page(t, f, 98, 0, 300)
	if n := shows(thread{99, 99, 3}, first[len(first)-1].Off, len(first)); n < made+1 {
		t.Errorf("a listing of an unknown stream shows %d names, want %d at the least", n, made+1)
	}
}

// TestListingsAtOnceOnAMount: the kernel keeps a listing that was read to its end, and
// gives it to others that are on their way. What an older listing does not show, a
// newer one of the same directory does.
func TestListingsAtOnceOnAMount(t *testing.T) {
	root := serve(t, 1, "rw").dirs[0]
	const names = 400
	for i := range names {
		if err := os.WriteFile(filepath.Join(root, fmt.Sprintf("%020d", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	open := func() int {
		t.Helper()
		fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	read := func(fd int) (shown []string) {
		t.Helper()
		b := make([]byte, 4096)
		n, err := unix.ReadDirent(fd, b)
		if err != nil {
			t.Fatal(err)
		}
		_, _, shown = unix.ParseDirent(b[:n], -1, nil)
		return shown
	}
	rest := func(fd int) (shown []string) {
		t.Helper()
		for page := read(fd); len(page) > 0; page = read(fd) {
			shown = append(shown, page...)
		}
		return shown
	}
	for round := range 5 {
		older := open()
		for range 2 {
			if len(read(older)) == 0 {
				t.Fatal("no names")
			}
		}
		late := fmt.Sprint("late-", round)
		if err := os.WriteFile(filepath.Join(root, late), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		newer := open()
		begun := read(newer)
		rest(older)
		if shown := append(begun, rest(newer)...); !slices.Contains(shown, late) {
			t.Errorf("round %d: a listing that began afterwards shows %d names, not the one that was made before it", round, len(shown))
		}
		if shown := rest(open()); !slices.Contains(shown, late) {
			t.Errorf("round %d: a listing after them shows %d names, not all", round, len(shown))
		}
	}
}
