package clustertest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/canopyfs/canopy/internal/loopback"
)

// operated is a cluster of metadata nodes that come and go, each on a rack of its own.
type operated struct {
	*cluster
	root, etcd string
	addresses  []string // two of each node: gRPC, Raft
	nodes      map[int]*process
}

func newOperated(t *testing.T, nodes int) *operated {
	root := t.TempDir()
	etcd := outsideEtcd(t, filepath.Join(root, "etcd"), net.JoinHostPort(loopback.Host(t), "0"))
	t.Cleanup(etcd.Close)
	o := &operated{root: root, etcd: etcd.Address(), addresses: loopback.Addresses(t, 2*nodes), nodes: map[int]*process{}}
	var all []string
	for i := range nodes {
		all = append(all, o.addresses[2*i])
	}
	o.cluster = &cluster{address: strings.Join(all, ",")}
	return o
}

// start starts node n, 1, 2, ..., on the directory of that name.
func (o *operated) start(t *testing.T, n int, more ...string) {
	t.Helper()
	o.nodes[n] = start(t, "mds", append([]string{"--data", o.dir(n), "--etcd", o.etcd, "--listen", o.addresses[2*n-2], "--raft-listen", o.addresses[2*n-1],
		"--label", fmt.Sprint("rack=r", n), "--bootstrap-nodes", "3", "--bootstrap-replicas", "3", "--log-level", "info"}, more...)...)
}

func (o *operated) dir(n int) string { return filepath.Join(o.root, fmt.Sprint("mds", n)) }

// nodeOf returns the id that the cluster gave to the n-th node.
func (o *operated) nodeOf(t *testing.T, n int) uint64 {
	t.Helper()
	for _, x := range o.placement(t).Nodes {
		if x.Address == o.addresses[2*n-2] {
			return x.Node
		}
	}
	t.Fatalf("the %d. node is not in the map", n)
	return 0
}

// byID returns which node, 1, 2, ..., has an id.
func (o *operated) byID(t *testing.T, id uint64) int {
	t.Helper()
	for n := range o.nodes {
		if o.nodeOf(t, n) == id {
			return n
		}
	}
	t.Fatalf("node %d is none of this test", id)
	return 0
}

// watch makes and looks at names through a mount until stop is closed, and returns
// how many and the longest time that one took.
func watch(dir string, stop <-chan struct{}) (count int, longest time.Duration, err error) {
	for {
		select {
		case <-stop:
			return count, longest, nil
		default:
		}
		begun := time.Now()
		name := filepath.Join(dir, fmt.Sprint("name", count))
		f, err := os.Create(name)
		if err != nil {
			return count, longest, err
		}
		if err := f.Close(); err != nil {
			return count, longest, err
		}
		if _, err := os.Stat(name); err != nil {
			return count, longest, err
		}
		if _, err := os.ReadDir(filepath.Dir(dir)); err != nil {
			return count, longest, err
		}
		count++
		longest = max(longest, time.Since(begun))
	}
}

