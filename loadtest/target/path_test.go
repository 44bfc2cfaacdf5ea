package target

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/canopyfs/canopy/internal/fserr"
)

func openDir(t *testing.T) (Dir, string) {
	t.Helper()
	root := t.TempDir()
	tg, err := NewPath(root)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if err := tg.MkdirAll(ctx, "a/b"); err != nil {
		t.Fatal(err)
	}
	d, err := tg.Dir(ctx, "a/b")
	if err != nil {
		t.Fatal(err)
	}
	return d, filepath.Join(root, "a/b")
}

func TestPathOperations(t *testing.T) {
	ctx := context.Background()
	d, dir := openDir(t)
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	must("mkdir", d.Mkdir(ctx, "sub"))
	must("create", d.Create(ctx, "f"))
	must("stat", d.Stat(ctx, "f"))
	must("open", d.Open(ctx, "f"))
	must("rename", d.Rename(ctx, "f", "g"))
	var names []string
	n, err := d.List(ctx, func(name string, ino uint64) {
		if ino == 0 {
			t.Errorf("%s has no inode number", name)
		}
		names = append(names, name)
	})
	sort.Strings(names)
	if err != nil || n != 2 || fmt.Sprint(names) != "[g sub]" {
		t.Fatalf("list: %d %v, %v", n, names, err)
	}
	if n, err := d.ListAttrs(ctx); err != nil || n != 2 {
		t.Fatalf("ls -l: %d, %v", n, err)
	}
	must("unlink", d.Unlink(ctx, "g"))
	must("rmdir", d.Rmdir(ctx, "sub"))
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Fatalf("left: %v, %v", left, err)
	}
	err = d.Stat(ctx, "g")
	if !strings.Contains(fmt.Sprint(err), dir+"/g") || Unknown(err) {
		t.Errorf("stat of a missing name: %v", err)
	}
}

// Many names need several calls of getdents64.
func TestPathListManyNames(t *testing.T) {
	ctx := context.Background()
	d, dir := openDir(t)
	const want = 3000
	for i := range want {
		if err := os.WriteFile(fmt.Sprintf("%s/%s.%05d", dir, strings.Repeat("x", 40), i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]int{}
	n, err := d.List(ctx, func(name string, _ uint64) { seen[name]++ })
	if err != nil || n != want || len(seen) != want {
		t.Fatalf("list: %d, %d different, %v", n, len(seen), err)
	}
}

func TestPathBadRoot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/no/such/dir": "--path /no/such/dir: no such file or directory",
		file:           "--path " + file + ": not a directory",
	} {
		if _, err := NewPath(path); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestUnknown(t *testing.T) {
	for err, want := range map[error]bool{
		fs.ErrExist: false, fserr.Exist: false, fserr.NotFound: false, fserr.TimedOut: true,
		fserr.IO: true, context.Canceled: true, fserr.Access: false,
	} {
		if Unknown(err) != want {
			t.Errorf("Unknown(%v) = %v", err, !want)
		}
	}
	if Unknown(nil) {
		t.Error("success is unknown")
	}
}

func FuzzParseDirents(f *testing.F) {
	f.Add([]byte("0123456789abcdef\x18\x00\x08name\x00"))
	f.Fuzz(func(t *testing.T, b []byte) { parseDirents(b, func(string, uint64) {}) })
}
