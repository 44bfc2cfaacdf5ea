package clustertest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/canopyfs/canopy/internal/loopback"
)

// dataCluster is a metadata node, a layout service and data servers, each a
// process of its own.
type dataCluster struct {
	*cluster
	root    string
	layout  string
	addr    []string // of the data servers
	servers []*process
	flags   []string // of data servers
}

// newDataCluster starts n data servers with their directories below root, or
// where dirs says.
func newDataCluster(t *testing.T, n int, layoutFlags []string, dirs map[int]string, mdsFlags ...string) *dataCluster {
	t.Helper()
	root := t.TempDir()
	etcd := outsideEtcd(t, filepath.Join(root, "etcd"), net.JoinHostPort(loopback.Host(t), "0"))
	t.Cleanup(etcd.Close)
	a := loopback.Addresses(t, 3+n)
	c := &dataCluster{cluster: &cluster{address: a[1]}, root: root, layout: a[0], addr: a[3:]}
	start(t, "layoutsvc", append([]string{"--etcd", etcd.Address(), "--listen", a[0], "--log-level", "error"}, layoutFlags...)...).waitOutput(t, "ready")
	node := start(t, "mds", append([]string{"--data", filepath.Join(root, "mds"), "--etcd", etcd.Address(), "--listen", a[1], "--raft-listen", a[2],
		"--log-level", "error"}, mdsFlags...)...)
	for i := range n {
		dir := dirs[i]
		if dir == "" {
			dir = filepath.Join(root, fmt.Sprint("ds", i))
		}
		c.servers = append(c.servers, c.startServer(t, i, dir))
	}
	for _, p := range append([]*process{node}, c.servers...) {
		p.waitOutput(t, "ready")
	}
	return c
}

func (c *dataCluster) startServer(t *testing.T, i int, dir string) *process {
	t.Helper()
	return start(t, "dataserver", append([]string{"--layoutsvc", c.layout, "--data", dir, "--listen", c.addr[i], "--log-level", "error"}, c.flags...)...)
}

// pools is what `pool ls` says.
type pools struct {
	Pools []struct {
		Degraded int `json:"pgs_degraded"`
	} `json:"pools"`
	Servers []struct {
		Server  uint64 `json:"server"`
		Address string `json:"address"`
		Alive   bool   `json:"alive"`
		PGs     int    `json:"pgs"`
	} `json:"servers"`
}

