package namespace

import (
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// TestNoLockOfASessionThatEnded is E5 and C5: the target ends a client's session
// after the last batch has come, and before it is activated. What the client had
// locked in the source's subtree is free then, and what it had used up stays used up.
func TestNoLockOfASessionThatEnded(t *testing.T) {
	s := newShards(t, 2)
	const client, seq = 0xb2, 700
	for _, x := range s.of {
		x.must(&canopyv1.Command{Client: client, Op: &canopyv1.Op{Seq: s.nextSeq(), Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{}}}})
	}
	s.mkdir("/d")
	dir, _ := s.dir("/d")
	file := s.create("/d/f").Attr.Ino
	place := &canopyv1.Place{Ino: file, Dir: dir, Name: []byte("f")}
	lock := func(client uint64) *canopyv1.Op {
		return &canopyv1.Op{Subtree: 1, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_SetLock{SetLock: &canopyv1.SetLockCall{Place: place,
			Lock: &canopyv1.Lock{Client: client, Owner: 1, Kind: canopyv1.LockKind_LOCK_POSIX, Exclusive: true, Last: 9}}}}
	}
	held := lock(client)
	held.Seq = seq
	s.of[1].must(&canopyv1.Command{Client: client, Floor: 1, Op: held})

	ended := false
	s.fault = func(step string, after bool) error {
		if step == canopyv1.ImportStep_IMPORT_ACTIVATE.String() && !after && !ended {
			ended = true
			s.of[2].must(&canopyv1.Command{Own: &canopyv1.Command_EndSessions{EndSessions: &canopyv1.EndSessionsCommand{Clients: []uint64{client}}}})
		}
		return nil
	}
	s.migrate("/", 2, nil)
	if !ended {
		t.Fatal("the move was not activated")
	}
	if r := s.do(lock(0xa1)); r.Error != 0 {
		t.Errorf("lock: %v: who had it is gone", fserr.Kind(r.Error))
	}
	late := s.of[2].apply(&canopyv1.Command{Client: client, Floor: 1, Op: &canopyv1.Op{Seq: seq + 1, Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{}}}})[0]
	if late.Error != 0 {
		t.Fatalf("another session: %v", fserr.Kind(late.Error))
	}
	if r := s.of[2].apply(&canopyv1.Command{Client: client, Floor: 1, Op: held})[0]; fserr.Kind(r.Error) != fserr.BelowFloor {
		t.Errorf("the ended session's request, again: %v, want %v", fserr.Kind(r.Error), fserr.BelowFloor)
	}
	lo, hi := schema.KindRange(2, 1, schema.KindLockClient)
	n := 0
	if err := s.of[2].kv.Scan(lo, hi, func(_, _ []byte) (bool, error) { n++; return true, nil }); err != nil || n != 1 {
		t.Errorf("%d clients have locks, want 1 (%v)", n, err)
	}
	for _, x := range s.of {
		x.equalAnew()
	}
}
