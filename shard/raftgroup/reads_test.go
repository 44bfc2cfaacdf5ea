package raftgroup

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// B6: followers answer no reads, though they have applied everything: one may have
// applied what the holder has not, and a client's reads would go backwards.
func TestB6FollowersAnswerNoReads(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	holder := c.serving()
	if _, err := holder.group().Propose(testContext(t), []byte(name(1))); err != nil {
		t.Fatal(err)
	}
	await.Until(t, patience, "the followers have all of it", func() bool {
		for _, nd := range c.nodes {
			if nd.group().Status().Applied < holder.group().Status().Applied {
				return false
			}
		}
		return true
	})
	for _, nd := range c.nodes {
		if nd == holder {
			continue
		}
		asked := false
		err := nd.group().Read(testContext(t), func(shard.Reader) error { asked = true; return nil })
		if !errors.Is(err, fserr.NotHolder) || asked {
			t.Errorf("node %s, which follows: %v (the state was read: %v), want NotHolder", nd.id, err, asked)
		}
	}
	if n := holder.runs(name(1)); n != 1 {
		t.Errorf("the holder says %d", n)
	}
}

// B6: while no lease can be had nothing is read, though the new Raft leader could
// prove by a ReadIndex that it has applied all that is committed: the last holder
// may still answer reads by its lease, and the two would disagree.
func TestB6ALeaderWithoutTheLeaseAnswersNoReads(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(cfg *Config) { cfg.LeaseDuration = 20 * time.Second })
	first := c.holder(patience)
	if !c.propose(name(1), patience) {
		t.Fatal("not acknowledged")
	}
	epoch := first.group().Status().LeaseEpoch
	c.halt(first)
	leader := c.provenLeader()
	var asked atomic.Bool
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := leader.group().Read(ctx, func(shard.Reader) error { asked.Store(true); return nil })
	if now := leader.group().Status(); now.LeaseEpoch != epoch {
		t.Fatalf("the lease of epoch %d is over already (%d): the machine is too slow for this test", epoch, now.LeaseEpoch)
	}
	if err == nil || asked.Load() {
		t.Fatalf("a leader without the lease: %v (the state was read: %v)", err, asked.Load())
	}
	// Once the lease has run out it can be had, and reads go on.
	if next := c.holder(patience); next.runs(name(1)) != 1 {
		t.Error("the acknowledged command is not there")
	}
}

// serving waits until a replica says that it holds the lease. It asks no reads,
// which other tests tell a holder by.
func (c *cluster) serving() *node {
	c.t.Helper()
	var found *node
	await.Until(c.t, patience, "a replica serves", func() bool {
		for _, nd := range c.nodes {
			if s := nd.group().Status(); s.Self && s.LeaseLeft > 0 {
				found = nd
			}
		}
		return found != nil
	})
	return found
}

// provenLeader waits for a Raft leader that a ReadIndex proves to have applied all
// that is committed. (A new one drops them until an entry of its term is.)
func (c *cluster) provenLeader() *node {
	c.t.Helper()
	var found *node
	await.Until(c.t, patience, "a leader can prove to be up to date", func() bool {
		for _, nd := range c.running() {
			if !nd.group().isLeader() {
				continue
			}
			index, err := nd.host.nh.ReadIndex(uint64(testShard), time.Second)
			if err != nil {
				continue
			}
			r := <-index.ResultC()
			index.Release()
			if r.Completed() {
				found = nd
				return true
			}
		}
		return false
	})
	return found
}
