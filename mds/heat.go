package mds

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/heat"
)

const (
	// heatInterval is how long samples wait at most until they are counted.
	heatInterval = 250 * time.Millisecond
	// heatStripes is how many goroutines can add samples at the same time.
	heatStripes = 8
	// heatBacklog bounds the full batches that wait to be counted: what comes on top is
	// lost, and told.
	heatBacklog = 32
	// maxRefused bounds the writes that are remembered because they were refused and are
	// to come again; those that did not come for so long are forgotten.
	maxRefused    = 4096
	refusedPeriod = time.Minute
)

// heatCounter counts what one term of a shard's holder does. Whoever answers an
// operation adds a sample to a batch, under a lock of a few nanoseconds; the term's
// worker takes the batches into the sketch. Memory is bounded: a sketch (2 MB at most,
// see heat.Sketch), and while operations come up to 40 batches of 16 KiB.
type heatCounter struct {
	batches *sync.Pool // of *heat.Batch, the node's
	began   time.Time
	stripes [heatStripes]heatStripe
	full    chan *heat.Batch
	wake    chan struct{}
	armed   atomic.Bool // the worker knows that there are samples
	lost    atomic.Uint64

	refused refusedWrites

	mu     sync.Mutex // after that of a stripe
	sketch *heat.Sketch
}

// heatStripe is one of the batches that are being filled.
type heatStripe struct {
	mu    sync.Mutex
	batch *heat.Batch // nil: none was needed since the last look
	_     [48]byte    // one cache line each
}

func newHeatCounter(batches *sync.Pool) *heatCounter {
	return &heatCounter{batches: batches, began: time.Now(), full: make(chan *heat.Batch, heatBacklog), wake: make(chan struct{}, 1),
		sketch: heat.NewSketch(rand.Uint64()), refused: refusedWrites{since: map[txnRequest]time.Time{}}}
}

// add takes samples in. It does not wait for the sketch.
func (c *heatCounter) add(stripe base.ClientID, samples ...heat.Sample) {
	x := &c.stripes[(stripe^stripe>>32)%heatStripes]
	x.mu.Lock()
	for i := range samples {
		if x.batch == nil {
			x.batch = c.batches.Get().(*heat.Batch)
		}
		if x.batch.Add(&samples[i]) {
			continue
		}
		select {
		case c.full <- x.batch:
			x.batch = c.batches.Get().(*heat.Batch)
		default:
			c.lost.Add(x.batch.Count())
			x.batch.Reset()
		}
		x.batch.Add(&samples[i]) // there is room now
	}
	x.mu.Unlock()
	if !c.armed.Load() && c.armed.CompareAndSwap(false, true) {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// run counts until the term ends. It sleeps while nothing is done.
func (c *heatCounter) run(ctx context.Context) {
	timer := time.NewTimer(heatInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-c.full:
			c.mu.Lock()
			c.countLocked(b)
			c.mu.Unlock()
		case <-c.wake:
			timer.Reset(heatInterval)
		case <-timer.C:
			c.armed.Store(false) // before the stripes are looked at: who adds later wakes again
			c.read(func(*heat.Sketch, time.Duration) {})
		}
	}
}

func (c *heatCounter) countLocked(b *heat.Batch) {
	c.sketch.Add(time.Since(c.began), b.Samples())
	b.Reset()
	c.batches.Put(b)
}

// read takes all samples into the sketch that were added before, and calls do with it
// and its time of now.
func (c *heatCounter) read(do func(s *heat.Sketch, now time.Duration)) {
	var taken []*heat.Batch
	for i := range c.stripes {
		x := &c.stripes[i]
		x.mu.Lock()
		if x.batch != nil {
			taken = append(taken, x.batch)
			x.batch = nil
		}
		x.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for more := true; more; {
		select {
		case b := <-c.full:
			c.countLocked(b)
		default:
			more = false
		}
	}
	for _, b := range taken {
		c.countLocked(b)
	}
	do(c.sketch, time.Since(c.began))
}

// metricsWindow is the half-life of what metrics tell: a minute.
const metricsWindow = 1

// collect tells metrics what is hot, by few numbers.
func (c *heatCounter) collect(gauge func(d *prometheus.Desc, v float64, labels ...string), shard string) {
	var share float64
	var total heat.Rates
	c.read(func(s *heat.Sketch, now time.Duration) {
		share, total = s.TopDir(metricsWindow), s.Total(now, metricsWindow)
	})
	gauge(topDirDesc, share, shard)
	gauge(heatOpsDesc, total.All(), shard)
	gauge(conflictDesc, total.Conflict, shard)
	gauge(heatLostDesc, float64(c.lost.Load()), shard)
}

// refusedWrites are those whose client was told to come again, by when it came first:
// what passes until it is taken is time that it waited for others.
type refusedWrites struct {
	n     atomic.Int32 // read without the lock
	mu    sync.Mutex
	since map[txnRequest]time.Time
}

// note remembers a refused write that came at now.
func (r *refusedWrites) note(request txnRequest, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.since[request]; known {
		return
	}
	if len(r.since) == maxRefused {
		for k, at := range r.since {
			if now.Sub(at) > refusedPeriod {
				delete(r.since, k)
			}
		}
	}
	if len(r.since) < maxRefused {
		r.since[request] = now
	}
	r.n.Store(int32(len(r.since)))
}

// taken returns how long a write was refused that came again at now, and forgets it.
func (r *refusedWrites) taken(request txnRequest, now time.Time) time.Duration {
	if r.n.Load() == 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	first, known := r.since[request]
	if !known {
		return 0
	}
	delete(r.since, request)
	r.n.Store(int32(len(r.since)))
	return max(now.Sub(first), 0)
}
