package mds_test

import (
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
)

var single = placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 1}

func TestNamespaceThroughAStream(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, nil)
	k := c.caller(7).open(1)
	made := k.must(1, k.write(create(1, "a")))
	if made.Attr.GetIno() == 0 || made.Attr.GetNlink() != 1 {
		t.Fatalf("created: %v", made.Attr)
	}
	if r := k.must(1, lookup(1, "a")); r.Attr.GetIno() != made.Attr.Ino {
		t.Errorf("lookup found %v, want inode %d", r.Attr, made.Attr.Ino)
	}
	k.must(1, k.write(rename("a", "b")))
	if r := k.do(1, lookup(1, "a")); fserr.Kind(r.Error) != fserr.NotFound {
		t.Errorf("the old name: %v", fserr.Kind(r.Error))
	}
	if r := k.must(1, lookup(1, "b")); r.Attr.GetIno() != made.Attr.Ino {
		t.Errorf("the new name: %v", r.Attr)
	}
	if r := k.must(1, &canopyv1.Op{Subtree: 1, Call: &canopyv1.Op_StatFs{StatFs: &canopyv1.StatFsCall{}}}); r.Statfs == nil {
		t.Error("statfs without figures")
	}
}

func TestABatchAnswersEveryOperation(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, nil)
	k := c.caller(7).open(1)
	n := c.nodes[0]
	var ops []*canopyv1.Op
	for i := range 300 {
		name := string(rune('a'+i%26)) + string(rune('a'+i/26))
		ops = append(ops, k.write(create(1, name)), lookup(1, "."))
	}
	for i, answer := range k.send(n, 1, ops...) {
		select {
		case r := <-answer:
			if r == nil || r.Error != 0 {
				t.Fatalf("operation %d: %v", i, r)
			}
		case <-time.After(patience):
			t.Fatalf("operation %d was not answered", i)
		}
	}
}

// TestARepeatReturnsTheFirstResult: PROTOCOLS C2, C4, also after a restart.
func TestARepeatReturnsTheFirstResult(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, nil)
	k := c.caller(7).open(1)
	op := k.write(create(1, "once"))
	first := k.must(1, op)
	again := k.must(1, op) // O_EXCL: run twice it would be EXIST
	if again.Attr.GetIno() != first.Attr.GetIno() {
		t.Errorf("the repeat made inode %v, the first %v", again.Attr, first.Attr)
	}
	failing := k.write(create(1, "once"))
	if r := k.do(1, failing); fserr.Kind(r.Error) != fserr.Exist {
		t.Fatalf("a second create: %v", fserr.Kind(r.Error))
	}
	k.must(1, k.write(unlink(1, "once")))
	if r := k.do(1, failing); fserr.Kind(r.Error) != fserr.Exist {
		t.Errorf("a failure's repeat: %v, want the first answer", fserr.Kind(r.Error))
	}
	for _, stop := range []func(int){c.kill, c.drain} {
		stop(0)
		c.start(0)
		c.waitReady(0)
		if r := k.must(1, op); r.Attr.GetIno() != first.Attr.GetIno() {
			t.Errorf("after a restart the repeat made inode %v, the first %v", r.Attr, first.Attr)
		}
	}
	if r := k.do(1, lookup(1, "once")); fserr.Kind(r.Error) != fserr.NotFound {
		t.Errorf("the repeat brought the file back: %v", fserr.Kind(r.Error))
	}
}

// TestUnknownSessionsAreRefused: PROTOCOLS C3.
func TestUnknownSessionsAreRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, nil)
	k := c.caller(7)
	if r := k.do(1, k.write(create(1, "a"))); fserr.Kind(r.Error) != fserr.SessionExpired {
		t.Fatalf("a write without a session: %v", fserr.Kind(r.Error))
	}
	if r := k.do(1, lookup(1, "a")); fserr.Kind(r.Error) != fserr.NotFound {
		t.Errorf("the refused write did something: %v", fserr.Kind(r.Error))
	}
	k.open(1)
	k.must(1, k.write(create(1, "a")))
	k.must(1, k.write(&canopyv1.Op{Call: &canopyv1.Op_CloseSession{CloseSession: &canopyv1.CloseSessionCall{}}}))
	if r := k.do(1, k.write(create(1, "b"))); fserr.Kind(r.Error) != fserr.SessionExpired {
		t.Errorf("a write after the session's end: %v", fserr.Kind(r.Error))
	}
}

