package clustertest

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"

	"github.com/canopyfs/canopy/internal/loopback"
)

// cluster is a running `canopy up`.
type cluster struct {
	*process
	data    string
	mount   string // "" without one
	address string // of the metadata nodes
	flags   []string
}

// newCluster starts `canopy up` in fresh directories.
func newCluster(t *testing.T, mounted bool, flags ...string) *cluster {
	t.Helper()
	root := reachable(t)
	c := &cluster{data: filepath.Join(root, "data"), flags: flags}
	if mounted {
		c.mount = filepath.Join(root, "mnt")
		t.Cleanup(func() { _ = syscall.Unmount(c.mount, syscall.MNT_DETACH) }) // normally gone already
	}
	c.start(t)
	return c
}

// reachable returns a temporary directory that other users may search, as a
// mount point's parents must be.
func reachable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// start starts it, again, on the same data.
func (c *cluster) start(t *testing.T) {
	t.Helper()
	args := append([]string{"up", "--data", c.data, "--listen", net.JoinHostPort(loopback.Host(t), "0")}, c.flags...)
	if c.mount != "" {
		args = append(args, "--mount", c.mount)
	}
	c.process = start(t, "canopy", args...)
	c.waitOutput(t, "ready after")
	b, err := os.ReadFile(filepath.Join(c.data, "canopy-up.json"))
	if err != nil {
		t.Fatal(err)
	}
	var plan struct {
		Nodes     int
		Addresses map[string]string
	}
	if err := json.Unmarshal(b, &plan); err != nil {
		t.Fatal(err)
	}
	var nodes []string
	for i := 1; i <= plan.Nodes; i++ {
		nodes = append(nodes, plan.Addresses["node"+string(rune('0'+i))])
	}
	c.address = strings.Join(nodes, ",")
}

// mdsctl runs mdsctl against the cluster; it has to succeed.
func (c *cluster) mdsctl(t *testing.T, args ...string) string {
	t.Helper()
	return must(t, "mdsctl", append([]string{"--cluster", c.address}, args...)...)
}

// placement asks any node for the placement map.
func (c *cluster) placement(t *testing.T) *canopyv1.PlacementMap {
	t.Helper()
	var m *canopyv1.PlacementMap
	eventually(t, "a node answers", func() error {
		var err error
		for _, a := range strings.Split(c.address, ",") {
			if m, err = placementOf(a); err == nil {
				return nil
			}
		}
		return err
	})
	return m
}

func placementOf(address string) (*canopyv1.PlacementMap, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	stream, err := canopyv1.NewClusterClient(conn).WatchMap(ctx, &canopyv1.WatchMapRequest{})
	if err != nil {
		return nil, err
	}
	return stream.Recv()
}

// holderPid returns the process that holds a shard, as last published.
func (c *cluster) holderPid(t *testing.T, shard uint64) (node uint64, pid int) {
	t.Helper()
	m := c.placement(t)
	for _, s := range m.Shards {
		if s.Shard == shard {
			node = s.HolderNode
		}
	}
	for _, n := range m.Nodes {
		if n.Node == node {
			return node, int(n.Pid)
		}
	}
	t.Fatalf("shard %d has no known holder: %v", shard, m.Shards)
	return 0, 0
}

// mounted reports whether something is mounted at dir.
func mounted(t *testing.T, dir string) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(b), " "+dir+" ")
}

func TestUpKeepsEverythingOverARestart(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true)
	dir := filepath.Join(c.mount, "dir")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	want := []byte(strings.Repeat("what was written before the restart\n", 100_000)) // 3.6 MB: several columns
	if err := os.WriteFile(filepath.Join(dir, "file"), want, 0o640); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	c.stop(t)
	if mounted(t, c.mount) {
		t.Fatal("still mounted after the end")
	}
	c.start(t)
	got, err := os.ReadFile(filepath.Join(dir, "file"))
	if err != nil || string(got) != string(want) {
		t.Fatalf("read %d bytes, %v; want %d", len(got), err, len(want))
	}
	after, err := os.Stat(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	if !before.ModTime().Equal(after.ModTime()) || before.Mode() != after.Mode() ||
		before.Sys().(*syscall.Stat_t).Ino != after.Sys().(*syscall.Stat_t).Ino {
		t.Errorf("stat changed over the restart: %+v, then %+v", before.Sys(), after.Sys())
	}
	c.topNamesWhoIsHot(t, "dir")
	c.mdsctl(t, "fsck")
	c.stop(t)
}

func TestUpSurvivesKill(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true)
	name := filepath.Join(c.mount, "acknowledged")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("fsynced"); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	c.signal(syscall.SIGKILL)
	<-c.done
	f.Close()
	if err := syscall.Unmount(c.mount, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	c.start(t)
	if got, err := os.ReadFile(name); err != nil || string(got) != "fsynced" {
		t.Fatalf("%q, %v", got, err)
	}
	c.stop(t)
}
