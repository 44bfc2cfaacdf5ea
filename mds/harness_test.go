package mds_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/internal/loopback"
	"github.com/canopyfs/canopy/mds"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/placement/embedded"
)

// patience bounds every wait of these tests.
const patience = 60 * time.Second

// cluster is a few nodes in this process, on an etcd of their own.
type cluster struct {
	t      testing.TB
	dir    string
	etcd   *embedded.Etcd
	config func(*mds.Config)
	shape  placement.Bootstrap
	nodes  []*mds.Server // nil: stopped
	raft   []string      // addresses, which must not change
	conns  map[string]*grpc.ClientConn
}

func testLogger(t testing.TB) *slog.Logger {
	var out io.Writer = io.Discard
	if os.Getenv("CANOPY_TEST_LOG") != "" {
		out = os.Stderr
	}
	return slog.New(slog.NewTextHandler(out, nil)).With("test", t.Name())
}

// newCluster starts the nodes and waits until they are ready.
func newCluster(t testing.TB, shape placement.Bootstrap, config func(*mds.Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), config: config, shape: shape}
	var err error
	listen := net.JoinHostPort(loopback.Host(t), "0") // tests start it again at the same address
	if c.etcd, err = embedded.Start(t.Context(), embedded.Config{Dir: filepath.Join(c.dir, "etcd"), Listen: listen}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			if n != nil {
				n.Close()
			}
		}
		if c.etcd != nil {
			c.etcd.Close()
		}
	})
	c.nodes = make([]*mds.Server, shape.Nodes)
	c.raft = loopback.Addresses(t, shape.Nodes)
	for i := range c.nodes {
		c.start(i)
	}
	for i := range c.nodes {
		c.waitReady(i)
	}
	return c
}

func (c *cluster) settings(i int) mds.Config {
	config := mds.Config{
		DataDir: c.nodeDir(i), Listen: "127.0.0.1:0", RaftListen: c.raft[i],
		Etcd: []string{c.etcd.Address()}, EtcdLease: time.Second, Node: base.NodeID(i + 1), Bootstrap: c.shape,
		Data:   newFakeData(),
		Logger: testLogger(c.t).With("node", i+1),
	}
	if c.config != nil {
		c.config(&config)
	}
	return config
}

func (c *cluster) nodeDir(i int) string { return filepath.Join(c.dir, "node"+strconv.Itoa(i+1)) }

func (c *cluster) start(i int) {
	c.t.Helper()
	n, err := mds.New(c.t.Context(), c.settings(i))
	if err != nil {
		c.t.Fatalf("node %d: %v", i+1, err)
	}
	c.nodes[i] = n
}

func (c *cluster) waitReady(i int) {
	c.t.Helper()
	select {
	case <-c.nodes[i].Ready():
	case <-time.After(patience):
		c.t.Fatalf("node %d is not ready after %v", i+1, patience)
	}
}

// kill stops a node without handing anything over.
func (c *cluster) kill(i int) {
	c.t.Helper()
	if err := c.nodes[i].Close(); err != nil {
		c.t.Fatalf("node %d: %v", i+1, err)
	}
	c.nodes[i] = nil
}

// drain stops a node in good order.
func (c *cluster) drain(i int) {
	c.t.Helper()
	if err := c.nodes[i].Drain(context.Background()); err != nil {
		c.t.Fatalf("node %d: %v", i+1, err)
	}
	c.nodes[i] = nil
}

