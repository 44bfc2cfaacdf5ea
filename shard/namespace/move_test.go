package namespace

import (
	"fmt"
	"regexp"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/edge"
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
	s.check()
}

// check holds DESIGN section 10 over all shards, as fsck does.
func (s *shards) check() {
	s.t.Helper()
	var edges []edge.Edge
	for _, x := range s.of {
		found, _, err := x.m.CheckEdges(x.kv, nil, func(f Finding) { s.t.Errorf("shard %v: %s %s: %s", x.id, f.Invariant, f.Object, f.Problem) })
		if err != nil {
			s.t.Fatal(err)
		}
		edges = append(edges, found...)
	}
	for _, f := range edge.Join(edges).Findings {
		s.t.Errorf("shard %v: %s inode %v: %s", f.Shard, f.Invariant, f.Ino, f.Problem)
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
		maps := map[base.Ino]shard.FragmentMap{}
		for _, kind := range []schema.Kind{schema.KindHeader, schema.KindDentry, schema.KindInode} {
			lo, hi := schema.KindRange(x.id, id, kind)
			if err := x.kv.Scan(lo, hi, func(key, value []byte) (bool, error) {
				if !schema.IsSelf(key) {
					return true, nil
				}
				switch kind {
				case schema.KindHeader:
					h, err := schema.DecodeHeader(value)
					maps[h.Ino] = h.Fragments
					if err == nil && !h.Removed && h.Fragments.Home() == id { // not what a fragment has of it
						want.Directories++
					}
					return true, err
				case schema.KindInode:
					n, err := schema.DecodeInode(value)
					want.Files++
					want.Bytes += n.SizeBytes
					return true, err
				}
				if dir, at, _ := schema.InoOf(key); !maps[base.Ino(dir)].Has(id, shard.HashOf(base.Cookie(at))) {
					return true, nil // it does not count yet, or not any more
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

// busy does what goes on in and around the tree while it moves: it makes, renames
// and removes, across the border of what moves as far as one subtree allows.
func busy(s *shards, step int) {
	ops := []func(p string) *canopyv1.Result{
		func(p string) *canopyv1.Result { return s.create("/a/b/" + p) },
		func(p string) *canopyv1.Result { return s.mkdir("/a/b/c/" + p) },
		func(p string) *canopyv1.Result { return s.rename("/a/b/c/g1", "/a/b/"+p) },
		func(p string) *canopyv1.Result { return s.rename("/a/b/c/d", "/other/"+p) }, // a member goes
		func(p string) *canopyv1.Result { return s.rename("/other/in", "/a/b/"+p) },  // a stranger comes
		func(p string) *canopyv1.Result { return s.unlink("/a/b/f" + p[1:]) },
		func(p string) *canopyv1.Result { return s.mkdir("/a/b/c/" + p) },
		func(p string) *canopyv1.Result { return s.rmdir("/a/b/c/" + fmt.Sprintf("s%d", step-6)) },
		func(p string) *canopyv1.Result { return s.create("/other/" + p) },
	}
	switch r := ops[step%len(ops)](fmt.Sprintf("s%d", step)); fserr.Kind(r.Error) {
	case fserr.OK, fserr.NotFound, fserr.Stale, fserr.CrossSubtree, fserr.Frozen, fserr.NotEmpty:
	default:
		s.t.Fatalf("step %d: %v", step, fserr.Kind(r.Error))
	}
}

// TestMoveWhileTheTreeIsChanged compares with a shard that gives nothing away and
// does the same operations.
func TestMoveWhileTheTreeIsChanged(t *testing.T) {
	for offset := range 9 {
		s, quiet := newShards(t, 3), newShards(t, 1)
		s.small = true
		sampleTree(s)
		sampleTree(quiet)
		n := 0
		s.migrate("/a/b", 2, func(step int) {
			busy(s, n+offset)
			busy(quiet, n+offset)
			n++
		})
		if got, want := s.tree(), quiet.tree(); stripInos(got) != stripInos(want) {
			t.Fatalf("offset %d, steps %v:\n%s\nwant\n%s", offset, s.steps, got, want)
		}
		s.verify()
	}
}

// stripInos leaves out numbers: two shards give other ones.
func stripInos(tree string) string { return inoText.ReplaceAllString(tree, "") }

var inoText = regexp.MustCompile(` ino=\d+`)

// TestMoveCrashes: a driver that is lost before or after any step, with or without
// its machine, or without the target's, leaves a move that goes on from there.
func TestMoveCrashes(t *testing.T) {
	for _, whole := range []bool{false, true} {
		run := func(crashAt int, after, restartSource, restartTarget bool) int {
			s := newShards(t, 3)
			sampleTree(s)
			s.small = crashAt%2 == 1
			if whole {
				s.migrate("/a/b", 2, nil)
			}
			before := s.tree()
			calls, crashed := 0, false
			s.steps = nil
			s.fault = func(_ string, isAfter bool) error {
				if isAfter == after {
					calls++
				}
				if crashed || isAfter != after || calls != crashAt {
					return nil
				}
				crashed = true
				for id, x := range s.of {
					if restartSource && id != 3 || restartTarget && id == 3 {
						x.load()
					}
				}
				return errCrash
			}
			s.migrate("/a/b", 3, nil)
			if got := s.tree(); got != before {
				t.Fatalf("whole=%v crash at %d after=%v source=%v target=%v, steps %v:\n%s\nwant\n%s", whole, crashAt, after, restartSource, restartTarget, s.steps, got, before)
			}
			s.verify()
			return calls
		}
		n := run(0, false, false, false)
		for crashAt := 1; crashAt <= n; crashAt++ {
			for _, after := range []bool{false, true} {
				run(crashAt, after, false, false)
				run(crashAt, after, true, false)
				run(crashAt, after, true, true)
			}
		}
	}
}

// TestMoveIsCancelled in any phase before the hand-off, and completed after it.
func TestMoveIsCancelled(t *testing.T) {
	for at := 0; ; at++ {
		s := newShards(t, 3)
		sampleTree(s)
		before := s.tree()
		from, subtree, _ := s.begin("/a/b", 2)
		d := s.driver(from, subtree, 2)
		cancelled, refused := false, false
		for step := 0; ; step++ {
			if step == at {
				move := d.Move()
				attempt := uint64(0)
				if err := s.of[from].readMove(subtree, func(a uint64) { attempt = a }); err != nil {
					t.Fatal(err, move)
				}
				if attempt == 0 {
					break
				}
				r := s.of[from].apply(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: &canopyv1.MoveCommand{
					Step: canopyv1.MoveStep_MOVE_CANCEL, Subtree: uint64(subtree), Attempt: attempt}}})[0]
				cancelled, refused = r.Error == 0, fserr.Kind(r.Error) == fserr.Busy
				d = s.driver(from, subtree, 2)
			}
			done, err := d.Step(t.Context())
			if err != nil && fserr.KindOf(err) != fserr.OldEpoch {
				t.Fatal(err)
			}
			if done {
				if step < at {
					return // all phases were seen
				}
				break
			}
		}
		if got := s.tree(); got != before {
			t.Fatalf("cancelled at %d: %v\n%s", at, s.steps, got)
		}
		s.verify()
		if _, in := s.dir("/a/b"); (in == 1) != cancelled || refused == cancelled {
			t.Fatalf("cancelled=%v at step %d, but the directory is in subtree %d", cancelled, at, in)
		}
		if cancelled {
			s.migrate("/a/b", 2, nil)
			s.verify()
		}
	}
}

func (x *machineOf) readMove(subtree base.SubtreeID, fn func(attempt uint64)) error {
	value, found, err := x.kv.Get(schema.MoveKey(x.id, subtree))
	if err != nil || !found {
		return err
	}
	m, err := schema.DecodeMove(value)
	fn(m.Attempt)
	return err
}
