package namespace

import (
	"fmt"
	"slices"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/memkv"
	"github.com/canopyfs/canopy/shard/migrate"
	"github.com/canopyfs/canopy/shard/schema"
)

func (x *machineOf) takeIn(c *canopyv1.ImportCommand) fserr.Kind {
	r := x.apply(&canopyv1.Command{Own: &canopyv1.Command_Import{Import: c}})[0]
	return fserr.Kind(r.Error)
}

func (x *machineOf) moveStep(c *canopyv1.MoveCommand) fserr.Kind {
	r := x.apply(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: c}})[0]
	return fserr.Kind(r.Error)
}

func importStep(step canopyv1.ImportStep, attempt, batch uint64, rows ...*canopyv1.ImportRow) *canopyv1.ImportCommand {
	return &canopyv1.ImportCommand{Step: step, Subtree: 7, Epoch: 2, Attempt: attempt, FromShard: 9, Root: 70, Batch: batch, Rows: rows}
}

// TestImportTakesTheNextBatchAlone is PROTOCOLS E1 and the target's part of E2.
func TestImportTakesTheNextBatchAlone(t *testing.T) {
	s := newShards(t, 1)
	x := s.of[1]
	key := schema.CountersKey(1, 7)
	row := func(files uint64) *canopyv1.ImportRow {
		return &canopyv1.ImportRow{Key: schema.Suffix(key), Value: (&schema.Counters{Files: files}).Append(nil)}
	}
	is := func(what string, got, want fserr.Kind) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	stored := func() uint64 {
		value, found, err := x.kv.Get(key)
		if err != nil || !found {
			return 0
		}
		c, err := schema.DecodeCounters(value)
		if err != nil {
			t.Fatal(err)
		}
		return c.Files
	}
	const begin, batch, activate, cancel = canopyv1.ImportStep_IMPORT_BEGIN, canopyv1.ImportStep_IMPORT_BATCH, canopyv1.ImportStep_IMPORT_ACTIVATE, canopyv1.ImportStep_IMPORT_CANCEL
	is("a batch without a beginning", x.takeIn(importStep(batch, 5, 1, row(1))), fserr.OldEpoch)
	is("begin", x.takeIn(importStep(begin, 5, 0)), fserr.OK)
	is("the second batch first", x.takeIn(importStep(batch, 5, 2, row(2))), fserr.Again)
	is("batch 1", x.takeIn(importStep(batch, 5, 1, row(1))), fserr.OK)
	is("batch 2", x.takeIn(importStep(batch, 5, 2, row(2))), fserr.OK)
	is("batch 1, late", x.takeIn(importStep(batch, 5, 1, row(1))), fserr.OK)
	if stored() != 2 {
		t.Errorf("a late batch came on top: %d", stored())
	}
	is("what says how the shard stands to it", x.takeIn(importStep(batch, 5, 3, &canopyv1.ImportRow{Key: []byte{byte(schema.KindSubtree)}})), fserr.Malformed)
	is("activation before the last batch", x.takeIn(importStep(activate, 5, 3)), fserr.OldEpoch)
	is("an earlier attempt", x.takeIn(importStep(begin, 4, 0)), fserr.OldEpoch)
	is("a later attempt", x.takeIn(importStep(begin, 6, 0)), fserr.OK)
	if stored() != 0 {
		t.Error("the later attempt found what the earlier one left")
	}
	is("a batch of the earlier attempt", x.takeIn(importStep(batch, 5, 1, row(9))), fserr.OldEpoch)
	is("its cancellation", x.takeIn(importStep(cancel, 5, 0)), fserr.OldEpoch)
	is("batch 1 of the later attempt", x.takeIn(importStep(batch, 6, 1, row(3))), fserr.OK)
	is("a query meanwhile", fserr.Kind(x.m.Query(x.kv, &canopyv1.Op{Subtree: 7, Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: 70}}}}).Error), fserr.Moved)
	is("cancel", x.takeIn(importStep(cancel, 6, 0)), fserr.OK)
	is("a beginning that comes late", x.takeIn(importStep(begin, 6, 0)), fserr.OldEpoch)
	if stored() != 0 {
		t.Error("a cancelled import left something")
	}
	is("the next attempt", x.takeIn(importStep(begin, 8, 0)), fserr.OK)
	is("its batch", x.takeIn(importStep(batch, 8, 1, row(4))), fserr.OK)
	is("activation", x.takeIn(importStep(activate, 8, 1)), fserr.OK)
	is("activation once more", x.takeIn(importStep(activate, 8, 1)), fserr.OK)
	is("cancellation after it", x.takeIn(importStep(cancel, 8, 0)), fserr.Exist)
	is("a new attempt after it", x.takeIn(importStep(begin, 9, 0)), fserr.Exist)
	if stored() != 4 {
		t.Errorf("%d is stored", stored())
	}
	x.equalAnew()
}

