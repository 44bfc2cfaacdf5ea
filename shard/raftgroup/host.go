package raftgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/plugin/tan"
	sm "github.com/lni/dragonboat/v4/statemachine"
	"github.com/lni/vfs"
	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/raftgroup/internal/dragonlog"
	"github.com/canopyfs/canopy/shard/schema"
)

// Raft's clock. A follower that hears nothing for 0.4 to 0.8 s stands for
// election, while the dead holder's lease of 1.2 s runs out: a killed holder is
// replaced within 3 s even if two elections fail.
const (
	rttMillisecond = 20
	electionRTT    = 20
	heartbeatRTT   = 2
)

// execShards is part of the log's format: Dragonboat refuses a directory that
// was written with another number.
const execShards = 4

// Host is one node's end of all its shards.
type Host struct {
	cfg     Config
	clock   Clock
	begun   time.Time
	log     *slog.Logger
	metrics *hostMetrics
	lock    *os.File // keeps other processes off the directory
	fs      *logFS
	logs    *logFactory
	nh      *dragonboat.NodeHost

	mu     sync.Mutex
	groups map[base.ShardID]*Group
	closed bool
}

// NewHost opens the Raft log and listens. A directory or port in use is an
// error that says so.
func NewHost(cfg Config) (h *Host, err error) {
	if cfg.Node == 0 || cfg.Store == nil || cfg.Dir == "" || cfg.RaftAddress == "" || cfg.Cluster == "" {
		return nil, fserr.New(fserr.Invalid, "start raft", errors.New("node, store, directory, address and cluster must be given"))
	}
	setDefaults(&cfg)
	if err := checkHostname(cfg.Dir); err != nil {
		return nil, err
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	if err = trimLogs(cfg.Dir, cfg.Logger); err != nil {
		return nil, err
	}
	dragonlog.Quiet()
	h = &Host{
		cfg: cfg, clock: cfg.Clock, begun: time.Now(), log: cfg.Logger, groups: make(map[base.ShardID]*Group),
		lock: lock, fs: newLogFS(cfg.OnDiskFailed),
	}
	h.logs = &logFactory{LogDBFactory: tan.Factory, arrived: h.entriesArrived}
	h.metrics = newHostMetrics(cfg.Registerer)
	h.nh, err = newNodeHost(h.nodeHostConfig())
	if err != nil {
		h.metrics.unregister()
		return nil, explain(err, cfg)
	}
	return h, nil
}

func setDefaults(cfg *Config) {
	set(&cfg.LeaseDuration, 1200*time.Millisecond)
	set(&cfg.CommandTimeout, 10*time.Second)
	set(&cfg.QueueCommands, 16384)
	set(&cfg.QueueBytes, 64<<20)
	set(&cfg.SnapshotEntries, 100_000)
	set(&cfg.SnapshotBytes, 256<<20)
	set(&cfg.CompactionOverhead, 20_000)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Clock == nil {
		cfg.Clock = SystemClock{}
	}
}

func set[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}

// waited is a cheap clock for how long commands wait; CLOCK_BOOTTIME costs a
// system call.
func (h *Host) waited() time.Duration { return time.Since(h.begun) }

// lockDir makes the directory this process's until the file is closed.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("raft log: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "CANOPY-LOCK"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("raft log: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fserr.New(fserr.Invalid, "start raft", fmt.Errorf("another process uses the Raft log in %s: %w", dir, err)), f.Close())
	}
	return f, nil
}

// checkHostname refuses a log that was written under another host name:
// Dragonboat would not find it and begin an empty one.
func checkHostname(dir string) error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("raft log: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && e.Name() != name {
			return fserr.New(fserr.Invalid, "start raft", fmt.Errorf(
				"the Raft log in %s was written under the host name %q, but this host is called %q: give the host its old name back, "+
					"or remove this node and add a new one", dir, e.Name(), name))
		}
	}
	return nil
}

