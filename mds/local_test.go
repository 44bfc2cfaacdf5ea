package mds_test

import (
	"sync"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/mds"
	"github.com/canopyfs/canopy/placement"
)

// localCaller is a client in a node's process.
type localCaller struct {
	t      *testing.T
	stream wire.LocalStream
	mu     sync.Mutex
	wait   map[uint64]chan *canopyv1.Result
	id     uint64
}

func result(t *testing.T, encoded []byte) *canopyv1.Result {
	t.Helper()
	r := &canopyv1.Result{}
	if err := r.UnmarshalVT(encoded); err != nil {
		t.Fatal(err)
	}
	return r
}

func (k *localCaller) deliver(answers *canopyv1.OperateResponse) {
	for _, o := range answers.Outcomes {
		r := result(k.t, o.Result)
		k.mu.Lock()
		c := k.wait[o.Id]
		delete(k.wait, o.Id)
		k.mu.Unlock()
		c <- r
	}
}

func (k *localCaller) start(op *canopyv1.Op) chan *canopyv1.Result {
	k.t.Helper()
	c := make(chan *canopyv1.Result, 1)
	k.mu.Lock()
	k.id++
	op.Id = k.id
	if op.Call != nil && op.GetReadDir() == nil {
		op.Seq = k.id
	}
	k.wait[op.Id] = c
	k.mu.Unlock()
	if err := k.stream.Send(&canopyv1.OperateRequest{Shard: 1, Floor: 1, Ops: []*canopyv1.Op{op}}); err != nil {
		k.t.Fatal(err)
	}
	return c
}

func (k *localCaller) must(op *canopyv1.Op) *canopyv1.Result {
	k.t.Helper()
	r := <-k.start(op)
	if r.Error != 0 {
		k.t.Fatalf("%v: %v %s", op, fserr.Kind(r.Error), r.Detail)
	}
	return r
}

// numbered gives the operation an id.
func numbered(op *canopyv1.Op) *canopyv1.Op {
	op.Id = 1 << 40
	return op
}

// TestLocalStream: a client in the node's process gets the same answers without
// a connection, its stream ends when the node drains, and nothing of the node is
// used after that.
func TestLocalStream(t *testing.T) {
	memory := wire.NewMemory()
	c := newCluster(t, placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 1}, func(config *mds.Config) { config.Memory = memory })
	address := c.nodes[0].Addr()
	node, ok := wire.Local[wire.LocalMetadata](memory, address)
	if !ok {
		t.Fatal("the node does not offer itself")
	}
	k := &localCaller{t: t, wait: map[uint64]chan *canopyv1.Result{}}
	for name, caller := range map[string]wire.Caller{
		"without an id":    {},
		"of other cluster": {Client: 9, Cluster: "another"},
	} {
		if _, err := node.OperateLocal(t.Context(), caller, k.deliver); err == nil {
			t.Errorf("a caller %s is served", name)
		}
	}
	var err error
	if k.stream, err = node.OperateLocal(t.Context(), wire.Caller{Client: 9, Cluster: c.nodes[0].Cluster()}, k.deliver); err != nil {
		t.Fatal(err)
	}
	k.must(&canopyv1.Op{Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{Host: "test"}}})
	list := &canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_ReadDir{ReadDir: &canopyv1.ReadDirCall{Dir: 1}}}
	made := k.must(create(1, "a")).Attr.Ino

	var results [][]byte
	await.Until(t, patience, "the node answers reads at once", func() (ok bool) {
		if results, ok = k.stream.Query(1, []*canopyv1.Op{numbered(lookup(1, "b")), numbered(lookup(1, "a"))}); !ok {
			k.must(list) // which waits for the lease
		}
		return ok
	})
	if len(results) != 2 {
		t.Fatalf("%d results", len(results))
	}
	if r := result(t, results[0]); fserr.Kind(r.Error) != fserr.NotFound {
		t.Errorf("a name that is not there: %v", r)
	}
	if r := result(t, results[1]); r.Attr.GetIno() != made {
		t.Errorf("a name that is there: %v", r)
	}
	for name, op := range map[string]*canopyv1.Op{"a listing": list, "a write": create(1, "c"), "nothing": {}} {
		if _, ok := k.stream.Query(1, []*canopyv1.Op{numbered(op)}); ok {
			t.Errorf("%s was answered at once", name)
		}
	}
	if _, ok := k.stream.Query(2, []*canopyv1.Op{numbered(lookup(1, "a"))}); ok {
		t.Error("a shard that is not here answers")
	}
	if r := k.must(list); len(r.Entries) != 1 {
		t.Errorf("entries: %v", r.Entries)
	}

	ended := make(chan error, 1)
	go func() { _, err := k.stream.Recv(); ended <- err }()
	c.drain(0)
	if err := <-ended; fserr.KindOf(err) != fserr.NotReady {
		t.Errorf("the end of the stream is %v", err)
	}
	if _, ok := k.stream.Query(1, []*canopyv1.Op{numbered(lookup(1, "a"))}); ok {
		t.Error("a node that has stopped answers")
	}
	if err := k.stream.Send(&canopyv1.OperateRequest{Shard: 1, Ops: []*canopyv1.Op{create(1, "d")}}); err == nil {
		t.Error("a node that has stopped takes operations")
	}
	if _, ok := wire.Local[wire.LocalMetadata](memory, address); ok {
		t.Error("a node that has stopped offers itself")
	}
	if _, err := node.OperateLocal(t.Context(), wire.Caller{Client: 9}, k.deliver); err == nil {
		t.Error("a node that has stopped opens a stream")
	}
}
