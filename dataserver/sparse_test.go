package dataserver

import (
	"errors"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/internal/fserr"
)

// TestPunchReserveSeek: holes and reservations through three servers, over all
// columns of a file, with replicas equal and space counted once.
func TestPunchReserveSeek(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 2})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 7<<20)
	mustWrite(t, d, f, want, 0)
	wantSpace := func(what string, n uint64) {
		t.Helper()
		if got, err := d.Allocated(testContext(t), f); err != nil || got != n {
			t.Errorf("%s: %d bytes have space, want %d: %v", what, got, n, err)
		}
	}
	wantSpace("written", 7<<20)
	hole := data.Range{Offset: 1<<20 - 5000, Length: 3<<20 + 10_000}
	freed, acks, err := d.Punch(testContext(t), f, hole)
	clear(want[hole.Offset : hole.Offset+hole.Length])
	if err != nil || freed != 3<<20+2*4096 || len(acks) == 0 {
		t.Errorf("punch freed %d bytes, acknowledged %v: %v", freed, acks, err)
	}
	wantSpace("punched", 7<<20-freed)
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "punched")
	if again, _, err := d.Punch(testContext(t), f, hole); again != 0 || err != nil {
		t.Errorf("the same punch again freed %d bytes: %v", again, err)
	}
	for _, s := range []struct {
		off  int64
		hole bool
		want int64
	}{
		{0, false, 0}, {0, true, 1<<20 - 4096}, {1 << 20, true, 1 << 20}, {1 << 20, false, 4<<20 + 4096},
		{5 << 20, false, 5 << 20}, {5 << 20, true, 7 << 20}, {7 << 20, false, -1}, {1 << 62, false, -1}, {1 << 62, true, 1 << 62},
	} {
		if at, err := d.Seek(testContext(t), f, s.off, s.hole); at != s.want || err != nil {
			t.Errorf("seek from %d, hole %v: %d, want %d: %v", s.off, s.hole, at, s.want, err)
		}
	}
	took, _, err := d.Reserve(testContext(t), f, data.Range{Offset: 0, Length: 9 << 20})
	if err != nil || took != freed+2<<20 {
		t.Errorf("a reservation took %d bytes, want %d: %v", took, freed+2<<20, err)
	}
	wantSpace("reserved", 9<<20)
	if n := mustWrite(t, d, f, want[:2<<20], 7<<20); n != 0 {
		t.Errorf("a write to what was reserved allocated %d bytes", n)
	}
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "reserved")
	if freed, _, err := d.Punch(testContext(t), f, data.Range{Length: 1<<63 - 1}); freed != 9<<20 || err != nil {
		t.Errorf("a punch of all that a file can have freed %d bytes: %v", freed, err)
	}
	if _, _, err := d.Punch(testContext(t), f, data.Range{Offset: 1, Length: 1<<63 - 1}); !errors.Is(err, fserr.FileTooBig) {
		t.Errorf("a punch of more than that: %v", err)
	}
	c.requireEqualReplicas(d, 2, f.ID)
}

// TestPunchWhileAMemberIsAway: a member that missed punches, reservations and
// writes gets them, and not the whole column, when it is back.
func TestPunchWhileAMemberIsAway(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 2})
	d := c.client(1)
	f, sparse := testFile(100), testFile(101)
	want := randomBytes(1, 6<<20)
	mustWrite(t, d, f, want, 0)
	const far = 1 << 40
	mustWrite(t, d, sparse, want[:4096], far)
	mustWrite(t, d, sparse, want[:4096], 0)
	victim := c.servers[1]
	victim.stop()
	if _, _, err := d.Punch(testContext(t), f, data.Range{Offset: 100_000, Length: 4 << 20}); err != nil {
		t.Fatal(err)
	}
	clear(want[100_000 : 100_000+4<<20])
	if _, _, err := d.Reserve(testContext(t), f, data.Range{Offset: 5 << 20, Length: 3 << 20}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Punch(testContext(t), sparse, data.Range{Length: 4096}); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, d, sparse, want[:100], far+10_000)
	c.waitMap(d, "the server to be out of sync", outOfSyncEverywhere(victim.id))
	victim.start()
	c.waitMap(d, "the server to be in sync again", allInSync)
	c.requireEqualReplicas(d, 2, f.ID, sparse.ID)
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after recovery")
	requireBytes(t, mustRead(t, d, sparse, 100, far+10_000), want[:100], "far out, after recovery")
}

// TestPunchIsDoneOnce (PROTOCOLS J3): a punch that comes a second time is answered
// as the first, and does not take what was written since.
func TestPunchIsDoneOnce(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 2})
	d := c.client(1)
	f := testFile(100)
	mustWrite(t, d, f, randomBytes(1, 8192), 0)
	where, err := d.Locate(testContext(t), f, data.Range{Length: 1})
	if err != nil {
		t.Fatal(err)
	}
	var primary *testServer
	for _, s := range c.servers {
		if s.id == where[0].Servers[0].Server {
			primary = s
		}
	}
	request := func() *link.Request {
		return &link.Request{DataRequest: &canopyv1.DataRequest{
			Column:  &canopyv1.Column{Pool: 1, Pg: uint32(where[0].PG), DataId: uint64(f.ID)},
			PgEpoch: uint64(where[0].PGEpoch), Client: 77, Incarnation: 1, Seq: 5, Floor: 5,
			Call: &canopyv1.DataRequest_Punch{Punch: &canopyv1.PunchCall{Length: 8192}},
		}}
	}
	for range 2 {
		response, err := primary.server.execute(testContext(t), request())
		if err != nil || response.FreedBytes != 8192 {
			t.Fatalf("punch: %v, %v", response, err)
		}
		mustWrite(t, d, f, randomBytes(2, 8192), 0)
	}
	requireBytes(t, mustRead(t, d, f, 8192, 0), randomBytes(2, 8192), "what was written since")
}

// TestTooFarIsRefused: what no column file can hold is refused as that, and no
// member is taken out of sync for it.
func TestTooFarIsRefused(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 2})
	d := c.client(1)
	f := testFile(100)
	for _, off := range []int64{1<<63 - 2, 1 << 62} {
		if _, err := d.WriteAt(testContext(t), f, []byte("x"), off); !errors.Is(err, fserr.FileTooBig) {
			t.Errorf("a write at %d: %v", off, err)
		}
		if _, _, err := d.Reserve(testContext(t), f, data.Range{Offset: off, Length: 1}); !errors.Is(err, fserr.FileTooBig) {
			t.Errorf("a reservation at %d: %v", off, err)
		}
	}
	m, err := d.PoolMap(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if !allInSync(m) {
		t.Error("members were taken out of sync for a request that no file system can serve")
	}
}
