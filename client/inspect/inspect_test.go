package inspect

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// node is a metadata node that holds shards, answers late, or not at all.
type node struct {
	canopyv1.UnimplementedClusterServer
	canopyv1.UnimplementedAdminServer
	m      *canopyv1.PlacementMap
	holds  bool
	hang   bool
	broken bool
	asked  int
}

func (n *node) WatchMap(_ *canopyv1.WatchMapRequest, s grpc.ServerStreamingServer[canopyv1.PlacementMap]) error {
	if n.hang {
		<-s.Context().Done()
		return s.Context().Err()
	}
	return s.Send(n.m)
}

func (n *node) ListSessions(ctx context.Context, r *canopyv1.ListSessionsRequest) (*canopyv1.ListSessionsResponse, error) {
	n.asked++
	switch {
	case n.hang:
		<-ctx.Done()
		return nil, ctx.Err()
	case n.broken:
		return nil, status.Error(codes.Internal, "internal error: the key is damaged")
	case !n.holds:
		return nil, fserr.Status(fserr.NotHolder)
	}
	return &canopyv1.ListSessionsResponse{Sessions: []*canopyv1.SessionInfo{{Client: 1, Shard: r.GetShard()}}}, nil
}

func (n *node) Fsck(_ *canopyv1.FsckRequest, s grpc.ServerStreamingServer[canopyv1.FsckFinding]) error {
	return s.Send(&canopyv1.FsckFinding{Problem: "x"}) // and no summary
}

func serve(t *testing.T, nodes ...*node) string {
	t.Helper()
	m := &canopyv1.PlacementMap{Cluster: "c", Shards: []*canopyv1.ShardInfo{{Shard: 1, HolderNode: 1}}}
	for i, n := range nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer(wire.ServerOptions()...)
		canopyv1.RegisterClusterServer(s, n)
		canopyv1.RegisterAdminServer(s, n)
		served := make(chan struct{})
		go func() { defer close(served); _ = s.Serve(l) }()
		t.Cleanup(func() { s.Stop(); <-served })
		m.Nodes = append(m.Nodes, &canopyv1.NodeInfo{Node: uint64(i + 1), Address: l.Addr().String()})
		m.Shards[0].Replicas = append(m.Shards[0].Replicas, &canopyv1.ReplicaInfo{Replica: uint64(i + 1), Node: uint64(i + 1)})
		n.m = m
	}
	var all []string
	for _, n := range m.Nodes {
		all = append(all, n.Address)
	}
	return strings.Join(all, ",")
}

func connect(t *testing.T, addresses string) *Cluster {
	t.Helper()
	c, err := Connect(t.Context(), addresses, Options{Timeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A node that hangs costs a time-out, and the next one is asked.
func TestHangingNodes(t *testing.T) {
	addresses := serve(t, &node{hang: true}, &node{holds: true}, &node{})
	c := connect(t, addresses)
	if c.From() != strings.Split(addresses, ",")[1] || c.Map().GetCluster() != "c" {
		t.Errorf("from %s", c.From())
	}
	s, err := c.Sessions(t.Context(), 1)
	if err != nil || len(s) != 1 {
		t.Errorf("sessions: %v, %v", s, err)
	}
}

// An error of the holder itself is the answer: no other node is asked.
func TestHolderRefuses(t *testing.T) {
	second := &node{}
	c := connect(t, serve(t, &node{broken: true}, second))
	_, err := c.Sessions(t.Context(), 1)
	if err == nil || second.asked != 0 || err.Error() != "shard 1: no holder answers: node 1: internal error: the key is damaged" {
		t.Errorf("%v, second asked %d times", err, second.asked)
	}
}

func TestNobodyHolds(t *testing.T) {
	c := connect(t, serve(t, &node{}, &node{}))
	_, err := c.Sessions(t.Context(), 1)
	if err == nil || !strings.Contains(err.Error(), "node 1: ") || !strings.Contains(err.Error(), "node 2: ") {
		t.Errorf("%v", err)
	}
	if _, err := c.Sessions(t.Context(), 5); err == nil || !strings.Contains(err.Error(), "there is no shard 5: the cluster has 1") {
		t.Errorf("%v", err)
	}
}

func TestFsckWithoutSummaryIsAnError(t *testing.T) {
	c := connect(t, serve(t, &node{}))
	if _, err := c.Fsck(t.Context(), &canopyv1.FsckRequest{Shard: 1}, func() {}, func(*canopyv1.FsckFinding) {}); err == nil || !strings.Contains(err.Error(), "without a summary") {
		t.Errorf("%v", err)
	}
}

func TestNobodyAnswers(t *testing.T) {
	_, err := Connect(t.Context(), "127.0.0.1:1,127.0.0.1:2", Options{Timeout: time.Second})
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1: ") || !strings.Contains(err.Error(), "connection refused") || strings.Contains(err.Error(), "desc =") {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"", "host", "a:1,,b:2"} {
		if _, err := Connect(t.Context(), bad, Options{}); err == nil || !strings.Contains(err.Error(), "want host:port") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestCandidatesByReports(t *testing.T) {
	c := &Cluster{m: &canopyv1.PlacementMap{Shards: []*canopyv1.ShardInfo{{Shard: 1, HolderNode: 2, Replicas: []*canopyv1.ReplicaInfo{{Node: 1}, {Node: 2}, {Node: 3}}}}}}
	if got := fmt.Sprint(c.Candidates(1, nil)); got != "[2 1 3]" {
		t.Errorf("by the hint: %s", got)
	}
	reports := []*NodeReport{
		{Info: &canopyv1.NodeInfo{Node: 1}, Shards: []*canopyv1.ShardStatus{{Shard: 1, Leader: true}}},
		{Info: &canopyv1.NodeInfo{Node: 3}, Shards: []*canopyv1.ShardStatus{{Shard: 1, Holder: true}}},
		{Info: &canopyv1.NodeInfo{Node: 9}, Shards: []*canopyv1.ShardStatus{{Shard: 1, Holder: true}}}, // no replica by the map
	}
	if got := fmt.Sprint(c.Candidates(1, reports)); got != "[3 1 2]" {
		t.Errorf("by reports: %s", got)
	}
	if got := c.Candidates(base.ShardID(7), reports); got != nil {
		t.Errorf("of an unknown shard: %v", got)
	}
}
