package clustertest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/canopyfs/canopy/internal/loopback"
	"github.com/canopyfs/canopy/placement/embedded"
)

// outsideEtcd runs an etcd that is no part of the cluster's processes.
func outsideEtcd(t *testing.T, dir, listen string) *embedded.Etcd {
	t.Helper()
	etcd, err := embedded.Start(context.Background(), embedded.Config{Dir: dir, Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	return etcd
}

// TestSeparateDaemons: a three-node cluster made of the binaries with an outside
// etcd works as `canopy up` does; running shards serve known clients while etcd
// is away.
func TestSeparateDaemons(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	etcdDir := filepath.Join(root, "etcd")
	etcd := outsideEtcd(t, etcdDir, net.JoinHostPort(loopback.Host(t), "0"))
	address := etcd.Address()
	t.Cleanup(func() { etcd.Close() })

	a := loopback.Addresses(t, 7)
	layout := start(t, "layoutsvc", "--etcd", address, "--listen", a[0], "--log-level", "warn")
	var nodes []*process
	for i := range 3 {
		nodes = append(nodes, start(t, "mds", "--data", filepath.Join(root, fmt.Sprint("mds", i)), "--etcd", address,
			"--listen", a[1+2*i], "--raft-listen", a[2+2*i], "--bootstrap-nodes", "3", "--bootstrap-replicas", "3", "--log-level", "warn"))
	}
	layout.waitOutput(t, "ready")
	config := filepath.Join(root, "dataserver.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "layoutsvc: [%q]\nlisten: \"%s:0\"\nlog-level: warn\n", a[0], loopback.Host(t)), 0o644); err != nil {
		t.Fatal(err)
	}
	var servers []*process
	for i := range 3 {
		servers = append(servers, start(t, "dataserver", "--config", config, "--data", filepath.Join(root, fmt.Sprint("ds", i))))
	}
	for _, p := range append(append([]*process{}, nodes...), servers...) {
		p.waitOutput(t, "ready")
	}

	c := &cluster{address: strings.Join([]string{a[1], a[3], a[5]}, ",")}
	mnt := c.secondMount(t)
	data := []byte(strings.Repeat("bytes of a file\n", 200_000))
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(mnt, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(name string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(mnt, name)); err != nil || string(got) != string(data) {
			t.Fatalf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	write("before")
	check("before")
	c.mdsctl(t, "status")

	etcd.Close()
	write("while etcd is away")
	check("before")
	check("while etcd is away")
	etcd = outsideEtcd(t, etcdDir, address)
	write("after")
	check("while etcd is away")
	eventually(t, "the cluster is whole again", func() error {
		out, errOut, code := command(t, "mdsctl", "--cluster", c.address, "status")
		if code != 0 {
			return fmt.Errorf("%s%s", out, errOut)
		}
		return nil
	})
	c.mdsctl(t, "fsck", "--data")
	c.mdsctl(t, "checksum", "1")
}

// TestKillDataServer: with two copies, the loss of one data server loses no byte
// that fsync acknowledged, and reads and writes go on.
func TestKillDataServer(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	etcd := outsideEtcd(t, filepath.Join(root, "etcd"), net.JoinHostPort(loopback.Host(t), "0"))
	t.Cleanup(etcd.Close)
	a := loopback.Addresses(t, 6)
	start(t, "layoutsvc", "--etcd", etcd.Address(), "--listen", a[0], "--log-level", "error").waitOutput(t, "ready")
	node := start(t, "mds", "--data", filepath.Join(root, "mds"), "--etcd", etcd.Address(), "--listen", a[1], "--raft-listen", a[2], "--log-level", "error")
	startServer := func(i int) *process {
		return start(t, "dataserver", "--layoutsvc", a[0], "--data", filepath.Join(root, fmt.Sprint("ds", i)), "--listen", a[3+i], "--log-level", "error")
	}
	var servers []*process
	for i := range 3 {
		servers = append(servers, startServer(i))
	}
	for _, p := range append([]*process{node}, servers...) {
		p.waitOutput(t, "ready")
	}
	c := &cluster{address: a[1]}
	mnt := c.secondMount(t)
	data := []byte(strings.Repeat("0123456789abcdef", 500_000)) // 8 MB: every server has some of it
	for i := range 3 {
		name := filepath.Join(mnt, fmt.Sprint("round", i))
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(data[:len(data)/2]); err != nil {
			t.Fatal(err)
		}
		servers[i].signal(9)
		<-servers[i].done
		if _, err := f.Write(data[len(data)/2:]); err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		for j := range i + 1 {
			if got, err := os.ReadFile(filepath.Join(mnt, fmt.Sprint("round", j))); err != nil || string(got) != string(data) {
				t.Fatalf("round %d, file %d: %d bytes, %v", i, j, len(got), err)
			}
		}
		servers[i] = startServer(i)
		servers[i].waitOutput(t, "ready")
		eventually(t, "all copies are in sync again", func() error {
			out, errOut, code := command(t, "mdsctl", "--cluster", c.address, "status")
			if code != 0 {
				return fmt.Errorf("%s%s", out, errOut)
			}
			return nil
		})
	}
	c.mdsctl(t, "fsck", "--data")
}
