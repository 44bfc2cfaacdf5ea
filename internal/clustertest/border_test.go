package clustertest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// backAndForth is how long a directory is moved back and forth under the programs.
const backAndForth = 20 * time.Second

// moveBackAndForth moves a directory between two shards until the end of the test's
// work, and returns how often.
func (c *cluster) moveBackAndForth(t *testing.T, path string, done <-chan struct{}) int {
	moves := 0
	for {
		for _, to := range []string{"2", "1"} {
			select {
			case <-done:
				return moves
			default:
			}
			if out, errOut, code := command(t, "mdsctl", "--cluster", c.address, "migrate", path, "--to", to); code != 0 {
				t.Errorf("migrate to shard %s: %s%s", to, out, errOut)
				return moves
			}
			moves++
		}
	}
}

// TestTreesWhileTheyMove: trees are made, compared, listed and removed through two
// mounts while the directory that they are in moves from shard to shard. No program
// sees an error, a name twice, another inode number, or other bytes than were written.
func TestTreesWhileTheyMove(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true, "--shards", "2")
	second := c.secondMount(t)
	hot := filepath.Join(c.mount, "hot")
	// Beside the trees, two directories that the border runs between: the second one
	// is carved out, and comes back as a subtree of its own.
	for _, d := range []string{"hot", "hot/deep", "cold"} {
		if err := os.Mkdir(filepath.Join(c.mount, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	orphan, err := os.Create(filepath.Join(hot, "deep", "orphan"))
	if err != nil {
		t.Fatal(err)
	}
	defer orphan.Close()
	if err := os.Remove(orphan.Name()); err != nil {
		t.Fatal(err)
	}
	two := filepath.Join(hot, "two")
	if err := os.WriteFile(two, []byte("names"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(two, filepath.Join(c.mount, "cold", "two")); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var movers, programs sync.WaitGroup
	moves := 0
	movers.Go(func() { moves = c.moveBackAndForth(t, "/hot", done) })
	end := time.Now().Add(backAndForth)
	run := func(what string, round func(i int) error) {
		programs.Go(func() {
			i := 0
			for ; time.Now().Before(end); i++ {
				if err := round(i); err != nil {
					t.Errorf("%s, round %d: %v", what, i, err)
					return
				}
			}
			t.Logf("%s: %d rounds", what, i)
		})
	}
	run("a tree", func(i int) error { return treeRound(hot, filepath.Join(second, "hot"), fmt.Sprint("t", i)) })
	run("an open file without a name", func(i int) error {
		line := fmt.Appendf(nil, "round %d\n", i)
		if _, err := orphan.WriteAt(line, 0); err != nil {
			return err
		}
		if err := orphan.Sync(); err != nil {
			return err
		}
		got := make([]byte, len(line))
		if _, err := orphan.ReadAt(got, 0); err != nil || string(got) != string(line) {
			return fmt.Errorf("%q, %v", got, err)
		}
		return nil
	})
	run("a file with names on both sides", func(i int) error {
		mode := fs.FileMode(0o600 + i%8)
		if err := os.Chmod(two, mode); err != nil {
			return err
		}
		info, err := os.Stat(filepath.Join(second, "cold", "two"))
		if err == nil && (info.Mode().Perm() != mode || info.Sys().(*syscall.Stat_t).Nlink != 2) {
			err = fmt.Errorf("%v", info)
		}
		return err
	})
	run("stat and ..", func(int) error { return statRound(second) })
	programs.Wait()
	close(done)
	movers.Wait()
	t.Logf("moved %d times", moves)
	if moves < 2 {
		t.Errorf("moved %d times in %v", moves, backAndForth)
	}
	oneNameEach(t, c.mount)
	if err := os.RemoveAll(hot); err != nil {
		t.Error(err)
	}
	orphan.Close() // a mount with open files is busy
	c.stop(t)
}

// oneNameEach holds that what a mount shows has one name for each link, and no
// directory two.
func oneNameEach(t *testing.T, mnt string) {
	t.Helper()
	names, links := map[uint64]int{}, map[uint64]int{}
	err := filepath.WalkDir(mnt, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		names[st.Ino]++
		links[st.Ino] = int(st.Nlink)
		if d.IsDir() {
			links[st.Ino] = 1
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for ino, n := range names {
		if n != links[ino] {
			t.Errorf("inode %d has %d names, want %d", ino, n, links[ino])
		}
	}
}

// treeRound makes a tree through one mount, compares it through both, and removes it
// through both at the same time.
func treeRound(here, there, name string) error {
	const dirs, files = 4, 12
	for d := range dirs {
		dir := filepath.Join(here, name, fmt.Sprint("d", d), "sub")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for i := range files {
			path := filepath.Join(dir, fmt.Sprint("f", i))
			if err := os.WriteFile(path+".tmp", []byte(path), 0o644); err != nil {
				return err
			}
			if err := os.Rename(path+".tmp", path); err != nil {
				return err
			}
		}
	}
	for _, root := range []string{here, there} {
		n := 0
		err := filepath.WalkDir(filepath.Join(root, name), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			n++
			got, err := os.ReadFile(path)
			if want := filepath.Join(here, strings.TrimPrefix(path, root)); err == nil && string(got) != want {
				err = fmt.Errorf("%s has %q", path, got)
			}
			return err
		})
		if err == nil && n != dirs*files {
			err = fmt.Errorf("%d files in %s, want %d", n, root, dirs*files)
		}
		if err != nil {
			return err
		}
	}
	both := make(chan error, 2)
	for _, root := range []string{here, there} {
		go func() { both <- os.RemoveAll(filepath.Join(root, name)) }()
	}
	return errors.Join(<-both, <-both)
}

// statRound looks at the border from above and from below.
func statRound(mnt string) error {
	hot, err := os.Stat(filepath.Join(mnt, "hot"))
	if err != nil {
		return err
	}
	up, err := os.Stat(filepath.Join(mnt, "hot", "deep", ".."))
	if err != nil {
		return err
	}
	if !os.SameFile(hot, up) {
		return errors.New(".. leads elsewhere")
	}
	entries, err := os.ReadDir(mnt)
	if err != nil || len(entries) != 2 {
		return fmt.Errorf("listed %v, %w", entries, err)
	}
	var s syscall.Statfs_t
	return syscall.Statfs(mnt, &s)
}
