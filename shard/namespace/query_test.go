package namespace

import (
	"fmt"
	"sync"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// TestQueryDuringApply asks on snapshots while entries are applied: Query reads
// nothing that Apply changes (run it with -race), and a snapshot's answers do not
// depend on what is applied after it.
func TestQueryDuringApply(t *testing.T) {
	r := newRig(t, nil)
	r.bootstrap()
	r.openSession(0xa1)
	var readers sync.WaitGroup
	for round := range 20 {
		for i := range 8 {
			r.mustRun("create /f%d.%d", round, i)
		}
		snapshot, want := r.kv.Clone(), 8*(round+1)
		readers.Go(func() {
			for range 20 {
				res := r.m.Query(snapshot, &canopyv1.Op{Subtree: 1, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_ReadDir{
					ReadDir: &canopyv1.ReadDirCall{Dir: 1, Plus: true}}})
				if res.Error != 0 || len(res.Entries) != want {
					t.Errorf("a listing of snapshot %d: %v, %d entries", round, fserr.Kind(res.Error), len(res.Entries))
				}
				name := fmt.Appendf(nil, "f%d.0", round+1)
				res = r.m.Query(snapshot, &canopyv1.Op{Subtree: 1, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_Lookup{
					Lookup: &canopyv1.LookupCall{Dir: 1, Name: name}}})
				if fserr.Kind(res.Error) != fserr.NotFound {
					t.Errorf("snapshot %d knows %s: %v", round, name, fserr.Kind(res.Error))
				}
			}
		})
	}
	readers.Wait()
}

// TestMovedSubtrees: states of a subtree that the balancer's issue will make are
// obeyed already: frozen refuses changes and answers reads, handed-off redirects.
func TestMovedSubtrees(t *testing.T) {
	r := newRig(t, nil)
	r.bootstrap()
	r.openSession(0xa1)
	r.mustRun("create /f")
	for _, c := range []struct {
		state        schema.OwnState
		read, change fserr.Kind
	}{
		{schema.Frozen, fserr.OK, fserr.Frozen},
		{schema.Importing, fserr.Moved, fserr.Moved},
		{schema.HandedOff, fserr.Moved, fserr.Moved},
		{schema.Active, fserr.OK, fserr.OK},
	} {
		r.put(schema.SubtreeKey(testShard, 1), &schema.Subtree{Epoch: 3, State: c.state, Root: 1, ToShard: 7})
		r.load()
		read := r.do(0xa1, &canopyv1.Op{Subtree: 1, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: 1, Name: []byte("f")}}})
		change := r.do(0xa1, &canopyv1.Op{Subtree: 1, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_Create{Create: &canopyv1.CreateCall{Dir: 1, Name: []byte("g")}}})
		if fserr.Kind(read.Error) != c.read || fserr.Kind(change.Error) != c.change {
			t.Errorf("%v: a read answers %v, a change %v", c.state, fserr.Kind(read.Error), fserr.Kind(change.Error))
		}
		if c.state == schema.HandedOff && (read.Redirect.GetShard() != 7 || change.Redirect.GetShard() != 7) {
			t.Errorf("redirects %v, %v", read.Redirect, change.Redirect)
		}
	}
}
