package namespace

import (
	"fmt"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

const half, quarter = shard.BorderEnd / 2, shard.BorderEnd / 4

// TestSplitAndMerge: a directory's names lie in several subtrees, and then in one
// again; nothing of it can be seen but who answers.
func TestSplitAndMerge(t *testing.T) {
	for _, small := range []bool{false, true} {
		s := newShards(t, 3)
		s.small = small
		sampleTree(s)
		dir, home := s.dir("/a/b")
		before, version := s.tree(), s.stat(dir, home).Version
		for range 2 {
			s.split("/a/b", half, shard.BorderEnd, 2)
			s.split("/a/b", half+quarter, shard.BorderEnd, 3) // out of the one at shard 2
			s.split("/a/b", quarter, half, 1)                 // at the same shard
			if m := s.fragments(dir); len(m) != 4 {
				t.Fatalf("it is in %v", m)
			}
			if after := s.tree(); after != before {
				t.Fatalf("split: %s\n%s\nwant\n%s", s.describe("/a/b"), after, before)
			}
			s.verify()
			last := nameFrom(half + quarter) // of the last fragment
			s.mustAll(s.create("/a/b/"+last), s.unlink("/a/b/"+last))
			s.merge("/a/b")
			if m := s.fragments(dir); len(m) != 1 || uint64(m.Home()) != home {
				t.Fatalf("merged, it is in %v", m)
			}
			if after := s.tree(); after != before {
				t.Fatalf("merged:\n%s\nwant\n%s", after, before)
			}
			s.verify()
			if now := s.stat(dir, home).Version; now != version+2 {
				t.Errorf("version %d, want %d", now, version+2)
			}
			version += 2
		}
	}
}

// TestMergedSubtreesMove: a subtree moves whose names were merged away, with the
// directories that were made in it, and is none that would be left behind for ever.
func TestMergedSubtreesMove(t *testing.T) {
	s := newShards(t, 3)
	sampleTree(s)
	dir, _ := s.dir("/a/b")
	one := s.split("/a/b", half, shard.BorderEnd, 2)
	made := "/a/b/" + nameFrom(half)
	s.mustAll(s.mkdir(made), s.create(made+"/f"))
	if _, in := s.dir(made); base.SubtreeID(in) != one {
		t.Fatalf("%s is in subtree %v", made, in)
	}
	s.merge("/a/b")
	before := s.tree()
	for _, to := range []base.ShardID{3, 1, 2} {
		delete(s.where, one)
		from := s.owner(one)
		r := s.of[from].apply(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: &canopyv1.MoveCommand{
			Step: canopyv1.MoveStep_MOVE_BEGIN, Subtree: uint64(one), Dir: dir, ToShard: uint64(to)}}})[0]
		if r.Error != 0 {
			t.Fatalf("to shard %v: %v %s", to, fserr.Kind(r.Error), r.Detail)
		}
		s.drive(from, one, to, nil)
		if now := s.tree(); now != before {
			t.Fatalf("at shard %v:\n%s\nwant\n%s", to, now, before)
		}
		s.mustAll(s.create(made+"/g"), s.unlink(made+"/g"), s.create("/a/b/"+nameFrom(half)+"x"), s.unlink("/a/b/"+nameFrom(half)+"x"))
		s.verify()
	}
	s.split("/a/b", half, shard.BorderEnd, 3)
	s.verify()
}

// nameFrom returns a name whose border hash is lo or more.
func nameFrom(lo uint32) string {
	for n := 0; ; n++ {
		if name := fmt.Sprint("n", n); shard.NameHash([]byte(name)).Border() >= lo {
			return name
		}
	}
}

