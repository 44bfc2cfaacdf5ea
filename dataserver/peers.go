package dataserver

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/client/data/poolmap"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// peers has the links to the other data servers.
type peers struct {
	watcher *poolmap.Watcher
	caller  func() wire.Caller
	memory  *wire.Memory
	// capability is what allows this server to ask other members (PROTOCOLS J4).
	capability func() []byte
	buffers    mem.BufferPool

	mu     sync.Mutex
	links  map[base.NodeID]*link.Link
	closed bool
}

// do sends one request to a server. It takes over one reference to the payload.
func (p *peers) do(ctx context.Context, id base.NodeID, request *link.Request) (*link.Response, error) {
	l, err := p.link(id)
	if err != nil {
		request.Free()
		return nil, err
	}
	request.Capability = p.capability()
	ctx, cancel := context.WithTimeout(ctx, replicaTimeout)
	defer cancel()
	return l.Do(ctx, request)
}

func (p *peers) link(id base.NodeID) (*link.Link, error) {
	m := p.watcher.Current()
	if m == nil || m.Server(id) == nil {
		return nil, fserr.New(fserr.NotReady, "data", fmt.Errorf("server %d is unknown", id))
	}
	address := m.Server(id).Address
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fserr.New(fserr.NotReady, "data", fmt.Errorf("this server is stopping"))
	}
	old := p.links[id]
	if old != nil && old.Address() == address {
		return old, nil
	}
	l, err := link.New(link.Config{Address: address, Caller: p.caller, Memory: p.memory, Buffers: p.buffers})
	if err != nil {
		return nil, err
	}
	p.links[id] = l
	if old != nil {
		// It has no lock of ours to wait for.
		_ = old.Close()
	}
	return l, nil
}

// close ends all links.
func (p *peers) close() {
	p.mu.Lock()
	p.closed = true
	links := p.links
	p.links = nil
	p.mu.Unlock()
	for _, l := range links {
		_ = l.Close()
	}
}
