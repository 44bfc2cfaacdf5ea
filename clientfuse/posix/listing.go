package posix

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func listingChecks() []check {
	return []check{
		{"dots and numbers", checkDots},
		{"big", checkBigListing},
		{"changing", checkChangingListing},
		{"remove while listing", checkRemoveWhileListing},
		{"seek", checkSeekListing},
		{"rewind", checkRewind},
		{"own changes", checkListOwnChanges},
		{"parallel creates", checkParallelCreates},
	}
}

// list returns the names of a directory, without the dots.
func list(t *testing.T, dir string) []string {
	t.Helper()
	d, err := os.Open(dir)
	must(t, "opendir", err)
	defer d.Close()
	names, err := d.Readdirnames(-1)
	must(t, "readdir", err)
	return names
}

// dirent is one entry as getdents64(2) gives it.
type dirent struct {
	ino  uint64
	off  int64
	kind byte
	name string
}

// getdents reads entries with a buffer of the size until it is full or the
// directory ends.
func getdents(t *testing.T, fd, bufBytes int) []dirent {
	t.Helper()
	buf := make([]byte, bufBytes)
	n, err := unix.Getdents(fd, buf)
	must(t, "getdents", err)
	var found []dirent
	for b := buf[:n]; len(b) > 0; {
		length := binary.NativeEndian.Uint16(b[16:])
		name := b[19:length]
		for i, c := range name {
			if c == 0 {
				name = name[:i]
				break
			}
		}
		found = append(found, dirent{
			ino: binary.NativeEndian.Uint64(b), off: int64(binary.NativeEndian.Uint64(b[8:])), kind: b[18], name: string(name),
		})
		b = b[length:]
	}
	return found
}

func listAll(t *testing.T, fd, bufBytes int) []dirent {
	t.Helper()
	var all []dirent
	for {
		page := getdents(t, fd, bufBytes)
		if len(page) == 0 {
			return all
		}
		all = append(all, page...)
	}
}

// checkDots: "." and ".." are there, and d_ino and d_type are what stat says.
func checkDots(t *testing.T, dir string) {
	d := filepath.Join(dir, "d")
	must(t, "mkdir", unix.Mkdir(d, 0o755))
	must(t, "mkdir", unix.Mkdir(filepath.Join(d, "sub"), 0o755))
	write(t, filepath.Join(d, "file"), "")
	must(t, "link", unix.Link(filepath.Join(d, "file"), filepath.Join(d, "hard")))
	must(t, "symlink", unix.Symlink("x", filepath.Join(d, "soft")))
	must(t, "mknod", unix.Mknod(filepath.Join(d, "fifo"), unix.S_IFIFO|0o644, 0))
	seen := make(map[string]bool)
	for _, e := range listAll(t, open(t, d, unix.O_RDONLY|unix.O_DIRECTORY), 4096) {
		seen[e.name] = true
		st := lstat(t, d+"/"+e.name)
		if e.ino != st.Ino {
			t.Errorf("%s: d_ino %d, st_ino %d", e.name, e.ino, st.Ino)
		}
		if uint32(e.kind) != st.Mode&unix.S_IFMT>>12 {
			t.Errorf("%s: d_type %d, mode %o", e.name, e.kind, st.Mode)
		}
	}
	for _, name := range []string{".", "..", "sub", "file", "hard", "soft", "fifo"} {
		if !seen[name] {
			t.Errorf("%s is not listed", name)
		}
	}
	if len(seen) != 7 {
		t.Errorf("%d names listed, want 7", len(seen))
	}
}

func fill(t *testing.T, dir string, n int) []string {
	t.Helper()
	names := make([]string, n)
	for i := range n {
		names[i] = fmt.Sprintf("entry-%05d", i)
		must(t, "mknod", unix.Mknod(filepath.Join(dir, names[i]), unix.S_IFREG|0o644, 0))
	}
	return names
}

func checkBigListing(t *testing.T, dir string) {
	names := fill(t, dir, 1000)
	wantNames(t, dir, names)
	entries, err := os.ReadDir(dir) // with attributes of each
	must(t, "readdir", err)
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Name() != e.Name() {
			t.Fatalf("stat of %s: %v", e.Name(), err)
		}
	}
	small := listAll(t, open(t, dir, unix.O_RDONLY|unix.O_DIRECTORY), 280)
	if len(small) != len(names)+2 {
		t.Errorf("with a small buffer %d names, want %d", len(small), len(names)+2)
	}
}

