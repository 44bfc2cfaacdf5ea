package clustertest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// migrateTo moves a directory to a shard, however often it has to be asked: a move
// goes on after a crash by itself, but who watches may lose sight of it.
func (c *cluster) migrateTo(t *testing.T, path string, shard int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s is at shard %d", path, shard), func() error {
		out, errOut, code := command(t, "mdsctl", "--cluster", c.address, "migrate", path, "--to", fmt.Sprint(shard))
		if code == 0 || strings.Contains(errOut, fmt.Sprintf("at shard %d already", shard)) {
			t.Logf("%s", tail(strings.TrimSpace(out), 2))
			return nil
		}
		return errors.New(tail(strings.TrimSpace(out), 1) + errOut)
	})
}

// users are programs that use a directory of a mount: each reports what should not
// be, and all that it counts is there afterwards.
type users struct {
	t    *testing.T
	dir  string
	stop atomic.Bool
	wg   sync.WaitGroup

	lines int        // that were appended; the appender's until end
	open  []*os.File // until end: a mount that is in use is not unmounted
}

// run calls round until the test stops it.
func (u *users) run(name string, round func(i int) error) {
	u.wg.Go(func() {
		for i := 0; !u.stop.Load(); i++ {
			if err := round(i); err != nil {
				u.t.Errorf("%s, round %d: %v", name, i, err)
				return
			}
		}
	})
}

const oldNames = 200

// startUsers begins a lister, a stat, an appender, a renamer, and who holds a lock.
func startUsers(t *testing.T, dir string) *users {
	t.Helper()
	u := &users{t: t, dir: dir}
	for _, d := range []string{"old", "renamed"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range oldNames {
		if err := os.WriteFile(filepath.Join(dir, "old", fmt.Sprint("o", i)), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "renamed", "n0"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "old", "o7"))
	if err != nil {
		t.Fatal(err)
	}
	ino := info.Sys().(*syscall.Stat_t).Ino
	u.run("the lister", func(int) error { return u.list() })
	u.run("stat", func(int) error {
		info, err := os.Stat(filepath.Join(dir, "old", "o7"))
		if err == nil && info.Sys().(*syscall.Stat_t).Ino != ino {
			err = errors.New("another inode number")
		}
		return err
	})
	u.run("the renamer", func(i int) error {
		return os.Rename(filepath.Join(dir, "renamed", fmt.Sprint("n", i)), filepath.Join(dir, "renamed", fmt.Sprint("n", i+1)))
	})
	u.append()
	u.lock()
	return u
}

// list holds that each old name is shown once.
func (u *users) list() error {
	d, err := os.Open(filepath.Join(u.dir, "old"))
	if err != nil {
		return err
	}
	defer d.Close()
	var names []string
	for {
		some, err := d.Readdirnames(50)
		names = append(names, some...)
		if len(some) == 0 {
			break
		}
		if err != nil {
			return err
		}
	}
	slices.Sort(names)
	if n := len(slices.Compact(names)); n != oldNames || len(names) != oldNames {
		return fmt.Errorf("%d names, %d different ones, want %d", len(names), n, oldNames)
	}
	return nil
}

// append adds lines to a log through one open file; none is lost.
func (u *users) append() {
	path := filepath.Join(u.dir, "log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		u.t.Fatal(err)
	}
	u.run("the appender", func(i int) error {
		if _, err := fmt.Fprintf(f, "line %d\n", i); err != nil {
			return err
		}
		u.lines = i + 1
		return f.Sync()
	})
	u.open = append(u.open, f)
}

// lock holds a lock: nobody else gets it meanwhile.
func (u *users) lock() {
	path := filepath.Join(u.dir, "lock")
	mine, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		u.t.Fatal(err)
	}
	if err := syscall.Flock(int(mine.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		u.t.Fatal(err)
	}
	u.open = append(u.open, mine)
	u.run("who wants the lock", func(int) error {
		other, err := os.Open(path)
		if err != nil {
			return err
		}
		defer other.Close()
		if err := syscall.Flock(int(other.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("a lock that is held was answered with %v", err)
		}
		return nil
	})
}

// end stops the users and looks at what they made.
func (u *users) end() {
	u.t.Helper()
	u.stop.Store(true)
	u.wg.Wait()
	for _, f := range u.open {
		if err := f.Close(); err != nil {
			u.t.Error(err)
		}
	}
	f, err := os.Open(filepath.Join(u.dir, "log"))
	if err != nil {
		u.t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); n++ {
		if want := fmt.Sprint("line ", n); lines.Text() != want {
			u.t.Fatalf("the log has %q where %q was written", lines.Text(), want)
		}
	}
	names, err := os.ReadDir(filepath.Join(u.dir, "renamed"))
	if err != nil || len(names) != 1 {
		u.t.Errorf("the file that was renamed has the names %v, %v", names, err)
	}
	u.t.Logf("%d lines, renamed to %v", n, names)
	if n == 0 || n != u.lines {
		u.t.Errorf("%d lines were appended, %d are there", u.lines, n)
	}
}

// TestMigrateUnderKills moves a directory back and forth while programs use it and
// metadata nodes are killed: nothing fails, nothing acknowledged is lost, and the
// replicas are equal.
func TestMigrateUnderKills(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true, "--nodes", "3", "--replicas", "3", "--shards", "3")
	hot := filepath.Join(c.mount, "hot")
	if err := os.MkdirAll(filepath.Join(hot, "w"), 0o755); err != nil {
		t.Fatal(err)
	}
	u := startUsers(t, hot)
	c.writeDuring(t, 60*time.Second, func() {
		at := 1
		for i, to := range []int{2, 3, 1, 2, 1, 3} {
			// The source's holder is killed, the target's, or nobody, at some time.
			if victim := []int{0, at, to}[i%3]; victim != 0 {
				watcher := start(t, "mdsctl", "--cluster", c.address, "migrate", "/hot", "--to", fmt.Sprint(to))
				watcher.waitOutput(t, "entries")
				node, pid := c.holderPid(t, uint64(victim))
				c.kill(t, node, pid)
				<-watcher.done // however it ends: it may have lost sight of the move
			}
			c.migrateTo(t, "/hot", to)
			at = to
		}
	}, "--root", "/hot/w")
	u.end()
	for _, shard := range []string{"1", "2", "3"} {
		eventually(t, "the replicas of shard "+shard+" are equal", func() error {
			out, errOut, code := command(t, "mdsctl", "--cluster", c.address, "checksum", shard)
			if code != 0 {
				return errors.New(out + errOut)
			}
			return nil
		})
	}
	c.mdsctl(t, "fsck")
	c.stop(t)
}
