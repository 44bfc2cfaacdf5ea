package mds

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
	"github.com/canopyfs/canopy/shard/raftgroup"
)

// nudgeInterval is how often a replica that leads Raft without anybody holding
// the lease takes the lease, so that sessions and orphans are looked after in a
// shard that nobody asks.
const nudgeInterval = 2 * time.Second

// passOnInterval is how often a replica that is to hold no lease looks whether it
// was elected: as long as it leads nobody else can take the lease.
const passOnInterval = 200 * time.Millisecond

// hosted is one shard replica of this node, and this node's terms as its holder.
type hosted struct {
	server   *Server
	shard    base.ShardID
	machine  *namespace.Machine
	group    *raftgroup.Group
	metrics  *shardMetrics
	wake     chan struct{}          // the holder changed
	term     atomic.Pointer[tenure] // nil: this node does not hold the lease
	room     atomic.Int32           // a room
	fullNode atomic.Uint64          // whose disk that is, if it is not roomForAll
	heldBack heldBack

	leaving atomic.Bool        // the map took the replica away: it holds no lease again
	cancel  context.CancelFunc // ends run
	done    chan struct{}      // closed when run has ended

	mu      sync.Mutex
	news    news  // to be published
	failure error // why the replica was stopped, if it was
}

// onHolderChange is called by raftgroup; it must not block. The shard's goroutine
// asks the group itself, so that it acts on what is, not on what was told.
func (s *Server) onHolderChange(id base.ShardID, _ base.NodeID, _ base.LeaseEpoch, _ bool) {
	h := s.lookup(id)
	if h == nil {
		return // it is starting, and will look itself
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// onReplicaFailed is called by raftgroup when a replica was stopped.
func (s *Server) onReplicaFailed(id base.ShardID, err error) {
	s.log.Error("a replica cannot go on and was stopped; the shard lives on in its other replicas", "shard", id, "error", err)
	s.metrics.failedReplicas.Inc()
	if h := s.lookup(id); h != nil {
		h.mu.Lock()
		h.failure = err
		h.mu.Unlock()
	}
}

// run follows the shard's holder until ctx is done.
func (h *hosted) run(ctx context.Context) {
	defer close(h.done)
	defer h.setTerm(ctx, nil)
	h.follow(ctx)
	tick := time.NewTimer(rand.N(nudgeInterval / 4))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
			h.follow(ctx)
		case <-tick.C:
			if h.resigned() {
				h.passOn(ctx)
				h.follow(ctx)
				tick.Reset(passOnInterval)
				continue
			}
			h.nudge(ctx)
			h.follow(ctx)
			tick.Reset(nudgeInterval/2 + rand.N(nudgeInterval))
		}
	}
}

// follow starts or ends a term as the holder.
func (h *hosted) follow(ctx context.Context) {
	_, epoch, self := h.group.Holder()
	term := h.tenure()
	switch {
	case !self:
		if term != nil {
			h.setTerm(ctx, nil)
		}
	case term == nil || term.epoch != epoch:
		h.setTerm(ctx, newTenure(h, epoch))
	}
}

// setTerm ends the present term, if any, and begins the next, if any.
func (h *hosted) setTerm(ctx context.Context, next *tenure) {
	if old := h.term.Swap(nil); old != nil {
		old.end()
		h.server.log.Info("no longer holder", "shard", h.shard, "epoch", old.epoch)
	}
	if next != nil {
		h.server.log.Info("holder", "shard", h.shard, "epoch", next.epoch)
		next.begin(ctx)
		h.term.Store(next)
	}
}

// tenure returns the present term as the holder, nil if there is none.
func (h *hosted) tenure() *tenure { return h.term.Load() }

// nudge takes the lease if this replica leads Raft and nobody holds it.
func (h *hosted) nudge(ctx context.Context) {
	if h.tenure() != nil {
		return
	}
	if status := h.group.Status(); status.LeaderID == 0 || status.LeaderID != h.group.Replica() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, nudgeInterval)
	defer cancel()
	// Whether it worked shows in OnHolderChange; if not the next nudge tries again.
	_ = h.group.Read(ctx, func(shard.Reader) error { return nil })
}

// resigned tells whether this replica is to hold no lease.
func (h *hosted) resigned() bool { return h.server.drained.Load() || h.leaving.Load() }

// passOn moves the leadership on that a resigned replica was elected to.
func (h *hosted) passOn(ctx context.Context) {
	status := h.group.Status()
	if status.LeaderID != h.group.Replica() || len(status.Members) < 2 || status.Self {
		return // what it holds is released by who made it resign
	}
	ctx, cancel := context.WithTimeout(ctx, nudgeInterval)
	defer cancel()
	_ = h.group.Release(ctx) // the next look tries again
	if !h.resigned() {
		h.group.Resume() // it was resumed meanwhile
	}
}

// hasMajority tells whether enough of the shard's nodes run, as far as the map
// knows, for its log to go on.
func (h *hosted) hasMajority() bool {
	m := h.server.place.Map()
	replicas := placement.Voting(m.Shard(h.shard))
	running := 0
	for _, r := range replicas {
		if id := base.NodeID(r.Node); id == h.server.Node() || m.Node(id).GetAlive() {
			running++
		}
	}
	return running > len(replicas)/2
}
