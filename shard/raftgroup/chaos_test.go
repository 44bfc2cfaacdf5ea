package raftgroup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/lni/dragonboat/v4"

	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/internal/loopback"
)

// interference loses, delays, reorders and repeats proposals.
type interference struct {
	mu   sync.Mutex
	rng  *rand.Rand
	held []byte
	lost int
}

func (x *interference) wrap(toRaft proposeFunc) proposeFunc {
	return func(data []byte) (*dragonboat.RequestState, error) {
		x.mu.Lock()
		defer x.mu.Unlock()
		fate := x.rng.IntN(10)
		if late := x.held; late != nil {
			x.held = nil
			defer func() { _, _ = toRaft(late) }() // behind what was proposed after it
		}
		switch fate {
		case 0:
			x.lost++
			return nil, dragonboat.ErrSystemBusy
		case 1:
			x.lost++
			return nil, nil // lost, and nobody says so
		case 2:
			x.held = bytes.Clone(data)
			return nil, dragonboat.ErrTimeout
		case 3:
			_, _ = toRaft(bytes.Clone(data))
		}
		return toRaft(data)
	}
}

// A2: whatever becomes of single proposals, commands run in the order in which
// they were submitted, each once.
func TestA2OrderOverLostProposals(t *testing.T) {
	t.Parallel()
	x := &interference{rng: rand.New(rand.NewPCG(7, 7))}
	c := newCluster(t, 1, func(cfg *Config) { cfg.interfere = x.wrap })
	g := c.holder(patience).group()
	const n = 120
	results := make(chan string, n)
	for i := range n {
		g.Submit([]byte(name(i)), func(result []byte, err error) {
			if err != nil {
				results <- err.Error()
				return
			}
			results <- fmt.Sprint(binary.BigEndian.Uint64(result))
		})
		if i%3 == 2 { // several entries: the next waits until one of these is done
			await.Until(t, patience, "one more is done", func() bool { return len(results) > i/9 })
		}
	}
	for i := range n {
		if got := <-results; got != fmt.Sprint(i+1) {
			t.Fatalf("command %d: %s", i, got)
		}
	}
	for i := range n {
		if runs := c.nodes[0].runs(name(i)); runs != 1 {
			t.Fatalf("command %d ran %d times", i, runs)
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.lost == 0 {
		t.Fatal("nothing was lost: the test does not test what it should")
	}
}

// An error of the machine is reported before the process stops.
func TestApplyErrorIsReported(t *testing.T) {
	var reported error
	h := &Host{cfg: Config{OnReplicaFailed: func(_ base.ShardID, err error) { reported = err }}, log: slog.New(slog.DiscardHandler)}
	m := &stateMachine{g: &Group{host: h, log: h.log}}
	boom := errors.New("boom")
	if err := m.broken(3, boom); !errors.Is(err, boom) || !errors.Is(reported, boom) {
		t.Fatal(err, reported)
	}
}

// copyTree copies a directory.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// A6: a state older than the log's snapshot, a state without its log, and a log
// older than the state are each refused with a clear error, before Dragonboat
// panics over them.
func TestA6OlderStateIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(cfg *Config) { cfg.CompactionOverhead = 1 })
	nd := c.nodes[0]
	c.holder(patience)
	c.propose(name(0), patience)
	nd.stop()
	oldStore, oldRaft := filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "raft")
	store, raft := filepath.Join(nd.dir, "store"), filepath.Join(nd.dir, "raft")
	copyTree(t, store, oldStore)
	copyTree(t, raft, oldRaft)
	c.revive(nd)
	c.holder(patience)
	for i := range 20 {
		c.propose(name(i), patience)
	}
	if err := nd.group().Snapshot(testContext(t)); err != nil {
		t.Fatal(err)
	}
	nd.stop()
	newStore, newRaft := filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "raft")
	copyTree(t, store, newStore)
	copyTree(t, raft, newRaft)
	for what, tc := range map[string]struct{ store, raft string }{
		"the state of before the snapshot": {oldStore, newRaft},
		"the log of before the state":      {newStore, oldRaft},
		"a state without a log":            {newStore, t.TempDir()},
		"a log without its state":          {t.TempDir(), newRaft},
	} {
		copyTree(t, tc.store, store)
		copyTree(t, tc.raft, raft)
		c.open(nd)
		_, err := nd.host.Start(testContext(t), ReplicaConfig{Shard: testShard, Replica: 1, Members: c.members, Machine: &testMachine{shard: testShard}})
		if !errors.Is(err, fserr.IO) {
			t.Errorf("%s: %v, want an error of kind IO", what, err)
		} else {
			t.Logf("%s: %v", what, err)
		}
		nd.stop()
	}
	copyTree(t, newStore, store)
	copyTree(t, newRaft, raft)
	c.revive(nd)
	c.holder(patience)
	if runs := nd.runs(name(19)); runs != 1 {
		t.Fatalf("after all that command 19 ran %d times", runs)
	}
}

// A kill at any moment: the store is a prefix, the log replays the rest.
func TestA4RestartFromAnyCopy(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	nd := c.nodes[0]
	c.holder(patience)
	acked := 0
	for round := range 3 {
		for range 10 {
			if c.propose(name(acked), patience) {
				acked++
			}
		}
		// The files as they are now, as kill -9 leaves them.
		store, raft := filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "raft")
		copyTree(t, filepath.Join(nd.dir, "store"), store)
		copyTree(t, filepath.Join(nd.dir, "raft"), raft)
		if round == 1 {
			if err := nd.group().Snapshot(testContext(t)); err != nil {
				t.Fatal(err)
			}
		}
		nd.stop()
		copyTree(t, store, filepath.Join(nd.dir, "store"))
		copyTree(t, raft, filepath.Join(nd.dir, "raft"))
		c.revive(nd)
		c.holder(patience)
		for i := range acked {
			if runs := nd.runs(name(i)); runs != 1 {
				t.Fatalf("round %d: command %d ran %d times", round, i, runs)
			}
		}
	}
}

// Wrong settings and a port or directory in use are one clear error.
func TestStartErrors(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	nd := c.nodes[0]
	try := func(change func(*Config)) error {
		cfg := Config{Dir: t.TempDir(), RaftAddress: loopback.Addresses(t, 1)[0], Node: 1, Cluster: "test", Store: nd.store}
		change(&cfg)
		h, err := NewHost(cfg)
		if err == nil {
			_ = h.Close(t.Context())
		}
		return err
	}
	for what, change := range map[string]func(*Config){
		"a port in use":      func(cfg *Config) { cfg.RaftAddress = nd.addr },
		"a directory in use": func(cfg *Config) { cfg.Dir = filepath.Join(nd.dir, "raft") },
		"no cluster":         func(cfg *Config) { cfg.Cluster = "" },
	} {
		if err := try(change); !errors.Is(err, fserr.Invalid) {
			t.Errorf("%s: %v", what, err)
		} else {
			t.Logf("%s: %v", what, err)
		}
	}
	nd.stop()
	for what, change := range map[string]func(*Config){
		"another address": func(cfg *Config) { cfg.Dir = filepath.Join(nd.dir, "raft") },
		"another cluster": func(cfg *Config) {
			cfg.Dir, cfg.RaftAddress, cfg.Cluster = filepath.Join(nd.dir, "raft"), nd.addr, "other"
		},
	} {
		if err := try(change); !errors.Is(err, fserr.Invalid) {
			t.Errorf("%s: %v", what, err)
		} else {
			t.Logf("%s: %v", what, err)
		}
	}
}
