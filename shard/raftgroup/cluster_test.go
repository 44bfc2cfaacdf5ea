package raftgroup

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/internal/loopback"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/store"
)

// testMachine stores each command under its own bytes, with how often it ran and
// the time, and answers with the number of commands run so far.
type testMachine struct {
	shard base.ShardID
	count uint64
}

func testKey(id base.ShardID, name string) []byte {
	k := binary.BigEndian.AppendUint64(nil, uint64(id))
	k = binary.BigEndian.AppendUint64(k, 1)
	return append(append(k, 0x01), name...)
}

func (m *testMachine) Load(r shard.Reader) error {
	v, found, err := r.Get(testKey(m.shard, ""))
	m.count = 0
	if err == nil && found {
		m.count = binary.BigEndian.Uint64(v)
	}
	return err
}

func (m *testMachine) Apply(w shard.Writer, timeNS int64, commands [][]byte) ([][]byte, error) {
	var results [][]byte
	for _, c := range commands {
		if string(c) == "break" {
			return nil, errors.New("broken")
		}
		key := testKey(m.shard, string(c))
		runs := uint64(0)
		if v, found, err := w.Get(key); err != nil {
			return nil, err
		} else if found {
			runs = binary.BigEndian.Uint64(v)
		}
		m.count++
		value := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, runs+1), uint64(timeNS))
		if err := w.Set(key, value); err != nil {
			return nil, err
		}
		results = append(results, binary.BigEndian.AppendUint64(nil, m.count))
	}
	return results, w.Set(testKey(m.shard, ""), binary.BigEndian.AppendUint64(nil, m.count))
}

// runsOf reads how often a command ran.
func runsOf(r shard.Reader, id base.ShardID, command string) (uint64, error) {
	v, found, err := r.Get(testKey(id, command))
	if err != nil || !found {
		return 0, err
	}
	return binary.BigEndian.Uint64(v), nil
}

// node is one node of a test cluster.
type node struct {
	t     *testing.T
	id    base.NodeID
	dir   string
	addr  string
	store *store.Store
	host  *Host
}

type cluster struct {
	t       *testing.T
	mu      sync.RWMutex // of starting and stopping nodes
	nodes   []*node
	members map[base.ReplicaID]Member
	adjust  func(*Config)
}

const testShard base.ShardID = 1

// patience bounds every wait that only a broken program, or a machine with much
// else to do, makes long.
const patience = 60 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// newCluster starts n nodes with one replica of testShard each.
func newCluster(t *testing.T, n int, adjust func(*Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, members: make(map[base.ReplicaID]Member), adjust: adjust}
	for i, address := range loopback.Addresses(t, n) {
		nd := &node{t: t, id: base.NodeID(i + 1), dir: t.TempDir(), addr: address}
		c.nodes = append(c.nodes, nd)
		c.members[base.ReplicaID(nd.id)] = Member{nd.id, nd.addr}
	}
	for i, nd := range c.nodes {
		c.open(nd)
		c.start(nd, base.ReplicaID(i+1))
	}
	t.Cleanup(func() {
		for _, nd := range c.nodes {
			nd.stop()
		}
	})
	return c
}

