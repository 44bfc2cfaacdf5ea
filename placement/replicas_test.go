package placement_test

import (
	"fmt"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/placement"
)

// racks is a map of six nodes, two to a rack, of which the last is down, and shard 1
// on nodes 1, 3 and 5.
func racks() *placement.Map {
	m := &canopyv1.PlacementMap{Shards: []*canopyv1.ShardInfo{{Shard: 1, NextReplica: 4}}}
	for id := uint64(1); id <= 6; id++ {
		m.Nodes = append(m.Nodes, &canopyv1.NodeInfo{Node: id, Alive: id != 6, Host: fmt.Sprint("h", id), Labels: []string{fmt.Sprint("rack=r", (id+1)/2)}})
	}
	for id := uint64(1); id <= 3; id++ {
		m.Shards[0].Replicas = append(m.Shards[0].Replicas, &canopyv1.ReplicaInfo{Replica: id, Node: 2*id - 1})
	}
	return placement.NewMap(m)
}

// text shows a shard's replicas: node, + if it joins, - if it leaves.
func text(info *canopyv1.ShardInfo) string {
	var all []string
	for _, r := range info.Replicas {
		s := fmt.Sprint(r.Node)
		if r.Joining {
			s += "+"
		}
		if r.Leaving {
			s += "-"
		}
		all = append(all, s)
	}
	return strings.Join(all, " ")
}

func TestPlanReplicas(t *testing.T) {
	type nodes = []base.NodeID
	for _, x := range []struct {
		change     placement.ReplicaChange
		want, then string // with the replicas; or the refusal
	}{
		{placement.ReplicaChange{Remove: nodes{1}, Replace: true}, "1- 3 5 2+", ""}, // rack r1 is free again
		{placement.ReplicaChange{Remove: nodes{1}, Add: nodes{4}}, "1- 3 5 4+", ""},
		{placement.ReplicaChange{Count: 2}, "1 3 5 2+ 4+", ""},
		{placement.ReplicaChange{Remove: nodes{1}}, "1- 3 5", ""},
		{placement.ReplicaChange{Remove: nodes{1, 3}, Replace: true}, "1- 3- 5 2+ 4+", ""},
		{placement.ReplicaChange{Add: nodes{3}}, "1 3 5", ""},
		{placement.ReplicaChange{Add: nodes{9}}, "", "there is no node 9"},
		{placement.ReplicaChange{Add: nodes{6}}, "", "node 6 is not alive"},
		{placement.ReplicaChange{Remove: nodes{2}}, "", "node 2 has no replica of shard 1"},
		{placement.ReplicaChange{Remove: nodes{9}}, "", "there is no node 9"},
		{placement.ReplicaChange{Remove: nodes{1, 3, 5}}, "", "shard 1 would have no replica"},
		{placement.ReplicaChange{Count: 3}, "", "too few nodes: 3 more needed, 2 can be used, node 6 is not alive"},
	} {
		m := racks()
		next, changed, err := m.PlanReplicas(m.Shard(1), x.change)
		if err != nil || x.then != "" {
			if err == nil || !strings.Contains(err.Error(), x.then) || x.then == "" {
				t.Errorf("%+v: %v, want %q", x.change, err, x.then)
			}
			continue
		}
		if text(next) != x.want || changed != (x.want != text(m.Shard(1))) {
			t.Errorf("%+v: %s, changed %v; want %s", x.change, text(next), changed, x.want)
		}
		if again, changed, err := m.PlanReplicas(next, x.change); x.change.Count == 0 && (err != nil || changed) {
			t.Errorf("%+v once more: %v, %v", x.change, text(again), err)
		}
		if back, _, err := m.PlanReplicas(next, placement.ReplicaChange{Cancel: true}); err != nil || text(back) != "1 3 5" || back.NextReplica != next.NextReplica {
			t.Errorf("%+v cancelled: %s, %v", x.change, text(back), err)
		}
	}
}

// What would lose the majority is refused, before and when it comes to it.
func TestTheMajorityStays(t *testing.T) {
	m := racks()
	m.Node(3).Alive = false
	_, _, err := m.PlanReplicas(m.Shard(1), placement.ReplicaChange{Remove: []base.NodeID{1}})
	if err == nil || !strings.Contains(err.Error(), "would lose its majority: of the 2 replicas that stay only 1") {
		t.Error(err)
	}
	info := m.Shard(1)
	info.Replicas[0].Leaving = true
	if next := m.NextToGo(info); next != nil {
		t.Errorf("goes, though of the others one is down: %s", text(next))
	}
	m.Node(3).Alive = true
	if next := m.NextToGo(info); next == nil || text(next) != "3 5" {
		t.Errorf("does not go: %v", next)
	}
	m.Node(1).Alive, m.Node(5).Alive = false, false
	if _, _, err := m.PlanReplicas(m.Shard(1), placement.ReplicaChange{Count: 1}); err == nil || !strings.Contains(err.Error(), "no majority of running replicas") {
		t.Error(err)
	}
}

// A replica goes only when the one in its place has a vote.
func TestNothingGoesBeforeOthersHaveJoined(t *testing.T) {
	m := racks()
	next, _, err := m.PlanReplicas(m.Shard(1), placement.ReplicaChange{Remove: []base.NodeID{1}, Replace: true})
	if err != nil {
		t.Fatal(err)
	}
	if gone := m.NextToGo(next); gone != nil {
		t.Fatalf("%s", text(gone))
	}
	next.Replicas[3].Joining = false
	if gone := m.NextToGo(next); gone == nil || text(gone) != "3 5 2" {
		t.Fatalf("%v", gone)
	}
}

// A node that was removed does not come back, and none goes that is needed
// (PROTOCOLS A7).
func TestANodeIsRemoved(t *testing.T) {
	s, _ := newStore(t)
	for id := uint64(1); id <= 2; id++ {
		if err := s.ClaimNode(t.Context(), &canopyv1.NodeInfo{Node: id, Address: "a"}, 0, noPersist); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.AddShard(t.Context(), []base.NodeID{1}); err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveNode(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "node 1 has replica 1 of shard 1") {
		t.Fatal(err)
	}
	if err := s.RemoveNode(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if s.Map().Node(2) != nil {
		t.Error("the node is in the map")
	}
	if _, err := s.AddShard(t.Context(), []base.NodeID{2}); err == nil || !strings.Contains(err.Error(), "there is no node 2") {
		t.Errorf("a shard on the removed node: %v", err)
	}
	err := s.ClaimNode(t.Context(), &canopyv1.NodeInfo{Node: 2, Address: "a"}, 1, noPersist)
	if err == nil || !strings.Contains(err.Error(), "removed from the cluster") {
		t.Errorf("the removed node starts: %v", err)
	}
}
