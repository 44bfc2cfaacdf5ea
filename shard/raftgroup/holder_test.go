package raftgroup

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lni/dragonboat/v4"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// B2: the group counts its lease from before it proposed what renewed it, not from
// when that was applied: other replicas may have seen it as early as that.
func TestB2TheLeaseCountsFromTheProposal(t *testing.T) {
	t.Parallel()
	const lease, way = 4 * time.Second, 300 * time.Millisecond
	var last atomic.Int64 // when a proposal last set out
	c := newCluster(t, 1, func(cfg *Config) {
		cfg.LeaseDuration = lease
		cfg.interfere = func(toRaft proposeFunc) proposeFunc {
			return func(data []byte) (*dragonboat.RequestState, error) {
				last.Store(int64(SystemClock{}.Boot()))
				<-time.After(way) // a long way to the log
				return toRaft(data)
			}
		}
	})
	g := c.nodes[0].group()
	check := func(what string) {
		t.Helper()
		until := time.Duration(g.validUntil.Load())
		limit := time.Duration(last.Load()) + lease - lease/clockMarginDivisor
		if until == 0 || until > limit {
			t.Errorf("%s: the lease ends %v after what its proposal allows", what, until-limit)
		}
	}
	ctx := testContext(t)
	await.Until(t, patience, "it has acquired the lease, without anybody's asking", func() bool { return g.Status().LeaseLeft > 0 })
	check("acquired")
	if _, err := g.Propose(ctx, []byte(name(1))); err != nil {
		t.Fatal(err)
	}
	check("renewed by a write")
}

// releaseWatch loses a command on its way, and sees what is proposed after it.
type releaseWatch struct {
	group    atomic.Pointer[Group]
	mu       sync.Mutex
	lose     bool
	lost     chan struct{}
	released bool
	early    bool // Release was proposed with something else in flight
}

func (w *releaseWatch) wrap(toRaft proposeFunc) proposeFunc {
	return func(data []byte) (*dragonboat.RequestState, error) {
		var e entry
		if err := decodeEntry(data, &e); err != nil {
			return nil, err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if e.lease.action == canopyv1.LeaseAction_LEASE_RELEASE {
			g := w.group.Load()
			g.mu.Lock()
			w.released, w.early = true, w.early || len(g.inflight) > 1
			g.mu.Unlock()
		}
		if len(e.commands) > 0 && w.lose {
			w.lose = false
			close(w.lost)
			return nil, nil // nobody says so: it is in flight until it is proposed again
		}
		return toRaft(data)
	}
}

// B5: a holder that releases answers nothing from then on, though its lease and its
// epoch last; what is in flight is finished before Release is proposed.
func TestB5NothingIsAnsweredWhileReleasing(t *testing.T) {
	t.Parallel()
	w := &releaseWatch{lost: make(chan struct{})}
	c := newCluster(t, 1, func(cfg *Config) {
		cfg.LeaseDuration, cfg.interfere = 20*time.Second, w.wrap
	})
	g := c.holder(patience).group()
	w.group.Store(g)
	w.mu.Lock()
	w.lose = true
	w.mu.Unlock()
	outcome := make(chan error, 1)
	g.Submit([]byte(name(1)), func(_ []byte, err error) { outcome <- err })
	<-w.lost
	released := make(chan error, 1)
	go func() { released <- g.Release(testContext(t)) }()
	ctx := testContext(t)
	await.Until(t, patience, "the release begins", func() bool { return !g.Status().Self })
	s := g.Status()
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	err := g.Read(short, func(shard.Reader) error { return nil })
	if !errors.Is(err, fserr.NotHolder) {
		t.Errorf("a read while the lease is being released: %v, want NotHolder", err)
	}
	if s.InFlight == 0 || s.Released {
		t.Errorf("nothing is in flight (%+v): the test does not test what it should", s)
	}
	if err := <-outcome; err != nil {
		t.Errorf("the command in flight: %v", err)
	}
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.released || w.early {
		t.Errorf("Release was proposed %v, before the pipeline was empty %v", w.released, w.early)
	}
	if err := g.Read(ctx, func(shard.Reader) error { return nil }); !errors.Is(err, fserr.NotHolder) {
		t.Errorf("a read after the release: %v, want NotHolder", err)
	}
}

// A2: an entry of an epoch that ended is refused also where its number would be the
// next one of the present epoch: a deposed holder's late copies change nothing.
func TestA2EntriesOfAnEndedEpoch(t *testing.T) {
	var rec schema.Lease
	for _, e := range []*entry{acquireEntry(1, 0, 7), numbered(1, 1), numbered(1, 2), acquireEntry(2, 3, 8)} {
		next, ok := admit(rec, e)
		if !ok {
			t.Fatalf("entry %d of epoch %d is refused", e.number, e.epoch)
		}
		rec = next
	}
	for number := uint64(1); number <= 3; number++ {
		if next, ok := admit(rec, numbered(1, number)); ok || next != rec {
			t.Errorf("entry %d of epoch 1 is taken while epoch 2 expects %d", number, rec.Number+1)
		}
		next, ok := admit(rec, numbered(2, number))
		if !ok {
			t.Fatalf("entry %d of epoch 2 is refused", number)
		}
		rec = next
	}
}
