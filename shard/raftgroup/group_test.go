package raftgroup

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// One replica: commands run, once each, and survive a restart that takes the
// lease again after a full duration (B3).
func TestSingleReplicaRestarts(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	for i := range 20 {
		if !c.propose(name(i), patience) {
			t.Fatal("not acknowledged")
		}
	}
	nd := c.nodes[0]
	epoch := nd.group().Status().LeaseEpoch
	nd.stop()
	c.open(nd)
	c.start(nd, 1)
	c.holder(patience)
	for i := range 20 {
		if n := nd.runs(name(i)); n != 1 {
			t.Fatalf("command %d ran %d times", i, n)
		}
	}
	if s := nd.group().Status(); s.LeaseEpoch != epoch+1 || !s.Self {
		t.Fatalf("after the restart: %+v", s)
	}
}

// A holder that was idle goes on in its own epoch: nobody else took the lease.
func TestB1IdleHolderRenewsOnDemand(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(cfg *Config) { cfg.LeaseDuration = 200 * time.Millisecond })
	nd := c.holder(patience)
	g := nd.group()
	epoch := g.Status().LeaseEpoch
	await.Until(t, patience, "an idle lease lapses", func() bool { return g.Status().LeaseLeft <= 0 })
	if err := g.Read(testContext(t), func(shard.Reader) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if s := g.Status(); s.LeaseEpoch != epoch || s.LeaseLeft <= 0 {
		t.Fatalf("after a read: %+v", s)
	}
}

// B4: a read during which the lease ran out is thrown away and done again under
// the renewed one.
func TestB4ReadChecksTheLeaseAfterwards(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(cfg *Config) { cfg.LeaseDuration = 100 * time.Millisecond })
	g := c.holder(patience).group()
	calls := 0
	err := g.Read(testContext(t), func(shard.Reader) error {
		if calls++; calls == 1 { // the pause that B4 is about: the lease runs out meanwhile
			g.mu.Lock()
			g.view.until = 0
			g.publishLocked()
			g.mu.Unlock()
		}
		return nil
	})
	if err != nil || calls < 2 {
		t.Fatalf("read: %v after %d calls, want a second one", err, calls)
	}
}

// A read that takes longer than the lease keeps it alive, and runs once.
func TestLongReadKeepsTheLease(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(cfg *Config) { cfg.LeaseDuration = 400 * time.Millisecond })
	g := c.holder(patience).group()
	calls := 0
	err := g.Read(testContext(t), func(shard.Reader) error {
		calls++
		<-time.After(time.Second) // the read's own work
		return nil
	})
	if err != nil || calls > 2 { // 2: on a machine too busy to renew in time
		t.Fatalf("read: %v after %d calls", err, calls)
	}
}

// The leader stops: another replica serves within 3 s, with every acknowledged
// command once, and the stopped one catches up by log.
func TestFailoverLosesNothing(t *testing.T) {
	c := newCluster(t, 3, nil)
	first := c.holder(patience)
	var mu sync.Mutex
	acked := make(map[string]bool)
	var next atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				n := name(int(next.Add(1)))
				if ok := c.propose(n, patience); ok {
					mu.Lock()
					acked[n] = true
					mu.Unlock()
				}
			}
		})
	}
	acknowledged := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acked)
	}
	await.Until(t, patience, "some commands are acknowledged", func() bool { return acknowledged() >= 50 })
	c.halt(first)
	begun := time.Now()
	second := c.holder(patience)
	took := time.Since(begun)
	t.Logf("node %s serves %v after node %s stopped", second.id, took, first.id)
	if took > failoverLimit(t) {
		t.Errorf("fail-over took %v", took)
	}
	before := acknowledged()
	await.Until(t, patience, "more are acknowledged afterwards", func() bool { return acknowledged() >= before+50 })
	close(stop)
	wg.Wait()
	c.revive(first)
	c.wantEqualSums()
	holder := c.holder(patience)
	for n := range acked {
		if runs := holder.runs(n); runs != 1 {
			t.Errorf("%s was acknowledged and ran %d times", n, runs)
		}
	}
	for i := range int(next.Load()) {
		if runs := holder.runs(name(i)); runs > 1 {
			t.Errorf("%s ran %d times", name(i), runs)
		}
	}
	t.Logf("%d commands acknowledged", len(acked))
}

func failoverLimit(t *testing.T) time.Duration { return await.Limit(t, 3*time.Second) }

