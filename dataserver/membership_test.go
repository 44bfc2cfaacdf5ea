package dataserver

import (
	"slices"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// TestRegistrationAdoptsItsMap: when the answer to a registration has been dealt
// with, its map is served by, also one that the stream had brought before the
// server knew its id.
func TestRegistrationAdoptsItsMap(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2})
	d := c.client(1)
	c.waitMap(d, "the pool", allInSync)
	m, err := d.PoolMap(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	s := c.servers[0].server
	s.watcher.Offer(m)
	s.adopting.Lock()
	s.adopted.Store(0) // as before the id was known
	s.adopting.Unlock()
	if err := s.registered(&canopyv1.RegisterServerResponse{Cluster: m.Cluster, Server: c.servers[0].id, Map: m}); err != nil {
		t.Fatal(err)
	}
	if s.adopted.Load() < m.Revision {
		t.Errorf("adopted is revision %d, registered with %d", s.adopted.Load(), m.Revision)
	}
}

// TestLateMapIsWaitedFor: a member that answers but has not got the newest map
// yet stays in sync; nothing is acknowledged without it.
func TestLateMapIsWaitedFor(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 3, pgs: 2, lease: 6 * time.Second}) // heartbeats wait with the map
	d := c.client(1)
	f := testFile(100)
	mustWrite(t, d, f, randomBytes(1, 100_000), 0)
	late, leaves := c.servers[1], c.servers[2]
	late.server.adopting.Lock()
	leaves.stop()
	c.waitMap(d, "the stopped server to be out", outOfSyncEverywhere(leaves.id))
	const delay = 2500 * time.Millisecond // longer than two epochWaits and replicaPatience
	time.AfterFunc(delay, late.server.adopting.Unlock)
	want := randomBytes(2, 100_000)
	mustWrite(t, d, f, want, 0)
	m, err := d.PoolMap(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, pg := range m.Pools[0].Pgs {
		if !slices.Contains(pg.InSync, late.id) || pg.Epoch != 2 {
			t.Errorf("pg %v: server %d was only late", pg, late.id)
		}
	}
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after the change")
}
