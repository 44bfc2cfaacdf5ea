package raftgroup

import (
	"errors"
	"fmt"
	"testing"

	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/internal/loopback"
)

// A replica joins without a vote, gets one, and can be all that stays, whenever it
// was restarted on the way and whatever of that is in its log's snapshot.
func TestA6ALearnerGetsAVote(t *testing.T) {
	t.Parallel()
	for _, snapshots := range []bool{false, true} {
		t.Run(fmt.Sprint("snapshots ", snapshots), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1, nil)
			first := c.nodes[0]
			second := &node{t: t, id: 2, dir: t.TempDir(), addr: loopback.Addresses(t, 1)[0]}
			c.members[2] = Member{second.id, second.addr}
			c.mu.Lock()
			c.nodes = append(c.nodes, second)
			c.open(second)
			c.mu.Unlock()
			ctx := testContext(t)
			start := func() {
				t.Helper()
				_, err := second.host.Start(ctx, ReplicaConfig{
					Shard: testShard, Replica: 2, Members: c.members, Join: true, Learner: true, Machine: &testMachine{shard: testShard},
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			commands := 0
			propose := func() {
				t.Helper()
				if !c.propose(name(commands), patience) {
					t.Fatal("not acknowledged")
				}
				commands++
			}
			caughtUp := func() {
				t.Helper()
				await.Until(t, patience, "the second replica applies what the first has", func() bool {
					return second.group().Status().Applied >= first.group().Status().Applied
				})
				if snapshots {
					if err := second.group().Snapshot(ctx); err != nil {
						t.Fatal(err)
					}
				}
			}
			members := func(voters, learners int) {
				t.Helper()
				m, err := c.holder(patience).group().Membership(ctx)
				if err != nil || len(m.Voters) != voters || len(m.Learners) != learners {
					t.Fatalf("%+v, %v: want %d voters, %d learners", m, err, voters, learners)
				}
			}
			restart := func() {
				t.Helper()
				c.mu.Lock()
				defer c.mu.Unlock()
				second.stop()
				c.open(second)
				start()
			}
			propose()
			if err := first.group().AddLearner(ctx, 2, c.members[2]); err != nil {
				t.Fatal(err)
			}
			if err := first.group().AddLearner(ctx, 2, c.members[2]); !errors.Is(err, fserr.Invalid) {
				t.Fatalf("a repetition: %v, want a refusal that changes nothing", err)
			}
			start()
			propose()
			caughtUp()
			members(1, 1)
			restart()
			propose()
			caughtUp()
			if err := first.group().AddReplica(ctx, 2, c.members[2]); err != nil {
				t.Fatal(err)
			}
			propose()
			caughtUp()
			members(2, 0)
			restart()
			propose()
			caughtUp()
			if err := first.group().Release(ctx); err != nil {
				t.Fatal(err)
			}
			await.Until(t, patience, "the second replica leads", second.group().isLeader)
			propose()
			if err := second.group().RemoveReplica(ctx, 1); err != nil {
				t.Fatal(err)
			}
			c.halt(first)
			restart()
			propose()
			for i := range commands {
				if n := second.runs(name(i)); n != 1 {
					t.Errorf("command %d ran %d times", i, n)
				}
			}
		})
	}
}
