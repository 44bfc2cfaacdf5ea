package clientfuse

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/internal/await"
)

// These tests count the requests that the kernel sends: what the flags of K1
// and the answers are for.

func writeFile(t *testing.T, p, data string) {
	t.Helper()
	if err := os.WriteFile(p, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, p string) string {
	t.Helper()
	b, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func wantCounts(t *testing.T, what string, got map[string]uint64, want map[string]uint64) {
	t.Helper()
	for op, n := range want {
		if got[op] != n {
			t.Errorf("%s: %d %s requests, want %d", what, got[op], op, n)
		}
	}
}

// TestDirectoriesAreNotOpened (K1, K6): one OPENDIR in the life of a mount.
func TestDirectoriesAreNotOpened(t *testing.T) {
	s := serve(t, 1, "consistency=strict")
	got := s.during(t, func() {
		for range 10 {
			if _, err := os.ReadDir(s.dirs[0]); err != nil {
				t.Fatal(err)
			}
		}
	})
	wantCounts(t, "ten listings", got, map[string]uint64{"opendir": 1})
}

// TestXattrQuestions (K3): the answers make the kernel stop asking, or never ask.
func TestXattrQuestions(t *testing.T) {
	s := serve(t, 1, "consistency=strict")
	for i := range 50 {
		writeFile(t, filepath.Join(s.dirs[0], fmt.Sprint(i)), "")
	}
	buf := make([]byte, 100)
	for i := range 50 {
		p := filepath.Join(s.dirs[0], fmt.Sprint(i))
		for _, name := range []string{"security.selinux", "system.posix_acl_access", "system.posix_acl_default"} {
			if _, err := unix.Lgetxattr(p, name, buf); err != syscall.EOPNOTSUPP {
				t.Fatalf("%s: %v, want EOPNOTSUPP", name, err)
			}
		}
		if err := unix.Setxattr(p, "system.posix_acl_access", buf, 0); err != syscall.EOPNOTSUPP {
			t.Fatalf("setting an ACL: %v, want EOPNOTSUPP", err)
		}
	}
}

// TestReadOnlyOpensSendNoFlush (K11).
func TestReadOnlyOpensSendNoFlush(t *testing.T) {
	s := serve(t, 1, "consistency=strict")
	p := filepath.Join(s.dirs[0], "f")
	got := s.during(t, func() { writeFile(t, p, "x") })
	wantCounts(t, "a written file", got, map[string]uint64{"flush": 1, "create": 1, "write": 1})
	got = s.during(t, func() {
		for range 5 {
			readFile(t, p)
		}
	})
	wantCounts(t, "five reads", got, map[string]uint64{"flush": 0, "open": 5})
}

// TestPagesAreKept (K7): while nobody changes the bytes, reading them again asks
// for none; after a change by another mount it does.
func TestPagesAreKept(t *testing.T) {
	s := serve(t, 2, "consistency=strict")
	here, there := filepath.Join(s.dirs[0], "f"), filepath.Join(s.dirs[1], "f")
	writeFile(t, there, "one")
	readFile(t, here)
	got := s.during(t, func() {
		for range 5 {
			if text := readFile(t, here); text != "one" {
				t.Errorf("reads %q", text)
			}
		}
	})
	wantCounts(t, "reading unchanged bytes", got, map[string]uint64{"read": 0})
	writeFile(t, there, "two")
	got = s.during(t, func() {
		if text := readFile(t, here); text != "two" {
			t.Errorf("reads %q", text)
		}
	})
	wantCounts(t, "reading changed bytes", got, map[string]uint64{"read": 1})
}

// TestStrictAsks: no answer of the past is used again.
func TestStrictAsks(t *testing.T) {
	s := serve(t, 1, "consistency=strict")
	p := filepath.Join(s.dirs[0], "f")
	writeFile(t, p, "x")
	got := s.during(t, func() {
		for range 20 {
			stat(t, p)
			var st unix.Stat_t
			if err := unix.Lstat(p+"-absent", &st); err != unix.ENOENT {
				t.Fatal(err)
			}
		}
	})
	wantCounts(t, "twenty times two stats", got, map[string]uint64{"lookup": 40})
}

// TestRelaxedKeeps: names, attributes and absence are kept for the time, not longer.
func TestRelaxedKeeps(t *testing.T) {
	s := serve(t, 2, "consistency=relaxed=2s")
	here, there := filepath.Join(s.dirs[0], "f"), filepath.Join(s.dirs[1], "f")
	writeFile(t, here, "x")
	stat(t, here)
	var st unix.Stat_t
	unix.Lstat(here+"-absent", &st)
	got := s.during(t, func() {
		for range 20 {
			stat(t, here)
			unix.Lstat(here+"-absent", &st)
		}
	})
	wantCounts(t, "kept", got, map[string]uint64{"lookup": 0, "getattr": 0})
	if err := os.Chmod(there, 0o600); err != nil {
		t.Fatal(err)
	}
	writeFile(t, there+"-absent", "")
	await.Until(t, patience, "another mount's change is seen", func() bool {
		return stat(t, here).Mode == unix.S_IFREG|0o600 && unix.Lstat(here+"-absent", &st) == nil
	})
}

// TestOwnChangesInRelaxedMode: they are seen at once.
func TestOwnChangesInRelaxedMode(t *testing.T) {
	s := serve(t, 1, "consistency=relaxed=1h")
	p := filepath.Join(s.dirs[0], "f")
	for i := range 10 {
		text := fmt.Sprint("text ", i)
		writeFile(t, p, text)
		if got := readFile(t, p); got != text {
			t.Errorf("reads %q, want %q", got, text)
		}
		if st := stat(t, p); st.Size != int64(len(text)) {
			t.Errorf("size %d", st.Size)
		}
		if err := os.Rename(p, p+"2"); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != unix.ENOENT {
			t.Errorf("the old name: %v", err)
		}
		if err := os.Remove(p + "2"); err != nil {
			t.Fatal(err)
		}
		if names, err := os.ReadDir(s.dirs[0]); err != nil || len(names) != 1 { // sub
			t.Errorf("%d names, %v", len(names), err)
		}
	}
}

// TestFindUsesFewInodes (K1, READDIRPLUS_AUTO): listing without stat does not
// make the kernel keep an inode for each name.
func TestFindUsesFewInodes(t *testing.T) {
	s := serve(t, 1, "consistency=relaxed=1h")
	dir := filepath.Join(s.dirs[0], "d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		if err := unix.Mknod(filepath.Join(dir, fmt.Sprintf("%0100d", i)), unix.S_IFREG|0o644, 0); err != nil {
			t.Fatal(err)
		}
	}
	got := s.during(t, func() {
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if names, err := d.Readdirnames(-1); err != nil || len(names) != 2000 {
			t.Errorf("%d names, %v", len(names), err)
		}
	})
	if got["readdirplus"] > 1 || got["readdir"] == 0 {
		t.Errorf("%d READDIRPLUS and %d READDIR requests", got["readdirplus"], got["readdir"])
	}
}

// TestChecksAfterKilledPrivilege (K1, HANDLE_KILLPRIV_V2): a file without setuid
// and setgid costs no request more when it is written.
func TestWriteAsksForNoPrivileges(t *testing.T) {
	s := serve(t, 1, "consistency=strict")
	p := filepath.Join(s.dirs[0], "f")
	writeFile(t, p, "")
	f, err := os.OpenFile(p, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.WriteString("x") // the kernel may ask for security.capability, once
	got := s.during(t, func() {
		for range 10 {
			f.WriteString("x")
		}
	})
	wantCounts(t, "ten writes", got, map[string]uint64{"write": 10, "setattr": 0, "getxattr": 0})
}

// TestLargeWritesTravelWhole: one write(2) of a megabyte is one request.
func TestLargeWritesTravelWhole(t *testing.T) {
	s := serve(t, 1, "consistency=strict")
	p := filepath.Join(s.dirs[0], "f")
	f, err := os.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	got := s.during(t, func() {
		for range 4 {
			if _, err := f.Write(buf); err != nil {
				t.Fatal(err)
			}
		}
	})
	wantCounts(t, "four megabytes", got, map[string]uint64{"write": 4})
}
