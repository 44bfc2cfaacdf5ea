package dataserver

import (
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// columnPage is the size of the page with a header and checksums before the
// blocks of a column file.
const columnPage = 4096

// flip changes one byte of a column's file on a server.
func (s *testServer) flip(f data.File, at int64) {
	s.c.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.dir(), "pgs", "1.*", "*", fmt.Sprintf("%x.0.0", uint64(f.ID))))
	if err != nil || len(files) != 1 {
		s.c.t.Fatalf("column files: %v, %v", files, err)
	}
	file, err := os.OpenFile(files[0], os.O_RDWR, 0)
	if err != nil {
		s.c.t.Fatal(err)
	}
	defer file.Close()
	b := []byte{0}
	if _, err := file.ReadAt(b, at); err != nil {
		s.c.t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := file.WriteAt(b, at); err != nil {
		s.c.t.Fatal(err)
	}
}

// keyAt returns the key of the file's first column.
func keyAt(f data.File) chunkstore.Key { return chunkstore.Key{Pool: 1, Data: f.ID} }

// scrub runs a scrub to its end and returns the results.
func (c *testCluster) scrub() (sum *canopyv1.ScrubResult, findings string) {
	c.t.Helper()
	layout := c.layoutClient()
	rate := uint64(0)
	answer, err := layout.SetScrub(testContext(c.t), &canopyv1.SetScrubRequest{Start: true, RateBytes: &rate})
	if err != nil || answer.Error != 0 {
		c.t.Fatalf("start: %v, %v", answer, err)
	}
	await.Until(c.t, patience, "the scrub ends", func() bool {
		status, err := layout.ScrubStatus(testContext(c.t), &canopyv1.ScrubStatusRequest{})
		if err != nil {
			c.t.Fatal(err)
		}
		sum, findings = &canopyv1.ScrubResult{}, ""
		done := uint32(0)
		for _, r := range status.Results {
			if r.Run == answer.State.Run {
				done++
				sum.Columns += r.Columns
				sum.Bytes += r.Bytes
				sum.Damaged += r.Damaged
				sum.Differing += r.Differing
				sum.Repaired += r.Repaired
				sum.Unrepairable += r.Unrepairable
				findings += strings.Join(r.Findings, "\n") + "\n"
			}
		}
		return done == status.Pgs
	})
	return sum, findings
}

// TestDamage: a flipped byte is never returned. One member with it is put right
// by a read, also when the other has another damaged block; with all members
// damaged it is an error, until it is overwritten.
func TestDamage(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, pgs: 1})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 40*4096+100)
	mustWrite(t, d, f, want, 0)
	c.servers[0].flip(f, columnPage+3*4096+17)
	c.servers[1].flip(f, columnPage+9*4096)
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "with one damaged block on each")
	if sum, findings := c.scrub(); sum.Columns != 1 || sum.Unrepairable != 0 || sum.Damaged > 1 {
		t.Errorf("scrub after the read: %v\n%s", sum, findings)
	}
	for _, s := range c.servers {
		if _, damaged, err := s.server.store.Verify(keyAt(f), 0, 41); err != nil || len(damaged) > 0 {
			t.Errorf("server %d: still damaged: %v, %v", s.id, damaged, err)
		}
	}
	for _, s := range c.servers {
		s.flip(f, columnPage+5*4096)
	}
	if _, err := d.ReadAt(testContext(t), f, make([]byte, 4096), 5*4096); fserr.KindOf(err) != fserr.IO {
		t.Errorf("damaged on all members: %v, want EIO", err)
	}
	requireBytes(t, mustRead(t, d, f, 5*4096, 0), want[:5*4096], "before the lost block")
	if sum, findings := c.scrub(); sum.Unrepairable != 1 || !strings.Contains(findings, "block 5 is damaged on all members") {
		t.Errorf("scrub of a lost block: %v\n%s", sum, findings)
	}
	mustWrite(t, d, f, want[5*4096:6*4096], 5*4096)
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "overwritten")
}

