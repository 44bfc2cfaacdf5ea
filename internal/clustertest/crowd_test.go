package clustertest

import (
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

// crowd are programs on two mounts that use one directory, as it splits and merges:
// names are made in it, listed, renamed and removed, files in it appended to, locked and
// kept open. Each reports what should not be.
type crowd struct {
	t    *testing.T
	dirs [2]string // the directory, by each mount
	stop atomic.Bool
	wg   sync.WaitGroup

	mu   sync.Mutex
	made map[string]birth // names that stay

	lines [2]int // that were appended; the appenders' until end
	open  []*os.File
}

// birth is when a name was made: create was called, and had returned.
type birth struct{ called, returned time.Time }

const crowdOld = 150

// startCrowd begins to use a directory that two mounts show.
func startCrowd(t *testing.T, here, there string) *crowd {
	t.Helper()
	u := &crowd{t: t, dirs: [2]string{here, there}, made: map[string]birth{}}
	for i := range crowdOld {
		u.create(here, fmt.Sprint("old", i))
	}
	if err := os.WriteFile(filepath.Join(here, "renamed0"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	u.append()
	u.lock()
	u.unlinked()
	for i, dir := range u.dirs {
		u.run(fmt.Sprint("creator ", i), func(k int) error {
			time.Sleep(5 * time.Millisecond) // what is listed grows
			return u.create(dir, fmt.Sprintf("new%d-%d", i, k))
		})
		u.run(fmt.Sprint("lister ", i), func(int) error { return u.list(dir) })
	}
	u.run("the renamer", func(i int) error {
		dir := u.dirs[i%2]
		return os.Rename(filepath.Join(dir, fmt.Sprint("renamed", i)), filepath.Join(dir, fmt.Sprint("renamed", i+1)))
	})
	u.run("a tree", func(i int) error { return treeRound(here, there, fmt.Sprint("tree", i)) })
	u.run("a file's number", func(int) error {
		a, err := os.Stat(filepath.Join(here, "old7"))
		if err != nil {
			return err
		}
		b, err := os.Stat(filepath.Join(there, "old7"))
		if err == nil && !os.SameFile(a, b) && a.Sys().(*syscall.Stat_t).Ino != b.Sys().(*syscall.Stat_t).Ino {
			err = errors.New("another inode number")
		}
		return err
	})
	return u
}

func (u *crowd) run(name string, round func(i int) error) {
	u.wg.Go(func() {
		i := 0
		for ; !u.stop.Load(); i++ {
			if err := round(i); err != nil {
				u.t.Errorf("%s, round %d: %v", name, i, err)
				return
			}
		}
		u.t.Logf("%s: %d rounds", name, i)
	})
}

// create makes a name that stays, and notes when.
func (u *crowd) create(dir, name string) error {
	b := birth{called: time.Now()}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	b.returned = time.Now()
	u.mu.Lock()
	u.made[name] = b
	u.mu.Unlock()
	return f.Close()
}

// list holds that a listing shows each name that stays once, if it was there when the
// listing began; and, of those that came meanwhile, none without all that had been
// made before it (PROTOCOLS F3).
func (u *crowd) list(dir string) error {
	begun := time.Now()
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	shown := map[string]bool{}
	for {
		names, err := d.Readdirnames(60)
		for _, n := range names {
			if shown[n] {
				return fmt.Errorf("%s is shown twice", n)
			}
			shown[n] = true
		}
		if len(names) == 0 {
			break
		}
		if err != nil {
			return err
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	last, at := begun, "the listing began"
	for name, b := range u.made {
		if shown[name] && b.called.After(last) {
			last, at = b.called, name+" was made"
		}
	}
	var missing []string
	for name, b := range u.made {
		if b.returned.Before(last) && !shown[name] {
			missing = append(missing, fmt.Sprintf("%s (there %v before it, %v before the listing)", name, last.Sub(b.returned), begun.Sub(b.returned)))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%d names, as of when %s, without %d: %v", len(shown), at, len(missing), missing[:min(len(missing), 5)])
	}
	return nil
}

// append adds lines to one log through both mounts; none is lost.
func (u *crowd) append() {
	for i, dir := range u.dirs {
		f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			u.t.Fatal(err)
		}
		u.run(fmt.Sprint("appender ", i), func(k int) error {
			if _, err := fmt.Fprintf(f, "%d: line %d\n", i, k); err != nil {
				return err
			}
			u.lines[i] = k + 1
			return f.Sync()
		})
		u.open = append(u.open, f)
	}
}

// lock holds a lock through one mount, which nobody gets through the other.
func (u *crowd) lock() {
	mine, err := os.OpenFile(filepath.Join(u.dirs[0], "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		u.t.Fatal(err)
	}
	if err := syscall.Flock(int(mine.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		u.t.Fatal(err)
	}
	u.open = append(u.open, mine)
	u.run("who wants the lock", func(int) error {
		time.Sleep(10 * time.Millisecond)
		other, err := os.Open(filepath.Join(u.dirs[1], "lock"))
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

// unlinked writes and reads an open file that has no name any more.
func (u *crowd) unlinked() {
	f, err := os.Create(filepath.Join(u.dirs[1], "unlinked"))
	if err != nil {
		u.t.Fatal(err)
	}
	if err := os.Remove(f.Name()); err != nil {
		u.t.Fatal(err)
	}
	u.open = append(u.open, f)
	u.run("an open file without a name", func(i int) error {
		time.Sleep(5 * time.Millisecond)
		line := fmt.Appendf(nil, "round %8d\n", i)
		if _, err := f.WriteAt(line, 0); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		got := make([]byte, len(line))
		if _, err := f.ReadAt(got, 0); err != nil || string(got) != string(line) {
			return fmt.Errorf("%q, %v", got, err)
		}
		return nil
	})
}

// end stops the programs and counts what they made, through the mount that did not.
func (u *crowd) end() {
	u.t.Helper()
	u.stop.Store(true)
	u.wg.Wait()
	for _, f := range u.open {
		if err := f.Close(); err != nil {
			u.t.Error(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(u.dirs[1], "log"))
	if err != nil {
		u.t.Fatal(err)
	}
	var next [2]int
	for line := range strings.Lines(string(b)) {
		i := 0
		if strings.HasPrefix(line, "1") {
			i = 1
		}
		if want := fmt.Sprintf("%d: line %d\n", i, next[i]); line != want {
			u.t.Fatalf("the log has %q where %q was written", line, want)
		}
		next[i]++
	}
	if next != u.lines {
		u.t.Errorf("%v lines were appended, %v are there", u.lines, next)
	}
	want := []string{"lock", "log"}
	for name := range u.made {
		want = append(want, name)
	}
	for _, dir := range u.dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			u.t.Fatal(err)
		}
		var got []string
		renamed := 0
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "renamed") {
				renamed++
				continue
			}
			got = append(got, e.Name())
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || renamed != 1 {
			u.t.Errorf("%s has %d names and %d of the one that was renamed; %d were acknowledged", dir, len(got), renamed, len(want))
		}
	}
}

// exactly holds that stat of the directory, of which nothing else is used now, is exact
// at once through the mount that did not change it (PROTOCOLS F1): links, size and time.
func (u *crowd) exactly() {
	u.t.Helper()
	stat := func(path string) *syscall.Stat_t {
		u.t.Helper()
		info, err := os.Lstat(path)
		if err != nil {
			u.t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t)
	}
	entries, err := os.ReadDir(u.dirs[0])
	if err != nil {
		u.t.Fatal(err)
	}
	size, links := len(entries), 2
	for _, e := range entries {
		if e.IsDir() {
			links++
		}
	}
	latest := stat(u.dirs[0]).Mtim
	for i := range 16 {
		here, there := u.dirs[i%2], u.dirs[(i+1)%2]
		path := filepath.Join(here, fmt.Sprint("exact", i))
		var err error
		if i%4 == 3 {
			err = os.Mkdir(path, 0o755)
			links++
		} else {
			err = u.create(here, filepath.Base(path))
		}
		if err != nil {
			u.t.Fatal(err)
		}
		size++
		made, dir := stat(path), stat(there)
		if made.Ctim.Nano() > latest.Nano() { // shards' clocks differ by less than a millisecond
			latest = made.Ctim
		}
		// mtime is some ns later where it would hide a change: kernels keep a listing by it.
		hidden := dir.Mtim.Nano() - latest.Nano()
		if int(dir.Size) != size || int(dir.Nlink) != links || hidden < 0 || hidden > 100 || dir.Ctim != latest {
			u.t.Errorf("after %s: %d names, %d links, changed %v %v; want %d, %d, %v", path, dir.Size, dir.Nlink, dir.Mtim, dir.Ctim, size, links, latest)
		}
	}
	for i := 3; i < 16; i += 4 {
		if err := os.Remove(filepath.Join(u.dirs[0], fmt.Sprint("exact", i))); err != nil {
			u.t.Fatal(err)
		}
		links--
	}
	if dir := stat(u.dirs[1]); int(dir.Nlink) != links {
		u.t.Errorf("%d links, want %d", dir.Nlink, links)
	}
}
