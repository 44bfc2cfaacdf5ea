package clustertest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// statfs returns what df shows of a path.
func statfs(t *testing.T, path string) (s syscall.Statfs_t) {
	t.Helper()
	if err := syscall.Statfs(path, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestQuota: programs on two mounts meet a quota of bytes and inodes.
func TestQuota(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true)
	other := c.secondMount(t)
	q := filepath.Join(c.mount, "q")
	if err := os.Mkdir(q, 0o755); err != nil {
		t.Fatal(err)
	}
	c.mdsctl(t, "quota", "set", q, "--bytes", "8M", "--inodes", "12")

	t.Run("dd", func(t *testing.T) {
		// Three writers on two mounts: each is told by write(2), together they get all.
		var wg sync.WaitGroup
		for i, name := range []string{q + "/a", other + "/q/b", q + "/c"} {
			wg.Go(func() {
				out, err := exec.Command("dd", "if=/dev/zero", "of="+name, fmt.Sprintf("bs=%dk", 32<<i), "count=1000").CombinedOutput()
				if err == nil || !strings.Contains(string(out), "Disk quota exceeded") {
					t.Errorf("dd to %s: %v, %s", name, err, out)
				}
			})
		}
		wg.Wait()
		var sum int64
		for _, name := range []string{"a", "b", "c"} {
			info, err := os.Stat(filepath.Join(q, name))
			if err != nil {
				t.Fatal(err)
			}
			sum += info.Size()
		}
		if sum != 8<<20 {
			t.Errorf("the files have %d bytes together, the quota is %d", sum, 8<<20)
		}
		if s := statfs(t, q); s.Blocks*uint64(s.Bsize) != 8<<20 || s.Bavail != 0 || s.Files != 12 || s.Ffree != 9 {
			t.Errorf("statfs: %+v", s)
		}
		if s := statfs(t, c.mount); s.Blocks*uint64(s.Bsize) == 8<<20 {
			t.Errorf("statfs above the quota: %+v", s)
		}
	})
	t.Run("delete", func(t *testing.T) {
		// Space is there again at once, also of a file that somebody has open.
		held, err := os.Open(q + "/a")
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		for _, name := range []string{"a", "b", "c"} {
			if err := os.Remove(filepath.Join(q, name)); err != nil {
				t.Fatal(err)
			}
		}
		if s := statfs(t, q); s.Bavail*uint64(s.Bsize) != 8<<20 || s.Ffree != 12 {
			t.Errorf("statfs: %+v", s)
		}
		if err := os.WriteFile(q+"/again", make([]byte, 8<<20), 0o644); err != nil {
			t.Errorf("all that the quota allows: %v", err)
		}
	})
	t.Run("cp", func(t *testing.T) { quotaCopy(t, q) })
	t.Run("touch", func(t *testing.T) {
		made := 0
		for ; made < 20; made++ {
			if err := os.WriteFile(fmt.Sprintf("%s/f%d", q, made), nil, 0o644); err != nil {
				if !errors.Is(err, syscall.EDQUOT) {
					t.Error(err)
				}
				break
			}
		}
		if entries, err := os.ReadDir(q); err != nil || len(entries) != 12 {
			t.Errorf("%d names, %v; the quota allows 12", len(entries), err)
		}
		if err := os.Rename(q+"/f0", c.mount+"/f0"); err != nil {
			t.Error(err)
		}
		if err := os.Mkdir(q+"/d", 0o755); err != nil {
			t.Errorf("in place of what was moved out: %v", err)
		}
		if err := os.Rename(c.mount+"/f0", q+"/d/f0"); !errors.Is(err, syscall.EDQUOT) {
			t.Errorf("it moves back: %v", err)
		}
	})
	c.mdsctl(t, "quota", "check")
	c.mdsctl(t, "fsck")
}

// quotaCopy copies what does not fit: cp and tar say so, and what is there is a
// part of what was to be copied.
func quotaCopy(t *testing.T, q string) {
	if err := os.Remove(q + "/again"); err != nil {
		t.Fatal(err)
	}
	src := filepath.Join(t.TempDir(), "src")
	if err := os.WriteFile(src, bytes.Repeat([]byte("0123456789abcde\n"), 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"cp", src, q + "/src"}, {"tar", "-C", q, "-xf", src + ".tar"}, {"rsync", "--inplace", src, q + "/src"}} {
		if out, err := exec.Command("tar", "-C", filepath.Dir(src), "-cf", src+".tar", "src").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		// tar does not ask why a write took a part only.
		if err == nil || !strings.Contains(string(out), "Disk quota exceeded") && !strings.Contains(string(out), "Wrote only") {
			t.Errorf("%v: %v, %s", command, err, out)
		}
		want, err := os.ReadFile(src)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(q + "/src")
		if err != nil || len(got) > 8<<20 || !bytes.HasPrefix(want, got) {
			t.Errorf("%v left %d bytes that are no beginning of the source, %v", command, len(got), err)
		}
		if err := os.Remove(q + "/src"); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
}