func TestMalformedOperationsAreAnswered(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, nil)
	k := c.caller(7).open(1)
	n := c.nodes[0]
	for name, op := range map[string]*canopyv1.Op{
		"no call":            {Subtree: 1},
		"write without seq":  create(1, "a"),
		"read with seq":      k.write(lookup(1, "a")),
		"no subtree":         {Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: 1}}},
		"session in subtree": k.write(&canopyv1.Op{Subtree: 1, Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{}}}),
	} {
		if r := k.try(n, 1, op); fserr.Kind(r.GetError()) != fserr.Malformed {
			t.Errorf("%s: %v", name, r)
		}
	}
	k.must(1, k.write(create(1, "after")))
	// Without a client id, and with a message above the limit, the stream ends.
	meta := canopyv1.NewMetadataClient(connect(t, n.Addr()))
	anonymous, err := meta.Operate(t.Context())
	if err == nil {
		_, err = anonymous.Recv()
	}
	if fserr.KindOf(err) != fserr.Malformed {
		t.Errorf("no client id: %v", err)
	}
	huge := &canopyv1.OperateRequest{Shard: 1, Ops: []*canopyv1.Op{lookup(1, string(make([]byte, 9<<20)))}}
	stream, err := meta.Operate(k.context(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if err = stream.Send(huge); err == nil {
		_, err = stream.Recv()
	}
	if err == nil {
		t.Error("a message above the limit was taken")
	}
	k.must(1, lookup(1, "after"))
}

func TestWrongShard(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 2, Replicas: 1, Shards: 2}, nil)
	k := c.caller(7)
	there := -1
	eventually(t, "shard 1 has a holder", func() bool { there = c.holder(1); return there >= 0 })
	asked := c.nodes[1-there]
	r := k.try(asked, 1, lookup(1, "a"))
	if fserr.Kind(r.GetError()) != fserr.UnknownShard || r.Redirect.GetAddress() != c.nodes[there].Addr() ||
		r.Redirect.GetNode() != uint64(c.nodes[there].Node()) || r.Redirect.GetShard() != 1 {
		t.Errorf("asked the wrong node: %v, want a redirect to %s", r, c.nodes[there].Addr())
	}
	if r := k.try(asked, 99, lookup(1, "a")); fserr.Kind(r.GetError()) != fserr.UnknownShard {
		t.Errorf("a shard that does not exist: %v", r)
	}
	// Subtree 1 is not in shard 2.
	r = k.do(2, lookup(1, "a"))
	if fserr.Kind(r.Error) != fserr.Moved || r.Redirect.GetShard() != 1 || r.Redirect.GetAddress() != c.nodes[there].Addr() {
		t.Errorf("asked the wrong shard: %v", r)
	}
	k.open(2)
	r = k.do(2, k.write(create(1, "a")))
	if fserr.Kind(r.Error) != fserr.Moved || r.Redirect.GetShard() != 1 {
		t.Errorf("wrote to the wrong shard: %v", r)
	}
}

// TestOutstandingIsBounded: more than the limit is Busy with a time to come back.
func TestOutstandingIsBounded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, nil)
	k := c.caller(7).open(1)
	var ops []*canopyv1.Op
	for range 3 * 4096 {
		ops = append(ops, lookup(1, "x"))
	}
	busy, answered := 0, 0
	for _, answer := range k.send(c.nodes[0], 1, ops...) {
		r := <-answer
		switch fserr.Kind(r.GetError()) {
		case fserr.Busy:
			busy++
			if r.RetryAfterMs == 0 {
				t.Fatal("busy without a time")
			}
		case fserr.NotFound:
			answered++
		default:
			t.Fatalf("got %v", r)
		}
	}
	if busy == 0 || answered < 4096 {
		t.Errorf("%d busy, %d answered", busy, answered)
	}
}

func TestStatusAndMap(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, nil)
	conn := connect(t, c.nodes[0].Addr())
	status, err := canopyv1.NewClusterClient(conn).Status(t.Context(), &canopyv1.StatusRequest{})
	if err != nil || status.Node != 1 || status.Cluster != c.nodes[0].Cluster() || !status.EtcdReachable {
		t.Errorf("status %v, %v", status, err)
	}
	watch, err := canopyv1.NewClusterClient(conn).WatchMap(t.Context(), &canopyv1.WatchMapRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		p := placement.NewMap(m)
		if p.Route(base.RootSubtree).GetShard() == 1 && p.Node(1).GetAlive() && p.Shard(1).GetHolderNode() == 1 {
			break
		}
	}
	k := c.caller(7).open(1)
	k.must(1, k.write(create(1, "a")))
	admin := canopyv1.NewAdminClient(conn)
	shards, err := admin.ShardStatus(t.Context(), &canopyv1.ShardStatusRequest{})
	if err != nil || len(shards.Shards) != 1 || !shards.Shards[0].Holder || len(shards.Shards[0].Subtrees) != 1 || shards.Shards[0].Sessions != 1 {
		t.Errorf("shards %v, %v", shards, err)
	}
	sessions, err := admin.ListSessions(t.Context(), &canopyv1.ListSessionsRequest{})
	if err != nil || len(sessions.Sessions) != 1 || sessions.Sessions[0].Client != 7 || sessions.Sessions[0].Mount != "/mnt" {
		t.Errorf("sessions %v, %v", sessions, err)
	}
	check, err := admin.Fsck(t.Context(), &canopyv1.FsckRequest{Shard: 1})
	if err != nil {
		t.Fatal(err)
	}
	for {
		f, err := check.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if f.Summary {
			if f.Error != 0 || f.Problems != 0 {
				t.Errorf("fsck: %v", f)
			}
			break
		}
		t.Errorf("finding: %v", f)
	}
}
