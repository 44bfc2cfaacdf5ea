package mds

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/internal/service"
)

// maxEventShards bounds what one client may list.
const maxEventShards = 1 << 16

// eventHub knows the events streams of this node, by client.
type eventHub struct {
	mu      sync.Mutex
	streams map[base.ClientID][]*eventStream
}

func newEventHub() *eventHub { return &eventHub{streams: map[base.ClientID][]*eventStream{}} }

// eventStream is one client's stream. What waits to be sent is a set, so it is
// bounded by the number of shards.
type eventStream struct {
	client base.ClientID
	wake   chan struct{}

	mu      sync.Mutex
	lost    map[base.ShardID]bool // sessions that ended
	reports map[base.ShardID]bool // shards that ask for a report of open files
	moved   map[movedKey]*canopyv1.SubtreeMoved
}

// movedKey names a part of the namespace that has another owner.
type movedKey struct{ from, subtree uint64 }

// maxMovedEvents bounds what waits for a client that takes nothing: what is left
// out it learns by redirects.
const maxMovedEvents = 1024

// moved tells clients of a subtree's new owner.
func (h *eventHub) moved(clients []base.ClientID, news *canopyv1.SubtreeMoved) {
	key := movedKey{news.FromSubtree, news.Subtree}
	for _, client := range clients {
		for _, e := range h.of(client) {
			e.mu.Lock()
			if len(e.moved) < maxMovedEvents || e.moved[key] != nil {
				e.moved[key] = news
			}
			e.mu.Unlock()
			e.poke()
		}
	}
}

func (h *eventHub) add(e *eventStream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.streams[e.client] = append(h.streams[e.client], e)
}

func (h *eventHub) remove(e *eventStream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	left := slices.DeleteFunc(h.streams[e.client], func(o *eventStream) bool { return o == e })
	if len(left) == 0 {
		delete(h.streams, e.client)
	} else {
		h.streams[e.client] = left
	}
}

func (h *eventHub) of(client base.ClientID) []*eventStream {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.streams[client])
}

// sessionLost tells a client that its session at a shard ended.
func (h *eventHub) sessionLost(client base.ClientID, id base.ShardID) {
	for _, e := range h.of(client) {
		e.note(e.lost, id)
	}
}

// askReports asks clients to report their open files to a shard's new holder
// (PROTOCOLS H1).
func (h *eventHub) askReports(clients []base.ClientID, id base.ShardID) {
	for _, client := range clients {
		for _, e := range h.of(client) {
			e.note(e.reports, id)
		}
	}
}

func (e *eventStream) note(set map[base.ShardID]bool, id base.ShardID) {
	e.mu.Lock()
	set[id] = true
	e.mu.Unlock()
	e.poke()
}

func (e *eventStream) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// take returns the events that wait.
func (e *eventStream) take() []*canopyv1.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*canopyv1.Event
	for id := range e.lost {
		out = append(out, &canopyv1.Event{Event: &canopyv1.Event_SessionLost{SessionLost: &canopyv1.SessionLost{Shard: uint64(id)}}})
	}
	for id := range e.reports {
		out = append(out, &canopyv1.Event{Event: &canopyv1.Event_Report{Report: &canopyv1.ReportRequest{Shard: uint64(id)}}})
	}
	for _, news := range e.moved {
		out = append(out, &canopyv1.Event{Event: &canopyv1.Event_SubtreeMoved{SubtreeMoved: news}})
	}
	clear(e.lost)
	clear(e.moved)
	clear(e.reports)
	return out
}

// Events serves one client's stream: heartbeats both ways, ended sessions, and
// requests for reports of open files.
func (m *metadataService) Events(stream grpc.BidiStreamingServer[canopyv1.EventsRequest, canopyv1.Event]) error {
	s := m.server
	client := service.IdentityOf(stream.Context()).Client
	if client == 0 {
		return fserr.Status(fserr.New(fserr.Malformed, "events", errNoClient))
	}
	e := &eventStream{
		client: client, wake: make(chan struct{}, 1),
		lost: map[base.ShardID]bool{}, reports: map[base.ShardID]bool{}, moved: map[movedKey]*canopyv1.SubtreeMoved{},
	}
	s.events.add(e)
	defer s.events.remove(e)
	// Recv ends when this function returns and the stream with it.
	received := make(chan error, 1)
	go func() { received <- m.receiveHeartbeats(stream, e) }()
	beat := time.NewTicker(s.config.Heartbeat)
	defer beat.Stop()
	heartbeat := &canopyv1.Event{Event: &canopyv1.Event_Heartbeat{
		Heartbeat: &canopyv1.Heartbeat{SessionTimeoutMs: uint32(s.config.SessionTimeout / time.Millisecond)},
	}}
	if err := stream.Send(heartbeat); err != nil {
		return err
	}
	for {
		select {
		case err := <-received:
			return err
		case <-s.front.Draining():
			return fserr.Status(fserr.New(fserr.NotReady, "events", errStopping))
		case <-beat.C:
			if err := stream.Send(heartbeat); err != nil {
				return err
			}
		case <-e.wake:
			for _, event := range e.take() {
				if err := stream.Send(event); err != nil {
					return err
				}
			}
		}
	}
}

// receiveHeartbeats keeps the client's sessions alive at the shards that it
// lists and this node holds. A session that a listed shard does not have ended
// while the client was away: it is told.
func (m *metadataService) receiveHeartbeats(stream grpc.BidiStreamingServer[canopyv1.EventsRequest, canopyv1.Event], e *eventStream) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return endOfStream(err)
		}
		if len(request.Shards) > maxEventShards {
			return fserr.Status(fserr.New(fserr.Malformed, "events", nil))
		}
		for _, id := range request.Shards {
			h := m.server.lookup(base.ShardID(id))
			if h == nil {
				continue
			}
			t := h.tenure()
			if t == nil {
				continue
			}
			if !t.hasSession(e.client) {
				e.note(e.lost, h.shard)
				continue
			}
			c := t.client(e.client)
			t.touch(c)
			if !t.hasReport(e.client) {
				e.note(e.reports, h.shard)
			}
		}
	}
}

// hasReport tells whether the client reported its open files in this term.
func (t *tenure) hasReport(id base.ClientID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.clients[id]
	return c != nil && c.opens.reported
}
