package namespace

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// lockOperation builds the operations of locks:
//
//	lock PLACE r|w START LENGTH [flock] [owner=] [pid=] [handle=]   unlock PLACE START LENGTH [flock] [owner=]
//	testlock PLACE r|w START LENGTH [flock] [owner=]   locks PLACE   drop PLACE handle=
//
// LENGTH 0 is to the end of every file.
func (r *rig) lockOperation(l *words) *canopyv1.Op {
	switch l.op {
	case "lock":
		return &canopyv1.Op{Call: &canopyv1.Op_SetLock{SetLock: &canopyv1.SetLockCall{Place: r.place(l.arg(0)), Lock: r.lockWords(l, 2)}}}
	case "unlock":
		return &canopyv1.Op{Call: &canopyv1.Op_SetLock{SetLock: &canopyv1.SetLockCall{Place: r.place(l.arg(0)), Lock: r.lockWords(l, 1), Unlock: true}}}
	case "drop":
		return &canopyv1.Op{Call: &canopyv1.Op_DropLocks{DropLocks: &canopyv1.DropLocksCall{Place: r.place(l.arg(0)), Handle: l.num("handle", 0)}}}
	case "testlock":
		lock := r.lockWords(l, 2)
		lock.Client = l.num("client", 0xa1)
		return &canopyv1.Op{Call: &canopyv1.Op_GetLock{GetLock: &canopyv1.GetLockCall{Place: r.place(l.arg(0)), Lock: lock}}}
	case "locks":
		return &canopyv1.Op{Call: &canopyv1.Op_GetLock{GetLock: &canopyv1.GetLockCall{Place: r.place(l.arg(0))}}}
	}
	return nil
}

func (r *rig) lockWords(l *words, from int) *canopyv1.Lock {
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			r.t.Fatal(err)
		}
		return n
	}
	m := &canopyv1.Lock{Kind: canopyv1.LockKind_LOCK_POSIX, Owner: l.num("owner", 1), Start: number(l.arg(from)), Last: schema.LockEnd,
		Exclusive: l.arg(1) == "w", Pid: uint32(l.num("pid", 7)), Handle: l.num("handle", 1)}
	if length := number(l.arg(from + 1)); length > 0 {
		m.Last = m.Start + length - 1
	}
	if l.flag("flock") {
		m.Kind = canopyv1.LockKind_LOCK_FLOCK
	}
	return m
}

func formatLocks(locks []*canopyv1.Lock) string {
	var b strings.Builder
	for _, l := range locks {
		o, r, _ := lockOf(l, 0)
		fmt.Fprintf(&b, "\n  %v %x/%d %v", o.Kind, l.Client, l.Owner, &schema.Locks{Ranges: []schema.LockRange{r}})
	}
	return b.String()
}

// TestLockBounds: what one owner, one file and one client may have is bounded,
// and what is refused has changed nothing.
func TestLockBounds(t *testing.T) {
	r := newRig(t, nil)
	r.bootstrap()
	r.openSession(0xa1)
	r.line(parseLine(t, nil, "create /f"))
	r.line(parseLine(t, nil, "create /g"))
	lock := func(line string) fserr.Kind {
		op := r.lockOperation(parseLine(t, nil, line))
		op.Subtree = 1
		return fserr.Kind(r.do(0xa1, op).Error)
	}
	for i := range maxLockRanges {
		if kind := lock(fmt.Sprintf("lock /f w %d 1", 2*i)); kind != fserr.OK {
			t.Fatalf("range %d: %v", i, kind)
		}
	}
	if kind := lock("lock /f w 1000000 1"); kind != fserr.NoLocks {
		t.Errorf("one range too many: %v", kind)
	}
	if kind := lock("unlock /f 1000000 1"); kind != fserr.OK {
		t.Errorf("unlock: %v", kind)
	}
	if kind := lock("lock /f w 0 0"); kind != fserr.OK {
		t.Errorf("one range instead of all: %v", kind)
	}
	r.m.subtrees[1].locked[0xa1] += maxLockedInodes - 1
	if kind := lock("lock /g r 0 1"); kind != fserr.NoLocks {
		t.Errorf("one inode too many: %v", kind)
	}
	if kind := lock("lock /f r 0 1"); kind != fserr.OK {
		t.Errorf("in an inode with locks: %v", kind)
	}
	r.m.subtrees[1].locked[0xa1] -= maxLockedInodes - 1
	r.mustBeClean()
}
