package mds_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/internal/loopback"
	"github.com/canopyfs/canopy/mds"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/placement/embedded"
)

var triple = placement.Bootstrap{Nodes: 3, Replicas: 3, Shards: 1}

// TestAnotherNodeTakesOver: the holder dies without a word; operations go on, and
// repetitions of what it answered return its results (PROTOCOLS B3, C2).
func TestAnotherNodeTakesOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t, triple, nil)
	k := c.caller(7).open(1)
	first := k.write(create(1, "before"))
	made := k.must(1, first)
	dead := c.holding(1)
	c.kill(dead)
	begin := time.Now()
	k.must(1, k.write(create(1, "after")))
	t.Logf("first write after %v", time.Since(begin))
	if r := k.must(1, first); r.Attr.GetIno() != made.Attr.GetIno() {
		t.Errorf("the repeat made inode %v, the first %v", r.Attr, made.Attr)
	}
	// The killed node catches up, and is as good as the others.
	c.start(dead)
	c.waitReady(dead)
	next := c.holding(1)
	begin = time.Now()
	c.drain(next)
	k.must(1, k.write(create(1, "drained")))
	t.Logf("drain and first write after %v", time.Since(begin))
	for _, name := range []string{"before", "after", "drained"} {
		k.must(1, lookup(1, name))
	}
	c.start(next)
	c.waitReady(next)
	c.equalReplicas(1)
}

// holding waits until a node serves the shard, and returns its index.
func (c *cluster) holding(shard base.ShardID) (holder int) {
	c.t.Helper()
	eventually(c.t, "a node holds the shard", func() bool { holder = c.holder(shard); return holder >= 0 })
	return holder
}

// equalReplicas compares the checksums of all replicas.
func (c *cluster) equalReplicas(shard uint64) {
	c.t.Helper()
	var token uint64
	eventually(c.t, "a checksum entry", func() bool {
		i := c.holder(base.ShardID(shard))
		if i < 0 {
			return false
		}
		admin := canopyv1.NewAdminClient(connect(c.t, c.nodes[i].Addr()))
		r, err := admin.Checksum(c.t.Context(), &canopyv1.ChecksumRequest{Shard: shard})
		token = r.GetToken()
		return err == nil && r.Error == 0
	})
	sums := map[string]bool{}
	for i, n := range c.nodes {
		admin := canopyv1.NewAdminClient(connect(c.t, n.Addr()))
		eventually(c.t, fmt.Sprint("the checksum of node ", i+1), func() bool {
			r, err := admin.ReplicaChecksum(c.t.Context(), &canopyv1.ReplicaChecksumRequest{Shard: shard, Token: token})
			if err != nil || r.Error != 0 {
				return false
			}
			sums[fmt.Sprintf("%x", r.Checksum)] = true
			return true
		})
	}
	if len(sums) != 1 {
		c.t.Errorf("replicas differ: %v", sums)
	}
}

