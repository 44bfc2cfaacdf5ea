package namespace

import (
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// TestNoIntentCrossesAHandOff is PROTOCOLS E4: a frozen subtree takes no prepare, and
// it is not handed off before those that it has are decided.
func TestNoIntentCrossesAHandOff(t *testing.T) {
	c := newTxnShards(t, 2)
	for _, line := range []string{"mkdir /top", "spread /top", "mkdir /top/a", "mkdir /top/b", "create /top/a/f", "create /top/a/g"} {
		c.line(parseLine(t, nil, line))
	}
	at, op := c.operation(parseLine(t, nil, "rename /top/a/f /top/b/f"))
	op.Subtree, op.Seq = uint64(at), c.seq+1
	c.seq++
	x := c.begin(op, c.request(op)).prepare()
	n := c.nodes[c.owner[at]]
	var attempt uint64
	move := func(m *canopyv1.MoveCommand) fserr.Kind {
		m.Subtree, m.Attempt = uint64(at), attempt
		r := n.own(t, &canopyv1.Command{Own: &canopyv1.Command_Move{Move: m}})
		if r.Move != nil {
			attempt = r.Move.Attempt
		}
		return fserr.Kind(r.Error)
	}
	a := c.dir("/top/a")
	for _, m := range []*canopyv1.MoveCommand{
		{Step: canopyv1.MoveStep_MOVE_BEGIN, Dir: a.ino, ToShard: 1}, {Step: canopyv1.MoveStep_MOVE_COPY}, {Step: canopyv1.MoveStep_MOVE_FREEZE},
	} {
		if k := move(m); k != fserr.OK {
			t.Fatalf("%v: %v", m.Step, k)
		}
	}
	if waits, err := HasIntents(n.kv, n.id, at); err != nil || !waits {
		t.Errorf("the freeze does not wait: %v, %v", waits, err)
	}
	if k := move(&canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_HAND_OFF}); k != fserr.OldEpoch {
		t.Errorf("handed off with an intent: %v", k)
	}
	_, late := c.operation(parseLine(t, nil, "rename /top/a/g /top/b/g"))
	late.Subtree, late.Seq = uint64(at), c.seq+1
	if y := c.begin(late, c.request(late)).prepare(); y.failed != fserr.Frozen {
		t.Errorf("a prepare in a frozen subtree: %v", y.failed)
	} else {
		y.finish()
	}
	if r := x.decide(); r.Error != 0 {
		t.Errorf("the decision in a frozen subtree: %v", fserr.Kind(r.Error))
	}
	x.finish()
	if waits, _ := HasIntents(n.kv, n.id, at); waits {
		t.Error("there are intents after the end")
	}
	if k := move(&canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_HAND_OFF}); k != fserr.OK {
		t.Errorf("the hand-off afterwards: %v", k)
	}
}

// TestNoIntentCrossesAHandOffOfNames is PROTOCOLS E4 for a range of a directory's names:
// also of a change of the whole directory, and what is asked for afterwards is told where
// the names are.
func TestNoIntentCrossesAHandOffOfNames(t *testing.T) {
	c := newHashedShards(t, 2, letterHash)
	c.mustRun("mkdir /d", "create /d/a", "create /d/n", "create /d/o", "hold d /d")
	d, n, names := c.dir("/d"), c.nodes[1], letterRange("m", "")
	var attempt uint64
	move := func(m *canopyv1.MoveCommand) *canopyv1.Result {
		m.Subtree, m.Attempt = 1, attempt
		r := n.own(t, &canopyv1.Command{Own: &canopyv1.Command_Move{Move: m}})
		if r.Move != nil {
			attempt = r.Move.Attempt
		}
		return r
	}
	begin := func(line string) *driven {
		at, op := c.operation(parseLine(t, nil, line))
		c.seq++
		op.Subtree, op.Seq = uint64(at), c.seq
		return c.begin(op, c.request(op)).prepare()
	}
	change, rename := begin("setattr d mode=700"), begin("rename d/a d/n")
	for _, m := range []*canopyv1.MoveCommand{
		{Step: canopyv1.MoveStep_MOVE_BEGIN, Dir: d.ino, ToShard: 2, Lo: names.Lo, Hi: names.Hi}, {Step: canopyv1.MoveStep_MOVE_COPY}, {Step: canopyv1.MoveStep_MOVE_FREEZE},
	} {
		if r := move(m); r.Error != 0 {
			t.Fatalf("%v: %v %s", m.Step, fserr.Kind(r.Error), r.Detail)
		}
	}
	if late := begin("setattr d mode=711"); late.failed != fserr.Frozen {
		t.Errorf("a change that begins when the names are frozen: %v", late.failed)
	} else {
		late.finish()
	}
	handOff := func() fserr.Kind {
		counts := &canopyv1.MoveCounts{Files: 1, Entries: 1} // "o": "n" is replaced by then
		if x := c.list(d); len(x.Entries) == 2 {
			counts = &canopyv1.MoveCounts{Files: 2, Entries: 2}
		}
		return fserr.Kind(move(&canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_HAND_OFF, Counts: counts}).Error)
	}
	for _, x := range []*driven{change, rename} {
		if k := handOff(); k != fserr.OldEpoch {
			t.Errorf("handed off with locks: %v", k)
		}
		if r := x.decide(); r.Error != 0 {
			t.Errorf("the decision in a frozen subtree: %v", fserr.Kind(r.Error))
		}
		x.finish()
	}
	if k := handOff(); k != fserr.OK {
		t.Fatalf("the hand-off afterwards: %v", k)
	}
	x := begin("rename d/o d/z")
	if x.failed != fserr.Moved || x.told == nil || len(x.told.Redirect.Fragments) != 2 {
		t.Errorf("the name that the operation is addressed by has gone: %v %v", x.failed, x.told)
	}
	x.finish()
	y := begin("rename d/b d/z")
	if m := y.forwards[TxnDir{1, 17592186044417}]; y.failed != fserr.Moved || y.told != nil || len(m) != 2 || m.Find(letterHash([]byte("z"))).Subtree == 1 {
		t.Errorf("the other name has gone: %v %v %v", y.failed, y.told, y.forwards)
	}
	y.finish()
	if k := begin("setattr d mode=755"); k.failed != fserr.Moved && k.failed != fserr.Busy {
		t.Errorf("a change while the names are on their way: %v", k.failed)
	} else {
		k.finish()
	}
	c.nothingLeft()
}
