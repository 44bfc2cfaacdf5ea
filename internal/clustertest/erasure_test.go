package clustertest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
)

// TestErasure writes and overwrites files of class ec:4+2 at any offset while two of
// seven data servers are killed, after each other. Every byte is read back, also after
// both are back.
func TestErasure(t *testing.T) {
	t.Parallel()
	c := newDataCluster(t, 7, nil, nil)
	mnt := c.secondMount(t)
	dir := filepath.Join(mnt, "e")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c.mdsctl(t, "policy", "set", "/e", "data=ec:4+2")
	const files, size = 6, 600_001
	want := make([][]byte, files)
	r := rand.New(rand.NewPCG(5, 6))
	bytesOf := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	for i := range files {
		want[i] = bytesOf(size)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), want[i], 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string) {
		t.Helper()
		for i := range files {
			got, err := uncached(filepath.Join(dir, fmt.Sprint(i)))
			if err != nil || !bytes.Equal(got, want[i]) {
				t.Errorf("%s: file %d has %d other bytes, %v", when, i, len(got), err)
			}
		}
	}
	check("before")
	var rounds atomic.Int64
	writer := work(func(round int) error {
		i := round % files
		b, at := bytesOf(1+r.IntN(20_000)), r.IntN(size-20_000)
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(i)), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		copy(want[i][at:], b)
		_, err = f.WriteAt(b, int64(at))
		defer rounds.Add(1)
		return errors.Join(err, f.Sync(), f.Close())
	})
	for _, i := range []int{2, 5} {
		before := rounds.Load()
		c.servers[i].signal(syscall.SIGKILL)
		<-c.servers[i].done
		eventually(t, "writes go on", func() error {
			if n := rounds.Load(); n < before+3*files {
				return fmt.Errorf("%d writes since", n-before)
			}
			return nil
		})
	}
	writer.end(t, "writes with two servers away")
	check("degraded")
	for _, i := range []int{2, 5} {
		c.servers[i] = c.startServer(t, i, filepath.Join(c.root, fmt.Sprint("ds", i)))
		c.servers[i].waitOutput(t, "ready")
	}
	eventually(t, "all shards are in sync again", func() error {
		for _, p := range c.pools(t).Pools {
			if p.Degraded > 0 {
				return fmt.Errorf("%d groups are degraded", p.Degraded)
			}
		}
		return nil
	})
	check("whole again")
	for _, i := range []int{0, 6} { // what the returned ones have is needed now
		c.servers[i].signal(syscall.SIGKILL)
		<-c.servers[i].done
	}
	check("two others away")
	for _, i := range []int{0, 6} {
		c.servers[i] = c.startServer(t, i, filepath.Join(c.root, fmt.Sprint("ds", i)))
		c.servers[i].waitOutput(t, "ready")
	}
	eventually(t, "bytes and names agree", func() error {
		if _, errs, code := command(t, "mdsctl", "--cluster", c.address, "fsck", "--data"); code != 0 {
			return fmt.Errorf("fsck --data: %s", errs)
		}
		return nil
	})
}
