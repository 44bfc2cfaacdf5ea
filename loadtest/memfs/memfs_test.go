package memfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/loadtest/mounted"
)

const childEnv = "CANOPY_MEMFS_TEST_DIR"

func testOptions() mountopt.Options {
	o := mountopt.Default()
	o.Relaxed = time.Minute
	return o
}

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := Serve(context.Background(), dir, testOptions(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func start(t *testing.T) *mounted.FS {
	t.Helper()
	if os.Geteuid() != 0 {
		if _, err := exec.LookPath("fusermount3"); err != nil {
			t.Skip("neither root nor fusermount3")
		}
	}
	m, err := mounted.Start(context.Background(), t.TempDir(), "canopy-memfs-", func(ctx context.Context, dir string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		return cmd
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func mount(t *testing.T) *mounted.FS {
	t.Helper()
	m := start(t)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNamesAndBytes(t *testing.T) {
	dir := mount(t).Dir
	p := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.Mkdir(p("d"), 0o755))
	data := bytes.Repeat([]byte("canopy"), 300_000)
	must(t, os.WriteFile(p("d/f"), data, 0o640))
	got, err := os.ReadFile(p("d/f"))
	must(t, err)
	if sha256.Sum256(got) != sha256.Sum256(data) {
		t.Fatal("bytes differ")
	}
	must(t, os.Rename(p("d/f"), p("g")))
	must(t, os.Link(p("g"), p("h")))
	must(t, os.Symlink("g", p("s")))
	if target, err := os.Readlink(p("s")); err != nil || target != "g" {
		t.Fatalf("readlink: %q, %v", target, err)
	}
	var st unix.Stat_t
	must(t, unix.Stat(p("s"), &st))
	if st.Nlink != 2 || st.Size != int64(len(data)) || st.Mode&0o777 != 0o640 {
		t.Errorf("stat: %+v", st)
	}
	must(t, os.Truncate(p("g"), 10))
	if b, err := os.ReadFile(p("h")); err != nil || string(b) != "canopycano" {
		t.Errorf("after truncate: %q, %v", b, err)
	}
	must(t, unix.Setxattr(p("g"), "user.a", []byte("1"), 0))
	value := make([]byte, 10)
	if n, err := unix.Getxattr(p("g"), "user.a", value); err != nil || string(value[:n]) != "1" {
		t.Errorf("xattr: %q, %v", value[:n], err)
	}
	if _, err := unix.Getxattr(p("g"), "security.selinux", value); err != unix.EOPNOTSUPP {
		t.Errorf("security.selinux: %v", err)
	}
}

func TestErrors(t *testing.T) {
	dir := mount(t).Dir
	p := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.MkdirAll(p("a/b"), 0o755))
	must(t, os.WriteFile(p("f"), nil, 0o600))
	for what, c := range map[string]struct {
		err  error
		want syscall.Errno
	}{
		"mkdir":       {os.Mkdir(p("a"), 0o755), syscall.EEXIST},
		"rmdir full":  {unix.Rmdir(p("a")), syscall.ENOTEMPTY},
		"rmdir file":  {unix.Rmdir(p("f")), syscall.ENOTDIR},
		"unlink dir":  {unix.Unlink(p("a")), syscall.EISDIR},
		"unlink none": {unix.Unlink(p("x")), syscall.ENOENT},
		"over dir":    {unix.Rename(p("f"), p("a")), syscall.EISDIR},
		"over file":   {unix.Rename(p("a"), p("f")), syscall.ENOTDIR},
		"noreplace":   {unix.Renameat2(unix.AT_FDCWD, p("f"), unix.AT_FDCWD, p("a"), unix.RENAME_NOREPLACE), syscall.EEXIST},
		"link dir":    {unix.Link(p("a"), p("l")), syscall.EPERM},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", what, c.err, c.want)
		}
	}
	must(t, unix.Renameat2(unix.AT_FDCWD, p("f"), unix.AT_FDCWD, p("a"), unix.RENAME_EXCHANGE))
	if st, err := os.Stat(p("f/b")); err != nil || !st.IsDir() {
		t.Errorf("after the exchange: %v", err)
	}
}

// A listing shows each name once, also when names come and go between pages.
func TestListingIsExactWhileNamesComeAndGo(t *testing.T) {
	dir := mount(t).Dir
	const stay = 2000
	var wait sync.WaitGroup
	for w := range 4 {
		wait.Go(func() {
			for i := range stay / 4 {
				must(t, os.WriteFile(fmt.Sprintf("%s/keep.%d.%d", dir, w, i), nil, 0o600))
			}
		})
	}
	wait.Wait()
	stop := make(chan struct{})
	wait.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := fmt.Sprintf("%s/gone.%d", dir, i)
			must(t, os.WriteFile(name, nil, 0o600))
			must(t, os.Remove(name))
		}
	})
	for range 5 {
		seen := map[string]int{}
		entries, err := os.ReadDir(dir)
		must(t, err)
		for _, e := range entries {
			if filepath.Ext(e.Name()) != "" && e.Name()[:4] == "keep" {
				seen[e.Name()]++
			}
		}
		counts := map[int]int{}
		for _, n := range seen {
			counts[n]++
		}
		if len(seen) != stay || counts[1] != stay {
			t.Errorf("%d names that stay, seen %v", len(seen), counts)
		}
	}
	close(stop)
	wait.Wait()
}

func TestOpenFileSurvivesUnlink(t *testing.T) {
	dir := mount(t).Dir
	f, err := os.Create(dir + "/f")
	must(t, err)
	defer f.Close()
	must(t, os.Remove(dir+"/f"))
	_, err = f.WriteAt([]byte("still"), 0)
	must(t, err)
	b := make([]byte, 5)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "still" {
		t.Errorf("read: %q, %v", b, err)
	}
}

// A server that is killed leaves no dead mount behind.
func TestCloseAfterTheServerWasKilled(t *testing.T) {
	m := start(t)
	must(t, syscall.Kill(m.Pid(), syscall.SIGKILL))
	if err := m.Close(); err == nil {
		t.Error("a killed server is no error")
	}
	if _, err := os.Stat(m.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mount point is still there: %v", err)
	}
}

func TestTidyKeepsOrder(t *testing.T) {
	fs := New(mountopt.Options{})
	root := fs.node(fuse.FUSE_ROOT_ID)
	now := time.Now()
	for i := range 300 {
		root.addLocked(fmt.Sprint(i), fs.newNode(syscall.S_IFREG, fuse.Owner{}), now)
	}
	for i := range 200 {
		root.removeLocked(root.dir.byName[fmt.Sprint(i)], now)
	}
	if len(root.dir.slots) >= 300 {
		t.Errorf("%d slots for 100 names", len(root.dir.slots))
	}
	if !sort.SliceIsSorted(root.dir.slots, func(i, j int) bool { return root.dir.slots[i].cookie < root.dir.slots[j].cookie }) {
		t.Error("slots are out of order")
	}
}
