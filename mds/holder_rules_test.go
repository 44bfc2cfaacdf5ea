package mds_test

import (
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/mds"
)

// TestFollowersAnswerNothing: PROTOCOLS B6. Reads, reports of open files and
// writes get no answer from a node that does not hold the shard, and no such
// node lists the sessions.
func TestFollowersAnswerNothing(t *testing.T) {
	c := newCluster(t, triple, nil)
	k := c.caller(7).open(1)
	made := k.must(1, k.write(create(1, "a"))).Attr
	c.equalReplicas(1) // the followers have it
	k.must(1, lookup(1, "a"))
	holder := c.holder(1)
	for i, n := range c.nodes {
		if i == holder {
			continue
		}
		for what, op := range map[string]*canopyv1.Op{
			"a lookup": lookup(1, "a"), "a write": k.write(create(1, "b")),
			"a stat": getattr(&canopyv1.Place{Ino: made.Ino, Dir: 1, Name: []byte("a")}),
		} {
			if r := k.try(n, 1, op); r == nil || fserr.Kind(r.Error) != fserr.NotHolder {
				t.Errorf("node %d, which follows, answers %s with %v", i+1, what, r)
			}
		}
		r, err := canopyv1.NewMetadataClient(connect(t, n.Addr())).ReportOpens(k.context(t.Context()),
			&canopyv1.ReportOpensRequest{Shard: 1, Full: true, Number: 1})
		if err != nil || fserr.Kind(r.Error) != fserr.NotHolder {
			t.Errorf("node %d, which follows, takes a report: %v, %v", i+1, r, err)
		}
	}
	if c.holder(1) != holder {
		t.Fatal("the lease moved during the test")
	}
}

// TestOrphansHaveTheirGrace: PROTOCOLS H2. Though every session has reported that
// it does not have it open, an orphan stays for the grace period from its unlink,
// and from the holder's acquisition: a report that was under way may say otherwise.
func TestOrphansHaveTheirGrace(t *testing.T) {
	const grace = 2 * time.Second
	c := newCluster(t, single, func(c *mds.Config) { c.OrphanGrace, c.Heartbeat = grace, 100*time.Millisecond })
	time.Sleep(grace) // the acquisition is over
	k := c.caller(7).open(1)
	k.report(1, 1)
	gone := func(p *canopyv1.Place) func() bool {
		return func() bool { return fserr.Kind(k.do(1, getattr(p)).Error) == fserr.Stale }
	}
	unlinked := time.Now()
	first, _ := k.makeOrphan("first")
	eventually(t, "the first goes", gone(first))
	if after := time.Since(unlinked); after < grace {
		t.Errorf("it went %v after its unlink, the grace is %v", after, grace)
	}
	// The second is old when a new term begins, which takes the node's restart and
	// the last term's lease.
	second, _ := k.makeOrphan("second")
	k.report(1, 2, second)
	time.Sleep(grace)
	k.must(1, getattr(second))
	c.kill(0)
	restarted := time.Now()
	const lease = time.Second // at least
	c.start(0)
	c.waitReady(0)
	k.report(1, 3)
	eventually(t, "the second goes", gone(second))
	if after := time.Since(restarted); after < lease+grace {
		t.Errorf("it went %v after the restart, of which the lease takes %v and the grace %v", after, lease, grace)
	}
}