// TestCleanNamesItsAttempt is PROTOCOLS E3: A to B and back to A.
func TestCleanNamesItsAttempt(t *testing.T) {
	s := newShards(t, 2)
	sampleTree(s)
	s.migrate("/a/b", 2, nil) // a subtree of its own, at shard 2
	_, in := s.dir("/a/b")
	subtree := base.SubtreeID(in)
	before := s.tree()

	var attempt uint64
	s.fault = func(step string, after bool) error {
		if step == "MOVE_CLEAN" && !after {
			_ = s.of[2].readMove(subtree, func(a uint64) { attempt = a })
			// It is active at shard 1, and shard 2 has not cleaned: it takes nothing back.
			if k := s.of[2].takeIn(&canopyv1.ImportCommand{Step: canopyv1.ImportStep_IMPORT_BEGIN, Subtree: in, Epoch: 3, Attempt: 1 << 50, FromShard: 1}); k != fserr.Busy {
				t.Errorf("an import before the clean: %v", k)
			}
		}
		return nil
	}
	s.migrate("/a/b", 1, nil)
	s.fault = nil
	s.migrate("/a/b", 2, nil)
	late := &canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_CLEAN, Subtree: in, Attempt: attempt}
	if k := s.of[2].moveStep(late); k != fserr.NotFound {
		t.Errorf("a late clean: %v", k)
	}
	// And while it goes away again.
	if _, _, r := s.begin("/a/b", 1); r.Error != 0 {
		t.Fatal(fserr.Kind(r.Error))
	}
	for _, step := range []canopyv1.MoveStep{canopyv1.MoveStep_MOVE_CLEAN, canopyv1.MoveStep_MOVE_HAND_OFF, canopyv1.MoveStep_MOVE_CANCEL} {
		late.Step = step
		if k := s.of[2].moveStep(late); k != fserr.OldEpoch {
			t.Errorf("a late %v: %v", step, k)
		}
	}
	if got := s.tree(); got != before {
		t.Errorf("%s\nwant\n%s", got, before)
	}
	s.verify()
}

// until drives a move until a step is about to be done.
func (s *shards) until(path string, to base.ShardID, stop string) (from base.ShardID, subtree base.SubtreeID) {
	s.t.Helper()
	from, subtree, r := s.begin(path, to)
	if r.Error != 0 {
		s.t.Fatal(fserr.Kind(r.Error), r.Detail)
	}
	d := s.driver(from, subtree, to)
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
	return from, subtree
}

// TestFrozenSubtreeChangesNothing: operations wait, and so do the ends of sessions
// (PROTOCOLS E4).
func TestFrozenSubtreeChangesNothing(t *testing.T) {
	s := newShards(t, 2)
	sampleTree(s)
	s.until("/a/b", 2, "MOVE_HAND_OFF")
	x := s.of[1]
	state := func() *memkv.Store {
		c := memkv.New()
		lo, hi := schema.SubtreeRange(1, 1)
		if err := x.kv.Scan(lo, hi, func(key, value []byte) (bool, error) { return true, c.Set(key, value) }); err != nil {
			t.Fatal(err)
		}
		return c
	}
	before := state()
	for what, k := range map[string]fserr.Kind{
		"create": fserr.Kind(s.create("/a/b/new").Error),
		"mkdir":  fserr.Kind(s.mkdir("/other/new").Error),
		"the end of a session": fserr.Kind(x.apply(&canopyv1.Command{Own: &canopyv1.Command_EndSessions{
			EndSessions: &canopyv1.EndSessionsCommand{Clients: []uint64{0xa1}}}})[0].Error),
		"its close": fserr.Kind(x.apply(&canopyv1.Command{Client: 0xa1, Floor: 1, Op: &canopyv1.Op{Seq: s.nextSeq(), Call: &canopyv1.Op_CloseSession{
			CloseSession: &canopyv1.CloseSessionCall{}}}})[0].Error),
	} {
		if k != fserr.Frozen {
			t.Errorf("%s: %v, want frozen", what, k)
		}
	}
	if d := before.Diff(state(), schema.Format); d != "" {
		t.Errorf("it changed:\n%s", d)
	}
}