// A replica that was away for longer than the log reaches catches up by a
// snapshot stream (A4), and then has the same bytes.
func TestCatchUpBySnapshotStream(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(cfg *Config) { cfg.CompactionOverhead = 1 })
	c.holder(patience)
	away := c.nodes[2]
	c.halt(away)
	holder := c.holder(patience)
	for i := range 50 {
		if !c.propose(name(i), patience) {
			t.Fatal("not acknowledged")
		}
	}
	for _, nd := range c.nodes[:2] {
		if err := nd.group().Snapshot(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 {
		c.propose(name(100+i), patience)
	}
	c.revive(away)
	c.wantEqualSums()
	if n := holder.group().Status().Applied; away.group().Status().Applied+100 < n {
		t.Fatalf("applied %d of %d", away.group().Status().Applied, n)
	}
	if got := away.group().sm.installs.Load(); got == 0 {
		t.Fatal("caught up without a snapshot: the test does not test what it should")
	}
	// What was installed survives a restart (A4).
	c.halt(away)
	c.revive(away)
	c.wantEqualSums()
}

// A group that was put to rest starts without the log that was applied before, in
// this process and in the one before it; one with little log takes no snapshot.
func TestRestLeavesAShortLog(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	nd := c.nodes[0]
	behind := func() uint64 {
		snapshot, last, err := nd.host.checkLog(nd.group().cfg, nd.group().Status().Applied)
		if err != nil {
			t.Fatal(err)
		}
		return last - snapshot
	}
	rest := func() {
		t.Helper()
		if err := nd.group().Rest(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	c.propose("a", patience)
	rest()
	if behind() == 0 {
		t.Fatal("a snapshot for one entry")
	}
	nd.group().sm.upkeep.begin(restEntries) // of an earlier process
	rest()
	if n := behind(); n != 0 {
		t.Fatalf("%d entries are left to read", n)
	}
	c.propose("b", patience)
	nd.group().sm.upkeep.note(nd.group().Status().Applied, 1, restBytes)
	rest()
	if n := behind(); n != 0 {
		t.Fatalf("%d entries are left to read", n)
	}
	c.halt(nd)
	c.revive(nd)
	c.wantEqualSums()
}

// B5: a drain finds the replica that lives behind one that is dead.
func TestB5DrainPastADeadReplica(t *testing.T) {
	c := newCluster(t, 3, nil)
	first := c.holder(patience)
	c.propose("a", patience)
	for _, nd := range c.nodes {
		if nd != first { // the first that a transfer is tried with
			c.halt(nd)
			break
		}
	}
	if err := first.group().Release(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if second := c.holder(patience); second == first {
		t.Fatal("the drained replica serves again")
	}
}

// B5: a drain hands the lease over; the drained replica answers nothing in that
// epoch any more, and no command is lost.
func TestB5DrainHandsOver(t *testing.T) {
	c := newCluster(t, 3, nil)
	first := c.holder(patience)
	for i := range 10 {
		c.propose(name(i), patience)
	}
	epoch := first.group().Status().LeaseEpoch
	begun := time.Now()
	if err := first.group().Release(testContext(t)); err != nil {
		t.Fatal(err)
	}
	released := time.Since(begun)
	err := first.group().Read(testContext(t), func(shard.Reader) error { return nil })
	if !errors.Is(err, fserr.NotHolder) {
		t.Fatalf("a read at the drained replica: %v, want NotHolder", err)
	}
	second := c.holder(patience)
	took := time.Since(begun)
	t.Logf("released after %v, node %s serves after %v", released, second.id, took)
	if took > failoverLimit(t) {
		t.Errorf("the hand-over took %v", took)
	}
	if second == first {
		t.Fatal("the drained replica serves again")
	}
	if s := second.group().Status(); s.LeaseEpoch <= epoch {
		t.Fatalf("epoch %d after %d", s.LeaseEpoch, epoch)
	}
	for i := range 10 {
		if n := second.runs(name(i)); n != 1 {
			t.Fatalf("command %d ran %d times", i, n)
		}
	}
}

// B5: the lease goes to the replica that was asked for, under commands; one that is not
// there does not get it, and the shard is served as before.
func TestB5HandOver(t *testing.T) {
	c := newCluster(t, 3, nil)
	for i := range 4 {
		first := c.holder(patience)
		c.propose(name(2*i), patience)
		to := c.nodes[(slices.Index(c.nodes, first)+1+i%2)%3]
		sent := make(chan bool, 1)
		go func() { sent <- c.propose(name(2*i+1), patience) }()
		if err := first.group().HandOver(testContext(t), to.group().Replica()); err != nil {
			t.Fatal(err)
		}
		if second := c.holder(patience); second != to {
			t.Fatalf("node %s serves, not %s", second.id, to.id)
		}
		if !<-sent {
			t.Fatal("a command was lost")
		}
		if err := first.group().HandOver(testContext(t), first.group().Replica()); !errors.Is(err, fserr.NotHolder) {
			t.Fatalf("of one that does not hold it: %v", err)
		}
	}
	holder := c.holder(patience)
	if err := holder.group().HandOver(testContext(t), 99); err == nil {
		t.Fatal("handed over to nobody")
	}
	if !c.propose("after", patience) || c.holder(patience) != holder {
		t.Fatal("not served as before")
	}
	// A drain is not ended by a hand-over.
	if err := holder.group().Release(testContext(t)); err != nil {
		t.Fatal(err)
	}
	next := c.holder(patience)
	if err := holder.group().HandOver(testContext(t), next.group().Replica()); !errors.Is(err, fserr.NotHolder) || !holder.group().draining {
		t.Fatalf("of a drained one: %v", err)
	}
	for i := range 8 {
		if n := next.runs(name(i)); n != 1 {
			t.Errorf("command %d ran %d times", i, n)
		}
	}
}

// A holder that is no longer the Raft leader gives the lease to the leader.
func TestHolderFollowsTheLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	first := c.holder(patience)
	other := c.nodes[0]
	if other == first {
		other = c.nodes[1]
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var lost atomic.Int64
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if !c.propose(fmt.Sprintf("w%d-%d", w, i), patience) {
					lost.Add(1)
				}
			}
		})
	}
	n := 0
	await.Until(t, patience, "the leader is the holder", func() bool {
		if n%25 == 0 { // under load a transfer can fail
			if err := first.host.nh.RequestLeaderTransfer(uint64(testShard), uint64(other.id)); err != nil {
				t.Log(err)
			}
		}
		n++
		return other.group().Status().Self
	})
	close(stop)
	wg.Wait()
	if lost.Load() > 0 {
		t.Errorf("%d commands with an unknown outcome: the hand-over knows them all", lost.Load())
	}
	c.wantEqualSums()
}

