package mds_test

import (
	"strings"
	"sync/atomic"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/mds"
	"github.com/canopyfs/canopy/placement"
)

// fakeDisks are the disks of nodes, by directory's last digit; 1,000,000 bytes each,
// of which 100,000 are the reserve.
type fakeDisks [4]atomic.Uint64

func (d *fakeDisks) settings(c *mds.Config) {
	c.DiskReserve = 100_000
	c.DiskUsage = func(dir string) (uint64, uint64, error) {
		return 1_000_000, d[dir[len(dir)-1]-'0'].Load(), nil
	}
}

func (d *fakeDisks) free(node int, bytes uint64) { d[node].Store(bytes) }

// readOnly returns why the holder of shard 1 takes nothing new.
func (c *cluster) readOnly() string {
	i := c.holder(1)
	if i < 0 {
		return ""
	}
	r, err := canopyv1.NewAdminClient(connect(c.t, c.nodes[i].Addr())).ShardStatus(c.t.Context(), &canopyv1.ShardStatusRequest{Shard: 1})
	if err != nil {
		return ""
	}
	return r.Shards[0].ReadOnly
}

// TestAFullDiskTakesDeletions: with the reserve in use a shard says ENOSPC to what
// needs space and takes what frees some; reads go on; it recovers by itself. What
// was executed before stays executed (PROTOCOLS C2), and what was refused refused.
func TestAFullDiskTakesDeletions(t *testing.T) {
	t.Parallel()
	var disks fakeDisks
	disks.free(1, 500_000)
	c := newCluster(t, single, disks.settings)
	k := c.caller(7).open(1)
	before := k.write(create(1, "before"))
	made := k.must(1, before)
	disks.free(1, 99_000)
	eventually(t, "the shard is read-only", func() bool { return strings.Contains(c.readOnly(), "only deletions") })
	refused := k.write(create(1, "refused"))
	if r := k.do(1, refused); fserr.Kind(r.Error) != fserr.NoSpace {
		t.Fatalf("a create: %v", fserr.Kind(r.Error))
	}
	if r := k.must(1, lookup(1, "before")); r.Attr.GetIno() != made.Attr.Ino {
		t.Errorf("a read: %v", r)
	}
	before.Again = true
	if r := k.must(1, before); r.Attr.GetIno() != made.Attr.Ino {
		t.Errorf("a repetition: %v", r)
	}
	unsure := k.write(create(1, "unsure"))
	unsure.Again = true
	if r := k.do(1, unsure); fserr.Kind(r.Error) != fserr.NoSpace {
		t.Errorf("what may have been executed, and was not: %v", fserr.Kind(r.Error))
	}
	k.must(1, k.write(unlink(1, "before")))
	disks.free(1, 20_000)
	eventually(t, "the shard takes nothing", func() bool { return strings.Contains(c.readOnly(), "nothing is taken") })
	if r := k.do(1, k.write(unlink(1, "refused"))); fserr.Kind(r.Error) != fserr.NoSpace {
		t.Errorf("an unlink without any space: %v", fserr.Kind(r.Error))
	}
	c.caller(8).open(1)
	disks.free(1, 110_000) // within the margin
	await.Throughout(t, patience/100, "it does not flap", func() bool { return c.readOnly() != "" })
	disks.free(1, 500_000)
	eventually(t, "the shard takes everything", func() bool { return c.readOnly() == "" && c.holder(1) >= 0 })
	k.must(1, k.write(create(1, "after")))
	if r := k.do(1, unsure); fserr.Kind(r.Error) != fserr.NoSpace {
		t.Errorf("a late copy of what was refused: %v", fserr.Kind(r.Error))
	}
}

// TestAFollowersFullDisk: what the holder takes in, all replicas have to keep.
func TestAFollowersFullDisk(t *testing.T) {
	t.Parallel()
	var disks fakeDisks
	for i := range 4 {
		disks.free(i, 500_000)
	}
	c := newCluster(t, placement.Bootstrap{Nodes: 3, Replicas: 3, Shards: 1}, disks.settings)
	k := c.caller(7).open(1)
	k.must(1, k.write(create(1, "a")))
	eventually(t, "a holder", func() bool { return c.holder(1) >= 0 })
	follower := (c.holder(1)+1)%3 + 1
	disks.free(follower, 50_000)
	eventually(t, "the shard is read-only", func() bool { return c.readOnly() != "" })
	if r := k.do(1, k.write(create(1, "b"))); fserr.Kind(r.Error) != fserr.NoSpace {
		t.Errorf("a create: %v", fserr.Kind(r.Error))
	}
	k.must(1, k.write(unlink(1, "a")))
	disks.free(follower, 500_000)
	eventually(t, "it takes everything", func() bool { return fserr.Kind(k.do(1, k.write(create(1, "c"))).Error) == fserr.OK })
}

// TestAStartOnAFullDisk is one clear line.
func TestAStartOnAFullDisk(t *testing.T) {
	t.Parallel()
	var disks fakeDisks
	disks.free(1, 500_000)
	c := newCluster(t, single, disks.settings)
	c.kill(0)
	disks.free(1, 10_000)
	if _, err := mds.New(t.Context(), c.settings(0)); err == nil || !strings.Contains(err.Error(), "is full") {
		t.Fatalf("a start without space: %v", err)
	}
	disks.free(1, 500_000)
	c.start(0)
	c.waitReady(0)
}

// TestStatFsCountsWhatWaits is FUSE K17: what no name and no open file leads to any
// more is free, from the unlink on, whichever node holds the shard and whatever the
// data servers do; what is open is not.
func TestStatFsCountsWhatWaits(t *testing.T) {
	t.Parallel()
	data := newFakeData()
	data.down.Store(true)
	c := newCluster(t, single, quick(data))
	k := c.caller(7).open(1)
	free := func() uint64 {
		return k.must(1, &canopyv1.Op{Subtree: 1, Call: &canopyv1.Op_StatFs{StatFs: &canopyv1.StatFsCall{}}}).Statfs.GetFreeBytes()
	}
	k.report(1, 1)
	eventually(t, "capacity", func() bool { return free() == 400 })
	gone, _ := k.makeOrphan("a")
	if got := free(); got != 500 {
		t.Errorf("%d bytes are free right after an unlink, want 500", got)
	}
	held, _ := k.makeOrphan("b")
	k.report(1, 2, held)
	if got := free(); got != 500 {
		t.Errorf("%d bytes are free with an open file, want 500", got)
	}
	c.kill(0)
	c.start(0)
	c.waitReady(0)
	k.report(1, 3, held)
	eventually(t, "the new holder counts them", func() bool { return free() == 500 })
	eventually(t, "the inode goes", func() bool { return fserr.Kind(k.do(1, getattr(gone)).Error) == fserr.Stale })
	if got := free(); got != 500 {
		t.Errorf("%d bytes are free while data wait for their servers, want 500", got)
	}
	k.report(1, 4)
	if got := free(); got != 600 {
		t.Errorf("%d bytes are free after the close, want 600", got)
	}
	data.down.Store(false)
	eventually(t, "the data go, and are not counted any more", func() bool { return c.queue() == 0 && free() == 400 })
}