// TestNamesThatMoveAreRefused: what cannot be moved is refused, in words.
func TestNamesThatMoveAreRefused(t *testing.T) {
	s := newShards(t, 3)
	sampleTree(s)
	is := func(what string, m rangeMove, want fserr.Kind) {
		t.Helper()
		if r := s.beginNames(&m); fserr.Kind(r.Error) != want || want != fserr.Malformed && r.Detail == "" {
			t.Errorf("%s: %v %q, want %v", what, fserr.Kind(r.Error), r.Detail, want)
		}
	}
	is("the first names", rangeMove{path: "/a/b", lo: 0, hi: half, to: 2}, fserr.Invalid)
	is("no names", rangeMove{path: "/a/b", lo: half, hi: half, to: 2}, fserr.Malformed)
	is("behind the last", rangeMove{path: "/a/b", lo: half, hi: shard.BorderEnd + 1, to: 2}, fserr.Malformed)
	one := s.split("/a/b", half, shard.BorderEnd, 2)
	is("of two fragments", rangeMove{path: "/a/b", lo: quarter, hi: half + 1, to: 3}, fserr.Moved)
	is("into itself", rangeMove{path: "/a/b", lo: half, hi: half + 1, into: one}, fserr.Invalid)
	if _, _, r := s.begin("/a/b", 3); fserr.Kind(r.Error) != fserr.NotSupported || r.Detail == "" {
		t.Errorf("a carve of a split directory: %v %s", fserr.Kind(r.Error), r.Detail)
	}
	if r := s.setQuota("/a"); fserr.Kind(r.Error) != fserr.NotSupported {
		t.Errorf("a quota above a split directory: %v %s", fserr.Kind(r.Error), r.Detail)
	}
	m := rangeMove{path: "/a/b", lo: quarter, hi: half, to: 2}
	first, again := s.beginNames(&m), s.beginNames(&m)
	if first.Error != 0 || again.Error != 0 || again.Move.GetInto() != first.Move.GetInto() {
		t.Errorf("repeated: %v, %v", first, again)
	}
	is("while another runs", rangeMove{path: "/a/b", lo: quarter, hi: half - 1, to: 2}, fserr.Busy)

	s = newShards(t, 2)
	sampleTree(s)
	s.mustAll(s.setQuota("/a/b/c"))
	is("with a quota below", rangeMove{path: "/a/b", lo: half, hi: shard.BorderEnd, to: 2}, fserr.NotSupported)
	is("with a quota on it", rangeMove{path: "/a/b/c", lo: half, hi: shard.BorderEnd, to: 2}, fserr.NotSupported)
	is("with a quota above", rangeMove{path: "/a/b/c/d", lo: half, hi: shard.BorderEnd, to: 2}, fserr.NotSupported)
}

func (s *shards) setQuota(path string) *canopyv1.Result {
	dir, subtree := s.dir(path)
	return s.do(&canopyv1.Op{Subtree: subtree, Call: &canopyv1.Op_SetQuota{SetQuota: &canopyv1.SetQuotaCall{Dir: dir, MaxInodes: 1000}}})
}

// joinsAndSplits are moves of names of /a/b, from what prepare makes: to another
// shard and to the same, into a new subtree and into others.
var joinsAndSplits = map[string]struct {
	prepare func(*shards)
	move    func(*shards) rangeMove
}{
	"split":              {func(*shards) {}, func(*shards) rangeMove { return rangeMove{path: "/a/b", lo: half, hi: shard.BorderEnd, to: 2} }},
	"split at the shard": {func(*shards) {}, func(*shards) rangeMove { return rangeMove{path: "/a/b", lo: quarter, hi: half, to: 1} }},
	"split of a fragment": {func(s *shards) { s.split("/a/b", half, shard.BorderEnd, 2) }, func(*shards) rangeMove {
		return rangeMove{path: "/a/b", lo: half + quarter, hi: shard.BorderEnd, to: 3}
	}},
	"merge": {func(s *shards) { s.split("/a/b", half, shard.BorderEnd, 2) }, func(*shards) rangeMove {
		return rangeMove{path: "/a/b", lo: half, hi: shard.BorderEnd, into: 1}
	}},
	"merge at the shard": {func(s *shards) { s.split("/a/b", half, shard.BorderEnd, 1) }, func(*shards) rangeMove {
		return rangeMove{path: "/a/b", lo: half, hi: shard.BorderEnd, into: 1}
	}},
	"merge of a part": {func(s *shards) { s.split("/a/b", quarter, shard.BorderEnd, 2); s.split("/a/b", half, half+quarter, 3) }, func(s *shards) rangeMove {
		return rangeMove{path: "/a/b", lo: half + quarter, hi: shard.BorderEnd, into: s.fragments(dirOf(s, "/a/b")).Find(shard.Hash(half) << shard.FullBits).Subtree}
	}},
}

