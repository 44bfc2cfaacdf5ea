package namespace

import (
	"errors"
	"math/rand/v2"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/migrate"
	"github.com/canopyfs/canopy/shard/schema"
)

// TestCarveHistories carves a directory while random operations go on in it, around
// it and over its border, with drivers that are lost, machines that start anew, and
// freezes that are undone. The tree is then that of a shard that gave nothing away,
// and the counters of both parts are a recount's.
func TestCarveHistories(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		s, quiet := newShards(t, 3), newShards(t, 1)
		s.small = r.IntN(3) > 0
		for _, x := range []*shards{s, quiet} {
			sampleTree(x)
		}
		from, subtree, begun := s.begin("/a/b", 2)
		if begun.Error != 0 {
			t.Fatal(fserr.Kind(begun.Error))
		}
		d := s.driver(from, subtree, 2)
		crashes := r.IntN(4)
		for done := false; !done; {
			if crashes > 0 && r.IntN(8) == 0 {
				crashes--
				switch r.IntN(4) {
				case 0:
					d = s.driver(from, subtree, 2)
				case 1:
					s.of[1].load()
				case 2:
					s.of[2].load()
				case 3:
					s.now += int64(migrate.FreezeLimit) + 1
				}
			}
			var err error
			if done, err = d.Step(t.Context()); err != nil && fserr.KindOf(err) != fserr.OldEpoch && !errors.Is(err, migrate.ErrWaits) {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if m := d.Move(); m != nil && m.Phase <= schema.MoveCopying {
				for range r.IntN(4) {
					op := randomOp(r)
					if got, want := fserr.Kind(op(s).Error), fserr.Kind(op(quiet).Error); got != want {
						t.Fatalf("seed %d: an operation was answered %v, and %v where nothing moves", seed, got, want)
					}
				}
			}
		}
		if got, want := stripInos(s.tree()), stripInos(quiet.tree()); got != want {
			t.Fatalf("seed %d: steps %v:\n%s\nwant\n%s", seed, s.steps, got, want)
		}
		s.verify()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// historyDirs are where things happen: in what moves, beside it, and above it.
var historyDirs = []string{"/a", "/a/b", "/a/b/c", "/a/b/c/d", "/other", "/other/in", "/a/out", "/a/b/m0", "/a/b/m1", "/other/m0", "/a/b/c/m1"}

func randomOp(r *rand.Rand) func(*shards) *canopyv1.Result {
	path := func(names ...string) string {
		return historyDirs[r.IntN(len(historyDirs))] + "/" + names[r.IntN(len(names))]
	}
	dirs, files := []string{"c", "d", "in", "m0", "m1", "out", "b"}, []string{"f1", "f2", "g1", "h1", "n0", "n1"}
	if r.IntN(2) == 0 {
		dirs = files
	}
	one, two := path(dirs...), path(dirs...)
	in := func(s *shards, path string, op func() *canopyv1.Result) *canopyv1.Result {
		if dir, _ := splitPath(path); dirOf(s, dir) == 0 {
			return &canopyv1.Result{Error: uint32(fserr.NotFound)}
		}
		return op()
	}
	kind := r.IntN(5)
	return func(s *shards) *canopyv1.Result {
		return in(s, one, func() *canopyv1.Result {
			switch kind {
			case 0:
				return s.mkdir(one)
			case 1:
				return s.create(one)
			case 2:
				return s.unlink(one)
			case 3:
				if one == "/a/b" {
					return &canopyv1.Result{} // it would end the move
				}
				return s.rmdir(one)
			}
			return in(s, two, func() *canopyv1.Result { return s.rename(one, two) })
		})
	}
}

// TestCarveEndsWithItsRoot: who removes the directory cancels the move.
func TestCarveEndsWithItsRoot(t *testing.T) {
	s := newShards(t, 2)
	s.mustAll(s.mkdir("/d"), s.mkdir("/d/e"))
	from, subtree, _ := s.begin("/d", 2)
	d := s.driver(from, subtree, 2)
	for m := d.Move(); m == nil || m.Phase != schema.MoveCopying; m = d.Move() {
		if _, err := d.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.mustAll(s.rmdir("/d/e"), s.rmdir("/d"))
	for done := false; !done; {
		var err error
		if done, err = d.Step(t.Context()); err != nil && fserr.KindOf(err) != fserr.OldEpoch {
			t.Fatal(err)
		}
	}
	if m := d.Move(); m.Phase != schema.MoveCancelling {
		t.Errorf("it ended as %v", m)
	}
	forwards := 0
	lo, hi := schema.KindRange(1, 1, schema.KindForward)
	if err := s.of[1].kv.Scan(lo, hi, func(_, _ []byte) (bool, error) { forwards++; return true, nil }); err != nil || forwards > 0 {
		t.Errorf("%d marks are left, %v", forwards, err)
	}
	s.verify()
}
