package clustertest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/internal/loopback"
)

// smallDisk mounts a file system of so many MiB in memory.
func smallDisk(t *testing.T, mib int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill leaves so many bytes free on a disk; the file's name is returned.
func fill(t *testing.T, disk string, leave int64) string {
	t.Helper()
	name := filepath.Join(disk, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, 64<<10)
	for freeOf(t, disk) > leave {
		if _, err := f.Write(p[:min(int64(len(p)), max(freeOf(t, disk)-leave, 1))]); err != nil {
			if errors.Is(err, syscall.ENOSPC) && leave == 0 {
				break
			}
			t.Fatal(err)
		}
	}
	return name
}

func freeOf(t *testing.T, dir string) int64 {
	t.Helper()
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	return int64(s.Bavail) * s.Bsize
}

// metadataOn starts a cluster whose metadata node has its directory on the disk.
// again starts the node anew.
func metadataOn(t *testing.T, disk string, flags ...string) (c *cluster, node *process, again func() *process) {
	t.Helper()
	root := t.TempDir()
	etcd := outsideEtcd(t, filepath.Join(root, "etcd"), net.JoinHostPort(loopback.Host(t), "0"))
	t.Cleanup(etcd.Close)
	a := loopback.Addresses(t, 4)
	start(t, "layoutsvc", "--etcd", etcd.Address(), "--listen", a[0], "--want-servers", "1", "--pool-replicas", "1", "--log-level", "error").waitOutput(t, "ready")
	again = func() *process {
		return start(t, "mds", append([]string{"--data", filepath.Join(disk, "mds"), "--etcd", etcd.Address(), "--listen", a[1], "--raft-listen", a[2], "--log-level", "error"}, flags...)...)
	}
	node = again()
	server := start(t, "dataserver", "--layoutsvc", a[0], "--data", filepath.Join(root, "ds"), "--listen", a[3], "--log-level", "error")
	node.waitOutput(t, "ready")
	server.waitOutput(t, "ready")
	return &cluster{address: a[1]}, node, again
}

// makeFiles makes files with large attributes until one fails.
func makeFiles(dir string, made *atomic.Int64) error {
	value := bytes.Repeat([]byte("metadata"), 4<<10)
	for i := 0; ; i++ {
		name := filepath.Join(dir, fmt.Sprint("f", i))
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			return err
		}
		made.Store(int64(i + 1))
		if err := unix.Setxattr(name, "user.large", value, 0); err != nil {
			return err
		}
	}
}

// underLoad makes files until one fails, and returns when some are made: how many so
// far, and later why it ended.
func underLoad(t *testing.T, dir string) (made *atomic.Int64, ended chan error) {
	t.Helper()
	made, ended = new(atomic.Int64), make(chan error, 1)
	go func() { ended <- makeFiles(dir, made) }()
	eventually(t, "files are made", func() error {
		select {
		case err := <-ended:
			t.Fatalf("making files ended: %v", err)
		default:
		}
		if made.Load() < 20 {
			return errors.New("not yet")
		}
		return nil
	})
	return made, ended
}

// TestFullMetadataDisk: the disk under a metadata node fills under load. The shard
// goes read-only before anything breaks: ENOSPC for what is new, reads and deletions
// go on, status says why; with space it recovers by itself.
func TestFullMetadataDisk(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 192)
	c, _, _ := metadataOn(t, disk)
	mnt := c.secondMount(t)
	made, ended := underLoad(t, mnt)
	filler := fill(t, disk, 40<<20)
	if err := <-ended; !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("what ended the load: %v", err)
	}
	if _, err := os.Stat(filepath.Join(mnt, "f0")); err != nil {
		t.Errorf("a stat: %v", err)
	}
	if names, err := os.ReadDir(mnt); err != nil || int64(len(names)) < made.Load() {
		t.Errorf("a listing: %d names of %d, %v", len(names), made.Load(), err)
	}
	if err := os.Remove(filepath.Join(mnt, "f1")); err != nil {
		t.Errorf("a deletion: %v", err)
	}
	out, _, code := command(t, "mdsctl", "--cluster", c.address, "status")
	if code != 1 || !strings.Contains(out, "read-only") || !strings.Contains(out, "the disk of node 1 is full") {
		t.Errorf("status: exit code %d\n%s", code, out)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	eventually(t, "files can be made again", func() error { return os.WriteFile(filepath.Join(mnt, "after"), []byte("x"), 0o644) })
	c.mdsctl(t, "status")
	c.mdsctl(t, "fsck")
}

