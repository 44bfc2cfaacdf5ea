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