// TestMovesOfNamesCrash: a driver that is lost before or after any step, with or
// without its machine or the target's, leaves a move that goes on from there
// (PROTOCOLS E2).
func TestMovesOfNamesCrash(t *testing.T) {
	for name, what := range joinsAndSplits {
		run := func(crashAt int, after, restartSource, restartTarget bool) int {
			s := newShards(t, 3)
			sampleTree(s)
			s.small = crashAt%2 == 1
			what.prepare(s)
			before := s.tree()
			m := what.move(s)
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
					if restartSource && id != m.to || restartTarget {
						x.load()
					}
				}
				return errCrash
			}
			s.moveNames(m, nil)
			if got := s.tree(); got != before {
				t.Fatalf("%s: crash at %d after=%v source=%v target=%v, steps %v:\n%s\nwant\n%s", name, crashAt, after, restartSource, restartTarget, s.steps, got, before)
			}
			s.verify()
			if t.Failed() {
				t.Fatalf("%s: crash at %d after=%v source=%v target=%v, steps %v", name, crashAt, after, restartSource, restartTarget, s.steps)
			}
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

// TestMovesOfNamesAreCancelled in any phase before the hand-off, and completed after it.
func TestMovesOfNamesAreCancelled(t *testing.T) {
	for name, what := range joinsAndSplits {
		for at, seen := 0, false; !seen; at++ {
			s := newShards(t, 3)
			sampleTree(s)
			what.prepare(s)
			before, was := s.tree(), s.describe("/a/b")
			m := what.move(s)
			if r := s.beginNames(&m); r.Error != 0 {
				t.Fatal(name, fserr.Kind(r.Error), r.Detail)
			}
			d := s.driver(m.from, m.of, m.to)
			cancelled, refused := false, false
			for step := 0; ; step++ {
				if step == at {
					attempt := uint64(0)
					if err := s.of[m.from].readMove(m.of, func(a uint64) { attempt = a }); err != nil {
						t.Fatal(err)
					}
					r := s.of[m.from].apply(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: &canopyv1.MoveCommand{
						Step: canopyv1.MoveStep_MOVE_CANCEL, Subtree: uint64(m.of), Attempt: attempt}}})[0]
					cancelled, refused = r.Error == 0, fserr.Kind(r.Error) == fserr.Busy
					d = s.driver(m.from, m.of, m.to)
				}
				done, err := d.Step(t.Context())
				if err != nil && fserr.KindOf(err) != fserr.OldEpoch {
					t.Fatal(err)
				}
				if done {
					seen = step < at
					break
				}
			}
			if seen {
				break // all phases were
			}
			if got := s.tree(); got != before {
				t.Fatalf("%s cancelled at %d: %v\n%s\nwant\n%s", name, at, s.steps, got, before)
			}
			s.verify()
			if now := s.describe("/a/b"); (now == was) != cancelled || refused == cancelled {
				t.Fatalf("%s: cancelled=%v at step %d, but the directory is in %s", name, cancelled, at, now)
			}
			if cancelled {
				s.moveNames(m, nil)
				s.verify()
			}
			if t.Failed() {
				t.Fatalf("%s: cancelled at %d: %v", name, at, s.steps)
			}
		}
	}
}

