package namespace

import (
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// rows counts the rows of a subtree at a shard.
func (n *shardRig) rows(t testing.TB, subtree base.SubtreeID) (count int) {
	t.Helper()
	lo, hi := schema.SubtreeRange(n.id, subtree)
	if err := n.kv.Scan(lo, hi, func(_, _ []byte) (bool, error) { count++; return true, nil }); err != nil {
		t.Fatal(err)
	}
	return count
}

// TestAnEmptySubtreeGoes is A7, and C2: a subtree that a policy made goes when its
// root and all that was in it are gone, not before. Its clients' results stay as long
// as their sessions; its id stays taken. A replica that starts anew at any point
// knows the same.
func TestAnEmptySubtreeGoes(t *testing.T) {
	c := newTxnShards(t, 2)
	for _, line := range []string{"mkdir /top", "spread /top", "mkdir /top/a", "create /top/a/f"} {
		c.line(parseLine(t, nil, line))
	}
	at := c.dir("/top/a")
	n := c.nodes[c.owner[at.subtree]]
	file := c.lookup(at, "f").Attr.Ino
	c.seq++
	unlink := &canopyv1.Command{Client: txnClient, Floor: c.seq, Op: &canopyv1.Op{Seq: c.seq, Subtree: uint64(at.subtree), Cred: &canopyv1.Credential{},
		Call: &canopyv1.Op_Unlink{Unlink: &canopyv1.UnlinkCall{Dir: at.ino, Name: []byte("f")}}}}
	answer := n.apply(t, unlink)
	if answer.Error != 0 {
		t.Fatal(fserr.Kind(answer.Error))
	}
	c.line(parseLine(t, nil, "rmdir /top/a"))

	purge := func(orphans ...uint64) *canopyv1.Result {
		r := n.own(t, &canopyv1.Command{Own: &canopyv1.Command_Purge{Purge: &canopyv1.PurgeCommand{Subtree: uint64(at.subtree), Orphans: orphans}}})
		n.load(t)
		return r
	}
	if r := purge(at.ino); r.Removed {
		t.Fatal("it is gone while an unlinked file is left")
	}
	if _, _, err := n.m.CheckEdges(n.kv, nil, func(f Finding) { t.Errorf("what is left is no damage: %+v", f) }); err != nil {
		t.Fatal(err)
	}
	deletions := func() (ids []uint64) {
		if err := Deletions(n.kv, n.id, at.subtree, 0, func(d DeletionInfo) bool { ids = append(ids, uint64(d.DataID)); return true }); err != nil {
			t.Fatal(err)
		}
		return ids
	}
	r := purge(file)
	if ids := deletions(); len(ids) > 0 {
		if r.Removed {
			t.Fatal("it is gone while data is to be deleted")
		}
		r = n.own(t, &canopyv1.Command{Own: &canopyv1.Command_DeletionDone{DeletionDone: &canopyv1.DeletionDoneCommand{Subtree: uint64(at.subtree), DataIds: ids}}})
	}
	if !r.Removed {
		t.Fatalf("it is still there: %d rows", n.rows(t, at.subtree))
	}
	n.load(t)
	gone := func() bool {
		found, err := GoneSubtrees(n.kv, n.id, []base.SubtreeID{1 << 40, at.subtree})
		if err != nil {
			t.Fatal(err)
		}
		return len(found) == 1 && found[0] == at.subtree
	}
	if !gone() {
		t.Error("nothing says that it is gone")
	}
	if again := n.apply(t, unlink); again.Error != 0 || again.Replaced.GetIno() != answer.Replaced.GetIno() {
		t.Errorf("the unlink, repeated: %v, first %v", again, answer)
	}
	asks := []*canopyv1.Op{
		{Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: at.ino}}}},
		{Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: at.ino, Name: []byte("f")}}},
	}
	refused := func() {
		t.Helper()
		for _, op := range asks {
			if r := c.query(at.subtree, op); fserr.Kind(r.Error) != fserr.Stale {
				t.Errorf("%v: %v, want %v", op, fserr.Kind(r.Error), fserr.Stale)
			}
		}
		c.seq++
		create := &canopyv1.Command{Client: txnClient, Floor: c.seq, Op: &canopyv1.Op{Seq: c.seq, Subtree: uint64(at.subtree), Cred: &canopyv1.Credential{},
			Call: &canopyv1.Op_Create{Create: &canopyv1.CreateCall{Dir: at.ino, Name: []byte("late")}}}}
		if r := n.apply(t, create); fserr.Kind(r.Error) != fserr.Stale {
			t.Errorf("create: %v, want %v", fserr.Kind(r.Error), fserr.Stale)
		}
	}
	refused()
	if n.rows(t, at.subtree) == 0 {
		t.Error("the results of a client that lives are gone")
	}

	n.own(t, &canopyv1.Command{Own: &canopyv1.Command_EndSessions{EndSessions: &canopyv1.EndSessionsCommand{Clients: []uint64{txnClient}}}})
	n.load(t)
	if rows := n.rows(t, at.subtree); rows != 0 {
		t.Errorf("%d rows are left without a session", rows)
	}
	if !gone() {
		t.Error("nothing says any more that it is gone")
	}
	refused()
}
