// Package floor measures what Dragonboat alone can do here: bare group commit,
// with a state machine that only counts. Reports print the ratio of Canopy to
// it. It needs nothing of raftgroup and leaves nothing behind.
package floor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/plugin/tan"
	sm "github.com/lni/dragonboat/v4/statemachine"

	"github.com/canopyfs/canopy/shard/raftgroup/internal/dragonlog"
)

// Options of a measurement.
type Options struct {
	Dir         string // where to make the temporary directory; "" is the system's
	Replicas    int    // 1, 3 or 5, each with a host of its own in this process, on loopback
	Callers     int    // concurrent callers, each waits for its record
	RecordBytes int
	Duration    time.Duration
	Warmup      time.Duration
}

// Result is what was measured: a record counts once it is applied.
type Result struct {
	OpsPerSec           float64
	P50, P95, P99, P999 time.Duration
	Ops                 int64
	RecordsPerEntry     float64
}

const (
	floorShard = 1
	// inFlight entries are proposed at once, as many as raftgroup does.
	inFlight     = 2
	startTimeout = 10 * time.Second
)

// Run measures bare group commit.
func Run(ctx context.Context, o Options) (r Result, err error) {
	if o.Replicas < 1 || o.Callers < 1 || o.RecordBytes < 1 || o.Duration <= 0 {
		return r, errors.New("floor: replicas, callers, record size and duration must be positive")
	}
	dir, err := os.MkdirTemp(o.Dir, "canopy-floor-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	hosts, err := startHosts(dir, o.Replicas)
	defer func() {
		for _, h := range hosts {
			h.Close()
		}
	}()
	if err != nil {
		return r, err
	}
	leader, err := waitLeader(ctx, hosts)
	if err != nil {
		return r, err
	}
	return measure(ctx, leader, o)
}

func startHosts(dir string, replicas int) (hosts []*dragonboat.NodeHost, err error) {
	dragonlog.Quiet()
	members := make(map[uint64]dragonboat.Target)
	for i := 1; i <= replicas; i++ {
		addr, err := freeAddress()
		if err != nil {
			return nil, err
		}
		members[uint64(i)] = addr
	}
	for i := 1; i <= replicas; i++ {
		logs := config.GetTinyMemLogDBConfig()
		logs.KVWriteBufferSize = 2 << 20
		h, err := dragonboat.NewNodeHost(config.NodeHostConfig{
			NodeHostDir: filepath.Join(dir, fmt.Sprint(i)), RTTMillisecond: 20, RaftAddress: members[uint64(i)],
			Expert: config.ExpertConfig{
				LogDBFactory: tan.Factory, LogDB: logs,
				Engine: config.EngineConfig{ExecShards: 4, CommitShards: 1, ApplyShards: 4, SnapshotShards: 2, CloseShards: 2},
			},
		})
		if err != nil {
			return hosts, err
		}
		hosts = append(hosts, h)
		err = h.StartOnDiskReplica(members, false, func(uint64, uint64) sm.IOnDiskStateMachine { return &counter{} }, config.Config{
			ShardID: floorShard, ReplicaID: uint64(i), ElectionRTT: 20, HeartbeatRTT: 2, CheckQuorum: true, PreVote: true, WaitReady: true,
		})
		if err != nil {
			return hosts, err
		}
	}
	return hosts, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func waitLeader(ctx context.Context, hosts []*dragonboat.NodeHost) (*dragonboat.NodeHost, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if id, _, ok, err := hosts[0].GetLeaderID(floorShard); err == nil && ok {
			return hosts[id-1], nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("floor: no leader: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// record is one caller's record on its way.
type record struct {
	payload []byte
	done    chan error
}

func measure(ctx context.Context, leader *dragonboat.NodeHost, o Options) (Result, error) {
	runCtx, stop := context.WithCancel(ctx)
	defer stop()
	queue := make(chan record, o.Callers)
	var entries, counting atomic.Int64
	var batchers, callers sync.WaitGroup
	for range inFlight {
		batchers.Go(func() { commit(leader, queue, &entries) })
	}
	latencies := make([][]time.Duration, o.Callers)
	failures := make([]error, o.Callers)
	for i := range o.Callers {
		callers.Go(func() { latencies[i], failures[i] = call(runCtx, queue, o.RecordBytes, &counting) })
	}
	sleep(ctx, o.Warmup)
	entries.Store(0)
	counting.Store(1)
	begun := time.Now()
	sleep(ctx, o.Duration)
	counting.Store(0)
	elapsed := time.Since(begun)
	n := entries.Load()
	stop()
	callers.Wait()
	close(queue)
	batchers.Wait()
	if err := errors.Join(append(failures, ctx.Err())...); err != nil {
		return Result{}, err
	}
	return summary(slices.Concat(latencies...), elapsed, n), nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func call(ctx context.Context, queue chan<- record, size int, counting *atomic.Int64) (all []time.Duration, err error) {
	r := record{make([]byte, size), make(chan error, 1)}
	for ctx.Err() == nil {
		counted := counting.Load() == 1
		begun := time.Now()
		queue <- r
		if err := <-r.done; err != nil {
			return nil, err
		}
		if counted {
			all = append(all, time.Since(begun))
		}
	}
	return all, nil
}

// commit proposes what waits as one entry, one entry at a time.
func commit(h *dragonboat.NodeHost, queue <-chan record, entries *atomic.Int64) {
	session := h.GetNoOPSession(floorShard)
	var buf []byte
	for first := range queue {
		batch := []record{first}
	collect:
		for len(batch) < 4096 {
			select {
			case r, ok := <-queue:
				if !ok {
					break collect
				}
				batch = append(batch, r)
			default:
				break collect
			}
		}
		buf = buf[:0]
		for _, r := range batch {
			buf = append(binary.AppendUvarint(buf, uint64(len(r.payload))), r.payload...)
		}
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		_, err := h.SyncPropose(ctx, session, buf)
		cancel()
		entries.Add(1)
		for _, r := range batch {
			r.done <- err
		}
	}
}

func summary(all []time.Duration, elapsed time.Duration, entries int64) Result {
	slices.Sort(all)
	at := func(q float64) time.Duration {
		if len(all) == 0 {
			return 0
		}
		return all[min(int(q*float64(len(all))), len(all)-1)]
	}
	return Result{
		OpsPerSec: float64(len(all)) / elapsed.Seconds(), Ops: int64(len(all)),
		P50: at(0.5), P95: at(0.95), P99: at(0.99), P999: at(0.999),
		RecordsPerEntry: float64(len(all)) / float64(max(entries, 1)),
	}
}
