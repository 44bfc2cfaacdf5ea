package dataserver

import (
	"hash/crc32"
	"slices"
	"testing"

	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
)

// TestActivationMakesMembersEqual is PROTOCOLS J3: a write that its primary brought
// to one replica only before it died is on all members or on none before the next
// primary serves; else a reader that goes from member to member sees it come and
// go.
func TestActivationMakesMembersEqual(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 3, pgs: 1})
	d := c.client(1)
	f := testFile(100)
	mustWrite(t, d, f, randomBytes(1, 200_000), 0)
	pg := mapOf(t, d).Pools[0].Pgs[0]
	byID := map[uint64]*testServer{}
	for _, s := range c.servers {
		byID[s.id] = s
	}
	key := chunkstore.Key{Pool: 1, PG: 0, Data: f.ID}
	primary, last := byID[pg.InSync[0]], byID[pg.InSync[2]]
	log := primary.server.group(key).log
	log.mu.Lock()
	seq := log.next + 1
	log.mu.Unlock()
	half := randomBytes(2, 50_000)
	response, err := last.server.execute(testContext(t), &link.Request{
		DataRequest: &canopyv1.DataRequest{
			Column: columnOf(key), PgEpoch: pg.Epoch, FromPrimary: true, LogSeq: seq, LogFloor: seq,
			Client: 9, Incarnation: 1, Seq: 1, Floor: 1,
			Call: &canopyv1.DataRequest_Write{Write: &canopyv1.WriteCall{
				Offset: 30_000, Crc32C: crc32.Checksum(half, crc32.MakeTable(crc32.Castagnoli))}},
		},
		Payload: mem.BufferSlice{mem.SliceBuffer(half)},
	})
	if err != nil {
		t.Fatal(err)
	}
	response.Free()
	primary.stop()
	c.waitMap(d, "the primary to be out", outOfSyncEverywhere(primary.id))
	seen := mustRead(t, d, f, 200_000, 0) // the next primary serves
	var sums [][]uint32
	for _, id := range pg.InSync[1:] {
		s, err := byID[id].server.store.Sums(key, 0, 50)
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, s)
	}
	if !slices.Equal(sums[0], sums[1]) {
		t.Error("the members differ")
	}
	requireBytes(t, mustRead(t, d, f, 200_000, 0), seen, "read again")
}
