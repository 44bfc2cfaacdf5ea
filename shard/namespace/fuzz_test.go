package namespace

import (
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// FuzzApply gives any bytes as a command, behind a few good ones: Apply answers
// each, never fails and never panics, and the state stays sound.
func FuzzApply(f *testing.F) {
	r := newRig(f, nil)
	for _, l := range []string{
		"create /a", "create /a trunc", "mkdir /d", "symlink /l a", "mknod /p mode=010600", "link /a /b", "unlink /a", "rmdir /d",
		"rename /a /c", "rename /a /d exchange", "setattr /a mode=1 size=5 uid-to=3", "setx /a user.x y", "rmx /a user.x",
		"report /a size=3 epoch=1 changed", "reserve /a len=3", "fill /a off=0 len=3 epoch=1", "open-session", "close-session",
		"lock /a w 0 5", "lock /a r 2 1 owner=2", "unlock /a 1 2", "drop /a handle=1",
		"create / anon", "end-sessions a1", "checksum", "bootstrap cluster=test", "lookup /a",
	} {
		w := parseLine(f, nil, l)
		b, err := r.commandOf(w).MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, own := range []*canopyv1.Command{
		{Own: &canopyv1.Command_Purge{Purge: &canopyv1.PurgeCommand{Subtree: 1, Orphans: []uint64{17592186044417}, Relocations: []uint64{17592186044417}}}},
		{Own: &canopyv1.Command_CutDone{CutDone: &canopyv1.CutDoneCommand{Subtree: 1, DataId: 17592186044417, Place: &canopyv1.Place{Dir: 1, Name: []byte("a")}, SizeEpoch: 9}}},
		{Own: &canopyv1.Command_DeletionDone{DeletionDone: &canopyv1.DeletionDoneCommand{Subtree: 1, DataIds: []uint64{1}}}},
		{Own: &canopyv1.Command_Purge{}}, {Own: &canopyv1.Command_CutDone{}}, {Own: &canopyv1.Command_EndSessions{}},
		{Own: &canopyv1.Command_Bootstrap{}}, {Client: 1, Own: &canopyv1.Command_Checksum{}}, {Client: 0xa1, Op: &canopyv1.Op{Seq: 9, Subtree: 1}},
		{Client: 0xa1, Op: &canopyv1.Op{Seq: 9, Subtree: 1, Call: &canopyv1.Op_SetAttr{}}},
		{Client: 0xa1, Op: &canopyv1.Op{Seq: 9, Subtree: 1, Call: &canopyv1.Op_Rename{}}},
	} {
		b, err := own.MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, command []byte) {
		r := newRig(t, nil)
		r.bootstrap()
		r.openSession(0xa1)
		for _, l := range []string{"create /a", "mkdir /d", "create /d/x", "symlink /l a", "reserve /a len=9", "setattr /d/x size=5", "setx /a user.k v", "lock /a r 3 4"} {
			r.line(parseLine(t, nil, l))
		}
		for range 2 {
			results, err := r.m.Apply(r.kv, 5000, [][]byte{command, {0xff}})
			if err != nil {
				t.Fatalf("apply: %v", err)
			}
			if k := fserr.Kind(r.decode(results[1]).Error); k != fserr.Malformed {
				t.Fatalf("garbage was answered %v", k)
			}
			r.decode(results[0])
		}
		r.mustBeClean()
		r.load()
	})
}

// FuzzQuery gives any bytes as a read: it answers, and does not panic.
func FuzzQuery(f *testing.F) {
	r := newRig(f, nil)
	r.bootstrap()
	r.openSession(0xa1)
	for _, l := range []string{"create /a", "mkdir /d", "create /d/x", "symlink /l a", "setx /a user.k v"} {
		r.line(parseLine(f, nil, l))
	}
	for _, l := range []string{"lookup /a", "getattr /d/x", "readlink /l", "access /a mask=7", "parent /d", "statfs", "getx /a user.k", "listx /a", "locks /a", "testlock /a w 0 1", "create /x"} {
		op := r.operation(parseLine(f, nil, l))
		op.Subtree = 1
		b, err := op.MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		op := &canopyv1.Op{}
		if op.UnmarshalVT(b) != nil {
			return
		}
		if r.m.Query(r.kv, op) == nil {
			t.Fatal("no answer")
		}
	})
}
