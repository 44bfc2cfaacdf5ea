package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/memkv"
	"github.com/canopyfs/canopy/shard/namespace"
)

// fakeCluster is a metadata service in this process: the real state machine over
// keys in memory, behind nodes that a test can make misbehave.
type fakeCluster struct {
	t      testing.TB
	mu     sync.Mutex
	place  *canopyv1.PlacementMap
	change chan struct{}
	moved  *canopyv1.Redirect // what MOVED answers say
	shards map[base.ShardID]*fakeShard
	nodes  []*fakeNode
	hook   func(n *fakeNode, op *canopyv1.Op, floor uint64) verdict    // before an operation runs
	after  func(n *fakeNode, op *canopyv1.Op, r *canopyv1.Result) bool // true: drop the stream, not the effect
	opens  []*canopyv1.ReportOpensRequest
	beats  map[string][]uint64 // by node address: shards of the last heartbeat
	events map[string]chan *canopyv1.Event
	told   map[chan *canopyv1.Event]bool // events streams that are open
	memory *wire.Memory                  // the nodes are in the client's process; nil: they are not

	redirected map[uint64]int             // MOVED answers, by client
	maps       int                        // that were asked for, by streams
	reporters  map[uint64]map[uint64]bool // clients that reported open files, by shard
}

// verdict is what a hook wants instead of the operation's run.
type verdict struct {
	result *canopyv1.Result // answer this, do not run
	drop   bool             // drop the stream, do not run
	mute   bool             // run, but never answer
	hold   bool             // neither run nor answer
}

var errDropped = errors.New("dropped by the test")

type fakeShard struct {
	mu      sync.Mutex
	id      base.ShardID
	machine *namespace.Machine
	store   *memkv.Store
	now     int64
	holder  *fakeNode
	epoch   uint64
}

type fakeNode struct {
	canopyv1.UnimplementedMetadataServer
	canopyv1.UnimplementedClusterServer
	c       *fakeCluster
	id      uint64
	address string
	server  *grpc.Server
	done    chan struct{}
	local   fakeLocal
}

// newFake starts a cluster of the given number of nodes with one shard, which
// owns the root and is held by the first node.
func newFake(t testing.TB, nodes int) *fakeCluster {
	c := &fakeCluster{t: t, change: make(chan struct{}), shards: map[base.ShardID]*fakeShard{},
		beats: map[string][]uint64{}, events: map[string]chan *canopyv1.Event{},
		told: map[chan *canopyv1.Event]bool{}, redirected: map[uint64]int{}, reporters: map[uint64]map[uint64]bool{},
		place: &canopyv1.PlacementMap{Cluster: "fake", Revision: 1}}
	if strings.HasPrefix(t.Name(), "TestWithinTheProcess/") {
		c.memory = wire.NewMemory()
	}
	for i := range nodes {
		n := &fakeNode{c: c, id: uint64(i + 1)}
		n.listen()
		c.nodes = append(c.nodes, n)
		c.place.Nodes = append(c.place.Nodes, &canopyv1.NodeInfo{Node: n.id, Address: n.address, Alive: true})
	}
	c.addShard(1, 1, 1)
	t.Cleanup(func() {
		for _, n := range c.nodes {
			n.stop()
		}
	})
	return c
}

// addShard makes a shard that owns a subtree with the given root.
func (c *fakeCluster) addShard(id base.ShardID, subtree, root uint64) *fakeShard {
	s := &fakeShard{id: id, machine: namespace.New(namespace.Config{Shard: id}), store: memkv.New(), holder: c.nodes[0], epoch: 1, now: time.Now().UnixNano()}
	if err := s.machine.Load(s.store); err != nil {
		c.t.Fatal(err)
	}
	s.own(c.t, &canopyv1.Command{Own: &canopyv1.Command_Bootstrap{Bootstrap: &canopyv1.BootstrapCommand{
		Cluster: "fake", Shard: uint64(id), Subtree: subtree, Epoch: 1, RootIno: root, RootMode: 0o755,
		Layout: &canopyv1.Layout{Pool: 1, Components: []*canopyv1.LayoutComponent{{StripeBytes: 1 << 20, StripeCount: 1}}}}}})
	c.shards[id] = s
	info := &canopyv1.ShardInfo{Shard: uint64(id), HolderNode: 1, LeaseEpoch: 1}
	for _, n := range c.nodes {
		info.Replicas = append(info.Replicas, &canopyv1.ReplicaInfo{Replica: n.id, Node: n.id})
	}
	c.changeMap(func(m *canopyv1.PlacementMap) {
		m.Shards = append(m.Shards, info)
		m.Subtrees = append(m.Subtrees, &canopyv1.SubtreeRoute{Subtree: subtree, Shard: uint64(id), Epoch: 1, RootIno: root})
	})
	return s
}

