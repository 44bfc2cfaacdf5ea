package mds_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

const half, quarter = shard.BorderEnd / 2, shard.BorderEnd / 4

// follower is a caller that knows of one directory where its names are, as far as
// redirects have told.
type follower struct {
	*caller
	dir       uint64
	fragments shard.FragmentMap
	at        map[base.SubtreeID]base.ShardID
	sessions  map[base.ShardID]bool
	redirects int
}

func (c *cluster) follower(id base.ClientID, dir uint64) *follower {
	return &follower{caller: c.caller(id), dir: dir, fragments: shard.Whole(1),
		at: map[base.SubtreeID]base.ShardID{1: 1}, sessions: map[base.ShardID]bool{}}
}

// run runs an operation on a name, or on what lies at a position.
func (f *follower) run(h shard.Hash, op *canopyv1.Op) *canopyv1.Result {
	f.c.t.Helper()
	subtree := f.fragments.Find(h).Subtree
	for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Millisecond) {
		if f.at[subtree] == 0 {
			f.at[subtree] = base.ShardID(f.c.route(uint64(subtree)).GetShard())
			continue
		}
		to := f.at[subtree]
		if !f.sessions[to] {
			f.caller.open(to)
			f.sessions[to] = true
		}
		op.Subtree = uint64(subtree)
		r := f.do(to, op)
		switch fserr.Kind(r.Error) {
		case fserr.Locked, fserr.Frozen:
			continue
		case fserr.Moved:
			f.redirects++
			subtree = base.SubtreeID(r.Redirect.GetSubtree())
			if m := shard.FragmentsOf(r.Redirect.GetFragments()); len(m) > 0 {
				f.fragments = m
			}
			if to := base.ShardID(r.Redirect.GetShard()); to != 0 {
				f.at[subtree] = to
			}
			continue
		}
		return r
	}
	f.c.t.Fatalf("%v: no answer but redirects, the last one to subtree %d", op, subtree)
	return nil
}

func (f *follower) create(name string) *canopyv1.Result {
	return f.run(shard.NameHash([]byte(name)), f.write(create(f.dir, name)))
}

// list returns how often each name is listed.
func (f *follower) list() map[string]int {
	f.c.t.Helper()
	seen := map[string]int{}
	for cookie := uint64(0); ; {
		r := f.run(shard.HashOf(base.Cookie(cookie)+1), &canopyv1.Op{Cred: root, Call: &canopyv1.Op_ReadDir{ReadDir: &canopyv1.ReadDirCall{Dir: f.dir, Cookie: cookie}}})
		if r.Error != 0 {
			f.c.t.Fatalf("listing at %x: %v", cookie, fserr.Kind(r.Error))
		}
		for _, e := range r.Entries {
			seen[string(e.Name)]++
			cookie = e.Cookie
		}
		if r.Eof {
			if cookie = r.Through; cookie == uint64(schema.LastCookie) {
				return seen
			}
		}
	}
}

// moveNames moves names of a directory, and waits until they have moved.
func (c *cluster) moveNames(from base.ShardID, request *canopyv1.StartMoveRequest) *canopyv1.Move {
	c.t.Helper()
	request.Shard = uint64(from)
	r, err := c.migration(from).StartMove(wire.Caller{}.Context(c.t.Context()), request)
	if err != nil || r.Error != 0 {
		c.t.Fatalf("%v: %v %v %s", request, err, fserr.Kind(r.GetError()), r.GetDetail())
	}
	ended := c.moved(from, r.Move)
	if ended.Outcome != "moved" || ended.Lo != request.Lo || ended.Hi != request.Hi || ended.Join != (request.Into != 0) {
		c.t.Fatalf("it ended as %v", ended)
	}
	return ended
}