// checkChangingListing: names that are there throughout are listed exactly once,
// whatever else comes and goes.
func checkChangingListing(t *testing.T, dir string) {
	names := fill(t, dir, 400)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			p := filepath.Join(dir, fmt.Sprintf("other-%d", i%50))
			if err := os.WriteFile(p, nil, 0o644); err == nil && i%2 == 0 {
				os.Rename(p, p+".moved")
				os.Remove(p + ".moved")
			} else {
				os.Remove(p)
			}
		}
	})
	for range 6 {
		count := make(map[string]int)
		for _, e := range listAll(t, open(t, dir, unix.O_RDONLY|unix.O_DIRECTORY), 1024) {
			count[e.name]++
		}
		for _, name := range names {
			if count[name] != 1 {
				t.Errorf("%s is listed %d times", name, count[name])
			}
		}
	}
	close(stop)
	wg.Wait()
}

// checkRemoveWhileListing is rm -r: each page's names go before the next is read.
func checkRemoveWhileListing(t *testing.T, dir string) {
	fill(t, dir, 300)
	fd := open(t, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	removed := 0
	for {
		page := getdents(t, fd, 1024)
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			if e.name != "." && e.name != ".." {
				must(t, "unlink", unix.Unlink(filepath.Join(dir, e.name)))
				removed++
			}
		}
	}
	if left := list(t, dir); removed != 300 || len(left) != 0 {
		t.Errorf("%d removed, %d left", removed, len(left))
	}
}

func checkSeekListing(t *testing.T, dir string) {
	fill(t, dir, 300)
	fd := open(t, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	all := listAll(t, fd, 4096)
	for _, i := range []int{0, 1, 2, 150, len(all) - 2} {
		_, err := unix.Seek(fd, all[i].off, unix.SEEK_SET)
		must(t, "seek", err)
		rest := listAll(t, fd, 4096)
		if len(rest) != len(all)-i-1 || len(rest) > 0 && rest[0].name != all[i+1].name {
			t.Errorf("behind entry %d: %d entries, want %d", i, len(rest), len(all)-i-1)
		}
	}
	for i, e := range all {
		if i > 0 && i < len(all)-1 && e.off <= 0 {
			t.Errorf("position %d of %s is not positive", e.off, e.name)
		}
	}
}

func checkRewind(t *testing.T, dir string) {
	write(t, filepath.Join(dir, "a"), "")
	fd := open(t, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	before := len(listAll(t, fd, 4096))
	write(t, filepath.Join(dir, "b"), "")
	must(t, "unlink", unix.Unlink(filepath.Join(dir, "a")))
	write(t, filepath.Join(dir, "c"), "")
	_, err := unix.Seek(fd, 0, unix.SEEK_SET)
	must(t, "rewind", err)
	names := make(map[string]bool)
	for _, e := range listAll(t, fd, 4096) {
		names[e.name] = true
	}
	if before != 3 || len(names) != 4 || !names["b"] || !names["c"] || names["a"] {
		t.Errorf("before %d entries; after rewinding %v", before, names)
	}
}

// checkListOwnChanges: a listing that begins after a change shows it.
func checkListOwnChanges(t *testing.T, dir string) {
	for i := range 50 {
		name := fmt.Sprintf("n%d", i)
		write(t, filepath.Join(dir, name), "")
		if got := list(t, dir); len(got) != 1 || got[0] != name {
			t.Fatalf("after creating %s: %q", name, got)
		}
		must(t, "unlink", unix.Unlink(filepath.Join(dir, name)))
		if got := list(t, dir); len(got) != 0 {
			t.Fatalf("after removing %s: %q", name, got)
		}
	}
}

func checkParallelCreates(t *testing.T, dir string) {
	const workers, each = 8, 25
	var wg sync.WaitGroup
	errs := make(chan error, workers*each)
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				p := filepath.Join(dir, fmt.Sprintf("w%d-%d", w, i))
				if err := os.WriteFile(p, []byte(p), 0o644); err != nil {
					errs <- err
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	names := list(t, dir)
	if len(names) != workers*each {
		t.Errorf("%d files, want %d", len(names), workers*each)
	}
	for _, name := range names {
		wantFile(t, filepath.Join(dir, name), filepath.Join(dir, name))
	}
}
