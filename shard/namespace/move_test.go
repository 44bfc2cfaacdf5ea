package namespace

import (
	"fmt"
	"testing"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

func (s *shards) mustAll(rs ...interface{ GetError() uint32 }) {
	s.t.Helper()
	for i, r := range rs {
		if r.GetError() != 0 {
			s.t.Fatalf("%d: %v", i, fserr.Kind(r.GetError()))
		}
	}
}

// sampleTree makes a tree to move.
func sampleTree(s *shards) {
	s.t.Helper()
	for _, d := range []string{"/a", "/a/b", "/a/b/c", "/a/b/c/d", "/other", "/other/in", "/a/out"} {
		s.mustAll(s.mkdir(d))
	}
	for i := range 20 {
		s.mustAll(s.create(fmt.Sprintf("/a/b/f%d", i)), s.create(fmt.Sprintf("/a/b/c/g%d", i)), s.create(fmt.Sprintf("/other/h%d", i)))
	}
	s.mustAll(s.create("/a/x"), s.create("/x"))
}

func (s *shards) verify() {
	s.t.Helper()
	for _, x := range s.of {
		x.equalAnew()
		s.recount(x)
	}
}

func TestMoveOfACarvedDirectory(t *testing.T) {
	s := newShards(t, 3)
	sampleTree(s)
	before := s.tree()
	for _, to := range []int{2, 3, 1, 3, 2} {
		s.migrate("/a/b", base.ShardID(to), nil)
		if after := s.tree(); after != before {
			t.Fatalf("after the move to shard %d:\n%s\nwant\n%s", to, after, before)
		}
		s.verify()
	}
	t.Log(s.steps)
}

// recount compares the counters of the subtrees that a shard owns with what they
// have.
func (s *shards) recount(x *machineOf) {
	s.t.Helper()
	owned := map[base.SubtreeID]schema.Subtree{}
	if err := eachSubtree(x.kv, x.id, func(id base.SubtreeID, t schema.Subtree) { owned[id] = t }); err != nil {
		s.t.Fatal(err)
	}
	for id, t := range owned {
		if t.State != schema.Active {
			continue
		}
		have, err := countersOf(x.kv, x.id, id)
		if err != nil {
			s.t.Fatal(err)
		}
		var want schema.Counters
		for _, kind := range []schema.Kind{schema.KindHeader, schema.KindDentry, schema.KindInode} {
			lo, hi := schema.KindRange(x.id, id, kind)
			if err := x.kv.Scan(lo, hi, func(key, value []byte) (bool, error) {
				if !schema.IsSelf(key) {
					return true, nil
				}
				switch kind {
				case schema.KindHeader:
					h, err := schema.DecodeHeader(value)
					if err == nil && !h.Removed {
						want.Directories++
					}
					return true, err
				case schema.KindInode:
					n, err := schema.DecodeInode(value)
					want.Files++
					want.Bytes += n.SizeBytes
					return true, err
				}
				n, err := countOf(kind, value)
				want.Files, want.Bytes = want.Files+n.Files, want.Bytes+n.Bytes
				return true, err
			}); err != nil {
				s.t.Fatal(err)
			}
		}
		if have != want {
			s.t.Errorf("shard %v subtree %d: counters %+v, a recount %+v", x.id, id, have, want)
		}
	}
}
