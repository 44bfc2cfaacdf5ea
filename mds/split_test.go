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

// TestWaitFollowsAName: who waits for a lock of a file whose name goes to another
// subtree is sent after it (PROTOCOLS E7).
func TestWaitFollowsAName(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 2}, nil)
	ls := c.lockers(1, 2)
	a, b := ls[0], ls[1]
	n := c.nodes[c.holding(1)]
	expect(t, "lock", a.set(1, 10, 0, false), fserr.OK)
	waiting := b.send(n, 1, &canopyv1.Op{Subtree: 1, Call: &canopyv1.Op_WaitLock{WaitLock: &canopyv1.WaitLockCall{
		Place: b.place, Lock: b.lock(1, 10), Token: 100}}})[0]
	eventually(t, "it waits", func() bool { return b.set(2, 10, 0, false) == fserr.WouldBlock })
	at := shard.NameHash(b.place.Name).Border()
	into := c.moveNames(1, &canopyv1.StartMoveRequest{Subtree: 1, Dir: 1, ToShard: 2, Lo: at, Hi: at + 1}).Into
	select {
	case r := <-waiting:
		if fserr.Kind(r.Error) != fserr.Moved || r.Redirect.GetSubtree() != into || r.Redirect.GetShard() != 2 {
			t.Errorf("the wait ended with %v %v, want it sent to subtree %d", fserr.Kind(r.Error), r.Redirect, into)
		}
	case <-time.After(patience):
		t.Fatal("the wait goes on where nothing is")
	}
	// The lock went along.
	b.open(2)
	b.place = &canopyv1.Place{Ino: b.place.Ino, Dir: 1, Name: b.place.Name}
	got := b.must(2, in(into, &canopyv1.Op{Cred: root, Call: &canopyv1.Op_GetLock{GetLock: &canopyv1.GetLockCall{Place: b.place}}}))
	if len(got.Locks) != 1 || got.Locks[0].Client != 1 {
		t.Errorf("locks at the new place: %v", got.Locks)
	}
}

// TestRenamedFileIsFoundAfterAMerge: a file was renamed while a client had it open, and
// then its fragment joined another. What leads from the old name to the file came along,
// and stays until the client has reported to the new holder (PROTOCOLS H1, H2).
func TestRenamedFileIsFoundAfterAMerge(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 2}, quick(newFakeData()))
	k := c.caller(0xa1).open(1).open(2)
	dir := k.must(1, k.write(mkdir(1, "d"))).Attr.Ino
	one := c.moveNames(1, &canopyv1.StartMoveRequest{Subtree: 1, Dir: dir, ToShard: 2, Lo: 1, Hi: shard.BorderEnd}).Into
	made := k.must(2, k.write(in(one, create(dir, "old")))).Attr
	k.report(1, 1) // nothing is open at this shard
	place := &canopyv1.Place{Ino: made.Ino, Dir: dir, Name: []byte("old")}
	k.report(2, 1, place)
	k.must(2, k.write(&canopyv1.Op{Subtree: one, Cred: root, Call: &canopyv1.Op_Rename{Rename: &canopyv1.RenameCall{
		SrcDir: dir, SrcName: []byte("old"), DstDir: dir, DstName: []byte("new"), DstSubtree: one}}}))
	c.moveNames(2, &canopyv1.StartMoveRequest{Subtree: one, Dir: dir, ToShard: 1, Lo: 1, Hi: shard.BorderEnd, Into: 1})
	for until := time.Now().Add(time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if r := k.must(1, getattr(place)); r.Attr.Ino != made.Ino || string(r.Place.GetName()) != "new" {
			t.Fatalf("by the old name: %v %v", r.Attr, r.Place)
		}
	}
	if r := k.report(1, 2, place); len(r.Moved) != 1 || string(r.Moved[0].Name) != "new" {
		t.Errorf("the report was answered %v", r)
	}
	k.report(1, 3)
	eventually(t, "what leads there goes", func() bool { return fserr.Kind(k.do(1, getattr(place)).Error) == fserr.Stale })
	k.must(1, lookup(dir, "new"))
}

// TestNamesGoOnMovingAfterAFailover: the holder of the source goes in the middle of a
// split, and of the target in the middle of a merge.
func TestNamesGoOnMovingAfterAFailover(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 3, Shards: 2, Replicas: 3}, nil)
	k := c.caller(0xa1).open(1).open(2)
	dir := k.must(1, k.write(mkdir(1, "d"))).Attr.Ino
	const files = 200
	for i := range files {
		k.must(1, k.write(create(dir, fmt.Sprint("f", i))))
	}
	start := func(from base.ShardID, request *canopyv1.StartMoveRequest) *canopyv1.Move {
		request.Shard = uint64(from)
		r, err := c.migration(from).StartMove(wire.Caller{}.Context(t.Context()), request)
		if err != nil || r.Error != 0 {
			t.Fatal(err, fserr.Kind(r.GetError()), r.GetDetail())
		}
		return r.Move
	}
	// all reports whether all names are there, none but those of others in the subtree.
	all := func(to base.ShardID, subtree uint64, names shard.Range) bool {
		for i := range files {
			name := fmt.Sprint("f", i)
			if !names.Contains(shard.NameHash([]byte(name)).Border()) {
				continue
			}
			if r := k.do(to, in(subtree, lookup(dir, name))); r.Error != 0 {
				return false
			}
		}
		return true
	}
	upper := shard.Range{Lo: half, Hi: shard.BorderEnd}
	m := start(1, &canopyv1.StartMoveRequest{Subtree: 1, Dir: dir, ToShard: 2, Lo: upper.Lo, Hi: upper.Hi})
	dead := c.holder(1)
	c.kill(dead)
	eventually(t, "the split ends under another holder", func() bool { return all(2, m.Into, upper) })
	c.start(dead)
	c.waitReady(dead)
	// The move is cleaned before the next one can begin.
	eventually(t, "the merge begins", func() bool {
		r, err := c.migration(2).StartMove(wire.Caller{}.Context(t.Context()), &canopyv1.StartMoveRequest{
			Shard: 2, Subtree: m.Into, Dir: dir, ToShard: 1, Lo: upper.Lo, Hi: upper.Hi, Into: 1})
		return err == nil && r.Error == 0
	})
	c.kill(c.holder(1))
	eventually(t, "the merge ends with another holder of its target", func() bool { return all(1, 1, shard.WholeRange) })
	if a := k.must(1, getattr(&canopyv1.Place{Ino: dir})).Attr; a.Size != files || len(a.Fragments) != 0 {
		t.Errorf("the directory says %v", a)
	}
}