// TestEtcdIsNotNeededToServe: with etcd gone, known clients are served, also by
// another holder.
func TestEtcdIsNotNeededToServe(t *testing.T) {
	t.Parallel()
	c := newCluster(t, triple, nil)
	k := c.caller(7).open(1)
	k.must(1, k.write(create(1, "before")))
	address := c.etcd.Address()
	c.etcd.Close()
	c.etcd = nil
	k.must(1, k.write(create(1, "during")))
	conn := canopyv1.NewClusterClient(connect(t, c.nodes[0].Addr()))
	eventually(t, "the outage is reported", func() bool {
		s, err := conn.Status(t.Context(), &canopyv1.StatusRequest{})
		return err == nil && !s.EtcdReachable
	})
	watch, err := conn.WatchMap(t.Context(), &canopyv1.WatchMapRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := watch.Recv(); err != nil || len(m.Nodes) != 3 || len(m.Shards) != 1 {
		t.Errorf("the last known map: %v, %v", m, err)
	}
	dead := c.holding(1)
	c.kill(dead)
	k.must(1, k.write(create(1, "failover")))
	k.must(1, lookup(1, "before"))

	if c.etcd, err = embedded.Start(t.Context(), embedded.Config{Dir: filepath.Join(c.dir, "etcd"), Listen: address}); err != nil {
		t.Fatal(err)
	}
	c.start(dead)
	c.waitReady(dead)
	eventually(t, "the new holder is in the map", func() bool {
		i := c.holder(1)
		if i < 0 {
			return false
		}
		watch, err := canopyv1.NewClusterClient(connect(t, c.nodes[0].Addr())).WatchMap(t.Context(), &canopyv1.WatchMapRequest{})
		if err != nil {
			return false
		}
		m, err := watch.Recv()
		return err == nil && placement.NewMap(m).Shard(1).GetHolderNode() == uint64(c.nodes[i].Node())
	})
}

// TestOldStateIsRefusedAndRebuilt: PROTOCOLS A6, with the command that the refusal
// names.
func TestOldStateIsRefusedAndRebuilt(t *testing.T) {
	t.Parallel()
	c := newCluster(t, triple, nil)
	k := c.caller(7).open(1)
	k.must(1, k.write(create(1, "a")))
	victim := 2
	c.kill(victim)
	saved := filepath.Join(c.dir, "saved")
	if err := os.CopyFS(saved, os.DirFS(c.nodeDir(victim))); err != nil {
		t.Fatal(err)
	}
	c.start(victim)
	c.waitReady(victim)
	k.must(1, k.write(create(1, "b")))
	c.kill(victim)
	if err := os.RemoveAll(c.nodeDir(victim)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(saved, c.nodeDir(victim)); err != nil {
		t.Fatal(err)
	}
	for range 3 { // asking again does not help
		_, err := mds.New(t.Context(), c.settings(victim))
		if err == nil || !strings.Contains(err.Error(), "--rebuild") || strings.Contains(err.Error(), "\n") {
			t.Fatalf("an old copy of the state: %v", err)
		}
	}
	c.config = func(config *mds.Config) { config.Rebuild = true }
	c.start(victim)
	c.config = nil
	c.waitReady(victim)
	k.must(1, k.write(create(1, "c")))
	c.equalReplicas(1)
	c.settled(0, 1)
	c.kill((victim + 1) % 3) // the rebuilt replica counts
	k.must(1, k.write(create(1, "d")))
	for _, name := range []string{"a", "b", "c", "d"} {
		k.must(1, lookup(1, name))
	}
}

// TestTheOnlyReplicaIsNotDiscarded: PROTOCOLS A6.
func TestTheOnlyReplicaIsNotDiscarded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, nil)
	k := c.caller(7).open(1)
	k.must(1, k.write(create(1, "a")))
	c.kill(0)
	config := c.settings(0)
	config.Rebuild = true
	if n, err := mds.New(t.Context(), config); err == nil {
		n.Close()
		t.Fatal("the only copy was discarded")
	}
	c.start(0)
	k.must(1, lookup(1, "a"))
}

// TestWrongStarts: each is one clear line, and nothing is lost.
func TestWrongStarts(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, nil)
	k := c.caller(7).open(1)
	k.must(1, k.write(create(1, "a")))
	running := c.settings(0)
	running.RaftListen = loopback.Addresses(t, 1)[0]
	check := func(name, want string, config mds.Config) {
		t.Helper()
		n, err := mds.New(t.Context(), config)
		if err == nil {
			n.Close()
			t.Fatalf("%s: it started", name)
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", name, err, want)
		}
	}
	check("a directory in use", "in use by another process", running)
	fresh := running
	fresh.Node, fresh.DataDir = 0, t.TempDir()
	taken := fresh
	taken.Listen = c.nodes[0].Addr()
	check("a port in use", "in use by another process", taken)
	takenRaft := fresh
	takenRaft.RaftListen = c.raft[0]
	check("a raft port in use", "in use by another process", takenRaft)
	takenRaft.RaftListen = fresh.RaftListen // it was not registered under the other
	takenRaft.Listen = c.nodes[0].Addr()
	check("the same directory again", "in use by another process", takenRaft)
	away := fresh
	away.Etcd, away.StartTimeout = []string{"127.0.0.1:1"}, time.Second
	check("no etcd", "etcd at 127.0.0.1:1", away)
	lost := fresh
	lost.Node = 1
	check("a lost data directory", "--rebuild", lost)
	c.kill(0)
	moved := c.settings(0)
	moved.RaftListen = loopback.Addresses(t, 1)[0]
	check("another raft address", "cannot be changed", moved)
	other := c.settings(0)
	other.EtcdPrefix = "/another"
	check("another cluster", "belongs to cluster", other)
	renamed := c.settings(0)
	renamed.Node = 5
	check("another node", "belongs to node 1", renamed)
	c.start(0)
	k.must(1, lookup(1, "a"))
	if r := k.do(1, lookup(1, "b")); fserr.Kind(r.Error) != fserr.NotFound {
		t.Errorf("got %v", r)
	}
}