func (h *Host) nodeHostConfig() config.NodeHostConfig {
	logs := config.GetTinyMemLogDBConfig()
	logs.KVWriteBufferSize = 2 << 20 // one buffer per step worker
	var fs config.IFS = h.fs
	if h.cfg.plainLog {
		fs = vfs.Default
	}
	hash := fnv.New64a()
	hash.Write([]byte(h.cfg.Cluster))
	return config.NodeHostConfig{
		DeploymentID:      hash.Sum64() | 1,
		NodeHostDir:       h.cfg.Dir,
		RTTMillisecond:    rttMillisecond,
		RaftAddress:       h.cfg.RaftAddress,
		ListenAddress:     h.cfg.ListenAddress,
		RaftEventListener: listener{h},
		MaxSendQueueSize:  256 << 20, MaxReceiveQueueSize: 256 << 20,
		Expert: config.ExpertConfig{
			LogDBFactory: h.logs,
			LogDB:        logs,
			FS:           fs,
			Engine: config.EngineConfig{
				ExecShards: execShards, CommitShards: 1, ApplyShards: 4, SnapshotShards: 2, CloseShards: 2,
			},
		},
	}
}

// newNodeHost turns a panic of Dragonboat's start into an error.
func newNodeHost(c config.NodeHostConfig) (nh *dragonboat.NodeHost, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("dragonboat: %v", r)
		}
	}()
	return dragonboat.NewNodeHost(c)
}

// Start starts a replica. A state that is older than the log says is an error
// (PROTOCOLS A6).
func (h *Host) Start(ctx context.Context, rc ReplicaConfig) (*Group, error) {
	if rc.Shard == 0 || rc.Replica == 0 || rc.Machine == nil {
		return nil, fserr.New(fserr.Invalid, "start replica", errors.New("shard, replica and machine must be given"))
	}
	applied, err := h.claimRange(rc)
	if err != nil {
		return nil, err
	}
	snapshot, last, err := h.checkLog(rc, applied)
	if err != nil {
		return nil, err
	}
	g := newGroup(h, rc)
	if last > 0 {
		g.arrivals.saved(1, last, g.now())
		g.sm.upkeep.begin(last - snapshot)
	}
	h.mu.Lock()
	if _, ok := h.groups[rc.Shard]; ok || h.closed {
		h.mu.Unlock()
		return nil, fserr.New(fserr.Exist, "start replica", fmt.Errorf("a replica of shard %s runs already, or the host is closed", rc.Shard))
	}
	h.groups[rc.Shard] = g
	h.mu.Unlock()
	session := h.nh.GetNoOPSession(uint64(rc.Shard))
	g.toRaft = func(data []byte) (*dragonboat.RequestState, error) {
		return h.nh.Propose(session, data, proposeTimeout)
	}
	if h.cfg.interfere != nil {
		g.toRaft = h.cfg.interfere(g.toRaft)
	}
	g.workers.Add(2)
	go g.run()
	go g.sm.upkeep.run()
	if err := h.startReplica(ctx, g); err != nil {
		g.close()
		h.forget(g)
		return nil, fmt.Errorf("start replica %s of shard %s: %w", rc.Replica, rc.Shard, err)
	}
	if leader, _, ok, err := h.nh.GetLeaderID(uint64(rc.Shard)); err == nil && ok {
		g.leaderChanged(base.ReplicaID(leader))
	}
	return g, nil
}

// Knows tells whether the log has a replica: it was started before.
func (h *Host) Knows(shard base.ShardID, replica base.ReplicaID) bool {
	return h.nh.HasNodeInfo(uint64(shard), uint64(replica))
}

