package mds_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// markedRange are names of a directory that a listing shows by one mark.
type markedRange struct {
	shard.Range
	subtree base.SubtreeID
	mark    uint64
}

// takeMarks takes the marks of a listing and frees them; nil: they did not stand together.
func (f *follower) takeMarks(token uint64) (all []markedRange) {
	f.c.t.Helper()
	marked := map[base.SubtreeID]bool{}
	for lo := uint32(0); lo < shard.BorderEnd; {
		i := len(all)
		for j, r := range all {
			if r.Contains(lo) {
				i = j
			}
		}
		if i < len(all) {
			lo = all[i].Hi
			continue
		}
		op := markNames(f.dir, token, false)
		r := f.run(shard.Hash(lo)<<shard.FullBits, op)
		if r.Error != 0 {
			f.c.t.Fatalf("mark: %v", fserr.Kind(r.Error))
		}
		at := base.SubtreeID(op.Subtree)
		m := shard.FragmentsOf(r.DirAttr.Fragments)
		if m == nil {
			m = shard.Whole(at)
		}
		f.fragments = m
		if marked[at] {
			return nil // what it has now it had not when it was asked first
		}
		marked[at] = true
		for _, own := range m.In(at) {
			all = append(all, markedRange{own, at, r.Mark})
		}
	}
	stood := true
	for at := range marked {
		r := f.do(f.at[at], in(uint64(at), markNames(f.dir, token, true)))
		stood = stood && r.Error == 0
	}
	if !stood {
		return nil
	}
	return all
}

// listMarked returns the names of a listing that begins now, by marks.
func (f *follower) listMarked(token uint64) (seen map[string]int, tries int) {
	f.c.t.Helper()
	var all []markedRange
	for ; all == nil; tries++ {
		all = f.takeMarks(token<<16 | uint64(tries))
	}
	seen = map[string]int{}
	for _, part := range all {
		for cookie := max(uint64(part.First()), 1) - 1; ; {
			r := f.run(shard.HashOf(base.Cookie(cookie)+1), &canopyv1.Op{Cred: root, Call: &canopyv1.Op_ReadDir{ReadDir: &canopyv1.ReadDirCall{
				Dir: f.dir, Cookie: cookie, Mark: part.mark, Last: uint64(part.Last())}}})
			if r.Error != 0 {
				f.c.t.Fatalf("listing at %x: %v", cookie, fserr.Kind(r.Error))
			}
			for _, e := range r.Entries {
				seen[string(e.Name)]++
				cookie = e.Cookie
			}
			if r.Eof {
				cookie = r.Through
			}
			if cookie >= min(uint64(part.Last()), uint64(schema.LastCookie)) {
				break
			}
		}
	}
	return seen, tries
}

// TestListingsKeepOrderWhileNamesMove: a client makes one name after the other, each when
// the one before is acknowledged, while the directory is split over shards and merged. A
// listing shows all that were acknowledged before it began, and never one without those
// that were made before it (PROTOCOLS F3).
func TestListingsKeepOrderWhileNamesMove(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 2, Shards: 2, Replicas: 1}, nil)
	k := c.caller(0xa1).open(1)
	dir := k.must(1, k.write(mkdir(1, "d"))).Attr.Ino
	var made atomic.Int64 // names that are acknowledged
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		f := c.follower(0xb0, dir)
		for n := int64(0); !stop.Load(); n++ {
			if r := f.create(fmt.Sprintf("s%d", n)); r.Error != 0 {
				t.Errorf("create s%d: %v %s", n, fserr.Kind(r.Error), r.Detail)
				return
			}
			made.Store(n + 1)
		}
	})
	var listings, again atomic.Int64
	for i := range 2 {
		wg.Go(func() {
			f := c.follower(base.ClientID(0xc0+i), dir)
			for token := uint64(1); !stop.Load(); token++ {
				before := made.Load()
				seen, tries := f.listMarked(token)
				listings.Add(1)
				again.Add(int64(tries - 1))
				for n := range int64(len(seen)) {
					if name := fmt.Sprintf("s%d", n); seen[name] != 1 {
						t.Errorf("of %d names %s is shown %d times", len(seen), name, seen[name])
						return
					}
				}
				if int64(len(seen)) < before {
					t.Errorf("%d names are shown, %d were acknowledged before", len(seen), before)
					return
				}
			}
		})
	}
	for range 2 {
		one := c.moveNames(1, &canopyv1.StartMoveRequest{Subtree: 1, Dir: dir, ToShard: 2, Lo: half, Hi: shard.BorderEnd}).Into
		two := c.moveNames(1, &canopyv1.StartMoveRequest{Subtree: 1, Dir: dir, ToShard: 1, Lo: quarter, Hi: half}).Into
		c.moveNames(2, &canopyv1.StartMoveRequest{Subtree: one, Dir: dir, ToShard: 1, Lo: half + quarter, Hi: shard.BorderEnd, Into: two})
		c.moveNames(2, &canopyv1.StartMoveRequest{Subtree: one, Dir: dir, ToShard: 1, Lo: half, Hi: half + quarter, Into: two})
		c.moveNames(1, &canopyv1.StartMoveRequest{Subtree: two, Dir: dir, ToShard: 1, Lo: quarter, Hi: shard.BorderEnd, Into: 1})
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("%d names, %d listings, marks taken again %d times", made.Load(), listings.Load(), again.Load())
}
