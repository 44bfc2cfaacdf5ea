package namespace

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/migrate"
	"github.com/canopyfs/canopy/shard/schema"
)

// namesHistory runs random operations while directories are split and merged.
type namesHistory struct {
	t        *testing.T
	r        *rand.Rand
	s, quiet *shards
	moves    []*runningMove
	sent     []sentOp
	did      map[string]int
}

// runningMove is a move of names and who drives it.
type runningMove struct {
	rangeMove
	d *migrate.Driver
}

// sentOp is a request with its answer, and the name that it is addressed by.
type sentOp struct {
	op     *canopyv1.Op
	dir    uint64
	name   []byte
	answer *canopyv1.Result
}

// TestNamesHistories splits and merges directories, two at a time, over three shards,
// with drivers that are lost, machines that start anew, moves that are cancelled and
// freezes that are undone, while random operations go on in them. Each operation has
// the answer that it has on a shard where nothing moves; a request that comes again
// has its first one; the trees are the same, and counters are a recount's.
func TestNamesHistories(t *testing.T) {
	did := map[string]int{}
	for seed := range uint64(50) {
		h := &namesHistory{t: t, r: rand.New(rand.NewPCG(seed, 2)), s: newShards(t, 3), quiet: newShards(t, 1), did: did}
		h.s.small = h.r.IntN(3) > 0
		for _, x := range []*shards{h.s, h.quiet} {
			sampleTree(x)
		}
		for range 300 {
			h.step()
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		for len(h.moves) > 0 {
			h.drive(0)
		}
		for range 10 {
			h.repeat()
		}
		if got, want := stripInos(h.s.tree()), stripInos(h.quiet.tree()); got != want {
			t.Fatalf("seed %d: steps %v:\n%s\nwant\n%s", seed, h.s.steps, got, want)
		}
		h.s.verify()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for _, what := range []string{"split", "merge", "moved", "cancelled", "refused", "crash", "repeat", "waits"} {
		if did[what] == 0 {
			t.Errorf("%q never happened: %v", what, did)
		}
	}
	t.Log(did)
}

func (h *namesHistory) step() {
	switch n := h.r.IntN(12); {
	case n < 2 && len(h.moves) < 2:
		h.begin()
	case n < 6 && len(h.moves) > 0:
		for range 1 + h.r.IntN(8) {
			if len(h.moves) > 0 {
				h.drive(h.r.IntN(len(h.moves)))
			}
		}
	case n == 6 && h.r.IntN(3) == 0:
		h.crash()
	case n == 7:
		h.repeat()
	default:
		h.operate()
	}
}

// begin begins to move a random part of a random fragment of a directory.
func (h *namesHistory) begin() {
	path := []string{"/a/b", "/a/b", "/a/b", "/a", "/other"}[h.r.IntN(5)]
	dir, _ := h.s.dir(path)
	if dir == 0 || !h.settled(dir) {
		return
	}
	m := h.s.fragments(dir)
	i := h.r.IntN(len(m))
	own := m.Range(i)
	names := own
	if i == 0 || h.r.IntN(2) == 0 { // a part of it
		names.Lo = own.Lo + 1 + h.r.Uint32N(own.Hi-own.Lo-1)
	}
	if h.r.IntN(4) == 0 {
		names.Hi -= h.r.Uint32N(names.Hi - names.Lo)
	}
	move := rangeMove{path: path, lo: names.Lo, hi: names.Hi, to: base.ShardID(1 + h.r.IntN(3))}
	if h.r.IntN(2) == 0 { // into a fragment that there is
		to := m[h.r.IntN(len(m))].Subtree
		if to == m[i].Subtree {
			return
		}
		move.into = to
	}
	same := func(o *runningMove) bool { return o.of == m[i].Subtree }
	if r := h.s.beginNames(&move); r.Error != 0 || slices.ContainsFunc(h.moves, same) {
		h.did["refused"]++
		return
	}
	if move.into != 0 {
		h.did["merge"]++
	} else {
		h.did["split"]++
	}
	h.moves = append(h.moves, &runningMove{move, h.driver(move)})
}

func (h *namesHistory) driver(m rangeMove) *migrate.Driver { return h.s.driver(m.from, m.of, m.to) }

// settled reports whether every name of a directory has an owner: between hand-off and
// activation some have none.
func (h *namesHistory) settled(dir uint64) bool {
	covered := uint64(0)
	for id, head := range h.s.headers(dir) {
		for _, r := range head.Fragments.In(id) {
			covered += uint64(r.Hi - r.Lo)
		}
	}
	return covered == uint64(shard.BorderEnd)
}

// between reports whether some names have no owner just now, or their subtree is frozen.
func (h *namesHistory) between() bool {
	return slices.ContainsFunc(h.moves, func(m *runningMove) bool {
		phase := schema.MovePhase(0)
		value, found, err := h.s.of[m.from].kv.Get(schema.MoveKey(m.from, m.of))
		if err != nil {
			h.t.Fatal(err)
		}
		if found {
			at, err := schema.DecodeMove(value)
			if err != nil {
				h.t.Fatal(err)
			}
			phase = at.Phase
		}
		return phase == schema.MoveFrozen || phase == schema.MoveHandedOff
	})
}

func (h *namesHistory) drive(i int) {
	m := h.moves[i]
	done, err := m.d.Step(h.t.Context())
	switch kind := fserr.KindOf(err); {
	case kind == fserr.Busy: // the fragment that they join moves itself
		h.did["waits"]++
		h.s.now += int64(migrate.JoinLimit) / 4
	case err != nil && kind != fserr.OldEpoch && !errors.Is(err, migrate.ErrWaits):
		h.t.Fatalf("move %+v: %v", m.rangeMove, err)
	}
	if done {
		h.moves = slices.Delete(h.moves, i, i+1)
		if at := m.d.Move(); at != nil && at.Phase == schema.MoveCancelling {
			h.did["cancelled"]++
		} else {
			h.did["moved"]++
		}
	}
}

// crash loses drivers or machines, undoes a freeze, or cancels a move.
func (h *namesHistory) crash() {
	h.did["crash"]++
	if len(h.moves) == 0 || h.r.IntN(3) == 0 {
		h.s.of[base.ShardID(1+h.r.IntN(3))].load()
		return
	}
	m := h.moves[h.r.IntN(len(h.moves))]
	switch h.r.IntN(10) {
	case 0:
		h.s.now += int64(migrate.FreezeLimit) + 1
	case 1:
		attempt := uint64(0)
		if err := h.s.of[m.from].readMove(m.of, func(a uint64) { attempt = a }); err != nil {
			h.t.Fatal(err)
		}
		h.s.of[m.from].apply(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: &canopyv1.MoveCommand{
			Step: canopyv1.MoveStep_MOVE_CANCEL, Subtree: uint64(m.of), Attempt: attempt}}})
	default:
		m.d = h.driver(m.rangeMove)
	}
}

