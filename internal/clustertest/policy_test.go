package clustertest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// placed is what `layout` says of a file.
type placed struct {
	Pool   uint64 `json:"pool"`
	Ranges []struct {
		Column  uint32   `json:"column"`
		Servers []uint64 `json:"servers"`
	} `json:"ranges"`
}

func (c *dataCluster) placed(t *testing.T, path string) (p placed) {
	t.Helper()
	if err := json.Unmarshal([]byte(c.mdsctl(t, "layout", path, "-o", "json")), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// newPolicyCluster is a cluster of three data servers, a mount, and the
// directories that the tests use.
func newPolicyCluster(t *testing.T, dirs ...string) (*dataCluster, string) {
	t.Helper()
	c := newDataCluster(t, 3, nil, nil)
	mnt := c.secondMount(t)
	for _, d := range dirs {
		if err := os.MkdirAll(filepath.Join(mnt, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return c, mnt
}

// TestPolicies sets policies on directories of a mount: files are made by them,
// in a directory below too; `policy show` says what decides; auto chooses anew
// when it has seen enough files; what cannot be is refused in one line.
func TestPolicies(t *testing.T) {
	t.Parallel()
	c, mnt := newPolicyCluster(t, "ckpt/run", "set")
	c.mdsctl(t, "policy", "set", filepath.Join(mnt, "ckpt"), "checkpoint")
	c.mdsctl(t, "policy", "set", "/set", "auto")
	wide := filepath.Join(mnt, "ckpt/run/shard")
	parallelWriters(t, wide, 8, 5<<20)
	columns := map[uint32]bool{}
	for _, r := range c.placed(t, wide).Ranges {
		columns[r.Column] = true
	}
	if len(columns) != 10 {
		t.Errorf("40 MiB under checkpoint lie in %d columns of 4 MiB", len(columns))
	}
	if out := c.mdsctl(t, "policy", "show", "/ckpt/run"); !strings.Contains(out, "class checkpoint of /ckpt") || !strings.Contains(out, "17x4M") {
		t.Errorf("show:\n%s", out)
	}
	for i := range 16 {
		if err := os.WriteFile(filepath.Join(mnt, "set", fmt.Sprint(i)), make([]byte, 1000), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out := c.mdsctl(t, "policy", "show", filepath.Join(mnt, "set")); !strings.Contains(out, "chosen for small files") || !strings.Contains(out, "1x4M,4M:3x4M") {
		t.Errorf("auto after 16 small files:\n%s", out)
	}
	if out := c.mdsctl(t, "policy", "ls"); !strings.Contains(out, "/ckpt") || !strings.Contains(out, "/set") {
		t.Errorf("ls:\n%s", out)
	}
	c.mdsctl(t, "policy", "unset", "/ckpt")
	if out := c.mdsctl(t, "policy", "show", "/ckpt/run"); strings.Contains(out, "checkpoint") {
		t.Errorf("after unset:\n%s", out)
	}
	for what, args := range map[string][]string{
		"needs 5 data servers": {"set", "/set", "data=replica:5"},
		"there is no class":    {"set", "/set", "fast"},
		"is no directory":      {"set", wide, "scratch"},
		"are no stripes":       {"set", "/set", "stripes=many"},
		"there is no key":      {"unset", "/set", "speed"},
		"no such file":         {"show", "/nowhere"},
	} {
		_, errOut, code := command(t, "mdsctl", append([]string{"--cluster", c.address, "policy"}, args...)...)
		if code == 0 || !strings.Contains(errOut, what) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("policy %v: exit %d, %q", args, code, errOut)
		}
	}
	c.mdsctl(t, "fsck", "--data")
}

// parallelWriters writes a file by n processes' worth of handles, each a range of
// its own of size bytes, and checks it through another handle (FUSE K9).
func parallelWriters(t *testing.T, name string, n, size int) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(int64(n*size)), f.Close()); err != nil {
		t.Fatal(err)
	}
	part := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, size) }
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			if err != nil {
				errs[i] = err
				return
			}
			_, err = f.WriteAt(part(i), int64(i*size))
			errs[i] = errors.Join(err, f.Sync(), f.Close())
		})
	}
	all.Wait()
	got, err := os.ReadFile(name)
	if err := errors.Join(append(errs, err)...); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if !bytes.Equal(got[i*size:(i+1)*size], part(i)) {
			t.Errorf("writer %d's bytes are not there", i)
		}
	}
}

// TestScratch kills the data server that alone has some of the files of a
// directory under scratch: reading these says EIO, all else goes on, and with
// the server the files are back.
func TestScratch(t *testing.T) {
	t.Parallel()
	c, mnt := newPolicyCluster(t, "tmp", "kept")
	write := func(dir string, i int) (string, error) {
		name := filepath.Join(mnt, dir, fmt.Sprint(i))
		f, err := os.Create(name)
		if err != nil {
			return name, err
		}
		_, err = f.WriteString(name)
		return name, errors.Join(err, f.Sync(), f.Close())
	}
	// The pool of one copy is made while others write.
	writer := work(func(round int) error {
		_, err := write("kept", round%50)
		return err
	})
	c.mdsctl(t, "policy", "set", "/tmp", "scratch")
	writer.end(t, "writes while a pool is made")
	address := map[uint64]string{}
	for _, s := range c.pools(t).Servers {
		address[s.Server] = s.Address
	}
	on := map[string][]string{} // files by the address of their only server
	for i := range 24 {
		name, err := write("tmp", i)
		if err != nil {
			t.Fatal(err)
		}
		servers := c.placed(t, name).Ranges[0].Servers
		if len(servers) != 1 {
			t.Fatalf("%s has copies on %v", name, servers)
		}
		on[address[servers[0]]] = append(on[address[servers[0]]], name)
		if _, err := write("kept", i); err != nil {
			t.Fatal(err)
		}
	}
	lost := c.addr[1]
	if len(on) != 3 || len(on[lost]) == 0 {
		t.Fatalf("the files lie on %v", on)
	}
	c.servers[1].signal(syscall.SIGKILL)
	<-c.servers[1].done
	read := func(name string) error {
		got, err := uncached(name)
		if err == nil && string(got) != name {
			err = fmt.Errorf("%q", got)
		}
		return err
	}
	for _, name := range on[lost] {
		if err := read(name); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s, whose only copy is away: %v", name, err)
		}
	}
	for where, names := range on {
		for _, name := range names {
			if err := read(name); where != lost && err != nil {
				t.Errorf("%s on %s: %v", name, where, err)
			}
		}
	}
	for i := range 24 {
		if name, err := write("kept", 100+i); err != nil || read(name) != nil {
			t.Errorf("%s, with two copies: %v", name, err)
		}
	}
	c.servers[1] = c.startServer(t, 1, filepath.Join(c.root, "ds1"))
	c.servers[1].waitOutput(t, "ready")
	eventually(t, "the files are back with their server", func() error {
		var errs []error
		for _, names := range on {
			for _, name := range names {
				errs = append(errs, read(name))
			}
		}
		return errors.Join(errs...)
	})
	eventually(t, "all copies are in sync again", func() error {
		out, errOut, code := command(t, "mdsctl", "--cluster", c.address, "status")
		if code != 0 {
			return fmt.Errorf("%s%s", out, errOut)
		}
		return nil
	})
	c.mdsctl(t, "fsck", "--data")
}