// TestMoveTakesResultsAlong: what was executed at A, and is sent again, finds its
// first result at B (PROTOCOLS C2, C5).
func TestMoveTakesResultsAlong(t *testing.T) {
	for _, carve := range []bool{true, false} {
		s := newShards(t, 3)
		sampleTree(s)
		if !carve {
			s.migrate("/a/b", 2, nil)
		}
		dir, subtree := s.dir("/a/b")
		// A client that shard 3 does not know.
		x := s.of[s.owner(base.SubtreeID(subtree))]
		x.must(&canopyv1.Command{Client: 0xb2, Op: &canopyv1.Op{Seq: 1, Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{}}}})
		op := &canopyv1.Op{Seq: 2, Subtree: subtree, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_Create{
			Create: &canopyv1.CreateCall{Dir: dir, Name: []byte("once"), Mode: 0o644, Exclusive: true}}}
		made := x.must(&canopyv1.Command{Client: 0xb2, Floor: 1, Op: op})
		s.migrate("/a/b", 3, nil)
		if _, subtree = s.dir("/a/b"); s.owner(base.SubtreeID(subtree)) != 3 {
			t.Fatal("it is not at shard 3")
		}
		op.Subtree = subtree
		r := s.of[3].apply(&canopyv1.Command{Client: 0xb2, Floor: 1, Op: op})[0]
		if r.Error != 0 || r.Attr.GetIno() != made.Attr.GetIno() {
			t.Errorf("carve=%v: the repetition got %v %v, want inode %d", carve, fserr.Kind(r.Error), r.Attr, made.Attr.GetIno())
		}
	}
}

