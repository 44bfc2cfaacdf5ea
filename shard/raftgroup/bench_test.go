package raftgroup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/loopback"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/raftgroup/floor"
	"github.com/canopyfs/canopy/shard/store"
)

const (
	benchCallers = 64
	benchBytes   = 200
)

// BenchmarkFloor is what the parts alone do: fdatasync of an appended and of an
// overwritten 4 KiB block, and bare Dragonboat.
func BenchmarkFloor(b *testing.B) {
	for _, overwrite := range []bool{false, true} {
		b.Run(fmt.Sprintf("fdatasync/overwrite=%v", overwrite), func(b *testing.B) {
			f, err := os.Create(filepath.Join(b.TempDir(), "f"))
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			block := make([]byte, 4096)
			const blocks = 4096
			if overwrite {
				for range blocks {
					_, _ = f.Write(block)
				}
				_ = f.Sync()
			}
			n := int64(0)
			for b.Loop() {
				off := n * 4096
				if overwrite {
					off %= blocks * 4096
				}
				n++
				if _, err := f.WriteAt(block, off); err != nil {
					b.Fatal(err)
				}
				if err := unix.Fdatasync(int(f.Fd())); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	for _, replicas := range []int{1, 3} {
		b.Run(fmt.Sprintf("dragonboat/replicas=%d", replicas), func(b *testing.B) {
			for b.Loop() {
				r, err := floor.Run(b.Context(), floor.Options{
					Dir: b.TempDir(), Replicas: replicas, Callers: benchCallers, RecordBytes: benchBytes, Duration: 2 * time.Second, Warmup: 300 * time.Millisecond,
				})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(r.OpsPerSec, "ops/s")
				b.ReportMetric(float64(r.P50.Microseconds()), "p50-us")
				b.ReportMetric(float64(r.P99.Microseconds()), "p99-us")
				b.ReportMetric(r.RecordsPerEntry, "ops/entry")
			}
		})
	}
}

// blobMachine stores each command under a key of its own.
type blobMachine struct {
	shard base.ShardID
	next  atomic.Uint64
}

func (m *blobMachine) Load(shard.Reader) error { return nil }

func (m *blobMachine) Apply(w shard.Writer, _ int64, commands [][]byte) ([][]byte, error) {
	results := make([][]byte, len(commands))
	for i, c := range commands {
		key := testKey(m.shard, fmt.Sprintf("%016x", m.next.Add(0x9e3779b97f4a7c15)))
		if _, _, err := w.Get(key); err != nil {
			return nil, err
		}
		if err := w.Set(key, c); err != nil {
			return nil, err
		}
		results[i] = c[:0:0]
	}
	return results, nil
}

// BenchmarkGroup is group commit with the store, by callers that each wait for
// their command.
func BenchmarkGroup(b *testing.B) {
	for _, replicas := range []int{1, 3} {
		for _, callers := range []int{1, benchCallers} {
			for _, plain := range []bool{false, true} {
				b.Run(fmt.Sprintf("replicas=%d/callers=%d/plainlog=%v", replicas, callers, plain), func(b *testing.B) {
					benchGroup(b, replicas, callers, plain)
				})
			}
		}
	}
}

// benchCluster starts a shard and returns the group that holds its lease.
func benchCluster(b *testing.B, replicas int, plain bool) *Group {
	members := make(map[base.ReplicaID]Member)
	for i := 1; i <= replicas; i++ {
		members[base.ReplicaID(i)] = Member{base.NodeID(i), loopback.Addresses(b, 1)[0]}
	}
	var groups []*Group
	for i := 1; i <= replicas; i++ {
		dir := b.TempDir()
		s, err := store.Open(store.Options{Dir: filepath.Join(dir, "store"), Cluster: "bench", Node: base.NodeID(i)})
		if err != nil {
			b.Fatal(err)
		}
		h, err := NewHost(Config{Dir: filepath.Join(dir, "raft"), RaftAddress: members[base.ReplicaID(i)].RaftAddress, Node: base.NodeID(i), Cluster: "bench", Store: s, plainLog: plain})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := h.Close(context.Background()); err != nil {
				b.Error(err)
			}
			if err := s.Close(); err != nil {
				b.Error(err)
			}
		})
		g, err := h.Start(b.Context(), ReplicaConfig{Shard: 1, Replica: base.ReplicaID(i), Members: members, Machine: &blobMachine{shard: 1}})
		if err != nil {
			b.Fatal(err)
		}
		groups = append(groups, g)
	}
	var holder *Group
	await.Until(b, patience, "a replica serves", func() bool {
		for _, g := range groups {
			if g.Status().Self {
				holder = g
			}
		}
		return holder != nil
	})
	return holder
}

func benchGroup(b *testing.B, replicas, callers int, plain bool) {
	g := benchCluster(b, replicas, plain)
	before := g.Status().Applied
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			command := make([]byte, benchBytes)
			for left.Add(-1) >= 0 {
				if _, err := g.Propose(b.Context(), command); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(float64(b.N)/float64(max(g.Status().Applied-before, 1)), "ops/entry")
}

// BenchmarkRead is a read under the lease: snapshot, one key, lease check.
func BenchmarkRead(b *testing.B) {
	g := benchCluster(b, 1, false)
	if _, err := g.Propose(b.Context(), []byte("x")); err != nil {
		b.Fatal(err)
	}
	key := testKey(1, "y")
	b.ReportAllocs()
	for b.Loop() {
		err := g.Read(b.Context(), func(r shard.Reader) error { _, _, err := r.Get(key); return err })
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkInFlight compares depths of the pipeline by turns on one shard, since
// two runs on a shared machine do not compare.
func BenchmarkInFlight(b *testing.B) {
	for _, replicas := range []int{1, 3} {
		b.Run(fmt.Sprintf("replicas=%d", replicas), func(b *testing.B) {
			g := benchCluster(b, replicas, false)
			stop := make(chan struct{})
			var ops atomic.Int64
			var wg sync.WaitGroup
			for range benchCallers {
				wg.Go(func() {
					command := make([]byte, benchBytes)
					for {
						select {
						case <-stop:
							return
						default:
						}
						if _, err := g.Propose(b.Context(), command); err != nil {
							b.Error(err)
							return
						}
						ops.Add(1)
					}
				})
			}
			const turn = 100 * time.Millisecond
			counts, turns := make(map[int32]int64), 0
			for b.Loop() {
				turns++
				for _, depth := range []int32{1, 2, 3, 4, 6} {
					g.depth.Store(depth)
					<-time.After(turn / 5)
					before := ops.Load()
					<-time.After(turn) // what is measured is a rate
					counts[depth] += ops.Load() - before
				}
			}
			close(stop)
			wg.Wait()
			for depth, n := range counts {
				b.ReportMetric(float64(n)/(float64(turns)*turn.Seconds()), fmt.Sprintf("ops/s@%d", depth))
			}
		})
	}
}
