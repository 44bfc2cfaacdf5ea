package mds_test

import (
	"fmt"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// fill makes n files in dir, in batches.
func (k *caller) fill(dir uint64, prefix string, n int) {
	k.c.t.Helper()
	const batch = 200
	for i := 0; i < n; i += batch {
		var ops []*canopyv1.Op
		for j := i; j < min(i+batch, n); j++ {
			ops = append(ops, k.write(create(dir, fmt.Sprintf("%s%d", prefix, j))))
		}
		for _, answered := range k.send(k.c.nodes[k.c.holder(1)], 1, ops...) {
			expect(k.c.t, "create", answer(k.c.t, answered), fserr.OK)
		}
	}
}

func (k *caller) mkdir(name string) uint64 {
	k.c.t.Helper()
	return k.must(1, k.write(&canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_Mkdir{
		Mkdir: &canopyv1.MkdirCall{Dir: 1, Name: []byte(name), Mode: 0o755}}})).Attr.Ino
}

func (k *caller) setQuota(dir, inodes uint64) *canopyv1.Quota {
	k.c.t.Helper()
	r := k.must(1, k.write(&canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_SetQuota{
		SetQuota: &canopyv1.SetQuotaCall{Dir: dir, MaxInodes: inodes, Remove: inodes == 0}}}))
	if inodes == 0 {
		return nil
	}
	return r.Quotas[0]
}

func (k *caller) quota(dir uint64) *canopyv1.Quota {
	k.c.t.Helper()
	return k.must(1, &canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_GetQuota{
		GetQuota: &canopyv1.GetQuotaCall{Place: &canopyv1.Place{Ino: dir}}}}).Quotas[0]
}

// TestQuotaOfALargeTree: a quota on a tree that is too large to be counted in one
// operation becomes exact while files are made in it, and the holder dies. A large
// directory goes into a quota when it has been counted.
func TestQuotaOfALargeTree(t *testing.T) {
	t.Parallel()
	c := newCluster(t, triple, nil)
	k, other := c.caller(7).open(1), c.caller(8).open(1)
	dir, into := k.mkdir("d"), k.mkdir("into")
	k.fill(dir, "a", 2100)
	other.fill(dir, "b", 2100)
	made := uint64(4200)
	if q := k.setQuota(dir, 10_000); !q.Counting {
		t.Fatalf("4,200 files were counted at once: %v", q)
	}
	c.kill(c.holder(1))
	eventually(t, "the next holder counts", func() bool {
		k.must(1, k.write(create(dir, fmt.Sprintf("c%d", made))))
		made++
		return !k.quota(dir).Counting
	})
	if q := k.quota(dir); q.Inodes != made {
		t.Errorf("the quota holds %d inodes, %d were made", q.Inodes, made)
	}
	k.setQuota(dir, made+1)
	k.must(1, k.write(create(dir, "last")))
	expect(t, "one more than the quota", fserr.Kind(k.do(1, k.write(create(dir, "more"))).Error), fserr.Quota)

	k.setQuota(dir, 0)
	k.setQuota(into, made+1) // and the directory itself: one too many
	move := func() fserr.Kind {
		op := rename("d", "d")
		op.GetRename().DstDir = into
		return fserr.Kind(k.do(1, k.write(op)).Error)
	}
	expect(t, "a large directory goes where it does not fit", move(), fserr.Quota)
	k.setQuota(into, made+2)
	expect(t, "a large directory goes where it fits", move(), fserr.OK)
	if q := k.quota(into); q.Inodes != made+2 || q.Counting {
		t.Errorf("the quota holds %v, want %d inodes", q, made+2)
	}
}