// operate runs a random operation on both sides. What would take a transaction, where
// names are in several subtrees, is left out.
func (h *namesHistory) operate() {
	if h.between() {
		return
	}
	op := randomOp(h.r)
	var sent *canopyv1.Op
	h.s.observe = func(op *canopyv1.Op) { sent = op }
	got := op(h.s)
	h.s.observe = nil
	switch fserr.Kind(got.Error) {
	case fserr.CrossSubtree, fserr.Frozen:
		return
	}
	if want := fserr.Kind(op(h.quiet).Error); fserr.Kind(got.Error) != want {
		h.t.Errorf("an operation was answered %v, and %v where nothing moves: %v", fserr.Kind(got.Error), want, sent)
	}
	if sent != nil {
		h.sent = append(h.sent, sentOp{sent, sent.Dir(), sent.Name(), got})
	}
	if h.r.IntN(40) == 0 {
		for _, x := range h.s.of {
			h.s.recount(x)
		}
	}
}

// repeat sends a request again, to whoever owns its name now (PROTOCOLS C2, C5).
func (h *namesHistory) repeat() {
	if len(h.sent) == 0 || h.between() {
		return
	}
	x := h.sent[h.r.IntN(len(h.sent))]
	heads := h.s.headers(x.dir)
	if len(heads) == 0 {
		return // the directory is gone
	}
	if !h.settled(x.dir) {
		return
	}
	h.did["repeat"]++
	x.op.Subtree = uint64(h.s.fragments(x.dir).Find(shard.NameHash(x.name)).Subtree)
	delete(h.s.where, base.SubtreeID(x.op.Subtree))
	again := h.s.do(x.op)
	if again.Error != x.answer.Error || again.Attr.GetIno() != x.answer.Attr.GetIno() {
		h.t.Errorf("request %v, again: %v %v, at first %v %v", x.op, fserr.Kind(again.Error), again.Attr, fserr.Kind(x.answer.Error), x.answer.Attr)
	}
}

