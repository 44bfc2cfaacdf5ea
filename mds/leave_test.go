package mds_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
)

// move makes the map name a fresh replica on one node in place of another's.
func (c *cluster) move(place *placement.Store, id base.ShardID, from, to int) {
	c.t.Helper()
	for {
		info, revision, err := place.GetShard(c.t.Context(), id)
		if err != nil {
			c.t.Fatal(err)
		}
		info = proto.CloneOf(info)
		for _, r := range info.Replicas {
			if r.Node == uint64(from+1) {
				r.Node, r.Replica, r.Learner, r.Joining = uint64(to+1), info.NextReplica, true, true
			}
		}
		info.NextReplica++
		if _, err := place.PutShard(c.t.Context(), info, revision); err == nil {
			return
		} else if !placement.IsConflict(err) { // the holder noted that a replica has joined
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) status(i int) []*canopyv1.ShardStatus {
	c.t.Helper()
	admin := canopyv1.NewAdminClient(c.conn(c.nodes[i].Addr()))
	r, err := admin.ShardStatus(c.t.Context(), &canopyv1.ShardStatusRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	return r.Shards
}

// A replica that the map takes away from a running node, the holder's too, goes
// when the shard no longer needs it, and the node can have another one later
// (PROTOCOLS A6).
func TestTheMapTakesAReplicaAway(t *testing.T) {
	t.Parallel()
	for _, shape := range []placement.Bootstrap{{Nodes: 4, Replicas: 3, Shards: 1}, {Nodes: 2, Replicas: 1, Shards: 1}} {
		t.Run(fmt.Sprint(shape.Replicas, " replicas"), func(t *testing.T) {
			c := newCluster(t, shape, nil)
			place, err := placement.Open(t.Context(), placement.Config{Endpoints: []string{c.etcd.Address()}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { place.Close() })
			k := c.caller(7).open(1)
			spare := shape.Nodes - 1
			for round := range 3 {
				k.must(1, k.write(create(1, fmt.Sprint("before", round))))
				from := c.holding(1)
				c.move(place, 1, from, spare)
				k.must(1, k.write(create(1, fmt.Sprint("while", round))))
				eventually(t, "the old replica goes", func() bool { return len(c.status(from)) == 0 })
				eventually(t, "the new one counts", func() bool {
					s := c.status(spare)
					return len(s) == 1 && s[0].AppliedIndex > 0 && len(s[0].Members) == shape.Replicas
				})
				for i := range round + 1 {
					k.must(1, lookup(1, fmt.Sprint("before", i)))
					k.must(1, lookup(1, fmt.Sprint("while", i)))
				}
				spare = from
			}
		})
	}
}

// A drained node is no holder until it is resumed.
func TestADrainedNodeIsResumed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, triple, nil)
	k := c.caller(7).open(1)
	k.must(1, k.write(create(1, "a")))
	from := c.holding(1)
	admin := canopyv1.NewAdminClient(connect(t, c.nodes[from].Addr()))
	cluster := canopyv1.NewClusterClient(connect(t, c.nodes[from].Addr()))
	drained := func() bool {
		s, err := cluster.Status(t.Context(), &canopyv1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return s.Drained
	}
	if _, err := admin.Drain(t.Context(), &canopyv1.DrainRequest{}); err != nil || !drained() {
		t.Fatalf("%v, drained %v", err, drained())
	}
	k.must(1, k.write(create(1, "b")))
	other := c.holding(1)
	if other == from {
		t.Fatal("the drained node holds the shard")
	}
	if _, err := admin.Resume(t.Context(), &canopyv1.ResumeRequest{}); err != nil || drained() {
		t.Fatalf("%v, drained %v", err, drained())
	}
	// With the third node drained too, only the resumed one can take over.
	third := canopyv1.NewAdminClient(connect(t, c.nodes[3-from-other].Addr()))
	if _, err := third.Drain(t.Context(), &canopyv1.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
	c.kill(other)
	k.must(1, k.write(create(1, "c")))
	eventually(t, "the resumed node holds the shard", func() bool { return c.holder(1) == from })
}

// ShardStatus says what a crash would leave of the state.
func TestFlushedIndexIsReported(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, nil)
	k := c.caller(7).open(1)
	k.must(1, k.write(create(1, "a")))
	if s := c.status(0)[0]; s.FlushedIndex >= s.AppliedIndex {
		t.Errorf("flushed %d, applied %d: nothing flushed the last entry", s.FlushedIndex, s.AppliedIndex)
	}
	applied := c.status(0)[0].AppliedIndex
	c.drain(0) // closing the store flushes it
	c.start(0)
	c.waitReady(0)
	if s := c.status(0)[0]; s.FlushedIndex < applied {
		t.Errorf("flushed %d after a restart, %d was applied before", s.FlushedIndex, applied)
	}
}

// When all nodes stop one after the other the last does not wait for a majority
// that is gone.
func TestAWholeClusterStopsSoon(t *testing.T) {
	c := newCluster(t, triple, nil)
	place, err := placement.Open(t.Context(), placement.Config{Endpoints: []string{c.etcd.Address()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { place.Close() })
	k := c.caller(7).open(1)
	k.must(1, k.write(create(1, "a")))
	var took time.Duration
	for i := range c.nodes {
		begin := time.Now()
		c.drain(i)
		took = time.Since(begin)
		eventually(t, "the node is seen to be gone", func() bool { return !place.Map().Node(base.NodeID(i + 1)).GetAlive() })
	}
	if took > await.Limit(t, 2*time.Second) {
		t.Errorf("the last node took %v to stop", took)
	}
	for i := range c.nodes {
		c.start(i)
	}
	k.must(1, lookup(1, "a"))
}

// A lease goes to the node that was asked for, while the shard is written to; what
// cannot be is refused in words, and changes nothing.
func TestALeaseIsMoved(t *testing.T) {
	t.Parallel()
	c := newCluster(t, triple, nil)
	k := c.caller(7).open(1)
	move := func(at, to int) error {
		_, err := canopyv1.NewAdminClient(connect(t, c.nodes[at].Addr())).MoveLease(t.Context(),
			&canopyv1.MoveLeaseRequest{Shard: 1, Node: uint64(c.nodes[to].Node())})
		return err
	}
	for i := range 3 {
		k.must(1, k.write(create(1, fmt.Sprint("before", i))))
		from := c.holding(1)
		to := (from + 1) % 3
		// On a busy machine a replica misses its turn, or a third one is elected.
		eventually(t, "the lease is handed over", func() bool {
			at := c.holding(1)
			return at == to || move(at, to) == nil
		})
		k.must(1, k.write(create(1, fmt.Sprint("after", i))))
		eventually(t, "the other node holds it", func() bool { return c.holder(1) == to })
		if err := move(to, to); err != nil {
			t.Errorf("to the holder: %v", err)
		}
	}
	at := c.holding(1)
	gone := (at + 1) % 3
	admin := canopyv1.NewAdminClient(connect(t, c.nodes[at].Addr()))
	if _, err := admin.MoveLease(t.Context(), &canopyv1.MoveLeaseRequest{Shard: 1, Node: 77}); fserr.KindOf(err) != fserr.Invalid {
		t.Errorf("to a node that there is not: %v", err)
	}
	if _, err := canopyv1.NewAdminClient(connect(t, c.nodes[gone].Addr())).Drain(t.Context(), &canopyv1.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
	// Before the map says that it is drained it hands back what it gets, to whom it can.
	eventually(t, "a drained node is refused", func() bool {
		at = c.holding(1)
		return at != gone && fserr.KindOf(move(at, gone)) == fserr.Invalid
	})
	k.must(1, k.write(create(1, "last")))
	if c.holder(1) != at {
		t.Error("a refusal moved the lease")
	}
}
