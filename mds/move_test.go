package mds_test

import (
	"fmt"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
)

// atHolder calls do at the node that holds a shard.
func (c *cluster) migration(shard base.ShardID) canopyv1.MigrationClient {
	c.t.Helper()
	at := -1
	eventually(c.t, fmt.Sprintf("shard %v has a holder", shard), func() bool { at = c.holder(shard); return at >= 0 })
	return canopyv1.NewMigrationClient(connect(c.t, c.nodes[at].Addr()))
}

func (c *cluster) startMove(shard, to base.ShardID, subtree, dir uint64) *canopyv1.StartMoveResponse {
	c.t.Helper()
	r, err := c.migration(shard).StartMove(wire.Caller{}.Context(c.t.Context()), &canopyv1.StartMoveRequest{
		Shard: uint64(shard), Subtree: subtree, Dir: dir, ToShard: uint64(to)})
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// moved waits until a move has ended, and returns it.
func (c *cluster) moved(shard base.ShardID, move *canopyv1.Move) (ended *canopyv1.Move) {
	c.t.Helper()
	eventually(c.t, "the move ends", func() bool {
		r, err := c.migration(shard).ListMoves(c.t.Context(), &canopyv1.ListMovesRequest{Shard: uint64(shard)})
		if err != nil {
			return false
		}
		for _, m := range r.Moves {
			if m.Subtree == move.Subtree && m.StartedNs == move.StartedNs && m.Outcome != "" {
				ended = m
			}
		}
		return ended != nil
	})
	return ended
}

func mkdir(dir uint64, name string) *canopyv1.Op {
	return &canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_Mkdir{Mkdir: &canopyv1.MkdirCall{Dir: dir, Name: []byte(name), Mode: 0o755}}}
}

func in(subtree uint64, op *canopyv1.Op) *canopyv1.Op { op.Subtree = subtree; return op }

// TestMigrate moves a directory to a shard of another node and on to a third, and
// does in it what a client does.
func TestMigrate(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 2, Shards: 3, Replicas: 1}, nil)
	k := c.caller(0xa1).open(1)
	dir := k.must(1, k.write(mkdir(1, "d"))).Attr.Ino
	for i := range 300 {
		k.must(1, k.write(create(dir, fmt.Sprint("f", i))))
	}
	below := k.must(1, k.write(mkdir(dir, "below"))).Attr.Ino
	last := k.write(create(below, "last"))
	made := k.must(1, last)

	if r := c.startMove(1, 1, 1, dir); fserr.Kind(r.Error) != fserr.Invalid {
		t.Errorf("to its own shard: %v %s", fserr.Kind(r.Error), r.Detail)
	}
	if r := c.startMove(1, 9, 1, dir); fserr.Kind(r.Error) != fserr.Invalid {
		t.Errorf("to no shard: %v %s", fserr.Kind(r.Error), r.Detail)
	}
	if r := c.startMove(1, 2, 1, made.Attr.Ino); r.Error == 0 {
		t.Error("a file was moved")
	}
	r := c.startMove(1, 2, 1, dir)
	if r.Error != 0 {
		t.Fatal(fserr.Kind(r.Error), r.Detail)
	}
	ended := c.moved(1, r.Move)
	if ended.Outcome != "moved" || ended.Entries < 300 {
		t.Errorf("it ended as %v", ended)
	}
	t.Logf("moved: %v", ended)
	into := r.Move.Into

	// Its old owner redirects, by the directory.
	answer := k.do(1, lookup(dir, "f7"))
	if fserr.Kind(answer.Error) != fserr.Moved || answer.Redirect.GetSubtree() != into || answer.Redirect.GetShard() != 2 {
		t.Errorf("at the old owner: %v %v", fserr.Kind(answer.Error), answer.Redirect)
	}
	if got := k.must(2, in(into, lookup(dir, "f7"))); got.DirAttr.Size != 301 || got.DirAttr.Nlink != 3 {
		t.Errorf("the directory has %v", got.DirAttr)
	}
	// What is sent again has its first result, in the session that came along.
	last.Subtree = into
	if again := k.must(2, last); again.Attr.Ino != made.Attr.Ino {
		t.Errorf("sent again: inode %d, want %d", again.Attr.Ino, made.Attr.Ino)
	}
	k.must(2, k.write(in(into, create(dir, "after"))))

	// And on, as the subtree that it is now.
	r = c.startMove(2, 3, into, dir)
	if r.Error != 0 || r.Move.Into != into {
		t.Fatal(fserr.Kind(r.Error), r.Detail, r.Move)
	}
	if ended := c.moved(2, r.Move); ended.Outcome != "moved" {
		t.Errorf("it ended as %v", ended)
	}
	k.must(3, in(into, lookup(dir, "after")))
	k.must(3, k.write(in(into, create(dir, "third"))))
	eventually(t, "the route is published", func() bool {
		return c.route(into).GetShard() == 3 && c.route(into).GetEpoch() == 2
	})
}

