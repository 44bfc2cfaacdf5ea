package client

import (
	"context"
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

const heartbeatInterval = 5 * time.Second

// events keeps one Events stream to each node that holds a shard at which this
// client has a session: its heartbeats keep the sessions alive.
type events struct {
	c *Client

	mu    sync.Mutex
	nodes map[string]*nodeEvents // by address
	where map[base.ShardID]string
}

func newEvents(c *Client) *events {
	return &events{c: c, nodes: map[string]*nodeEvents{}, where: map[base.ShardID]string{}}
}

// nodeEvents is the stream to one node.
type nodeEvents struct {
	e       *events
	address string
	changed chan struct{} // has a token when shards changed

	shards map[base.ShardID]bool // guarded by e.mu
}

// sessionAt notes where the session of a shard is kept alive from now on.
func (e *events) sessionAt(shard base.ShardID, at target) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.where[shard]
	if old == at.address {
		return
	}
	if n := e.nodes[old]; n != nil {
		delete(n.shards, shard)
		n.poke()
	}
	e.where[shard] = at.address
	n := e.nodes[at.address]
	if n == nil {
		n = &nodeEvents{e: e, address: at.address, changed: make(chan struct{}, 1), shards: map[base.ShardID]bool{}}
		if !e.c.spawn(func() { n.run(e.c.ctx) }) {
			return
		}
		e.nodes[at.address] = n
	}
	n.shards[shard] = true
	n.poke()
}

func (n *nodeEvents) poke() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// wanted returns the shards to keep alive; when there are none, the stream is
// forgotten and its goroutine has to end.
func (n *nodeEvents) wanted() []uint64 {
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	all := make([]uint64, 0, len(n.shards))
	for s := range n.shards {
		all = append(all, uint64(s))
	}
	if len(all) == 0 {
		delete(n.e.nodes, n.address)
	}
	return all
}

// run keeps the stream until no shard wants it or ctx ends.
func (n *nodeEvents) run(ctx context.Context) {
	for attempt := 0; ; attempt++ {
		shards := n.wanted()
		if len(shards) == 0 {
			return
		}
		lived := n.serve(ctx, shards)
		if lived {
			attempt = 0
		}
		if pause(ctx, backoff(attempt)) != nil {
			return
		}
	}
}

// serve opens one stream and heartbeats on it until it breaks or is not wanted
// any more. It reports whether an event arrived.
func (n *nodeEvents) serve(ctx context.Context, shards []uint64) (lived bool) {
	conn, err := n.e.c.nodes.get(n.address)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := canopyv1.NewMetadataClient(conn).Events(n.e.c.outgoing(ctx))
	if err != nil {
		return false
	}
	intervals := make(chan time.Duration, 1)
	readerDone := make(chan bool, 1)
	go func() {
		any := false
		for {
			event, err := stream.Recv()
			if err != nil {
				break
			}
			any = true
			n.handle(event, intervals)
		}
		cancel()
		readerDone <- any
	}()
	n.heartbeat(ctx, stream, shards, intervals)
	cancel()
	return <-readerDone
}

func (n *nodeEvents) heartbeat(ctx context.Context, stream canopyv1.Metadata_EventsClient, shards []uint64, intervals <-chan time.Duration) {
	interval := heartbeatInterval
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if stream.Send(&canopyv1.EventsRequest{Shards: shards}) != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-n.changed:
			if shards = n.wantedNow(); len(shards) == 0 {
				return
			}
		case d := <-intervals:
			if d != interval {
				interval = d
				ticker.Reset(d)
			}
		}
	}
}

func (n *nodeEvents) wantedNow() []uint64 {
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	all := make([]uint64, 0, len(n.shards))
	for s := range n.shards {
		all = append(all, uint64(s))
	}
	return all
}

// handle acts on one event.
func (n *nodeEvents) handle(event *canopyv1.Event, intervals chan<- time.Duration) {
	c := n.e.c
	switch e := event.Event.(type) {
	case *canopyv1.Event_Heartbeat:
		timeout := time.Duration(e.Heartbeat.SessionTimeoutMs) * time.Millisecond
		if timeout > 0 {
			select {
			case intervals <- max(min(heartbeatInterval, timeout/3), 10*time.Millisecond):
			default:
			}
		}
	case *canopyv1.Event_SessionLost:
		if l, ok := c.links.Load(base.ShardID(e.SessionLost.Shard)); ok {
			c.logger.Warn("the session at a shard ended", "shard", e.SessionLost.Shard)
			l.(*link).sessionLost(0)
		}
	case *canopyv1.Event_SubtreeMoved:
		c.moves.event(e.SubtreeMoved)
	case *canopyv1.Event_Report:
		c.opens.askFull(base.ShardID(e.Report.Shard))
	case *canopyv1.Event_Invalidate:
		for _, p := range e.Invalidate.Places {
			c.cache.dropPlace(p)
		}
	}
}
