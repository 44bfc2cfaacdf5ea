package clientfuse

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAtimeOptions: which reads move atime is the mount's choice (K16).
func TestAtimeOptions(t *testing.T) {
	for _, c := range []struct {
		options   string
		file, dir bool
	}{
		{"relatime", true, true},
		{"nodiratime", true, false},
		{"noatime", false, false},
	} {
		t.Run(c.options, func(t *testing.T) {
			root := serve(t, 1, c.options).dirs[0]
			d := filepath.Join(root, "d")
			f := filepath.Join(d, "f")
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(f, []byte("text"), 0o644); err != nil {
				t.Fatal(err)
			}
			past := time.Now().Add(-48 * time.Hour)
			for _, p := range []string{f, d} {
				if err := os.Chtimes(p, past, past); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := os.ReadFile(f); err != nil {
				t.Fatal(err)
			}
			if _, err := os.ReadDir(d); err != nil {
				t.Fatal(err)
			}
			for p, want := range map[string]bool{f: c.file, d: c.dir} {
				var st unix.Stat_t
				if err := unix.Stat(p, &st); err != nil {
					t.Fatal(err)
				}
				if got := st.Atim.Nano() != past.UnixNano(); got != want {
					t.Errorf("the atime of %s moved: %v, want %v", filepath.Base(p), got, want)
				}
			}
		})
	}
}

// TestIsSeek: the kernel asks for attributes before a read and before an lseek.
func TestIsSeek(t *testing.T) {
	for line, want := range map[string]bool{"8 0x3 0x0 0x2": true, "0 0x3 0x7ff 0x10": false, "-1 0x0": false, "": false} {
		if got := isSeek(strings.Fields(line)); got != want {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
}
