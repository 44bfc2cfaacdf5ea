package client

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/canopyfs/canopy/internal/fserr"
)

// names of a listing.
func entryNames(entries []fs.DirEntry) []string {
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestFilesByPath(t *testing.T) {
	f := newFake(t, 1)
	ctx := t.Context()
	s := f.connect(t, newMemData()).FS(root)
	if err := s.MkdirAll(ctx, "/a/b/../b//c/.", 0o755); err != nil {
		t.Fatal(err)
	}
	text := bytes.Repeat([]byte("0123456789"), 200_000)
	if err := s.WriteFile(ctx, "a/b/c/file", text, 0o640); err != nil {
		t.Fatal(err)
	}
	if got, err := s.ReadFile(ctx, "/a/b/c/file"); err != nil || !bytes.Equal(got, text) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	info, err := s.Stat(ctx, "/a/b/c/file")
	if err != nil || info.Size() != int64(len(text)) || info.Mode() != 0o640 || info.Name() != "file" || info.Sys().(*Attr).Nlink != 1 {
		t.Errorf("stat: %+v %v", info, err)
	}
	if err := s.WriteFile(ctx, "a/b/c/file", []byte("short"), 0); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.ReadFile(ctx, "a/b/c/file"); string(got) != "short" {
		t.Errorf("after truncation: %q", got)
	}
	for i := range 5 {
		if err := s.WriteFile(ctx, fmt.Sprint("a/b/", 4-i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := s.ReadDir(ctx, "a/b")
	if got := entryNames(entries); err != nil || !slices.Equal(got, []string{"0", "1", "2", "3", "4", "c"}) {
		t.Errorf("listing: %v %v", got, err)
	}
	if i, err := entries[5].Info(); err != nil || !i.IsDir() || !entries[5].IsDir() || entries[5].Type() != fs.ModeDir {
		t.Errorf("entry: %+v %v", i, err)
	}
	if err := s.Rename(ctx, "a/b/c/file", "a/moved"); err != nil {
		t.Fatal(err)
	}
	if err := s.Link(ctx, "a/moved", "a/again"); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(ctx, "a/moved"); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(ctx, "a/b/c"); err != nil {
		t.Errorf("remove of an empty directory: %v", err)
	}
	if got, err := s.ReadFile(ctx, "a/again"); string(got) != "short" || err != nil {
		t.Errorf("by the other name: %q %v", got, err)
	}
}

func TestAttributesByPath(t *testing.T) {
	f := newFake(t, 1)
	ctx := t.Context()
	s := f.connect(t, newMemData()).FS(root)
	if err := s.WriteFile(ctx, "x", []byte("0123456789"), 0o644); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_000_000_000, 5)
	for _, err := range []error{
		s.Chmod(ctx, "x", 0o600|fs.ModeSticky), s.Chown(ctx, "x", 7, -1), s.Chtimes(ctx, "x", time.Time{}, at), s.Truncate(ctx, "x", 4),
		s.Chtimes(ctx, "x", time.Time{}, at), s.SetXattr(ctx, "x", "user.a", []byte("1")), s.SetXattr(ctx, "x", "user.b", nil),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	info, err := s.Stat(ctx, "x")
	if err != nil || info.Mode() != 0o600|fs.ModeSticky || info.Sys().(*Attr).Uid != 7 || !info.ModTime().Equal(at) || info.Size() != 4 {
		t.Errorf("stat: %+v %v", info, err)
	}
	names, err := s.ListXattr(ctx, "x")
	slices.Sort(names)
	if err != nil || !slices.Equal(names, []string{"user.a", "user.b"}) {
		t.Errorf("xattrs: %v %v", names, err)
	}
	if v, err := s.GetXattr(ctx, "x", "user.a"); string(v) != "1" || err != nil {
		t.Errorf("xattr: %q %v", v, err)
	}
	if err := s.RemoveXattr(ctx, "x", "user.a"); err != nil {
		t.Error(err)
	}
	if _, err := s.GetXattr(ctx, "x", "user.a"); fserr.KindOf(err) != fserr.NoData {
		t.Error(err)
	}
}

func TestSymlinks(t *testing.T) {
	f := newFake(t, 1)
	ctx := t.Context()
	s := f.connect(t, newMemData()).FS(root)
	for _, err := range []error{
		s.MkdirAll(ctx, "d/e", 0o755), s.WriteFile(ctx, "d/f", []byte("text"), 0o644),
		s.Symlink(ctx, "/d", "abs"), s.Symlink(ctx, "../f", "d/e/rel"), s.Symlink(ctx, "loop", "loop"),
		s.Symlink(ctx, "d/e", "deep"), s.Symlink(ctx, "fresh", "d/dangling"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"abs/f", "d/e/rel", "abs/e/rel", "deep/rel", "deep/../f", "d/e/../../abs/./f"} {
		if got, err := s.ReadFile(ctx, path); string(got) != "text" {
			t.Errorf("%s: %q %v", path, got, err)
		}
	}
	if target, err := s.Readlink(ctx, "d/e/rel"); target != "../f" || err != nil {
		t.Errorf("readlink: %q %v", target, err)
	}
	if _, err := s.Stat(ctx, "loop"); fserr.KindOf(err) != fserr.Loop {
		t.Errorf("loop: %v", err)
	}
	if info, err := s.Lstat(ctx, "loop"); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("lstat: %v %v", info, err)
	}
	if err := s.WriteFile(ctx, "d/dangling", []byte("made"), 0o644); err != nil {
		t.Error(err)
	}
	if got, err := s.ReadFile(ctx, "d/fresh"); string(got) != "made" {
		t.Errorf("through a dangling link: %q %v", got, err)
	}
	if _, err := s.OpenFile(ctx, "d/dangling", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); !errors.Is(err, fs.ErrExist) {
		t.Errorf("O_EXCL on a link: %v", err)
	}
	chain := "d/f"
	for i := range 41 {
		next := fmt.Sprint("l", i)
		if err := s.Symlink(ctx, "/"+chain, next); err != nil {
			t.Fatal(err)
		}
		chain = next
	}
	if _, err := s.Stat(ctx, "l39"); err != nil {
		t.Errorf("40 links: %v", err)
	}
	if _, err := s.Stat(ctx, "l40"); fserr.KindOf(err) != fserr.Loop {
		t.Errorf("41 links: %v", err)
	}
}

func TestErrorsByPath(t *testing.T) {
	f := newFake(t, 1)
	ctx := t.Context()
	c := f.connect(t, newMemData())
	s := c.FS(root)
	for _, err := range []error{s.Mkdir(ctx, "d", 0o700), s.WriteFile(ctx, "d/f", nil, 0o600), s.WriteFile(ctx, "pub", nil, 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	user := c.FS(Cred{UID: 1000, GID: 1000})
	_, openMissing := s.Open(ctx, "d/none")
	_, openDir := s.Open(ctx, "d")
	_, hidden := user.ReadFile(ctx, "d/f")
	_, readOnly := user.OpenFile(ctx, "pub", os.O_RDWR, 0)
	_, below := s.Stat(ctx, "pub/x")
	_, slash := s.Stat(ctx, "pub/")
	_, empty := s.Stat(ctx, "")
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"open of nothing", openMissing, fs.ErrNotExist}, {"open of a directory", openDir, fserr.IsDir},
		{"hidden", hidden, fs.ErrPermission}, {"read only", readOnly, fs.ErrPermission},
		{"below a file", below, fserr.NotDir}, {"a file with a slash", slash, fserr.NotDir}, {"empty", empty, fs.ErrNotExist},
		{"mkdir of what is there", s.Mkdir(ctx, "d", 0o755), fs.ErrExist}, {"mkdir of the root", s.Mkdir(ctx, "/", 0o755), fs.ErrExist},
		{"mkdir below nothing", s.Mkdir(ctx, "x/y", 0o755), fs.ErrNotExist}, {"mkdirall through a file", s.MkdirAll(ctx, "pub/y/z", 0o755), fserr.NotDir},
		{"remove of a full directory", s.Remove(ctx, "d"), fserr.NotEmpty}, {"remove of nothing", s.Remove(ctx, "none"), fs.ErrNotExist},
		{"remove of the root", s.Remove(ctx, "/"), fserr.Invalid}, {"rename of nothing", s.Rename(ctx, "none", "d/x"), fs.ErrNotExist},
		{"long name", s.Mkdir(ctx, strings.Repeat("n", 256), 0o755), fserr.NameTooLong},
	} {
		var path *fs.PathError
		if !errors.Is(c.err, c.want) || !errors.As(c.err, &path) {
			t.Errorf("%s: %v", c.name, c.err)
		}
	}
	if got := openMissing.Error(); got != "open d/none: no such file or directory" {
		t.Errorf("text: %q", got)
	}
	if _, err := user.ReadFile(ctx, "pub"); err != nil {
		t.Error(err)
	}
}

func TestRemoveAll(t *testing.T) {
	f := newFake(t, 1)
	ctx := t.Context()
	s := f.connect(t, newMemData()).FS(root)
	for i := range 3 {
		if err := s.MkdirAll(ctx, fmt.Sprintf("t/%d/x/y", i), 0o755); err != nil {
			t.Fatal(err)
		}
		for j := range 50 {
			if err := s.WriteFile(ctx, fmt.Sprintf("t/%d/x/f%d", i, j), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Symlink(ctx, "/t", "t/0/link"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.RemoveAll(ctx, "t"); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.names(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestListingIsStable(t *testing.T) {
	f := newFake(t, 1)
	ctx := t.Context()
	c := f.connect(t, newMemData())
	for i := range 100 {
		create(t, c, fmt.Sprint("f", i)).Close(ctx)
	}
	seen := map[string]int{}
	req := ReadDirRequest{MaxEntries: 7, Plus: true}
	for page := 0; ; page++ {
		p, err := c.ReadDir(ctx, root, c.Root(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range p.Entries {
			seen[string(e.Name)]++
			n := c.InodeOf(c.Root(), e)
			if e.Attr == nil || uint64(n.Ino()) != e.Ino || n.IsDir() {
				t.Errorf("entry %v", e)
			}
			n.Release()
			req.Cookie = e.Cookie
		}
		// Names that come and go meanwhile do not disturb the listing.
		create(t, c, fmt.Sprint("new", page)).Close(ctx)
		if p.EOF {
			break
		}
		req.Mark = p.Mark
	}
	if len(seen) != 100 {
		t.Errorf("%d names", len(seen))
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s: %d times", name, n)
		}
	}
}