// route returns what the map says of a subtree.
func (c *cluster) route(subtree uint64) *canopyv1.SubtreeRoute { return c.routeAt(0, subtree) }

func (c *cluster) routeAt(node int, subtree uint64) *canopyv1.SubtreeRoute {
	c.t.Helper()
	stream, err := canopyv1.NewClusterClient(connect(c.t, c.nodes[node].Addr())).WatchMap(c.t.Context(), &canopyv1.WatchMapRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, s := range m.Subtrees {
		if s.Subtree == subtree {
			return s
		}
	}
	return nil
}

// TestOrphansWaitForReportsAfterAMove: the whole namespace moves to another shard.
// What a client said there before does not count for what came (PROTOCOLS H2).
func TestOrphansWaitForReportsAfterAMove(t *testing.T) {
	data := newFakeData()
	c := newCluster(t, placement.Bootstrap{Nodes: 1, Shards: 2, Replicas: 1}, quick(data))
	k := c.caller(0xa1).open(1).open(2)
	k.report(2, 1) // nothing is open there
	place, held := k.makeOrphan("held")
	k.report(1, 1, place)
	r := c.startMove(1, 2, 1, 1)
	if r.Error != 0 || r.Move.Into != 1 {
		t.Fatal(fserr.Kind(r.Error), r.Detail, r.Move)
	}
	if ended := c.moved(1, r.Move); ended.Outcome != "moved" {
		t.Fatal(ended)
	}
	// Longer than the grace, without a report from the client.
	for until := time.Now().Add(time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if data.wasDeleted(held) {
			t.Fatal("an open file was deleted on the word of an earlier report")
		}
	}
	k.report(2, 2, place)
	if got := k.must(2, getattr(place)); got.Attr.Ino != place.Ino {
		t.Errorf("the open file is %v", got.Attr)
	}
	k.report(2, 3)
	eventually(t, "the closed file goes", func() bool { return data.wasDeleted(held) })
	// A holder of the shard that it came from takes nothing for its own again.
	if got := k.do(1, lookup(1, "held")); fserr.Kind(got.Error) != fserr.Moved || got.Redirect.GetShard() != 2 {
		t.Errorf("at the old owner: %v %v", fserr.Kind(got.Error), got.Redirect)
	}
	c.kill(0)
	c.start(0)
	c.waitReady(0)
	k = c.caller(0xb2).open(2)
	k.must(2, k.write(create(1, "after")))
}

// TestMoveGoesOnAfterAFailover: the source's holder goes in the middle of a copy.
func TestMoveGoesOnAfterAFailover(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 3, Shards: 2, Replicas: 3}, nil)
	k := c.caller(0xa1).open(1)
	dir := k.must(1, k.write(mkdir(1, "d"))).Attr.Ino
	for i := range 200 {
		k.must(1, k.write(create(dir, fmt.Sprint("f", i))))
	}
	r := c.startMove(1, 2, 1, dir)
	if r.Error != 0 {
		t.Fatal(fserr.Kind(r.Error), r.Detail)
	}
	c.kill(c.holder(1))
	eventually(t, "the move ends under another holder", func() bool { return c.liveRoute(r.Move.Into).GetShard() == 2 })
	for i := range 200 {
		k.must(2, in(r.Move.Into, lookup(dir, fmt.Sprint("f", i))))
	}
}

// liveRoute is route, at a node that runs.
func (c *cluster) liveRoute(subtree uint64) *canopyv1.SubtreeRoute {
	for i, n := range c.nodes {
		if n != nil {
			return c.routeAt(i, subtree)
		}
	}
	return nil
}