// TestJoinsExcludeMoves: while names come into a subtree it does not move, and where it
// moves none come, for a while.
func TestJoinsExcludeMoves(t *testing.T) {
	s := newShards(t, 3)
	sampleTree(s)
	one := s.split("/a/b", half, shard.BorderEnd, 2)
	m := rangeMove{path: "/a/b", lo: quarter, hi: half, into: one}
	s.untilNames(&m, "MOVE_FREEZE")
	dir, _ := s.dir("/a/b")
	begin := &canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_BEGIN, Subtree: uint64(one), Dir: dir, ToShard: 3}
	if r := s.of[2].apply(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: begin}})[0]; fserr.Kind(r.Error) != fserr.Busy || r.Detail == "" {
		t.Errorf("the subtree moves while names come into it: %v %s", fserr.Kind(r.Error), r.Detail)
	}
	s.of[2].load()
	if r := s.of[2].apply(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: begin}})[0]; fserr.Kind(r.Error) != fserr.Busy {
		t.Errorf("after a restart: %v", fserr.Kind(r.Error))
	}
	s.finish(m)
	s.verify()

	s.of[2].must(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: begin}})
	m = rangeMove{path: "/a/b", lo: quarter / 2, hi: quarter, into: one}
	if r := s.beginNames(&m); r.Error != 0 {
		t.Fatal(fserr.Kind(r.Error), r.Detail)
	}
	d := s.driver(m.from, m.of, m.to)
	waits := 0
	for done := false; !done; {
		var err error
		if done, err = d.Step(t.Context()); fserr.KindOf(err) == fserr.Busy {
			waits++
			s.now += int64(migrate.JoinLimit) / 10
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if d.Move().Phase != schema.MoveCancelling || waits < 5 || d.Progress().Refused == "" {
		t.Errorf("it ended as %v after %d tries: %s", d.Move().Phase, waits, d.Progress().Refused)
	}
	s.verify()
}

// TestNamesEndWithTheirDirectory: who removes a directory cancels the move of its
// names; what had come of them goes.
func TestNamesEndWithTheirDirectory(t *testing.T) {
	s := newShards(t, 2)
	s.mustAll(s.mkdir("/d"), s.create("/d/f"))
	m := rangeMove{path: "/d", lo: half, hi: shard.BorderEnd, to: 2}
	s.untilNames(&m, "MOVE_FREEZE")
	s.mustAll(s.unlink("/d/f"), s.rmdir("/d"))
	if at := s.finish(m); at.Phase != schema.MoveCancelling {
		t.Errorf("it ended as %v", at.Phase)
	}
	if left := s.of[2].active(); len(left) > 0 {
		t.Errorf("shard 2 has %v", left)
	}
	s.verify()
}

// TestNothingHiddenCounts: in every phase a check of each shard by itself finds nothing
// wrong in what is stored and does not count, a name is found where its directory says,
// and a listing has it once.
func TestNothingHiddenCounts(t *testing.T) {
	for name, what := range joinsAndSplits {
		s := newShards(t, 3)
		sampleTree(s)
		s.small = true
		what.prepare(s)
		before := s.tree()
		m := what.move(s)
		looks := 0
		s.fault = func(step string, after bool) error {
			if !after {
				return nil
			}
			for id, x := range s.of {
				_, _, err := x.m.CheckEdges(x.kv, nil, func(f Finding) {
					t.Errorf("%s: after %s: shard %v: %s %s: %s", name, step, id, f.Invariant, f.Object, f.Problem)
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			if step != "MOVE_HAND_OFF" { // until the activation nobody has them
				looks++
				if got := s.tree(); got != before {
					t.Errorf("%s: after %s:\n%s\nwant\n%s", name, step, got, before)
				}
			}
			return nil
		}
		s.moveNames(m, nil)
		s.fault = nil
		if looks < 5 {
			t.Error(fmt.Sprint(looks), "looks")
		}
	}
}

// TestJoinTakesNothingElse: an import of names that come into a subtree which serves
// writes nothing there but what belongs to them (PROTOCOLS E1, A1).
func TestJoinTakesNothingElse(t *testing.T) {
	s := newShards(t, 2)
	sampleTree(s)
	s.split("/a/b", half, shard.BorderEnd, 2)
	dir, _ := s.dir("/a/b")
	m := rangeMove{path: "/a/b", lo: half + quarter, hi: shard.BorderEnd, into: 1}
	s.untilNames(&m, "IMPORT_BATCH")
	attempt := uint64(0)
	if err := s.of[2].readMove(m.of, func(a uint64) { attempt = a }); err != nil {
		t.Fatal(err)
	}
	x := s.of[1]
	value, found, err := x.kv.Get(schema.HeaderKey(1, 1, base.Ino(dir)))
	if err != nil || !found {
		t.Fatal(err)
	}
	inside, outside := base.Cookie(0), base.Cookie(0)
	for n := 0; inside == 0 || outside == 0; n++ {
		if h := shard.NameHash([]byte(fmt.Sprint(n))); h.Border() >= m.lo {
			inside = h.Cookie(0)
		} else {
			outside = h.Cookie(0)
		}
	}
	other := &schema.Locator{Dir: base.Ino(dir) + 1, Name: []byte("f")}
	for _, row := range []*canopyv1.ImportRow{
		{Key: schema.Suffix(schema.DentryKey(1, 1, base.Ino(dir), outside)), Value: []byte{1}},
		{Key: schema.Suffix(schema.DentryKey(1, 1, base.Ino(dir)+1, inside)), Value: []byte{1}},
		{Key: schema.Suffix(schema.DentryKey(1, 1, base.Ino(dir), inside)), Gone: true, End: []byte{0xff}},
		{Key: schema.Suffix(schema.HeaderKey(1, 1, base.Ino(dir))), Value: value},
		{Key: schema.Suffix(schema.LockedKey(1, 1, 9)), Value: other.Append(nil)},
		{Key: schema.Suffix(schema.RelocationKey(1, 1, 9)), Value: (&schema.Relocation{Subtree: 1, Dir: base.Ino(dir) + 1, Name: []byte("f")}).Append(nil)},
		{Key: schema.Suffix(schema.ResultsKey(1, 1, 0xa1, 1)), Gone: true},
		{Key: schema.Suffix(schema.CountersKey(1, 1)), Value: (&schema.Counters{}).Append(nil)},
		{Key: schema.Suffix(schema.InodeKey(1, 1, 9)), Gone: true},
	} {
		before := x.kv.Clone()
		s.now--
		r := x.apply(&canopyv1.Command{Own: &canopyv1.Command_Import{Import: &canopyv1.ImportCommand{Step: canopyv1.ImportStep_IMPORT_BATCH,
			Subtree: 1, Epoch: 1, Attempt: attempt, FromShard: 2, FromSubtree: uint64(m.of), Root: dir, Join: true, Lo: m.lo, Hi: m.hi, Batch: 1, Rows: []*canopyv1.ImportRow{row}}}})[0]
		if fserr.Kind(r.Error) != fserr.Malformed {
			t.Errorf("%s: %v", schema.Format(schema.KeyOf(1, 1, row.Key)), fserr.Kind(r.Error))
		}
		if d := before.Diff(x.kv, schema.Format); d != "" {
			t.Errorf("it changed\n%s", d)
		}
	}
	s.finish(m)
	s.verify()
}

// TestCancelledJoinEndsNobody: results that came for a client which has no session at
// the target go with a join that is cancelled, and it can be known there later: what it
// sends then is not taken for what an ended session has used up (PROTOCOLS C3, C5).
func TestCancelledJoinEndsNobody(t *testing.T) {
	s := newShards(t, 2)
	sampleTree(s)
	s.split("/a/b", half, shard.BorderEnd, 2)
	dir, _ := s.dir("/a/b")
	name := []byte(nameFrom(half))
	m := rangeMove{path: "/a/b", lo: half, hi: shard.BorderEnd, into: 1}
	of := s.fragments(dir).Find(shard.NameHash(name)).Subtree
	s.of[2].must(&canopyv1.Command{Client: 0xb2, Op: &canopyv1.Op{Seq: 1, Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{}}}})
	op := &canopyv1.Op{Seq: 2, Subtree: uint64(of), Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_Create{
		Create: &canopyv1.CreateCall{Dir: dir, Name: name, Mode: 0o644, Exclusive: true}}}
	made := s.of[2].must(&canopyv1.Command{Client: 0xb2, Floor: 1, Op: op})
	s.untilNames(&m, "MOVE_FREEZE")
	if s.of[1].m.subtrees[1].windows[0xb2] == nil {
		t.Error("results do not come before the freeze")
	}
	s.cancelNames(m)
	if s.of[1].m.subtrees[1].windows[0xb2] != nil || s.of[1].m.ended[0xb2] != nil {
		t.Error("what is left of the client at the target")
	}
	s.verify()
	s.merge("/a/b")
	op.Subtree = 1
	if r := s.of[1].apply(&canopyv1.Command{Client: 0xb2, Floor: 1, Op: op})[0]; r.Error != 0 || r.Attr.GetIno() != made.Attr.GetIno() {
		t.Errorf("the request, again: %v %v, want inode %d", fserr.Kind(r.Error), r.Attr, made.Attr.GetIno())
	}
	s.verify()
}
