package mdsctl

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/fserr"
)

var update = flag.Bool("update", false, "write the golden files anew")

const (
	node1, node2, node3 = "127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"
	layoutAddr          = "127.0.0.1:7100"
	data1, data2        = "127.0.0.1:7201", "127.0.0.1:7202"
)

// fakeCluster is a cluster of servers on buffers. Tests change its fields
// before they run commands.
type fakeCluster struct {
	m        *canopyv1.PlacementMap
	pools    *canopyv1.PoolMap
	status   map[string]*fakeNode
	columns  map[string][]*canopyv1.ColumnInfo // by data server
	ranges   []*canopyv1.StripeRange
	findings map[uint64][]*canopyv1.FsckFinding // by shard

	repairs  *canopyv1.RepairsResponse
	recovery map[string][]*canopyv1.GroupRepair // by data server
	servers  []*canopyv1.SetServerRequest       // what was asked for
	scrub    *canopyv1.ScrubStatusResponse
	scrubs   []*canopyv1.SetScrubRequest
	keys     []*canopyv1.KeysRequest
	moves    []*canopyv1.Move
	mended   []*canopyv1.Repair // what was asked for

	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	drained   []string
	resumed   []string
	changes   []string // of replicas, nodes and shards that were asked for
	refuse    string   // what the next such request is answered with
}

// fakeNode is what one metadata node answers.
type fakeNode struct {
	shards   []*canopyv1.ShardStatus
	sums     map[uint64][]byte // by shard
	noEtcd   bool
	sessions []*canopyv1.SessionInfo
	heat     []*canopyv1.ShardHeat
}

func (f *fakeCluster) start(t *testing.T, address string, register func(*grpc.Server)) {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer(wire.ServerOptions()...)
	register(s)
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-served })
	f.listeners[address] = l
}

func (f *fakeCluster) dialer() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		f.mu.Lock()
		l := f.listeners[address]
		f.mu.Unlock()
		if l == nil {
			return nil, errors.New("dial tcp " + address + ": connect: connection refused")
		}
		return l.DialContext(ctx)
	})
}

// dirPaths stands for asking the namespace.
func (f *fakeCluster) dirPaths(_ context.Context, inos []uint64, found map[uint64]string) {
	for _, ino := range inos {
		if ino == 100 {
			found[ino] = "/data/frames"
		}
	}
}

// kill makes a server unreachable for new connections.
func (f *fakeCluster) kill(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.listeners, address)
}

// run runs a command line against the cluster.
func (f *fakeCluster) run(args ...string) (code int, stdout, stderr string) {
	return f.runWith(nil, args...)
}

// runWith is run with somebody at the terminal who types stdin.
func (f *fakeCluster) runWith(stdin io.Reader, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	a := &app{env: Env{Stdout: &out, Stderr: &errs, Stdin: stdin}, dial: []grpc.DialOption{f.dialer()}, dirPaths: f.dirPaths}
	code = a.main(context.Background(), append([]string{"--cluster", node1 + "," + node2, "--timeout", "2s"}, args...))
	return code, out.String(), errs.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-update writes it anew):\n%s", file, got)
	}
}

type fakeMDS struct {
	canopyv1.UnimplementedClusterServer
	canopyv1.UnimplementedAdminServer
	f       *fakeCluster
	address string
	id      uint64
}

func (s *fakeMDS) me() *fakeNode { return s.f.status[s.address] }

func (s *fakeMDS) shard(id uint64) *canopyv1.ShardStatus {
	for _, x := range s.me().shards {
		if x.GetShard() == id {
			return x
		}
	}
	return nil
}