// Commands at a follower are refused and not executed.
func TestFollowerRefuses(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	holder := c.holder(patience)
	for _, nd := range c.nodes {
		if nd == holder {
			continue
		}
		nd.awaitHolder(t, holder.id, patience)
		if _, err := nd.group().Propose(testContext(t), []byte("x")); !errors.Is(err, fserr.NotHolder) {
			t.Errorf("node %s: %v, want NotHolder", nd.id, err)
		}
		if node, _, self := nd.group().Holder(); node != holder.id || self {
			t.Errorf("node %s says that %s serves (self %v), want %s", nd.id, node, self, holder.id)
		}
	}
}

// A full queue is Busy, and what waits when the group stops was not executed.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(cfg *Config) { cfg.QueueCommands = 4; cfg.LeaseDuration = 30 * time.Second })
	c.holder(patience)
	nd := c.nodes[0]
	nd.stop()
	c.open(nd) // the lease of the last process keeps this one waiting
	g := c.start(nd, 1)
	ctx := testContext(t)
	await.Until(t, patience, "the replica leads", g.isLeader)
	results := make(chan error, 8)
	for range 6 {
		g.Submit([]byte("x"), func(_ []byte, err error) { results <- err })
	}
	for range 2 {
		if err := <-results; !errors.Is(err, fserr.Busy) {
			t.Fatalf("got %v, want Busy", err)
		}
	}
	if err := nd.host.Stop(ctx, testShard); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if err := <-results; !errors.Is(err, fserr.NotReady) {
			t.Fatalf("got %v, want NotReady", err)
		}
	}
}

// A6: a replica id that was followed by another is refused, and a new one wipes
// what the last left.
func TestA6ReplicaIDs(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	c.holder(patience)
	for i := range 10 {
		c.propose(name(i), patience)
	}
	old := c.nodes[2]
	ctx := testContext(t)
	holder := c.holder(patience)
	if holder == old {
		if err := old.group().Release(ctx); err != nil {
			t.Fatal(err)
		}
		holder = c.holder(patience)
	}
	if err := holder.group().RemoveReplica(ctx, 3); err != nil {
		t.Fatal(err)
	}
	if err := old.host.Stop(ctx, testShard); err != nil {
		t.Fatal(err)
	}
	if err := holder.group().AddReplica(ctx, 4, Member{old.id, old.addr}); err != nil {
		t.Fatal(err)
	}
	c.members[4] = Member{old.id, old.addr}
	if _, err := old.host.Start(ctx, ReplicaConfig{
		Shard: testShard, Replica: 4, Members: c.members, Join: true, Machine: &testMachine{shard: testShard},
	}); err != nil {
		t.Fatal(err)
	}
	c.wantEqualSums()
	if err := old.host.Stop(ctx, testShard); err != nil {
		t.Fatal(err)
	}
	_, err := old.host.Start(ctx, ReplicaConfig{Shard: testShard, Replica: 3, Members: c.members, Machine: &testMachine{shard: testShard}})
	if !errors.Is(err, fserr.Invalid) {
		t.Fatalf("an old replica id starts: %v", err)
	}
}
