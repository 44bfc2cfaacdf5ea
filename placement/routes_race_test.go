package placement_test

import (
	"context"
	"sync"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/placement"
)

// TestRoutesGoForwardAtOnce: PROTOCOLS E8. Several owners, one after the other,
// publish a subtree at the same moment, each on what it has read: whoever writes
// last, the largest epoch stays.
func TestRoutesGoForwardAtOnce(t *testing.T) {
	t.Parallel()
	s, e := newStore(t)
	const writers, rounds = 4, 40
	var stores []*placement.Store
	for range writers {
		stores = append(stores, open(t, placement.Config{Endpoints: []string{e.Address()}}))
	}
	for round := range uint64(rounds) {
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i, other := range stores {
			wg.Go(func() {
				<-start
				epoch := uint64(1 + i)
				if _, err := other.PutRoute(context.Background(), &canopyv1.SubtreeRoute{Subtree: 100 + round, Epoch: epoch, Shard: epoch}); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		wg.Wait()
		if err := s.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := s.Map().Route(base.SubtreeID(100 + round)); r.GetEpoch() != writers {
			t.Errorf("round %d: the route is %v, want epoch %d", round, r, writers)
		}
	}
}