func (c *dataCluster) pools(t *testing.T) (p pools) {
	t.Helper()
	if err := json.Unmarshal([]byte(c.mdsctl(t, "pool", "ls", "-o", "json")), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// wholeWithout waits until no group is degraded and the server is in none.
func (c *dataCluster) wholeWithout(t *testing.T, address string) {
	t.Helper()
	eventually(t, "its placement groups are rebuilt on others", func() error {
		p := c.pools(t)
		for _, s := range p.Servers {
			if s.Address == address && s.PGs > 0 {
				return fmt.Errorf("server %d is in %d groups", s.Server, s.PGs)
			}
		}
		if n := p.Pools[0].Degraded; n > 0 {
			return fmt.Errorf("%d groups are degraded", n)
		}
		return nil
	})
}

// worker repeats something and keeps the longest time that one round took.
type worker struct {
	stop    chan struct{}
	done    sync.WaitGroup
	longest time.Duration
	rounds  int
	err     error
}

func work(do func(round int) error) *worker {
	w := &worker{stop: make(chan struct{})}
	w.done.Go(func() {
		for ; ; w.rounds++ {
			select {
			case <-w.stop:
				return
			default:
			}
			began := time.Now()
			if w.err = do(w.rounds); w.err != nil {
				return
			}
			w.longest = max(w.longest, time.Since(began))
		}
	})
	return w
}

func (w *worker) end(t *testing.T, what string) {
	t.Helper()
	close(w.stop)
	w.done.Wait()
	if w.err != nil {
		t.Errorf("%s: %v", what, w.err)
	}
	t.Logf("%s: %d rounds, the longest took %v", what, w.rounds, w.longest.Round(time.Millisecond))
}

// uncached reads a file from the data servers: what the kernel keeps goes first.
func uncached(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const dontNeed = 4 // POSIX_FADV_DONTNEED
	if _, _, errno := syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, dontNeed, 0, 0); errno != 0 {
		return nil, errno
	}
	var b bytes.Buffer
	_, err = b.ReadFrom(f)
	return b.Bytes(), err
}

// TestDataServerGoneForGood kills one of three data servers under a writer and a
// reader on a mount. Both go on; the server's groups are rebuilt on the other
// two, every byte is there, and what the server still holds goes when it comes
// back.
func TestDataServerGoneForGood(t *testing.T) {
	t.Parallel()
	c := newDataCluster(t, 3, []string{"--rebuild-after", "3s"}, nil)
	mnt := c.secondMount(t)
	data := []byte(strings.Repeat("0123456789abcdef", 500_000)) // 8 MB: every server has some of it
	if err := os.WriteFile(filepath.Join(mnt, "before"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	reader := work(func(int) error {
		got, err := uncached(filepath.Join(mnt, "before"))
		if err == nil && !bytes.Equal(got, data) {
			err = fmt.Errorf("%d bytes, not those that were written", len(got))
		}
		return err
	})
	written := func(round int) []byte { return bytes.Repeat(fmt.Appendf(nil, "round %06d\n", round), 20_000) }
	writer := work(func(round int) error {
		f, err := os.Create(filepath.Join(mnt, fmt.Sprint("during", round%20)))
		if err != nil {
			return err
		}
		_, err = f.Write(written(round))
		return errors.Join(err, f.Sync(), f.Close())
	})
	c.servers[1].signal(syscall.SIGKILL)
	<-c.servers[1].done
	c.wholeWithout(t, c.addr[1])
	reader.end(t, "reads")
	writer.end(t, "writes")
	check := func() {
		t.Helper()
		if got, err := uncached(filepath.Join(mnt, "before")); err != nil || !bytes.Equal(got, data) {
			t.Errorf("before: %d bytes, %v", len(got), err)
		}
		for round := max(0, writer.rounds-20); round < writer.rounds; round++ {
			if got, err := uncached(filepath.Join(mnt, fmt.Sprint("during", round%20))); err != nil || !bytes.Equal(got, written(round)) {
				t.Errorf("round %d: %d bytes, %v", round, len(got), err)
			}
		}
	}
	check()
	c.servers[1] = c.startServer(t, 1, filepath.Join(c.root, "ds1"))
	c.servers[1].waitOutput(t, "ready")
	eventually(t, "the server that came back dropped what others hold", func() error {
		left, err := os.ReadDir(filepath.Join(c.root, "ds1", "pgs"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d groups are left", len(left))
		}
		return err
	})
	check()
	c.mdsctl(t, "fsck", "--data")
}

// columnFiles returns the largest column file of each placement group that has
// bytes of the data on the server.
func columnFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	paths, err := filepath.Glob(filepath.Join(dir, "pgs", "*", "*", "*.0.0"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		files[filepath.Base(p)] = p
	}
	return files
}

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := []byte{0}
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// TestFlippedBytes: one flipped byte on one copy is never seen and is repaired, by
// a read and by a scrub; on all copies it is EIO, and the scrub says what is lost.
func TestFlippedBytes(t *testing.T) {
	t.Parallel()
	c := newDataCluster(t, 2, []string{"--want-servers", "2"}, nil)
	mnt := c.secondMount(t)
	var names []string
	want := map[string][]byte{}
	for i := range 3 {
		name := filepath.Join(mnt, fmt.Sprint("file", i))
		h := fnv.New64a()
		fmt.Fprint(h, i)
		want[name] = bytes.Repeat(h.Sum(nil), 20_000)
		if err := os.WriteFile(name, want[name], 0o644); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	var files []map[string]string
	for i := range 2 {
		files = append(files, columnFiles(t, filepath.Join(c.root, fmt.Sprint("ds", i))))
	}
	if len(files[0]) != 3 {
		t.Fatalf("column files: %v", files[0])
	}
	const block = 4096
	for base, path := range files[0] {
		flip(t, path, 3*block+100)           // block 2 on one server
		flip(t, files[1][base], 6*block+200) // block 5 on the other
	}
	for _, name := range names[:2] {
		if got, err := uncached(name); err != nil || !bytes.Equal(got, want[name]) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	scrub := func(wantCode int) (r struct {
		State string `json:"state"`
		Lost  int    `json:"blocks_lost"`
		Fixed int    `json:"repaired"`
	}) {
		t.Helper()
		c.mdsctl(t, "scrub", "--start", "--rate", "0")
		eventually(t, "the scrub ends", func() error {
			out, errOut, code := command(t, "mdsctl", "--cluster", c.address, "scrub", "-o", "json")
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				return fmt.Errorf("%w: %s%s", err, out, errOut)
			}
			if r.State != "done" {
				return errors.New(r.State)
			}
			if code != wantCode {
				t.Errorf("exit code %d, want %d: %s%s", code, wantCode, out, errOut)
			}
			return nil
		})
		return r
	}
	if r := scrub(0); r.Fixed == 0 || r.Lost != 0 {
		t.Errorf("the first scrub: %+v", r)
	}
	if r := scrub(0); r.Fixed != 0 {
		t.Errorf("the second scrub: %+v", r)
	}
	c.mdsctl(t, "fsck", "--data")
	for base, path := range files[0] {
		flip(t, path, 3*block+100)
		flip(t, files[1][base], 3*block+300)
	}
	for _, name := range names {
		if got, err := uncached(name); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s with a block damaged on all copies: %d bytes, %v, want EIO", name, len(got), err)
		}
	}
	if r := scrub(1); r.Lost != 3 {
		t.Errorf("the scrub of lost blocks: %+v", r)
	}
	for _, name := range names {
		if err := os.WriteFile(name, want[name], 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := uncached(name); err != nil || !bytes.Equal(got, want[name]) {
			t.Errorf("%s, written again: %d bytes, %v", name, len(got), err)
		}
	}
}