// TestBorderOfACarve: names and parents across the border (PROTOCOLS E6, E7).
func TestBorderOfACarve(t *testing.T) {
	s := newShards(t, 2)
	sampleTree(s)
	from, subtree := s.until("/a/b", 2, "IMPORT_BATCH")
	s.mustAll(s.rename("/a/b/c/d", "/other/d"), s.rename("/other/in", "/a/b/in"), s.mkdir("/a/b/c/made")) // one goes, one comes, one is new
	moved, _ := s.dir("/other/d")
	stays, _ := s.dir("/a/b/in")
	d := s.driver(from, subtree, 2)
	for done := false; !done; {
		var err error
		if done, err = d.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	x := s.of[1]
	header := func(x *machineOf, subtree, ino uint64) *schema.Header {
		value, found, err := x.kv.Get(schema.HeaderKey(x.id, base.SubtreeID(subtree), base.Ino(ino)))
		if err != nil || !found {
			t.Fatalf("inode %d has no header in subtree %d: %v", ino, subtree, err)
		}
		h, err := schema.DecodeHeader(value)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	_, in := s.dir("/a/b")
	if _, made := s.dir("/a/b/c/made"); made != in {
		t.Errorf("a directory that was made below the root of the carve is in subtree %d", made)
	}
	if h := header(x, 1, stays); uint64(h.ParentSubtree) != in {
		t.Errorf("the parent of what stays is said to be in subtree %d, it is in %d", h.ParentSubtree, in)
	}
	if h := header(s.of[2], in, moved); h.ParentSubtree != 1 {
		t.Errorf("the parent of a detached part is said to be in subtree %d", h.ParentSubtree)
	}
	other, _ := s.dir("/other")
	for dir, name := range map[uint64]string{other: "d", dirOf(s, "/a"): "b"} {
		lo, hi := schema.NamesRange(1, 1, base.Ino(dir))
		if err := x.kv.Scan(lo, hi, func(_, value []byte) (bool, error) {
			e, err := schema.DecodeDentry(value)
			if err == nil && string(e.Name) == name && uint64(e.Subtree) != in {
				t.Errorf("%s is said to be in subtree %d, want %d", name, e.Subtree, in)
			}
			return true, err
		}); err != nil {
			t.Fatal(err)
		}
	}
	// Who knows only where it was is sent on, by the directory's number.
	b, _ := s.dir("/a/b")
	r := x.m.Query(x.kv, &canopyv1.Op{Subtree: 1, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_ReadDir{ReadDir: &canopyv1.ReadDirCall{Dir: b}}})
	if fserr.Kind(r.Error) != fserr.Moved || r.Redirect.GetSubtree() != in || r.Redirect.GetShard() != 2 {
		t.Errorf("who asks where it was: %v %v", fserr.Kind(r.Error), r.Redirect)
	}
	s.tree() // which asks everything
	s.verify()
}

func dirOf(s *shards, path string) uint64 { ino, _ := s.dir(path); return ino }

// TestMoveTakesTimesAlong: the target's time is not before the source's (PROTOCOLS
// A3), and it knows of which files bytes may lie on data servers that nobody
// reported: those that are older than the last client that was lost.
func TestMoveTakesTimesAlong(t *testing.T) {
	s := newShards(t, 2)
	sampleTree(s)
	s.now += 1_000_000
	s.of[1].must(&canopyv1.Command{Client: 0xb2, Op: &canopyv1.Op{Seq: 1, Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{}}}})
	s.of[1].must(&canopyv1.Command{Own: &canopyv1.Command_EndSessions{EndSessions: &canopyv1.EndSessionsCommand{Clients: []uint64{0xb2}}}})
	lost := s.of[1].m.state.LostClientNS
	x := s.of[2]
	from, subtree, _ := s.begin("/a/b", 2)
	d := s.driver(from, subtree, 2)
	ahead := s.now + 1_000_000
	s.fault = func(step string, after bool) error {
		switch step {
		case "MOVE_FREEZE":
			s.now = ahead // the source's clock
		case "IMPORT_BATCH", "IMPORT_ACTIVATE":
			s.now = ahead - 500_000 // the target's
		}
		return nil
	}
	for done := false; !done; {
		var err error
		if done, err = d.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if x.m.state.LostClientNS != lost || x.m.state.TimeNS < ahead {
		t.Errorf("the target has %d and the time %d, the source had %d and at least %d", x.m.state.LostClientNS, x.m.state.TimeNS, lost, ahead)
	}
	if e := x.m.ended[0xb2]; e == nil || e.MaxSeq != 1 {
		t.Errorf("of the session that ended the target knows %v", e)
	}
}

// TestFreezeIsUndone: when the last batch takes too long operations go on, and the
// move with them (PROTOCOLS E4).
func TestFreezeIsUndone(t *testing.T) {
	for _, whole := range []bool{false, true} {
		for _, at := range []string{"MOVE_ROTATE", "IMPORT_BATCH"} {
			s, quiet := newShards(t, 3), newShards(t, 3)
			for _, x := range []*shards{s, quiet} {
				sampleTree(x)
				if whole {
					x.migrate("/a/b", 3, nil)
				}
			}
			thaws, n := 0, 0
			s.steps = nil
			s.fault = func(step string, after bool) error {
				frozen := slices.Contains(s.steps[max(0, len(s.steps)-4):], "MOVE_FREEZE")
				if step == at && !after && frozen && thaws < 2 {
					thaws++
					s.now += int64(migrate.FreezeLimit) + 1
				}
				return nil
			}
			s.migrate("/a/b", 2, func(int) {
				for _, x := range []*shards{s, quiet} {
					x.mustAll(x.create(fmt.Sprintf("/a/b/late%d", n)))
				}
				n++
			})
			if got, want := stripInos(s.tree()), stripInos(quiet.tree()); got != want || thaws == 0 || !slices.Contains(s.steps, "MOVE_THAW") {
				t.Fatalf("whole=%v at %s: %d thaws, steps %v:\n%s\nwant\n%s", whole, at, thaws, s.steps, got, want)
			}
			s.verify()
		}
	}
}