// TestScrubRepairs: a scrub finds and puts right what nobody reads: damaged
// bytes, checksums and headers, and copies that differ though both are whole
// (PROTOCOLS J3).
func TestScrubRepairs(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 3, pgs: 1})
	d := c.client(1)
	var files []data.File
	var want [][]byte
	for i := range 5 {
		f := testFile(base.DataID(100 + i))
		p := randomBytes(uint64(i), 200*4096-5)
		mustWrite(t, d, f, p, 0)
		if err := d.Sync(testContext(t), f, nil); err != nil {
			t.Fatal(err)
		}
		files, want = append(files, f), append(want, p)
	}
	c.servers[0].flip(files[0], columnPage+7)               // data of the primary
	c.servers[1].flip(files[1], columnPage+160*4096)        // data of a replica
	c.servers[0].flip(files[2], columnPage/2+5*8+1)         // a checksum, or what is near it
	rewrite := func(s *testServer, f data.File, p []byte) { // a lost write: whole, and not what others have
		t.Helper()
		_, err := s.server.store.Write(keyAt(f), chunkstore.Write{Offset: 8192, Parts: [][]byte{p}, CRC: crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)), Repair: true})
		if err != nil {
			t.Fatal(err)
		}
	}
	rewrite(c.servers[2], files[3], randomBytes(77, 4096))
	if err := c.servers[1].server.store.Drop(keyAt(files[4])); err != nil {
		t.Fatal(err)
	}
	sum, findings := c.scrub()
	if sum.Columns != 5 || sum.Damaged < 2 || sum.Differing < 2 || sum.Repaired < 4 || sum.Unrepairable != 0 {
		t.Errorf("found %v\n%s", sum, findings)
	}
	for i, f := range files {
		for _, s := range c.servers {
			if _, damaged, err := s.server.store.Verify(keyAt(f), 0, 200); err != nil || len(damaged) > 0 {
				t.Errorf("file %d, server %d: %v, %v", i, s.id, damaged, err)
			}
		}
		requireBytes(t, mustRead(t, d, f, len(want[i]), 0), want[i], fmt.Sprintf("file %d", i))
	}
	c.requireEqualReplicas(d, 3, files[0].ID, files[1].ID, files[2].ID, files[3].ID, files[4].ID)
	if sum, findings := c.scrub(); sum.Damaged+sum.Differing+sum.Repaired != 0 {
		t.Errorf("the second scrub found %v\n%s", sum, findings)
	}
}

// TestScrubIsDurable: a stopped scrub goes on where it was, over a restart of the
// layout service.
func TestScrubIsDurable(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, pgs: 2})
	d := c.client(1)
	mustWrite(t, d, testFile(100), randomBytes(1, 24<<20), 0)
	slow, fast := uint64(64<<10), uint64(0)
	layout := c.layoutClient()
	set := func(r *canopyv1.SetScrubRequest) (state *canopyv1.ScrubState, kind fserr.Kind) {
		t.Helper()
		await.Until(t, patience, "the layout service leads", func() bool {
			answer, err := layout.SetScrub(testContext(t), r)
			if err != nil {
				return false // it is starting
			}
			state, kind = answer.State, fserr.Kind(answer.Error)
			return kind != fserr.NotHolder && kind != fserr.NotReady
		})
		return state, kind
	}
	if _, kind := set(&canopyv1.SetScrubRequest{Stop: true}); kind != fserr.Invalid {
		t.Errorf("stop without a scrub: %v", kind)
	}
	first, kind := set(&canopyv1.SetScrubRequest{Start: true, RateBytes: &slow})
	if kind != fserr.OK || first.Run != 1 {
		t.Fatalf("start: %v, %v", first, kind)
	}
	if _, kind := set(&canopyv1.SetScrubRequest{Start: true}); kind != fserr.Busy {
		t.Errorf("start of a second: %v", kind)
	}
	await.Until(t, patience, "a primary tells of its progress", func() bool {
		for _, s := range c.servers {
			status := s.server.repairStatus()
			if slices.ContainsFunc(status.Groups, func(g *canopyv1.GroupRepair) bool { return g.Run == 1 && g.BytesDone > 0 && g.BytesDone < g.BytesTotal }) {
				return true
			}
		}
		return false
	})
	if _, kind := set(&canopyv1.SetScrubRequest{Stop: true}); kind != fserr.OK {
		t.Errorf("stop: %v", kind)
	}
	c.layout.stop(t)
	c.startLayout()
	again, kind := set(&canopyv1.SetScrubRequest{Start: true, RateBytes: &fast})
	if kind != fserr.OK || again.Run != 1 || again.Stopped {
		t.Fatalf("continue: %v, %v", again, kind)
	}
	await.Until(t, patience, "the scrub ends", func() bool {
		status, err := layout.ScrubStatus(testContext(t), &canopyv1.ScrubStatusRequest{})
		return err == nil && len(status.Results) == 2
	})
}