func (h *Host) startReplica(ctx context.Context, g *Group) error {
	rc := g.cfg
	members := make(map[uint64]dragonboat.Target)
	known := h.nh.HasNodeInfo(uint64(rc.Shard), uint64(rc.Replica))
	if !known && !rc.Join {
		for id, m := range rc.Members {
			members[uint64(id)] = m.RaftAddress
		}
	}
	create := func(uint64, uint64) sm.IOnDiskStateMachine { return g.sm }
	for {
		err := h.nh.StartOnDiskReplica(members, rc.Join, create, config.Config{
			ShardID: uint64(rc.Shard), ReplicaID: uint64(rc.Replica),
			CheckQuorum: true, PreVote: true, ElectionRTT: electionRTT, HeartbeatRTT: heartbeatRTT,
			CompactionOverhead:  h.cfg.CompactionOverhead, // snapshots are asked for by upkeep (A5)
			OrderedConfigChange: false, WaitReady: true, IsNonVoting: rc.Learner,
		})
		if !errors.Is(err, dragonboat.ErrShardAlreadyExist) {
			return err
		}
		select { // the last replica of the shard here is still being unloaded
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

// entriesArrived is called before entries are saved.
func (h *Host) entriesArrived(shardID, replicaID, first, last uint64) {
	g := h.Group(base.ShardID(shardID))
	if g != nil && uint64(g.cfg.Replica) == replicaID {
		g.arrivals.saved(first, last, g.now())
	}
}

func (h *Host) forget(g *Group) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.groups[g.cfg.Shard] == g {
		delete(h.groups, g.cfg.Shard)
	}
}

// Group returns the running replica of a shard, nil if there is none.
func (h *Host) Group(shard base.ShardID) *Group {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.groups[shard]
}

// Groups returns the running replicas, in the order of their shards.
func (h *Host) Groups() []*Group {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*Group, 0, len(h.groups))
	for _, g := range h.groups {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *Group) int { return cmp.Compare(a.cfg.Shard, b.cfg.Shard) })
	return all
}

// Stop stops the replica of a shard. Waiting commands fail with NotReady, those
// in flight with TimedOut.
func (h *Host) Stop(ctx context.Context, shard base.ShardID) error {
	g := h.Group(shard)
	if g == nil {
		return fserr.New(fserr.UnknownShard, "stop replica", nil)
	}
	g.close()
	h.forget(g)
	if err := h.nh.StopShard(uint64(shard)); err != nil && !errors.Is(err, dragonboat.ErrShardNotFound) {
		return fmt.Errorf("stop shard %s: %w", shard, err)
	}
	select {
	case <-g.sm.closed:
		return nil
	case <-ctx.Done():
		return fserr.New(fserr.TimedOut, "stop replica", ctx.Err())
	}
}

// Remove stops the replica for good and removes its log and state. It must have
// left the shard's membership.
func (h *Host) Remove(ctx context.Context, id base.ShardID) error {
	g := h.Group(id)
	if g == nil {
		return fserr.New(fserr.UnknownShard, "remove replica", nil)
	}
	if err := h.Stop(ctx, id); err != nil {
		return err
	}
	if err := h.nh.SyncRemoveData(ctx, uint64(id), uint64(g.cfg.Replica)); err != nil {
		return fmt.Errorf("remove the log of shard %s: %w", id, err)
	}
	lo, hi := schema.ShardRange(id)
	return h.setOwner(id, func(b shard.Batch) error { return b.DeleteRange(lo, hi) })
}

// Close stops all replicas and the host. It releases no lease: for a drain call
// Release on the groups first.
func (h *Host) Close(ctx context.Context) error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	h.mu.Unlock()
	for _, g := range h.Groups() {
		g.close()
		h.forget(g)
	}
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Errorf("close dragonboat: %v", r)
			}
		}()
		h.nh.Close()
		h.fs.wait()
		done <- h.lock.Close()
	}()
	select {
	case err := <-done:
		h.metrics.unregister()
		return err
	case <-ctx.Done():
		return fserr.New(fserr.TimedOut, "close raft", ctx.Err())
	}
}