// TestStepsOfMovesOfNamesComeTwice: each step is done twice, and then comes again
// under another attempt, which is refused (PROTOCOLS E1, E2).
func TestStepsOfMovesOfNamesComeTwice(t *testing.T) {
	for name, what := range joinsAndSplits {
		s := newShards(t, 3)
		sampleTree(s)
		s.small = true
		what.prepare(s)
		before := s.tree()
		m := what.move(s)
		if r := s.beginNames(&m); r.Error != 0 {
			t.Fatal(name, fserr.Kind(r.Error), r.Detail)
		}
		d := s.driver(m.from, m.of, m.to)
		s.twice = true
		for done := false; !done; {
			var err error
			if done, err = d.Step(t.Context()); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		s.twice = false
		if got := s.tree(); got != before {
			t.Fatalf("%s: %v\n%s\nwant\n%s", name, s.steps, got, before)
		}
		s.verify()
	}
}

// TestRepeatsFindTheirFirstResult: over splits and merges (PROTOCOLS C2, C5).
func TestRepeatsFindTheirFirstResult(t *testing.T) {
	s := newShards(t, 3)
	sampleTree(s)
	dir, _ := s.dir("/a/b")
	s.of[1].must(&canopyv1.Command{Client: 0xb2, Op: &canopyv1.Op{Seq: 1, Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{}}}})
	var sent []*canopyv1.Op
	var first []*canopyv1.Result
	seq := uint64(1)
	make := func(n int) {
		for range n {
			seq++
			name := []byte(fmt.Sprint("once", seq))
			op := &canopyv1.Op{Seq: seq, Subtree: uint64(s.fragments(dir).Find(shard.NameHash(name)).Subtree), Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_Create{
				Create: &canopyv1.CreateCall{Dir: dir, Name: name, Mode: 0o644, Exclusive: true}}}
			sent = append(sent, op)
			delete(s.where, base.SubtreeID(op.Subtree))
			first = append(first, s.of[s.owner(base.SubtreeID(op.Subtree))].must(&canopyv1.Command{Client: 0xb2, Floor: seq - min(seq-1, 20), Op: op}))
		}
	}
	repeat := func(when string) {
		t.Helper()
		for i, op := range sent {
			op.Subtree = uint64(s.fragments(dir).Find(shard.NameHash(op.GetCreate().Name)).Subtree)
			delete(s.where, base.SubtreeID(op.Subtree))
			r := s.of[s.owner(base.SubtreeID(op.Subtree))].apply(&canopyv1.Command{Client: 0xb2, Floor: 1, Op: op})[0]
			switch kind := fserr.Kind(r.Error); {
			case kind == fserr.BelowFloor && op.Seq+20 < seq: // the client has said that it has the answer
			case kind != fserr.OK || r.Attr.GetIno() != first[i].Attr.GetIno():
				t.Errorf("%s: request %d got %v %v, want inode %d", when, op.Seq, kind, r.Attr, first[i].Attr.GetIno())
			}
		}
		s.verify()
	}
	make(12)
	s.split("/a/b", half, shard.BorderEnd, 2)
	repeat("after a split")
	make(12)
	s.split("/a/b", half+quarter, shard.BorderEnd, 3)
	repeat("after another split")
	make(12)
	s.merge("/a/b")
	repeat("merged")
	s.split("/a/b", quarter, shard.BorderEnd, 2)
	make(6)
	repeat("after the next split")
	s.merge("/a/b")
	repeat("merged again")
}

// TestFilesKeepLocksAndAppends over splits and merges, cancelled or not: what workers
// come by and what counts locks follows the file (PROTOCOLS E5).
func TestFilesKeepLocksAndAppends(t *testing.T) {
	s := newShards(t, 3)
	sampleTree(s)
	dir, _ := s.dir("/a/b")
	for _, x := range s.of {
		x.must(&canopyv1.Command{Client: 0xb2, Op: &canopyv1.Op{Seq: 500, Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{}}}})
	}
	seq := uint64(500)
	const files = 12
	place := func(i int) *canopyv1.Place { return &canopyv1.Place{Dir: dir, Name: []byte(fmt.Sprint("f", i))} }
	at := func(i int) uint64 { return uint64(s.fragments(dir).Find(shard.NameHash(place(i).Name)).Subtree) }
	lock := func(i int, unlock bool) *canopyv1.Result {
		seq++
		op := &canopyv1.Op{Seq: seq, Subtree: at(i), Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_SetLock{SetLock: &canopyv1.SetLockCall{Place: place(i), Unlock: unlock,
			Lock: &canopyv1.Lock{Client: 0xb2, Owner: 1, Kind: canopyv1.LockKind_LOCK_POSIX, Exclusive: true, Last: 9}}}}
		delete(s.where, base.SubtreeID(op.Subtree))
		return s.of[s.owner(base.SubtreeID(op.Subtree))].apply(&canopyv1.Command{Client: 0xb2, Floor: 1, Op: op})[0]
	}
	for i := range files {
		s.mustAll(lock(i, false), s.do(&canopyv1.Op{Subtree: at(i), Call: &canopyv1.Op_ReserveAppend{ReserveAppend: &canopyv1.ReserveAppendCall{Place: place(i), Length: 10}}}))
	}
	holds := func(when string) {
		t.Helper()
		for i := range files {
			r := s.do(&canopyv1.Op{Subtree: at(i), Call: &canopyv1.Op_SetLock{SetLock: &canopyv1.SetLockCall{Place: place(i),
				Lock: &canopyv1.Lock{Client: 0xa1, Owner: 1, Kind: canopyv1.LockKind_LOCK_POSIX, Exclusive: true, Last: 9}}}})
			if fserr.Kind(r.Error) != fserr.WouldBlock {
				t.Errorf("%s: a lock of f%d that another has: %v", when, i, fserr.Kind(r.Error))
			}
		}
		counts, rows := 0, map[schema.Kind]int{}
		for _, x := range s.of {
			for _, sub := range x.m.subtrees {
				counts += sub.locked[0xb2]
			}
			for _, id := range x.active() {
				for _, kind := range []schema.Kind{schema.KindLockClient, schema.KindLocked, schema.KindAppend} {
					lo, hi := schema.KindRange(x.id, id, kind)
					if err := x.kv.Scan(lo, hi, func(_, _ []byte) (bool, error) { rows[kind]++; return true, nil }); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if counts != files || rows[schema.KindLockClient] != files || rows[schema.KindLocked] != files || rows[schema.KindAppend] != files {
			t.Errorf("%s: %d locked files are counted, rows %v, want %d", when, counts, rows, files)
		}
		s.verify()
	}
	holds("at first")
	one := s.split("/a/b", half, shard.BorderEnd, 2)
	holds("split")
	s.split("/a/b", half+quarter, shard.BorderEnd, 3)
	holds("split again")
	m := rangeMove{path: "/a/b", lo: half + quarter, hi: shard.BorderEnd, into: one}
	s.untilNames(&m, "MOVE_HAND_OFF")
	s.of[m.to].load()
	s.cancelNames(m)
	holds("after a merge that was cancelled")
	s.merge("/a/b")
	holds("merged")
	for i := range files {
		s.mustAll(lock(i, true), s.do(&canopyv1.Op{Subtree: at(i), Call: &canopyv1.Op_FillAppend{FillAppend: &canopyv1.FillAppendCall{Place: place(i), Length: 10, SizeEpoch: 1}}}))
	}
	s.verify()
}

// untilNames begins a move of names and drives it until a step is about to be done.
func (s *shards) untilNames(m *rangeMove, stop string) {
	s.t.Helper()
	if r := s.beginNames(m); r.Error != 0 {
		s.t.Fatal(fserr.Kind(r.Error), r.Detail)
	}
	d := s.driver(m.from, m.of, m.to)
	reached := false
	s.fault = func(step string, after bool) error {
		if reached = reached || step == stop && !after; reached {
			return errCrash
		}
		return nil
	}
	for !reached {
		if _, err := d.Step(s.t.Context()); err != nil && !reached {
			s.t.Fatal(err)
		}
	}
	s.fault = nil
}

func (s *shards) cancelNames(m rangeMove) {
	s.t.Helper()
	attempt := uint64(0)
	if err := s.of[m.from].readMove(m.of, func(a uint64) { attempt = a }); err != nil {
		s.t.Fatal(err)
	}
	s.of[m.from].must(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: &canopyv1.MoveCommand{
		Step: canopyv1.MoveStep_MOVE_CANCEL, Subtree: uint64(m.of), Attempt: attempt}}})
	s.finish(m)
}

