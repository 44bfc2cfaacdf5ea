package mdsctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// asked notes a request, and answers the refusal that the test wants.
func (f *fakeCluster) asked(format string, args ...any) error {
	f.changes = append(f.changes, fmt.Sprintf(format, args...))
	if f.refuse != "" {
		return fserr.Status(fserr.New(fserr.Invalid, "", errors.New(f.refuse)))
	}
	return nil
}

func (s *fakeMDS) CreateShard(_ context.Context, r *canopyv1.CreateShardRequest) (*canopyv1.CreateShardResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if err := s.f.asked("create shard, replicas %d, nodes %v", r.Replicas, r.Nodes); err != nil {
		return nil, err
	}
	info := &canopyv1.ShardInfo{Shard: uint64(len(s.f.m.Shards) + 1), NextReplica: 4}
	for id := uint64(1); id <= 3; id++ {
		info.Replicas = append(info.Replicas, &canopyv1.ReplicaInfo{Replica: id, Node: id})
	}
	s.f.m.Shards = append(s.f.m.Shards, info)
	s.f.follow(info)
	return &canopyv1.CreateShardResponse{Info: info}, nil
}

// ChangeReplicas makes node 4, which has address node1's neighbour, the new one.
func (s *fakeMDS) ChangeReplicas(_ context.Context, r *canopyv1.ChangeReplicasRequest) (*canopyv1.ChangeReplicasResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	err := s.f.asked("change shard %d: add %v+%d, remove %v, replace %v, cancel %v, dry %v", r.Shard, r.Add, r.AddCount, r.Remove, r.Replace, r.Cancel, r.DryRun)
	if err != nil {
		return nil, err
	}
	info := s.f.m.Shards[r.Shard-1]
	if !r.DryRun {
		info.Replicas = slices.DeleteFunc(info.Replicas, func(x *canopyv1.ReplicaInfo) bool { return slices.Contains(r.Remove, x.Node) })
		s.f.follow(info)
	}
	return &canopyv1.ChangeReplicasResponse{Info: info}, nil
}

func (s *fakeMDS) MoveLease(_ context.Context, r *canopyv1.MoveLeaseRequest) (*canopyv1.MoveLeaseResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if x := s.shard(r.Shard); !x.GetHolder() {
		return nil, fserr.Status(fserr.New(fserr.NotHolder, "", nil))
	}
	err := s.f.asked("move lease of shard %d to node %d", r.Shard, r.Node)
	for _, n := range s.f.status {
		for _, x := range n.shards {
			if x.Shard == r.Shard && err == nil {
				x.Holder = x.Node == r.Node
			}
		}
	}
	return &canopyv1.MoveLeaseResponse{}, err
}

func (s *fakeMDS) RemoveNode(_ context.Context, r *canopyv1.RemoveNodeRequest) (*canopyv1.RemoveNodeResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	return &canopyv1.RemoveNodeResponse{}, s.f.asked("remove node %d", r.Node)
}

// follow makes the nodes report what the map says of a shard: its last replica's
// node holds it.
func (f *fakeCluster) follow(info *canopyv1.ShardInfo) {
	var members []uint64
	for _, r := range info.Replicas {
		members = append(members, r.Replica)
	}
	for i, address := range []string{node1, node2, node3} {
		n := f.status[address]
		n.shards = slices.DeleteFunc(n.shards, func(s *canopyv1.ShardStatus) bool { return s.Shard == info.Shard })
		for _, r := range info.Replicas {
			if r.Node == uint64(i+1) {
				n.shards = append(n.shards, &canopyv1.ShardStatus{
					Shard: info.Shard, Replica: r.Replica, Node: r.Node, Members: members, Holder: r == info.Replicas[len(info.Replicas)-1],
				})
			}
		}
	}
}

