package mds_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/mds"
	"github.com/canopyfs/canopy/placement"
)

func (c *cluster) admin(i int) canopyv1.AdminClient {
	return canopyv1.NewAdminClient(c.conn(c.nodes[i].Addr()))
}

// change asks for other replicas and waits until they are there.
func (c *cluster) change(at int, request *canopyv1.ChangeReplicasRequest) {
	c.t.Helper()
	if _, err := c.admin(at).ChangeReplicas(c.t.Context(), request); err != nil {
		c.t.Fatal(err)
	}
	c.settled(at, request.Shard)
}

// settled waits until a shard's replicas are what the map says.
func (c *cluster) settled(at int, shard uint64) {
	c.t.Helper()
	eventually(c.t, "the replicas are what was asked for", func() bool {
		info := c.shardInfo(at, shard)
		holder := c.holder(base.ShardID(shard))
		if holder < 0 {
			return false
		}
		members := 0
		for _, r := range info.Replicas {
			if r.Joining || r.Leaving {
				return false
			}
		}
		for _, s := range c.status(holder) {
			if s.Shard == shard {
				members = len(s.Members)
			}
		}
		return members == len(info.Replicas)
	})
}

func (c *cluster) shardInfo(at int, shard uint64) *canopyv1.ShardInfo {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	s, err := canopyv1.NewClusterClient(c.conn(c.nodes[at].Addr())).WatchMap(ctx, &canopyv1.WatchMapRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	m, err := s.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	return placement.NewMap(m).Shard(base.ShardID(shard))
}

func on(info *canopyv1.ShardInfo) (nodes []uint64) {
	for _, r := range info.Replicas {
		nodes = append(nodes, r.Node)
	}
	return nodes
}

func wantRefusal(t *testing.T, err error, kind fserr.Kind, text string) {
	t.Helper()
	if fserr.KindOf(err) != kind || !strings.Contains(err.Error(), text) {
		t.Errorf("%v: want %v with %q", err, kind, text)
	}
}

// A shard is made while the cluster runs, under an id that none had (PROTOCOLS A7),
// on nodes of different racks.
func TestAShardIsMade(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 4, Replicas: 3, Shards: 2}, func(config *mds.Config) {
		config.Labels = []string{fmt.Sprint("rack=r", min(config.Node, 3))} // nodes 3 and 4 share one
	})
	for want := uint64(3); want <= 4; want++ {
		r, err := c.admin(1).CreateShard(t.Context(), &canopyv1.CreateShardRequest{Replicas: 3})
		if err != nil || r.Info.Shard != want || len(r.Info.Replicas) != 3 {
			t.Fatalf("%v, %v", r, err)
		}
		nodes := fmt.Sprint(on(r.Info))
		if strings.Contains(nodes, "3") && strings.Contains(nodes, "4") {
			t.Errorf("replicas on nodes %s: two in one rack", nodes)
		}
		eventually(t, "it has a holder", func() bool { return c.holder(base.ShardID(want)) >= 0 })
	}
	for text, request := range map[string]*canopyv1.CreateShardRequest{
		"there is no node 9":   {Nodes: []uint64{1, 2, 9}},
		"2 replicas: a shard":  {Replicas: 2},
		"node 1 has a replica": {Nodes: []uint64{1, 2, 1}},
		"too few nodes":        {Replicas: 5},
	} {
		_, err := c.admin(0).CreateShard(t.Context(), request)
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v, want %q", request, err, text)
		}
	}
}

// Replicas are added, moved and removed while clients write; a repetition changes
// nothing; what cannot be is refused in one line.
func TestReplicasAreMoved(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 4, Replicas: 3, Shards: 1}, nil)
	k := c.caller(7).open(1)
	files := 0
	more := func() {
		t.Helper()
		k.must(1, k.write(create(1, fmt.Sprint("f", files))))
		files++
		for i := range files {
			k.must(1, lookup(1, fmt.Sprint("f", i)))
		}
	}
	more()
	move := &canopyv1.ChangeReplicasRequest{Shard: 1, Add: []uint64{4}, Remove: []uint64{1}}
	c.change(0, move)
	more()
	for range 2 {
		c.change(1, move)
	}
	info := c.shardInfo(0, 1)
	if got := fmt.Sprint(on(info)); got != "[2 3 4]" || info.NextReplica != 5 {
		t.Fatalf("replicas on %s, next id %d", got, info.NextReplica)
	}
	eventually(t, "the old replica is gone from its node", func() bool { return len(c.status(0)) == 0 })
	c.change(0, &canopyv1.ChangeReplicasRequest{Shard: 1, Add: []uint64{1}}) // under a new id (A6)
	more()
	c.change(0, &canopyv1.ChangeReplicasRequest{Shard: 1, Remove: []uint64{2}})
	more()
	if got := fmt.Sprint(on(c.shardInfo(0, 1))); got != "[3 4 1]" {
		t.Fatalf("replicas on %s", got)
	}
	// A holder that goes while its replica is moved: the next one goes on.
	from := c.holding(1)
	if _, err := c.admin(1).ChangeReplicas(t.Context(), &canopyv1.ChangeReplicasRequest{Shard: 1, Remove: []uint64{uint64(from + 1)}, Replace: true}); err != nil {
		t.Fatal(err)
	}
	c.kill(from)
	more()
	c.settled(1, 1)
	more()
	if got := fmt.Sprint(on(c.shardInfo(1, 1))); strings.Contains(got, fmt.Sprint(from+1)) || !strings.Contains(got, "2") {
		t.Fatalf("replicas on %s, node %d was to lose its one to node 2", got, from+1)
	}
	c.start(from)
	_, err := c.admin(1).ChangeReplicas(t.Context(), &canopyv1.ChangeReplicasRequest{Shard: 1, Remove: []uint64{uint64(from + 1)}})
	wantRefusal(t, err, fserr.Invalid, "has no replica of shard 1")
	_, err = c.admin(1).ChangeReplicas(t.Context(), &canopyv1.ChangeReplicasRequest{Shard: 9})
	wantRefusal(t, err, fserr.UnknownShard, "9")
}