// finish drives a move to its end.
func (s *shards) finish(m rangeMove) *schema.Move {
	s.t.Helper()
	d := s.driver(m.from, m.of, m.to)
	for {
		done, err := d.Step(s.t.Context())
		if err != nil && fserr.KindOf(err) != fserr.OldEpoch {
			s.t.Fatal(err)
		}
		if done {
			return d.Move()
		}
	}
}

// TestNothingHiddenIsFound: a file is addressed by its name, which is found without a
// look at the directory's header, in every phase of a move, at both ends: where it does
// not count it is not found (PROTOCOLS E2, E3).
func TestNothingHiddenIsFound(t *testing.T) {
	for _, name := range []string{"split", "merge"} {
		what := joinsAndSplits[name]
		s := newShards(t, 3)
		sampleTree(s)
		what.prepare(s)
		m := what.move(s)
		dir, _ := s.dir("/a/b")
		phases := 0
		s.fault = func(_ string, after bool) error {
			if !after {
				return nil
			}
			for id, h := range s.headers(dir) {
				for i := range 20 {
					file := fmt.Sprint("f", i)
					x := s.of[s.owner(id)]
					r := x.m.Query(x.kv, &canopyv1.Op{Subtree: uint64(id), Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_GetAttr{
						GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Dir: dir, Name: []byte(file)}}}})
					want := fserr.Moved
					if h.Fragments.Has(id, shard.NameHash([]byte(file))) {
						want = fserr.OK
					}
					if kind := fserr.Kind(r.Error); kind != want {
						t.Errorf("%s: after %v: %s in subtree %d: %v, want %v", name, s.steps[len(s.steps)-1], file, id, kind, want)
					}
				}
			}
			phases++
			return nil
		}
		s.moveNames(m, nil)
		s.fault = nil
		if phases < 8 {
			t.Errorf("%d steps", phases)
		}
	}
}
