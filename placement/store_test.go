package placement_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/internal/loopback"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/placement/embedded"
)

// patience bounds every wait of these tests.
const patience = 60 * time.Second

func startEtcd(t *testing.T, dir string) *embedded.Etcd {
	t.Helper()
	e, err := embedded.Start(t.Context(), embedded.Config{Dir: dir, Listen: net.JoinHostPort(loopback.Host(t), "0")})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func open(t *testing.T, config placement.Config) *placement.Store {
	t.Helper()
	if config.LeaseTTL == 0 {
		config.LeaseTTL = time.Second
	}
	config.DialTimeout = patience
	s, err := placement.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// newStore returns a store on an etcd of its own.
func newStore(t *testing.T) (*placement.Store, *embedded.Etcd) {
	t.Helper()
	e := startEtcd(t, t.TempDir())
	t.Cleanup(e.Close)
	return open(t, placement.Config{Endpoints: []string{e.Address()}}), e
}

// eventually waits until a condition on the store's maps holds.
func eventually(t *testing.T, s *placement.Store, what string, ok func() bool) {
	t.Helper()
	changes, cancel := s.Subscribe()
	defer cancel()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for !ok() {
		select {
		case <-changes:
		case <-poll.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func TestClusterIsCreatedOnce(t *testing.T) {
	t.Parallel()
	s, e := newStore(t)
	ids := make([]string, 4)
	var wg sync.WaitGroup
	for i := range ids {
		other := open(t, placement.Config{Endpoints: []string{e.Address()}})
		wg.Go(func() {
			var err error
			if ids[i], err = other.EnsureCluster(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Fatalf("cluster ids %q differ", ids)
		}
	}
	eventually(t, s, "the map names the cluster", func() bool { return s.Map().Cluster() == ids[0] && s.Data().Cluster == ids[0] })
	apart := open(t, placement.Config{Endpoints: []string{e.Address()}, Prefix: "/another"})
	if id, err := apart.EnsureCluster(t.Context()); err != nil || id == ids[0] {
		t.Errorf("another prefix: cluster %q, %v", id, err)
	}
}

// TestAllocatedIDsAreUnique: PROTOCOLS A7.
func TestAllocatedIDsAreUnique(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	var mu sync.Mutex
	seen := map[base.NodeID]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 4 {
				id, err := s.AllocateNode(context.Background())
				mu.Lock()
				if err != nil || id == 0 || seen[id] {
					t.Errorf("id %v (seen: %v), %v", id, seen[id], err)
				}
				seen[id] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func noPersist(uint64) error { return nil }

// TestOldStateIsRefused: PROTOCOLS A6. A directory that was restored from a copy
// holds an incarnation that the cluster saw before.
func TestOldStateIsRefused(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	ctx := t.Context()
	disk := uint64(0)
	persist := func(v uint64) error { disk = v; return nil }
	for want := uint64(1); want <= 3; want++ {
		info := &canopyv1.NodeInfo{Node: 1, Address: "a", Pid: uint32(want)}
		if err := s.ClaimNode(ctx, info, disk, persist); err != nil {
			t.Fatal(err)
		}
		if disk != want || info.Incarnation != want {
			t.Fatalf("start %d: disk %d, record %d", want, disk, info.Incarnation)
		}
	}
	err := s.ClaimNode(ctx, &canopyv1.NodeInfo{Node: 1}, 2, func(uint64) error {
		t.Error("a refused start changed the directory")
		return nil
	})
	if !errors.Is(err, placement.ErrAmnesia) {
		t.Fatalf("the copy of an earlier state: %v, want ErrAmnesia", err)
	}
	// A crash between disk and etcd leaves the disk ahead.
	if err := s.ClaimNode(ctx, &canopyv1.NodeInfo{Node: 1}, 4, persist); err != nil || disk != 5 {
		t.Errorf("disk ahead of the cluster: %v, disk %d", err, disk)
	}
}

// TestTwoStartsOfOneState: PROTOCOLS A6. Two processes on copies of the same
// directory: one of them wins.
func TestTwoStartsOfOneState(t *testing.T) {
	t.Parallel()
	s, e := newStore(t)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	both := make(chan struct{})
	var ready sync.WaitGroup
	ready.Add(len(errs))
	for i := range errs {
		other := open(t, placement.Config{Endpoints: []string{e.Address()}})
		wg.Go(func() {
			info := &canopyv1.NodeInfo{Node: 1, Pid: uint32(i + 1)}
			errs[i] = other.ClaimNode(context.Background(), info, 7, func(uint64) error {
				ready.Done()
				<-both // all have read the record
				return nil
			})
		})
	}
	ready.Wait()
	close(both)
	wg.Wait()
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case !errors.Is(err, placement.ErrAmnesia):
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d starts of one incarnation won: %v", won, errs)
	}
	_ = s
}

// TestRoutesGoForward: PROTOCOLS E8.
func TestRoutesGoForward(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	ctx := t.Context()
	put := func(epoch, shard uint64) bool {
		wrote, err := s.PutRoute(ctx, &canopyv1.SubtreeRoute{Subtree: 5, Epoch: epoch, Shard: shard})
		if err != nil {
			t.Fatal(err)
		}
		return wrote
	}
	for _, step := range []struct {
		epoch, shard uint64
		wrote        bool
	}{{1, 1, true}, {3, 2, true}, {2, 9, false}, {3, 9, false}, {4, 1, true}} {
		if got := put(step.epoch, step.shard); got != step.wrote {
			t.Errorf("epoch %d: wrote %v, want %v", step.epoch, got, step.wrote)
		}
	}
	if r := s.Map().Route(5); r.GetEpoch() != 4 || r.GetShard() != 1 {
		t.Errorf("route is %v", r)
	}
	var wg sync.WaitGroup
	for epoch := uint64(5); epoch < 15; epoch++ {
		wg.Go(func() { put(epoch, epoch) })
	}
	wg.Wait()
	if r := s.Map().Route(5); r.GetEpoch() != 14 || r.GetShard() != 14 {
		t.Errorf("after concurrent writers the route is %v, want epoch 14", r)
	}
}

// TestRoutesAreTakenBack: the route of a subtree that is no more goes, but not one that
// another shard has published (PROTOCOLS E8).
func TestRoutesAreTakenBack(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	ctx := t.Context()
	if _, err := s.PutRoute(ctx, &canopyv1.SubtreeRoute{Subtree: 5, Epoch: 2, Shard: 3}); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteRoute(ctx, 5, 2); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	if r := s.Map().Route(5); r.GetShard() != 3 {
		t.Errorf("another shard's route is %v", r)
	}
	for range 2 {
		if err := s.DeleteRoute(ctx, 5, 3); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, s, "the route to go", func() bool { return s.Map().Route(5) == nil })
}

func TestHolderHintsGoForward(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	for _, step := range []struct {
		epoch base.LeaseEpoch
		wrote bool
	}{{2, true}, {1, false}, {2, false}, {3, true}} {
		if wrote, err := s.PutHolder(t.Context(), 1, base.NodeID(step.epoch), step.epoch); err != nil || wrote != step.wrote {
			t.Errorf("epoch %d: %v, %v", step.epoch, wrote, err)
		}
	}
}

func TestOneWritesTheShardTable(t *testing.T) {
	t.Parallel()
	_, e := newStore(t)
	want := placement.Bootstrap{Nodes: 3, Replicas: 3, Shards: 4}
	stores := make([]*placement.Store, 3)
	var wg sync.WaitGroup
	for i := range stores {
		s := open(t, placement.Config{Endpoints: []string{e.Address()}})
		stores[i] = s
		wg.Go(func() {
			info := &canopyv1.NodeInfo{Node: uint64(i + 1), RaftAddress: fmt.Sprint("host:", i)}
			if err := s.ClaimNode(context.Background(), info, 0, noPersist); err != nil {
				t.Error(err)
			}
			r := s.KeepNodeAlive(info)
			t.Cleanup(func() { r.Close(context.Background()) })
			if err := s.EnsureShards(context.Background(), want); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, s := range stores {
		eventually(t, s, "four shards", func() bool { return len(s.Map().Shards()) == 4 })
		first := map[uint64]int{}
		for _, info := range s.Map().Shards() {
			if len(info.Replicas) != 3 || info.NextReplica != 4 || len(info.Initial) != 3 {
				t.Errorf("shard %v", info)
			}
			first[info.Replicas[0].Node]++
		}
		if len(first) != 3 {
			t.Errorf("first replicas are not spread: %v", first)
		}
	}
}

func TestBootstrapSettings(t *testing.T) {
	for _, bad := range []placement.Bootstrap{{}, {1, 3, 1}, {3, 2, 1}, {3, 3, 0}, {1, 1, 1 << 20}} {
		if bad.Validate() == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

// TestPlacementGroupsAreAuthority: PROTOCOLS J3.
func TestPlacementGroupsAreAuthority(t *testing.T) {
	t.Parallel()
	s, e := newStore(t)
	ctx := t.Context()
	pool := &canopyv1.Pool{Pool: 1, Name: "default", Replicas: 2}
	for i := range uint32(150) {
		pool.Pgs = append(pool.Pgs, &canopyv1.PlacementGroup{Pg: i, Epoch: 1, Members: []uint64{1, 2}, InSync: []uint64{1, 2}})
	}
	if err := s.CreatePool(ctx, nil, pool); err != nil {
		t.Fatal(err)
	}
	if err := s.CreatePool(ctx, nil, pool); !placement.IsConflict(err) {
		t.Errorf("a second creation: %v", err)
	}
	if got := s.Data().PoolMap(); len(got.Pools) != 1 || len(got.Pools[0].Pgs) != 150 || got.Pools[0].Pgs[149].Pg != 149 {
		t.Fatalf("the pool map lacks what was written: %v", got)
	}
	key := placement.PGKey{Pool: 1, PG: 7}
	have := s.Data().PGs[key]
	next := &canopyv1.PlacementGroup{Pg: 7, Epoch: 2, Members: []uint64{1, 2}, InSync: []uint64{1}}
	if _, err := s.PutPG(ctx, nil, 1, next, have.Revision); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutPG(ctx, nil, 1, next, have.Revision); !placement.IsConflict(err) {
		t.Errorf("a write over an unseen change: %v", err)
	}
	if got := s.Data().PGs[key]; got.Value.Epoch != 2 || got.Revision <= have.Revision {
		t.Errorf("own write is not visible: %v", got)
	}
	// A deposed leader's writes are refused.
	lead, err := s.Campaign(ctx, placement.LayoutService, "one")
	if err != nil {
		t.Fatal(err)
	}
	rev, err := s.PutPG(ctx, lead, 1, next, s.Data().PGs[key].Revision)
	if err != nil {
		t.Fatal(err)
	}
	if who, err := s.Leader(ctx, placement.LayoutService); err != nil || who != "one" {
		t.Errorf("leader %q, %v", who, err)
	}
	second := open(t, placement.Config{Endpoints: []string{e.Address()}})
	won := make(chan *placement.Leadership)
	go func() {
		l, err := second.Campaign(ctx, placement.LayoutService, "two")
		if err != nil {
			t.Error(err)
		}
		won <- l
	}()
	lead.Resign(ctx)
	next2 := <-won
	defer next2.Resign(context.Background())
	if _, err := s.PutPG(ctx, lead, 1, next, rev); !placement.IsConflict(err) {
		t.Errorf("a write of a deposed leader: %v", err)
	}
}

func TestEtcdUnreachable(t *testing.T) {
	_, err := placement.Open(t.Context(), placement.Config{Endpoints: []string{"127.0.0.1:1"}, DialTimeout: 300 * time.Millisecond})
	if fserr.KindOf(err) != fserr.NotReady {
		t.Errorf("got %v", err)
	}
}

// What a dead candidate left of an election ends at once, and nobody else's lead.
func TestEndLeadership(t *testing.T) {
	e := startEtcd(t, t.TempDir())
	dead, s := open(t, placement.Config{Endpoints: []string{e.Address()}}), open(t, placement.Config{Endpoints: []string{e.Address()}})
	lead, err := dead.Campaign(t.Context(), placement.LayoutService, "one")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.EndLeadership(t.Context(), placement.LayoutService, "two"); err != nil {
		t.Fatal(err)
	}
	if who, err := s.Leader(t.Context(), placement.LayoutService); err != nil || who != "one" {
		t.Errorf("another's lead: now %q, %v", who, err)
	}
	if err := s.EndLeadership(t.Context(), placement.LayoutService, "one"); err != nil {
		t.Fatal(err)
	}
	next, err := s.Campaign(t.Context(), placement.LayoutService, "one")
	if err != nil {
		t.Fatal(err)
	}
	defer next.Resign(context.Background())
	if _, err := dead.PutPG(t.Context(), lead, 1, &canopyv1.PlacementGroup{Pg: 1, Epoch: 1}, 0); !placement.IsConflict(err) {
		t.Errorf("a write of the ended lead: %v", err)
	}
}
