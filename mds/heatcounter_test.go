package mds

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/heat"
)

func newTestCounter() *heatCounter {
	return newHeatCounter(&sync.Pool{New: func() any { return new(heat.Batch) }})
}

// counted is how many operations the counter has taken in, as far as they have not
// faded.
func (c *heatCounter) counted() (ops float64) {
	c.read(func(s *heat.Sketch, now time.Duration) {
		top := s.Top(now, heat.Windows-1, 10)
		ops = top.Total.All() * max(now, time.Second).Seconds()
	})
	return ops
}

// TestHeatCounterLosesNothingInSilence: what many goroutines add at once is counted,
// or told to be lost.
func TestHeatCounterLosesNothingInSilence(t *testing.T) {
	c := newTestCounter()
	const adders, each = 16, 4000
	add := func() {
		var all sync.WaitGroup
		for a := range adders {
			all.Go(func() {
				for i := range each {
					c.add(base.ClientID(a), heat.Sample{Dir: base.Ino(i + 1), Client: base.ClientID(a), Class: heat.Lookup, Count: 1})
				}
			})
		}
		all.Wait()
	}
	add() // nobody takes the batches: the memory is bounded, and the rest is lost
	lost := c.lost.Load()
	got := c.counted()
	if lost == 0 || got < (adders*each-float64(lost))*0.9 || got > (adders*each-float64(lost))*1.1 {
		t.Errorf("%v counted and %d lost of %d", got, lost, adders*each)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var worker sync.WaitGroup
	worker.Go(func() { c.run(ctx) })
	add()
	cancel()
	worker.Wait()
	more := c.lost.Load() - lost
	if now := c.counted(); now < (got+adders*each-float64(more))*0.9 || now > (got+adders*each-float64(more))*1.1 {
		t.Errorf("%v counted and %d lost of %d", now-got, more, adders*each)
	}
}

// TestRefusedWritesWait: from the first refusal of a write on, its client waits for
// others; the memory of it is bounded.
func TestRefusedWritesWait(t *testing.T) {
	r := refusedWrites{since: map[txnRequest]time.Time{}}
	began := time.Now()
	one := txnRequest{7, 1}
	if d := r.taken(one, began); d != 0 {
		t.Errorf("one that was not refused waited %v", d)
	}
	r.note(one, began)
	r.note(one, began.Add(time.Second)) // and again
	if d := r.taken(txnRequest{7, 2}, began.Add(time.Second)); d != 0 {
		t.Errorf("another waited %v", d)
	}
	if d := r.taken(one, began.Add(3*time.Second)); d != 3*time.Second {
		t.Errorf("it waited %v", d)
	}
	if d := r.taken(one, began.Add(4*time.Second)); d != 0 {
		t.Errorf("taken twice: %v", d)
	}
	for i := range uint64(2 * maxRefused) {
		r.note(txnRequest{8, i}, began)
	}
	if len(r.since) != maxRefused {
		t.Errorf("%d are remembered", len(r.since))
	}
	// Clients that never came back make room.
	late := began.Add(2 * refusedPeriod)
	r.note(txnRequest{9, 1}, late)
	if d := r.taken(txnRequest{9, 1}, late.Add(time.Second)); d != time.Second || len(r.since) != 0 {
		t.Errorf("it waited %v; %d are remembered", d, len(r.since))
	}
}

// TestEveryOperationHasAClass: a new operation is not counted as a create by oversight.
func TestEveryOperationHasAClass(t *testing.T) {
	creates := map[opType]bool{opCreate: true, opMkdir: true, opMknod: true, opSymlink: true, opLink: true}
	for kind := opUnknown; kind < opTypes; kind++ {
		if (heatClasses[kind] == heat.Create) != creates[kind] {
			t.Errorf("%v is counted as %v", kind, heatClasses[kind])
		}
	}
	if opTypes > heat.MaxOps {
		t.Errorf("%d operations are more than a sketch tells apart", opTypes)
	}
}