// TestSplitAndMergeUnderLoad: while clients create in a directory it is split over two
// shards, and merged again. Nobody sees an error, each name is made once, and all are
// there.
func TestSplitAndMergeUnderLoad(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 2, Shards: 2, Replicas: 1}, nil)
	k := c.caller(0xa1).open(1)
	dir := k.must(1, k.write(mkdir(1, "d"))).Attr.Ino
	sub := k.must(1, k.write(mkdir(dir, "sub"))).Attr.Ino
	k.must(1, k.write(create(sub, "below")))

	const workers, each = 4, 3000
	var stop atomic.Bool
	var wg sync.WaitGroup
	inos := make([]map[string]uint64, workers)
	for i := range workers {
		inos[i] = map[string]uint64{}
		wg.Go(func() {
			f := c.follower(base.ClientID(0xb0+i), dir)
			for n := 0; n < each && !stop.Load(); n++ {
				name := fmt.Sprintf("w%d-%d", i, n)
				r := f.create(name)
				if r.Error != 0 {
					t.Errorf("create %s: %v %s", name, fserr.Kind(r.Error), r.Detail)
					return
				}
				inos[i][name] = r.Attr.Ino
			}
		})
	}
	for range 2 {
		one := c.moveNames(1, &canopyv1.StartMoveRequest{Subtree: 1, Dir: dir, ToShard: 2, Lo: half, Hi: shard.BorderEnd}).Into
		two := c.moveNames(2, &canopyv1.StartMoveRequest{Subtree: one, Dir: dir, ToShard: 1, Lo: half + quarter, Hi: shard.BorderEnd}).Into
		three := c.moveNames(1, &canopyv1.StartMoveRequest{Subtree: 1, Dir: dir, ToShard: 1, Lo: quarter, Hi: half}).Into
		c.moveNames(1, &canopyv1.StartMoveRequest{Subtree: two, Dir: dir, ToShard: 2, Lo: half + quarter, Hi: shard.BorderEnd, Into: one})
		c.moveNames(2, &canopyv1.StartMoveRequest{Subtree: one, Dir: dir, ToShard: 1, Lo: half, Hi: shard.BorderEnd, Into: three})
		c.moveNames(1, &canopyv1.StartMoveRequest{Subtree: three, Dir: dir, ToShard: 1, Lo: quarter, Hi: shard.BorderEnd, Into: 1})
	}
	stop.Store(true)
	wg.Wait()
	made := 1
	f := c.follower(0xc1, dir)
	seen := f.list()
	for i := range workers {
		for name, ino := range inos[i] {
			made++
			if r := f.run(shard.NameHash([]byte(name)), lookup(dir, name)); r.Error != 0 || r.Attr.Ino != ino {
				t.Errorf("%s: %v %v, want inode %d", name, fserr.Kind(r.Error), r.Attr, ino)
			}
			if seen[name] != 1 {
				t.Errorf("%s is listed %d times", name, seen[name])
			}
		}
	}
	attr := k.must(1, getattr(&canopyv1.Place{Ino: dir})).Attr
	if len(seen) != made || attr.Size != uint64(made) || attr.Nlink != 3 || len(attr.Fragments) != 0 {
		t.Errorf("%d names were made, %d are listed, the directory says %v", made, len(seen), attr)
	}
	t.Logf("%d names", made)
	k.must(1, lookup(sub, "below"))
}

// TestRefusedJoinIsCancelled: names that are to join a fragment which is not there stay
// where they are, and the move says why.
func TestRefusedJoinIsCancelled(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 1, Shards: 2, Replicas: 1}, nil)
	k := c.caller(0xa1).open(1)
	dir := k.must(1, k.write(mkdir(1, "d"))).Attr.Ino
	other := k.must(1, k.write(mkdir(1, "other"))).Attr.Ino
	one := c.moveNames(1, &canopyv1.StartMoveRequest{Subtree: 1, Dir: dir, ToShard: 2, Lo: half, Hi: shard.BorderEnd}).Into
	r, err := c.migration(1).StartMove(wire.Caller{}.Context(t.Context()), &canopyv1.StartMoveRequest{
		Shard: 1, Subtree: 1, Dir: other, ToShard: 2, Lo: half, Hi: shard.BorderEnd, Into: one})
	if err != nil || r.Error != 0 {
		t.Fatal(err, fserr.Kind(r.GetError()), r.GetDetail())
	}
	if ended := c.moved(1, r.Move); ended.Outcome != "cancelled" || ended.Problem == "" {
		t.Errorf("it ended as %v", ended)
	}
	k.must(1, k.write(create(other, "after")))
}