func testLogger() *slog.Logger {
	if os.Getenv("CANOPY_TEST_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

func (c *cluster) open(nd *node) {
	c.t.Helper()
	s, err := store.Open(store.Options{Dir: filepath.Join(nd.dir, "store"), Cluster: "test", Node: nd.id})
	if err != nil {
		c.t.Fatal(err)
	}
	cfg := Config{
		Dir: filepath.Join(nd.dir, "raft"), RaftAddress: nd.addr, Node: nd.id, Cluster: "test", Store: s, Logger: testLogger(),
	}
	if cfg.Logger != nil {
		cfg.Logger = cfg.Logger.With("node", uint64(nd.id))
	}
	if c.adjust != nil {
		c.adjust(&cfg)
	}
	h, err := NewHost(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	nd.store, nd.host = s, h
}

func (c *cluster) start(nd *node, id base.ReplicaID) *Group {
	c.t.Helper()
	g, err := nd.host.Start(testContext(c.t), ReplicaConfig{
		Shard: testShard, Replica: id, Members: c.members, Machine: &testMachine{shard: testShard},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return g
}

func (nd *node) group() *Group { return nd.host.Group(testShard) }

// stop ends the node without releasing anything, as a kill does but for what the
// store flushes.
func (nd *node) stop() {
	if nd.host == nil {
		return
	}
	if err := nd.host.Close(context.Background()); err != nil {
		nd.t.Error(err)
	}
	if err := nd.store.Close(); err != nil {
		nd.t.Error(err)
	}
	nd.host, nd.store = nil, nil
}

// halt stops a node while others use the cluster.
func (c *cluster) halt(nd *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	nd.stop()
}

// revive starts a node again.
func (c *cluster) revive(nd *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open(nd)
	c.start(nd, base.ReplicaID(nd.id))
}

// running returns the groups that run.
func (c *cluster) running() []*node {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var all []*node
	for _, nd := range c.nodes {
		if nd.host != nil && nd.group() != nil {
			all = append(all, &node{t: nd.t, id: nd.id, host: nd.host})
		}
	}
	return all
}

// holder waits until some node serves, and returns it.
func (c *cluster) holder(within time.Duration) *node {
	c.t.Helper()
	var found *node
	await.Until(c.t, within, "some node serves", func() bool {
		for _, nd := range c.running() {
			g := nd.group()
			if g == nil {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
			err := g.Read(ctx, func(shard.Reader) error { return nil })
			cancel()
			if err == nil {
				found = c.nodes[nd.id-1]
				return true
			}
		}
		return false
	})
	return found
}

// awaitHolder waits until this node has applied the lease of node id: a
// follower learns of the holder by the log, after the holder itself.
func (nd *node) awaitHolder(t *testing.T, id base.NodeID, within time.Duration) {
	t.Helper()
	await.Until(t, within, fmt.Sprintf("node %s knows that %s serves", nd.id, id), func() bool {
		node, _, _ := nd.group().Holder()
		return node == id
	})
}

// propose runs a command on whichever node takes it, and says whether it was
// acknowledged. Refused commands are tried again; unknown outcomes are not.
func (c *cluster) propose(command string, within time.Duration) (acknowledged bool) {
	c.t.Helper()
	deadline := time.Now().Add(within)
	for time.Now().Before(deadline) {
		for _, nd := range c.running() {
			g := nd.group()
			if g == nil {
				continue
			}
			ctx, cancel := context.WithDeadline(context.Background(), deadline)
			_, err := g.Propose(ctx, []byte(command))
			cancel()
			switch fserr.KindOf(err) {
			case fserr.OK:
				return true
			case fserr.TimedOut:
				return false
			}
		}
		select {
		case <-time.After(time.Millisecond):
		case <-c.t.Context().Done():
			return false
		}
	}
	return false
}

// sums proposes a checksum and returns each running replica's; again if a
// replica's state was replaced meanwhile.
func (c *cluster) sums() map[base.NodeID]Checksum {
	c.t.Helper()
	ctx := testContext(c.t)
	for {
		all, err := c.trySums(ctx)
		if err == nil {
			return all
		}
		if !errors.Is(err, fserr.NotReady) && !errors.Is(err, fserr.NotHolder) {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) trySums(ctx context.Context) (map[base.NodeID]Checksum, error) {
	holder := c.holder(patience)
	token, index, err := holder.group().ProposeChecksum(ctx)
	if err != nil {
		return nil, err
	}
	all := make(map[base.NodeID]Checksum)
	for _, nd := range c.running() {
		sum, err := nd.group().ReplicaChecksum(ctx, token)
		if err != nil {
			return nil, err
		}
		if sum.Index != index {
			c.t.Errorf("node %s: checksum at index %d, want %d", nd.id, sum.Index, index)
		}
		all[nd.id] = sum
	}
	return all, nil
}

func (c *cluster) wantEqualSums() {
	c.t.Helper()
	all := c.sums()
	for id, s := range all {
		for other, o := range all {
			if s != o {
				c.t.Errorf("node %s has %x (%d keys), node %s has %x (%d keys)", id, s.Sum, s.Keys, other, o.Sum, o.Keys)
			}
		}
	}
}

func (nd *node) runs(command string) uint64 {
	nd.t.Helper()
	var n uint64
	err := nd.group().Read(testContext(nd.t), func(r shard.Reader) error {
		var err error
		n, err = runsOf(r, testShard, command)
		return err
	})
	if err != nil {
		nd.t.Fatal(err)
	}
	return n
}

func name(i int) string { return fmt.Sprintf("command-%06d", i) }