// connect opens a connection to a node.
func connect(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, append(wire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// conn returns the connection to a node, made as needed, for those who ask often.
func (c *cluster) conn(address string) *grpc.ClientConn {
	c.t.Helper()
	if c.conns == nil {
		c.conns = map[string]*grpc.ClientConn{}
	}
	if c.conns[address] == nil {
		c.conns[address] = connect(c.t, address)
	}
	return c.conns[address]
}

// caller is one client: it numbers its operations and sends them on raw streams.
type caller struct {
	c     *cluster
	id    base.ClientID
	mu    sync.Mutex
	seq   uint64
	opID  uint64
	pipes map[*mds.Server]*pipe
}

func (c *cluster) caller(id base.ClientID) *caller {
	return &caller{c: c, id: id, pipes: map[*mds.Server]*pipe{}}
}

// pipe is one stream of operations.
type pipe struct {
	stream grpc.BidiStreamingClient[canopyv1.OperateRequest, canopyv1.OperateResponse]
	conn   *grpc.ClientConn
	mu     sync.Mutex
	wait   map[uint64]chan *canopyv1.Result
	broken bool
}

func (k *caller) context(ctx context.Context) context.Context {
	return wire.Caller{Client: uint64(k.id), Host: "test", Mount: "/mnt"}.Context(ctx)
}

// pipe returns the stream to a node, made as needed.
func (k *caller) pipe(n *mds.Server) *pipe {
	k.c.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.pipes[n]; p != nil {
		return p
	}
	conn := connect(k.c.t, n.Addr())
	stream, err := canopyv1.NewMetadataClient(conn).Operate(k.context(k.c.t.Context()))
	if err != nil {
		k.c.t.Fatal(err)
	}
	p := &pipe{stream: stream, conn: conn, wait: map[uint64]chan *canopyv1.Result{}}
	k.pipes[n] = p
	go p.receive()
	return p
}

func (p *pipe) receive() {
	for {
		answer, err := p.stream.Recv()
		if err != nil {
			break
		}
		for _, o := range answer.Outcomes {
			var r canopyv1.Result
			if err := r.UnmarshalVT(o.Result); err != nil {
				r.Error = uint32(fserr.Internal)
			}
			p.mu.Lock()
			c := p.wait[o.Id]
			delete(p.wait, o.Id)
			p.mu.Unlock()
			if c != nil {
				c <- &r
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = true
	for _, c := range p.wait {
		close(c)
	}
}

// send sends operations in one message; the channels get their answers, and are
// closed without one if the stream breaks. Ids are given here.
func (k *caller) send(n *mds.Server, shard base.ShardID, ops ...*canopyv1.Op) []chan *canopyv1.Result {
	k.c.t.Helper()
	p := k.pipe(n)
	out := make([]chan *canopyv1.Result, len(ops))
	k.mu.Lock()
	defer k.mu.Unlock()
	p.mu.Lock()
	for i, op := range ops {
		k.opID++
		op.Id = k.opID
		out[i] = make(chan *canopyv1.Result, 1)
		if p.broken {
			close(out[i])
			continue
		}
		p.wait[op.Id] = out[i]
	}
	p.mu.Unlock()
	// An error breaks the stream, which closes the channels.
	_ = p.stream.Send(&canopyv1.OperateRequest{Shard: uint64(shard), Floor: 1, Ops: ops})
	return out
}

// try sends one operation and waits; nil: no answer.
func (k *caller) try(n *mds.Server, shard base.ShardID, op *canopyv1.Op) *canopyv1.Result {
	k.c.t.Helper()
	select {
	case r := <-k.send(n, shard, op)[0]:
		return r
	case <-time.After(patience):
		k.c.t.Fatalf("no answer to %v after %v", op, patience)
		return nil
	}
}

// write numbers a write; the number stays for repetitions.
func (k *caller) write(op *canopyv1.Op) *canopyv1.Op {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seq++
	op.Seq = k.seq
	return op
}

// do runs an operation until a node answers it: at the shard's holder, wherever
// that is. The same operation, with the same number, is sent each time.
func (k *caller) do(shard base.ShardID, op *canopyv1.Op) *canopyv1.Result {
	k.c.t.Helper()
	var answer *canopyv1.Result
	await.Until(k.c.t, patience, "a node answers an operation", func() bool {
		for _, n := range k.c.nodes {
			if n == nil {
				continue
			}
			r := k.try(n, shard, op)
			if r == nil {
				k.mu.Lock()
				delete(k.pipes, n)
				k.mu.Unlock()
				continue
			}
			switch fserr.Kind(r.Error) {
			case fserr.NotHolder, fserr.NotReady, fserr.Busy, fserr.TimedOut, fserr.UnknownShard:
				continue
			}
			answer = r
			return true
		}
		return false
	})
	return answer
}

// must is do for operations that have to succeed.
func (k *caller) must(shard base.ShardID, op *canopyv1.Op) *canopyv1.Result {
	k.c.t.Helper()
	r := k.do(shard, op)
	if r.Error != 0 {
		k.c.t.Fatalf("%v: %v %s", op, fserr.Kind(r.Error), r.Detail)
	}
	return r
}

// open opens the caller's session.
func (k *caller) open(shard base.ShardID) *caller {
	k.c.t.Helper()
	k.must(shard, k.write(&canopyv1.Op{Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{Host: "test", Mount: "/mnt"}}}))
	return k
}

// root acts for uid 0.
var root = &canopyv1.Credential{}

func lookup(dir uint64, name string) *canopyv1.Op {
	return &canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: dir, Name: []byte(name)}}}
}

func create(dir uint64, name string) *canopyv1.Op {
	return &canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_Create{
		Create: &canopyv1.CreateCall{Dir: dir, Name: []byte(name), Mode: 0o644, Exclusive: true}}}
}

func unlink(dir uint64, name string) *canopyv1.Op {
	return &canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_Unlink{Unlink: &canopyv1.UnlinkCall{Dir: dir, Name: []byte(name)}}}
}

func rename(from, to string) *canopyv1.Op {
	return &canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_Rename{Rename: &canopyv1.RenameCall{
		SrcDir: 1, SrcName: []byte(from), DstDir: 1, DstName: []byte(to)}}}
}

// holder returns the index of the node that serves a shard, -1 if none does now.
func (c *cluster) holder(shard base.ShardID) int {
	c.t.Helper()
	for i, n := range c.nodes {
		if n == nil {
			continue
		}
		admin := canopyv1.NewAdminClient(c.conn(n.Addr()))
		r, err := admin.ShardStatus(c.t.Context(), &canopyv1.ShardStatusRequest{Shard: uint64(shard)})
		if err == nil && len(r.Shards) == 1 && r.Shards[0].Holder {
			return i
		}
	}
	return -1
}

// eventually polls a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	await.Until(t, patience, what, ok)
}