// TestLostBytesStayLost: what is damaged on the only member in sync is not
// replaced by zeros or by older bytes when another is recovered from it.
func TestLostBytesStayLost(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, pgs: 1})
	d := c.client(1)
	f, g := testFile(100), testFile(101)
	mustWrite(t, d, f, make([]byte, 64*4096), 0) // older bytes
	mustWrite(t, d, g, make([]byte, 4096), 0)
	away := c.servers[1]
	away.stop()
	c.waitMap(d, "it to be out", outOfSyncEverywhere(away.id))
	want := randomBytes(1, 64*4096)
	mustWrite(t, d, f, want, 0)
	mustWrite(t, d, g, want[:8192], 0)
	c.servers[0].flip(f, columnPage+33*4096)
	away.start()
	c.waitMap(d, "all in sync", allInSync)
	for _, s := range c.servers {
		if _, damaged, err := s.server.store.Verify(keyAt(f), 0, 64); err != nil || !slices.Equal(damaged, []uint64{33}) {
			t.Errorf("server %d: damaged are %v, %v", s.id, damaged, err)
		}
	}
	if _, err := d.ReadAt(testContext(t), f, make([]byte, 4096), 33*4096); fserr.KindOf(err) != fserr.IO {
		t.Errorf("the lost block: %v, want EIO", err)
	}
	requireBytes(t, mustRead(t, d, f, 33*4096, 0), want[:33*4096], "before it")
	requireBytes(t, mustRead(t, d, f, 30*4096, 34*4096), want[34*4096:], "behind it")
	requireBytes(t, mustRead(t, d, g, 8192, 0), want[:8192], "another file")
}

// TestUnreadableColumnIsNotDroppedInSync: a member in sync that cannot read a column at
// all leaves the members in sync before the column is dropped there and sent again: if
// the primary ended in between, the member's readers would find zeros.
func TestUnreadableColumnIsNotDroppedInSync(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, pgs: 1})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 1<<20)
	if err := d.Sync(testContext(t), f, writeAcked(t, d, f, want)); err != nil {
		t.Fatal(err)
	}
	pg := mapOf(t, d).Pools[0].Pgs[0]
	primary, member := c.servers[0], c.servers[1]
	if primary.id != pg.InSync[0] {
		primary, member = member, primary
	}
	if err := member.server.store.CondemnAll(keyAt(f)); err != nil {
		t.Fatal(err)
	}
	g := primary.server.group(keyAt(f))
	if _, err := g.syncShape(testContext(t), keyAt(f), base.NodeID(member.id), nil); fserr.KindOf(err) != fserr.IO {
		t.Fatalf("an unreadable column: %v", err)
	}
	if now, _, _ := g.state(); now.Epoch == pg.Epoch {
		t.Errorf("the member is in sync still: %v", now)
	}
	c.waitMap(d, "all in sync", allInSync)
	c.requireEqualReplicas(d, 2, f.ID)
	primary.stop()
	c.waitMap(d, "the primary to be out", outOfSyncEverywhere(primary.id))
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "from the member")
}