func TestShardAndNodeChanges(t *testing.T) {
	for _, x := range []struct {
		args, out string
		asked     []string
	}{
		{"shard create --replicas 3", "shard 3: replicas on nodes 1,2,3, node 3 holds it\n", []string{"create shard, replicas 3, nodes []"}},
		{"shard create --replicas 1,2,3", "shard 3: replicas on nodes 1,2,3, node 3 holds it\n", []string{"create shard, replicas 0, nodes [1 2 3]"}},
		{"shard create --nodes 1,2,3", "shard 3: replicas on nodes 1,2,3, node 3 holds it\n", []string{"create shard, replicas 0, nodes [1 2 3]"}},
		{"shard replica remove 2 3", "shard 2: replicas on nodes 1,2, node 2 holds it\n", []string{"change shard 2: add []+0, remove [3], replace false, cancel false, dry false"}},
		{"shard replica move 2 3", "shard 2: replicas on nodes 1,2, node 2 holds it\n", []string{"change shard 2: add []+0, remove [3], replace true, cancel false, dry false"}},
		{"shard replica move 2 3 4", "shard 2: replicas on nodes 1,2, node 2 holds it\n", []string{"change shard 2: add [4]+0, remove [3], replace false, cancel false, dry false"}},
		{"shard move-lease 2 1", "shard 2: replicas on nodes 1,2,3, node 1 holds it\n", []string{"move lease of shard 2 to node 1"}},
		{"node drain 3", "node 3 has handed over its shards\nshard 1: replicas on nodes 1,2, node 2 holds it\nshard 2: replicas on nodes 1,2, node 2 holds it\nnode 3 has no replicas: mdsctl node remove 3\n", []string{
			"change shard 1: add []+0, remove [3], replace true, cancel false, dry true", "change shard 2: add []+0, remove [3], replace true, cancel false, dry true",
			"change shard 1: add []+0, remove [3], replace true, cancel false, dry true", "change shard 2: add []+0, remove [3], replace true, cancel false, dry true",
			"change shard 1: add []+0, remove [3], replace true, cancel false, dry false", "change shard 2: add []+0, remove [3], replace true, cancel false, dry false"}},
		{"node drain --leases-only 3", "node 3 has handed over its shards\n", nil},
		{"node drain --stop 3", "node 3 has handed over its shards and ends\n", nil},
	} {
		f := newFake(t)
		code, out, errs := f.run(strings.Fields(x.args)...)
		if code != 0 || out != x.out || !slices.Equal(f.changes, x.asked) {
			t.Errorf("%s: exit %d, %s\n%s\nasked: %q", x.args, code, errs, out, f.changes)
		}
		if drains := strings.HasPrefix(x.args, "node drain"); drains != (len(f.drained) == 1) {
			t.Errorf("%s: drained %v", x.args, f.drained)
		}
	}
	f := newFake(t)
	f.m.Nodes[2].Alive = false
	f.kill(node3)
	if code, out, errs := f.run("node", "replace", "3"); code != 0 || !strings.HasSuffix(out, "node 3 is removed\n") || f.changes[len(f.changes)-1] != "remove node 3" {
		t.Errorf("exit %d, %s\n%s\nasked: %q", code, errs, out, f.changes)
	}
}

// A refusal is one line, and nothing is done.
func TestChangesAreRefused(t *testing.T) {
	f := newFake(t)
	f.refuse = "shard 1: too few nodes: 1 more needed, 0 can be used"
	for args, want := range map[string]string{
		"shard create":                        "too few nodes",
		"shard create --replicas 3 --nodes 1": "one of them",
		"shard create --nodes x":              "x",
		"shard create --replicas x":           "--replicas x: want 1, 3 or 5",
		"shard replica add 9":                 "there is no shard 9",
		"shard replica move 1":                "wants SHARD FROM [TO]",
		"shard replica move 1 1":              "too few nodes",
		"shard move-lease 1":                  "wants SHARD NODE",
		"shard move-lease 9 1":                "there is no shard 9",
		"shard move-lease 1 2":                "the lease of shard 1: invalid argument: shard 1: too few nodes",
		"node drain 2":                        "nothing was done",
		"node drain 9":                        "there is no node 9",
		"node remove 2":                       "node 2 has replicas of shards 1,2",
		"node replace 2":                      "node 2 is alive",
	} {
		code, out, errs := f.run(strings.Fields(args)...)
		if code != 1 || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%s: exit %d, %q, %q; want %q in one line", args, code, out, errs, want)
		}
	}
	if len(f.drained) > 0 {
		t.Errorf("drained %v", f.drained)
	}
}