// changeMap publishes a changed copy of the placement map.
func (c *fakeCluster) changeMap(change func(*canopyv1.PlacementMap)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, err := c.place.MarshalVT()
	m := &canopyv1.PlacementMap{}
	if err == nil {
		err = m.UnmarshalVT(b)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	change(m)
	m.Revision++
	c.place = m
	close(c.change)
	c.change = make(chan struct{})
}

// moveHolder makes another node the shard's holder; published in the map or not.
func (c *fakeCluster) moveHolder(id base.ShardID, to *fakeNode, published bool) {
	s := c.shards[id]
	s.mu.Lock()
	s.holder = to
	s.epoch++
	epoch := s.epoch
	s.mu.Unlock()
	if published {
		c.changeMap(func(m *canopyv1.PlacementMap) {
			for _, info := range m.Shards {
				if info.Shard == uint64(id) {
					info.HolderNode, info.LeaseEpoch = to.id, epoch
				}
			}
		})
	}
}

// expire ends the sessions of all clients, as their silence would.
func (c *fakeCluster) expire(id base.ShardID) {
	s := c.shards[id]
	var clients []uint64
	s.mu.Lock()
	err := namespace.Sessions(s.store, id, func(i namespace.SessionInfo) bool {
		clients = append(clients, uint64(i.Client))
		return true
	})
	s.mu.Unlock()
	if err != nil {
		c.t.Fatal(err)
	}
	s.own(c.t, &canopyv1.Command{Own: &canopyv1.Command_EndSessions{EndSessions: &canopyv1.EndSessionsCommand{Clients: clients}}})
}

func (s *fakeShard) own(t testing.TB, command *canopyv1.Command) {
	if r := s.apply(command); r.Error != 0 {
		t.Fatalf("own command: %v %s", fserr.Kind(r.Error), r.Detail)
	}
}

func (s *fakeShard) apply(command *canopyv1.Command) *canopyv1.Result {
	b, err := command.MarshalVT()
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = max(s.now+1, time.Now().UnixNano())
	results, err := s.machine.Apply(s.store, s.now, [][]byte{b})
	if err != nil {
		panic(err)
	}
	r := &canopyv1.Result{}
	if err := r.UnmarshalVT(results[0]); err != nil {
		panic(err)
	}
	return r
}

func (n *fakeNode) listen() { n.listenAs(n) }

// listenAs serves as on n's address, a free one at first.
func (n *fakeNode) listenAs(as interface {
	canopyv1.MetadataServer
	canopyv1.ClusterServer
}) {
	address := n.address
	if address == "" {
		address = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		n.c.t.Fatal(err)
	}
	if n.address == "" {
		n.address = l.Addr().String()
	}
	n.server = grpc.NewServer(wire.ServerOptions()...)
	canopyv1.RegisterMetadataServer(n.server, as)
	canopyv1.RegisterClusterServer(n.server, as)
	n.done = make(chan struct{})
	server, done := n.server, n.done
	go func() { defer close(done); _ = server.Serve(l) }()
	n.offer()
}

// stop kills the node: all its connections break.
func (n *fakeNode) stop() {
	n.withdraw()
	n.server.Stop()
	<-n.done
}

// restart lets it listen on its address again.
func (n *fakeNode) restart() { n.listen() }

func (n *fakeNode) WatchMap(_ *canopyv1.WatchMapRequest, stream grpc.ServerStreamingServer[canopyv1.PlacementMap]) error {
	n.c.mu.Lock()
	n.c.maps++
	n.c.mu.Unlock()
	for {
		n.c.mu.Lock()
		m, change := n.c.place, n.c.change
		n.c.mu.Unlock()
		if err := stream.Send(m); err != nil {
			return err
		}
		select {
		case <-change:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func clientOf(ctx context.Context) uint64 {
	id, err := base.ParseClientID(metadataValue(ctx, wire.MetadataClient))
	if err != nil {
		panic(err)
	}
	return uint64(id)
}

func (n *fakeNode) Operate(stream grpc.BidiStreamingServer[canopyv1.OperateRequest, canopyv1.OperateResponse]) error {
	client := clientOf(stream.Context())
	for {
		request, err := stream.Recv()
		if err != nil {
			return nil
		}
		response := &canopyv1.OperateResponse{}
		for _, op := range request.Ops {
			result, drop := n.operate(client, request, op)
			if drop {
				return errDropped
			}
			if result == nil {
				continue
			}
			n.c.count(client, result)
			b, err := result.MarshalVT()
			if err != nil {
				return err
			}
			response.Outcomes = append(response.Outcomes, &canopyv1.Outcome{Id: op.Id, Result: b})
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

// count takes note of what clients are answered.
func (c *fakeCluster) count(client uint64, r *canopyv1.Result) {
	if fserr.Kind(r.Error) != fserr.Moved {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.redirected[client]++
}

func (n *fakeNode) operate(client uint64, request *canopyv1.OperateRequest, op *canopyv1.Op) (result *canopyv1.Result, drop bool) {
	n.c.mu.Lock()
	hook, after := n.c.hook, n.c.after
	n.c.mu.Unlock()
	var v verdict
	if hook != nil {
		v = hook(n, op, request.Floor)
	}
	if v.drop || v.hold || v.result != nil {
		return v.result, v.drop
	}
	s := n.c.shards[base.ShardID(request.Shard)]
	if s == nil {
		return &canopyv1.Result{Error: uint32(fserr.UnknownShard)}, false
	}
	s.mu.Lock()
	holder := s.holder
	s.mu.Unlock()
	if holder != n {
		return &canopyv1.Result{Error: uint32(fserr.NotHolder), Redirect: &canopyv1.Redirect{
			Shard: request.Shard, Node: holder.id, Address: holder.address}}, false
	}
	if namespace.IsRead(op) {
		s.mu.Lock()
		result = s.machine.Query(s.store, op)
		s.mu.Unlock()
	} else {
		result = s.apply(&canopyv1.Command{Client: client, Floor: request.Floor, Op: op})
	}
	if fserr.Kind(result.Error) == fserr.Moved {
		n.c.mu.Lock()
		if n.c.moved != nil {
			result.Redirect = n.c.moved
		}
		n.c.mu.Unlock()
	}
	if after != nil && after(n, op, result) {
		return nil, true
	}
	if v.mute {
		return nil, false
	}
	return result, false
}

func (n *fakeNode) Events(stream grpc.BidiStreamingServer[canopyv1.EventsRequest, canopyv1.Event]) error {
	out := make(chan *canopyv1.Event, 16)
	n.c.mu.Lock()
	n.c.events[n.address] = out
	n.c.told[out] = true
	n.c.mu.Unlock()
	defer func() {
		n.c.mu.Lock()
		delete(n.c.told, out)
		n.c.mu.Unlock()
	}()
	received := make(chan error, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			n.c.mu.Lock()
			n.c.beats[n.address] = r.Shards
			n.c.mu.Unlock()
		}
	}()
	out <- &canopyv1.Event{Event: &canopyv1.Event_Heartbeat{Heartbeat: &canopyv1.Heartbeat{SessionTimeoutMs: 300}}}
	for {
		select {
		case <-received:
			return nil
		case e := <-out:
			if err := stream.Send(e); err != nil {
				return err
			}
		}
	}
}

func (n *fakeNode) ReportOpens(ctx context.Context, r *canopyv1.ReportOpensRequest) (*canopyv1.ReportOpensResponse, error) {
	s := n.c.shards[base.ShardID(r.Shard)]
	answer := &canopyv1.ReportOpensResponse{}
	s.mu.Lock()
	holder := s.holder
	for _, p := range r.Opened { // in the root's subtree, if anywhere
		now, err := s.machine.Locate(s.store, 1, p)
		if err == nil && string(now.Name) != string(p.Name) {
			answer.Moved = append(answer.Moved, now)
		}
	}
	s.mu.Unlock()
	if holder != n {
		return &canopyv1.ReportOpensResponse{Error: uint32(fserr.NotHolder)}, nil
	}
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	n.c.opens = append(n.c.opens, r)
	if n.c.reporters[r.Shard] == nil {
		n.c.reporters[r.Shard] = map[uint64]bool{}
	}
	if len(r.Opened) > 0 {
		n.c.reporters[r.Shard][clientOf(ctx)] = true
	}
	return answer, nil
}

func (c *fakeCluster) setHook(hook func(n *fakeNode, op *canopyv1.Op, floor uint64) verdict) {
	c.mu.Lock()
	c.hook = hook
	c.mu.Unlock()
}

func (c *fakeCluster) setAfter(after func(n *fakeNode, op *canopyv1.Op, r *canopyv1.Result) bool) {
	c.mu.Lock()
	c.after = after
	c.mu.Unlock()
}

// connect returns a client of the fake, with the data plane, closed at the end.
func (c *fakeCluster) connect(t testing.TB, d DataPlane, edit ...func(*Config)) *Client {
	t.Helper()
	return c.connectAged(t, d, writeBackAge, edit...)
}

// connectAged is connect with another age of write-back.
func (c *fakeCluster) connectAged(t testing.TB, d DataPlane, age time.Duration, edit ...func(*Config)) *Client {
	t.Helper()
	cfg := Config{Cluster: c.nodes[0].address, Data: d, Mount: "test", Memory: c.memory}
	for _, e := range edit {
		e(&cfg)
	}
	client, err := newClient(cfg)
	if err == nil {
		client.flusher.age = age
		client, err = client.connect(t.Context(), cfg)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = client.Close(ctx)
	})
	return client
}

// names lists the root, as the state machine has it.
func (c *fakeCluster) names() []string {
	s := c.shards[1]
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.machine.Query(s.store, &canopyv1.Op{Subtree: 1, Epoch: 1, Call: &canopyv1.Op_ReadDir{ReadDir: &canopyv1.ReadDirCall{Dir: 1}}})
	if r.Error != 0 {
		panic(fmt.Sprint(fserr.Kind(r.Error), r.Detail))
	}
	var all []string
	for _, e := range r.Entries {
		all = append(all, string(e.Name))
	}
	slices.Sort(all)
	return all
}

// eventually waits until the condition holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	t.Helper()
	await.Until(t, time.Minute, what, ok)
}
