package mds_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/mds"
)

// TestFollowersAnswerNothing: PROTOCOLS B6. Reads, reports of open files and
// writes get no answer from a node that does not hold the shard, and no such
// node lists the sessions.
func TestFollowersAnswerNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, triple, nil)
	k := c.caller(7).open(1)
	made := k.must(1, k.write(create(1, "a"))).Attr
	c.equalReplicas(1) // the followers have it
	k.must(1, lookup(1, "a"))
	holder := c.holding(1)
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
	t.Parallel()
	const grace = 2 * time.Second
	c := newCluster(t, single, func(c *mds.Config) { c.OrphanGrace, c.Heartbeat = grace, 100*time.Millisecond })
	<-time.After(grace) // the acquisition is over
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
	await.Throughout(t, grace, "the open file is there", func() bool { return k.must(1, getattr(second)).Attr != nil })
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

// countingData counts the deletions that were asked for.
type countingData struct {
	*fakeData
	asked atomic.Int32
}

func (d *countingData) Delete(ctx context.Context, id base.DataID, l *canopyv1.Layout, size uint64) error {
	d.asked.Add(1)
	return d.fakeData.Delete(ctx, id, l, size)
}

// TestFailedDeletionsStayQueued: PROTOCOLS H3. As long as some data server has not
// confirmed, the queue entry stays, however often it was tried.
func TestFailedDeletionsStayQueued(t *testing.T) {
	t.Parallel()
	data := &countingData{fakeData: newFakeData()}
	data.down.Store(true)
	c := newCluster(t, single, func(c *mds.Config) {
		c.OrphanGrace, c.Heartbeat, c.Data = 100*time.Millisecond, 100*time.Millisecond, data
	})
	k := c.caller(7).open(1)
	_, dataID := k.makeOrphan("a")
	k.report(1, 1)
	for tries := int32(1); tries <= 3; tries++ { // a second attempt shows what became of the entry after the first
		eventually(t, "its deletion is tried", func() bool { return data.asked.Load() >= tries })
	}
	if n := c.queue(); n != 1 || data.wasDeleted(dataID) {
		t.Errorf("%d entries are queued after failures, deleted %v", n, data.wasDeleted(dataID))
	}
	data.down.Store(false)
	eventually(t, "the data go", func() bool { return data.wasDeleted(dataID) && c.queue() == 0 })
}

// TestANewHolderIsToldFirst: PROTOCOLS H2. A new holder that serves, and whose
// grace is over, purges nothing while a live session has not reported to it.
func TestANewHolderIsToldFirst(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, quick(nil))
	k := c.caller(7).open(1)
	held, _ := k.makeOrphan("held")
	k.report(1, 1, held)
	c.kill(0)
	c.start(0)
	c.waitReady(0)
	eventually(t, "it holds the shard", func() bool { return c.holder(1) == 0 })
	// Its grace, several times.
	await.Throughout(t, 5*300*time.Millisecond, "the file that may be open is there", func() bool {
		return k.must(1, getattr(held)).Attr != nil
	})
	k.report(1, 2)
	eventually(t, "it goes once all have reported", func() bool { return fserr.Kind(k.do(1, getattr(held)).Error) == fserr.Stale })
}