func (s *fakeMDS) WatchMap(_ *canopyv1.WatchMapRequest, stream grpc.ServerStreamingServer[canopyv1.PlacementMap]) error {
	if err := stream.Send(s.f.m); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (s *fakeMDS) Status(context.Context, *canopyv1.StatusRequest) (*canopyv1.StatusResponse, error) {
	return &canopyv1.StatusResponse{Cluster: "c1", Node: s.id, Version: "v0.1", MapRevision: 42, EtcdReachable: !s.me().noEtcd, UptimeSeconds: 3725}, nil
}

func (s *fakeMDS) ShardStatus(context.Context, *canopyv1.ShardStatusRequest) (*canopyv1.ShardStatusResponse, error) {
	return &canopyv1.ShardStatusResponse{Shards: s.me().shards}, nil
}

func (s *fakeMDS) ListSessions(_ context.Context, r *canopyv1.ListSessionsRequest) (*canopyv1.ListSessionsResponse, error) {
	if x := s.shard(r.GetShard()); !x.GetHolder() {
		return nil, fserr.Status(fserr.NotHolder)
	}
	out := &canopyv1.ListSessionsResponse{}
	for _, x := range s.me().sessions {
		if x.GetShard() == r.GetShard() {
			out.Sessions = append(out.Sessions, x)
		}
	}
	return out, nil
}

func (s *fakeMDS) Heat(context.Context, *canopyv1.HeatRequest) (*canopyv1.HeatResponse, error) {
	return &canopyv1.HeatResponse{Shards: s.me().heat}, nil
}

func (s *fakeMDS) Checksum(_ context.Context, r *canopyv1.ChecksumRequest) (*canopyv1.ChecksumResponse, error) {
	if x := s.shard(r.GetShard()); !x.GetHolder() {
		return &canopyv1.ChecksumResponse{Error: uint32(fserr.NotHolder), Detail: "not the holder of the shard"}, nil
	}
	return &canopyv1.ChecksumResponse{Token: 7, Index: 1234}, nil
}

func (s *fakeMDS) ReplicaChecksum(_ context.Context, r *canopyv1.ReplicaChecksumRequest) (*canopyv1.ReplicaChecksumResponse, error) {
	x := s.shard(r.GetShard())
	sum := s.me().sums[r.GetShard()]
	if x == nil || sum == nil || r.GetToken() != 7 {
		return &canopyv1.ReplicaChecksumResponse{Error: uint32(fserr.UnknownShard)}, nil
	}
	return &canopyv1.ReplicaChecksumResponse{Replica: x.GetReplica(), Index: 1234, Checksum: sum, Keys: 1000, Bytes: 65536}, nil
}

func (s *fakeMDS) Fsck(r *canopyv1.FsckRequest, stream grpc.ServerStreamingServer[canopyv1.FsckFinding]) error {
	if x := s.shard(r.GetShard()); !x.GetHolder() {
		return stream.Send(&canopyv1.FsckFinding{Summary: true, Error: uint32(fserr.NotHolder), Problem: "not the holder"})
	}
	for _, x := range s.f.m.GetSubtrees() {
		owned := &canopyv1.FsckEdge{Kind: 1, Subtree: x.GetSubtree(), Epoch: x.GetEpoch(), Ino: x.GetRootIno()}
		if x.GetShard() != r.GetShard() {
			continue
		}
		if err := stream.Send(&canopyv1.FsckFinding{Edge: owned}); err != nil {
			return err
		}
	}
	list := s.f.findings[r.GetShard()]
	for _, x := range list {
		if err := stream.Send(x); err != nil {
			return err
		}
	}
	return stream.Send(&canopyv1.FsckFinding{Summary: true, Files: 10, Directories: 3, Orphans: 1, Bytes: 4096, Problems: uint64(len(list))})
}

// Repair makes what findings carry; the finding is then gone.
func (s *fakeMDS) Repair(_ context.Context, r *canopyv1.RepairRequest) (*canopyv1.RepairResponse, error) {
	if x := s.shard(r.GetShard()); !x.GetHolder() {
		return nil, fserr.Status(fserr.New(fserr.NotHolder, "repair", nil))
	}
	out := &canopyv1.RepairResponse{}
	for _, order := range r.GetRepairs() {
		o := &canopyv1.RepairOutcome{Detail: "it is not what it was"}
		s.f.findings[r.GetShard()] = slices.DeleteFunc(s.f.findings[r.GetShard()], func(f *canopyv1.FsckFinding) bool {
			is := proto.Equal(f.GetRepair(), order)
			o.Repaired = o.Repaired || is
			return is
		})
		s.f.mended = append(s.f.mended, order)
		out.Outcomes = append(out.Outcomes, o)
	}
	return out, nil
}

// inspectionGrant is what the fake data servers want to see.
const inspectionGrant = "inspection"

func (s *fakeMDS) GrantInspection(context.Context, *canopyv1.GrantInspectionRequest) (*canopyv1.GrantInspectionResponse, error) {
	return &canopyv1.GrantInspectionResponse{Capability: []byte(inspectionGrant)}, nil
}

func (s *fakeMDS) Resume(context.Context, *canopyv1.ResumeRequest) (*canopyv1.ResumeResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.resumed = append(s.f.resumed, s.address)
	return &canopyv1.ResumeResponse{}, nil
}

func (s *fakeMDS) Drain(_ context.Context, r *canopyv1.DrainRequest) (*canopyv1.DrainResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.drained = append(s.f.drained, s.address)
	return &canopyv1.DrainResponse{}, nil
}

type fakeLayout struct {
	canopyv1.UnimplementedLayoutServiceServer
	f *fakeCluster
}

func (s *fakeLayout) WatchPools(_ *canopyv1.WatchPoolsRequest, stream grpc.ServerStreamingServer[canopyv1.PoolMap]) error {
	if err := stream.Send(s.f.pools); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (s *fakeLayout) StripeMap(_ context.Context, r *canopyv1.StripeMapRequest) (*canopyv1.StripeMapResponse, error) {
	out := &canopyv1.StripeMapResponse{Revision: 9}
	for _, x := range s.f.ranges {
		if x.GetOffset() >= r.GetOffset() && x.GetOffset() < r.GetOffset()+r.GetLength() {
			out.Ranges = append(out.Ranges, x)
		}
	}
	return out, nil
}

func (s *fakeLayout) Repairs(context.Context, *canopyv1.RepairsRequest) (*canopyv1.RepairsResponse, error) {
	return s.f.repairs, nil
}

func (s *fakeLayout) SetServer(_ context.Context, r *canopyv1.SetServerRequest) (*canopyv1.SetServerResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if r.GetServer() > 2 {
		return &canopyv1.SetServerResponse{Error: uint32(fserr.NotFound), Detail: "there is no data server 3"}, nil
	}
	s.f.servers = append(s.f.servers, r)
	return &canopyv1.SetServerResponse{}, nil
}

func (s *fakeLayout) SetScrub(_ context.Context, r *canopyv1.SetScrubRequest) (*canopyv1.SetScrubResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.scrubs = append(s.f.scrubs, r)
	return &canopyv1.SetScrubResponse{State: s.f.scrub.GetState()}, nil
}

func (s *fakeLayout) ScrubStatus(context.Context, *canopyv1.ScrubStatusRequest) (*canopyv1.ScrubStatusResponse, error) {
	return s.f.scrub, nil
}

func (s *fakeLayout) Keys(_ context.Context, r *canopyv1.KeysRequest) (*canopyv1.KeysResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.keys = append(s.f.keys, r)
	return &canopyv1.KeysResponse{
		Ring: &canopyv1.CapabilityRing{Version: 9, Period: 140, PeriodMs: 15_000, Keys: []*canopyv1.CapabilityKey{
			{Id: 1, CreatedNs: 1_700_000_000_000_000_000, CreatedPeriod: 1, ReplacedPeriod: 100},
			{Id: 2, CreatedNs: 1_700_000_900_000_000_000, CreatedPeriod: 100},
		}}, KeepPeriods: 128, RotateMs: 86_400_000,
	}, nil
}

// allowed refuses what carries no capability.
func allowed(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get(wire.MetadataCapability); len(v) != 1 || v[0] != inspectionGrant {
		return fserr.Status(fserr.NoCapability)
	}
	return nil
}

func (s *fakeData) RepairStatus(ctx context.Context, _ *canopyv1.RepairStatusRequest) (*canopyv1.RepairStatusResponse, error) {
	if err := allowed(ctx); err != nil {
		return nil, err
	}
	return &canopyv1.RepairStatusResponse{Groups: s.f.recovery[s.address]}, nil
}

type fakeData struct {
	canopyv1.UnimplementedDataServer
	f       *fakeCluster
	address string
}

func (s *fakeData) ListData(_ *canopyv1.ListDataRequest, stream grpc.ServerStreamingServer[canopyv1.ListDataResponse]) error {
	if err := allowed(stream.Context()); err != nil {
		return err
	}
	return stream.Send(&canopyv1.ListDataResponse{Columns: s.f.columns[s.address]})
}

// newFake returns a healthy cluster of three nodes, two shards, one layout
// service and two data servers.
func newFake(t *testing.T) *fakeCluster {
	t.Helper()
	layout := &canopyv1.Layout{Pool: 1, Components: []*canopyv1.LayoutComponent{{StripeBytes: 1 << 20, StripeCount: 1}, {Offset: 1 << 20, StripeBytes: 1 << 20, StripeCount: 3}}}
	f := &fakeCluster{repairs: &canopyv1.RepairsResponse{RebuildAfterMs: 600_000},
		listeners: map[string]*bufconn.Listener{}, status: map[string]*fakeNode{}, columns: map[string][]*canopyv1.ColumnInfo{}, findings: map[uint64][]*canopyv1.FsckFinding{},
		m: &canopyv1.PlacementMap{
			Cluster: "c1", Revision: 42, Format: 1,
			Subtrees: []*canopyv1.SubtreeRoute{{Subtree: 1, Shard: 1, Epoch: 1, RootIno: 1}},
			Services: []*canopyv1.ServiceInfo{{Kind: "layoutsvc", Id: 1, Address: layoutAddr, Leader: true, Pid: 300, Host: "box1"}},
		},
		pools: &canopyv1.PoolMap{
			Cluster: "c1", Revision: 9,
			Pools: []*canopyv1.Pool{{Pool: 1, Name: "default", Replicas: 2, Layout: layout, Pgs: []*canopyv1.PlacementGroup{
				{Pg: 0, Epoch: 1, Members: []uint64{1, 2}, InSync: []uint64{1, 2}}, {Pg: 1, Epoch: 3, Members: []uint64{2, 1}, InSync: []uint64{2, 1}},
			}}},
			Servers: []*canopyv1.DataServerInfo{
				{Server: 1, Address: data1, Alive: true, TotalBytes: 100 << 30, FreeBytes: 60 << 30, Pid: 401, Host: "box1"},
				{Server: 2, Address: data2, Alive: true, TotalBytes: 100 << 30, FreeBytes: 50 << 30, Pid: 402, Host: "box2"},
			},
		},
	}
	for i, address := range []string{node1, node2, node3} {
		id := uint64(i + 1)
		f.m.Nodes = append(f.m.Nodes, &canopyv1.NodeInfo{Node: id, Address: address, RaftAddress: "10.0.0.1:9000", HttpAddress: "10.0.0.1:9100", Pid: uint32(100 + i), Host: "box1", Alive: true})
		n := &fakeNode{sums: map[uint64][]byte{}}
		for shard := uint64(1); shard <= 2; shard++ {
			st := &canopyv1.ShardStatus{Shard: shard, Replica: id, Node: id, Term: 2, LeaseEpoch: 5, AppliedIndex: 1000 + shard, FlushedIndex: 900}
			if st.Holder = id == shard; st.Holder {
				st.Leader, st.Sessions, st.Orphans, st.QueueDepth = true, 2, 1, 3
			}
			if st.Holder && shard == 1 {
				st.Subtrees = []*canopyv1.SubtreeStatus{{Subtree: 1, Epoch: 1, RootIno: 1, State: "active", Files: 10, Directories: 3}}
			}
			n.shards = append(n.shards, st)
			n.sums[shard] = bytes.Repeat([]byte{byte(shard)}, 32)
		}
		n.sessions = []*canopyv1.SessionInfo{{Client: 0xabc, Shard: id, Host: "box7", Pid: 55, Mount: "/mnt", OpenedNs: 1_700_000_000_000_000_000, LastHeardMs: 1500, OpenFiles: 4, Floor: 17}}
		f.status[address] = n
		s := &fakeMDS{f: f, address: address, id: id}
		f.start(t, address, func(g *grpc.Server) {
			canopyv1.RegisterClusterServer(g, s)
			canopyv1.RegisterAdminServer(g, s)
			canopyv1.RegisterMigrationServer(g, &fakeMigration{s: s})
		})
	}
	for shard := uint64(1); shard <= 2; shard++ {
		info := &canopyv1.ShardInfo{Shard: shard, HolderNode: 3, LeaseEpoch: 4, NextReplica: 4} // an outdated hint
		for id := uint64(1); id <= 3; id++ {
			info.Replicas = append(info.Replicas, &canopyv1.ReplicaInfo{Replica: id, Node: id})
		}
		f.m.Shards = append(f.m.Shards, info)
	}
	f.start(t, layoutAddr, func(g *grpc.Server) { canopyv1.RegisterLayoutServiceServer(g, &fakeLayout{f: f}) })
	for _, address := range []string{data1, data2} {
		f.start(t, address, func(g *grpc.Server) { canopyv1.RegisterDataServer(g, &fakeData{f: f, address: address}) })
		f.columns[address] = []*canopyv1.ColumnInfo{{Column: &canopyv1.Column{Pool: 1, Pg: 1, DataId: 77}, Size: 4096, AllocatedBytes: 4096, SizeEpoch: 1}}
	}
	f.m = proto.Clone(f.m).(*canopyv1.PlacementMap)
	return f
}