// TestOperators: while programs write and look, a shard is made, replicas are moved,
// a node is drained and removed, one that lost its disk comes back, and one that is
// lost altogether is replaced. Nobody sees an error, locks stay, and all that was
// acknowledged is there.
func TestOperators(t *testing.T) {
	t.Parallel()
	o := newOperated(t, 5)
	for n := range 3 {
		o.start(t, n+1)
	}
	for n := range 3 {
		o.nodes[n+1].waitOutput(t, "ready")
	}
	mount := o.secondMount(t)
	locked, err := os.Create(filepath.Join(mount, "locked"))
	if err != nil {
		t.Fatal(err)
	}
	defer locked.Close()
	if err := syscall.Flock(int(locked.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(o.secondMount(t), "d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	stop, watched := make(chan struct{}), make(chan error, 1)
	var count int
	var longest time.Duration
	go func() {
		var err error
		count, longest, err = watch(dir, stop)
		watched <- err
	}()
	step := func(what string, args ...string) {
		t.Helper()
		begun := time.Now()
		out := o.mdsctl(t, args...)
		t.Logf("%s: %v\n%s", what, time.Since(begun).Round(time.Millisecond), out)
	}
	o.writeDuring(t, 45*time.Second, func() { o.operate(t, step) })
	close(stop)
	if err := <-watched; err != nil {
		t.Errorf("a program on the mount: %v after %d names", err, count)
	}
	t.Logf("%d names on the mount, the longest step took %v", count, longest)
	other, err := os.Open(filepath.Join(filepath.Dir(dir), "locked"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("the lock of before is gone: %v", err)
	}
	o.mdsctl(t, "fsck")
	for _, shard := range []string{"1", "2"} {
		eventually(t, "the replicas of shard "+shard+" are equal", func() error {
			out, errOut, code := command(t, "mdsctl", "--cluster", o.address, "checksum", shard)
			if code != 0 {
				return errors.New(out + errOut)
			}
			return nil
		})
	}
}

// operate does what operators do to a cluster of nodes 1 to 3 on which shard 1 is
// in use.
func (o *operated) operate(t *testing.T, step func(what string, args ...string)) {
	step("a shard is made", "shard", "create", "--replicas", "3")
	o.start(t, 4)
	o.nodes[4].waitOutput(t, "ready")
	holder, _ := o.holderPid(t, 1)
	step("the holder's replica moves", "shard", "replica", "move", "1", fmt.Sprint(holder), fmt.Sprint(o.nodeOf(t, 4)))

	drain, _ := o.holderPid(t, 1)
	n := o.byID(t, drain)
	step("a node is drained", "node", "drain", fmt.Sprint(drain))
	step("a node is removed", "node", "remove", fmt.Sprint(drain))
	<-o.nodes[n].done
	if out := o.nodes[n].out.String(); !strings.Contains(out, "the node was removed from the cluster") {
		t.Errorf("the removed node ended without saying why: %s", tail(out, 3))
	}
	out, errOut, code := command(t, "mds", "--data", o.dir(n), "--etcd", o.etcd, "--listen", o.addresses[2*n-2], "--raft-listen", o.addresses[2*n-1])
	if code != 1 || !strings.Contains(errOut, "the node was removed from the cluster: start it with an empty data directory") {
		t.Errorf("the removed node's start: exit %d\n%s%s", code, out, tail(errOut, 5))
	}
	delete(o.nodes, n)

	lost, _ := o.holderPid(t, 1)
	n = o.byID(t, lost)
	o.nodes[n].signal(syscall.SIGKILL)
	<-o.nodes[n].done
	if err := os.RemoveAll(o.dir(n)); err != nil {
		t.Fatal(err)
	}
	o.start(t, n, "--node", fmt.Sprint(lost), "--rebuild")
	o.nodes[n].waitOutput(t, "ready")
	o.whole(t)

	o.start(t, 5)
	o.nodes[5].waitOutput(t, "ready")
	lost, _ = o.holderPid(t, 1)
	n = o.byID(t, lost)
	o.nodes[n].signal(syscall.SIGKILL)
	<-o.nodes[n].done
	delete(o.nodes, n)
	eventually(t, "the node is seen to be gone", func() error {
		for _, x := range o.placement(t).Nodes {
			if x.Node == lost && x.Alive {
				return errors.New("alive")
			}
		}
		return nil
	})
	step("a lost node is replaced", "node", "replace", fmt.Sprint(lost), fmt.Sprint(o.nodeOf(t, 5)))
	o.whole(t)
}

// whole waits until every shard has three replicas that run and a vote each.
func (o *operated) whole(t *testing.T) {
	t.Helper()
	eventually(t, "the shards are whole", func() error {
		for _, s := range o.placement(t).Shards {
			for _, r := range s.Replicas {
				if r.Joining || r.Leaving || len(s.Replicas) != 3 {
					return fmt.Errorf("shard %d: %v", s.Shard, s.Replicas)
				}
			}
		}
		return nil
	})
}