// TestNoSpaceAtAllUnderMetadata: others fill the disk up to the last byte while the
// reserve is as good as switched off, and truncations, which free space elsewhere,
// are written to the log until nothing goes. The process ends with one line, a start
// without space too; with space all that was acknowledged is there.
func TestNoSpaceAtAllUnderMetadata(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 96)
	c, node, again := metadataOn(t, disk, "--disk-reserve", "1")
	mnt := c.secondMount(t)
	made, _ := underLoad(t, mnt)
	filler := fill(t, disk, 0)
	stop := make(chan struct{})
	var truncating sync.WaitGroup
	defer truncating.Wait()
	defer close(stop)
	for i := range 8 {
		truncating.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = os.Truncate(filepath.Join(mnt, fmt.Sprint("f", i)), 0) // it waits while the node is away
				}
			}
		})
	}
	<-node.done
	if printed := node.out.String(); node.err == nil || !strings.Contains(printed, "no space left") || strings.Contains(printed, "goroutine ") {
		t.Errorf("the node ended with %v and printed\n%s", node.err, printed)
	}
	acked := made.Load()
	failing := again()
	<-failing.done
	if printed := failing.out.String(); failing.err == nil || strings.Contains(printed, "goroutine ") {
		t.Errorf("a start without space ended with %v and printed\n%s", failing.err, printed)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	again().waitOutput(t, "ready")
	eventually(t, "the files are there", func() error {
		for i := range acked {
			if _, err := os.Stat(filepath.Join(mnt, fmt.Sprint("f", i))); err != nil {
				return err
			}
		}
		return nil
	})
	c.mdsctl(t, "fsck")
}

// TestFullDataDisk: one of two data servers has a small disk. Programs are told when
// it is full, reads go on, deletions give space back and df knows it at once, and a
// file whose rewriting succeeded, with fsync and close, has the new bytes.
func TestFullDataDisk(t *testing.T) {
	t.Parallel()
	c := newDataCluster(t, 2, []string{"--want-servers", "2", "--pool-replicas", "2", "--pgs", "8"}, map[int]string{1: smallDisk(t, 48)})
	mnt := c.secondMount(t)
	contents := map[string][]byte{}
	for i := 0; ; i++ {
		name := filepath.Join(mnt, fmt.Sprint("f", i))
		p := randomBytes(i, 3<<20)
		err := writeSynced(name, p)
		if err == nil {
			contents[name] = p
			continue
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("writing to a full disk: %v", err)
		}
		break
	}
	if len(contents) < 4 {
		t.Fatalf("only %d files fit", len(contents))
	}
	check := func() {
		t.Helper()
		for name, want := range contents {
			if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes, %v, other bytes than were written", name, len(got), err)
			}
		}
	}
	check()
	n := 0
	for name := range contents {
		if n++; n%2 == 0 {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
			delete(contents, name)
		}
	}
	for name := range contents {
		for round := 100; ; round++ {
			p := randomBytes(round, 3<<20)
			err := writeSynced(name, p)
			if err == nil {
				contents[name] = p
				break
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("rewriting: %v", err)
			}
		}
	}
	check()
	eventually(t, "all copies are in sync", func() error {
		if p := c.pools(t); p.Pools[0].Degraded > 0 {
			return fmt.Errorf("%d groups are degraded", p.Pools[0].Degraded)
		}
		return nil
	})
	check()
	eventually(t, "the servers have what the names say", func() error {
		out, errOut, code := command(t, "mdsctl", "--cluster", c.address, "fsck", "--data")
		if code != 0 {
			return fmt.Errorf("%s%s", out, errOut)
		}
		return nil
	})
}

func randomBytes(seed, n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 7}).Read(p) // it does not fail
	return p
}

// writeSynced writes a file anew, and makes it durable.
func writeSynced(name string, p []byte) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = f.Write(p)
	if serr := f.Sync(); err == nil {
		err = serr
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
