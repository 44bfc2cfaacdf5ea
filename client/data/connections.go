package data

import (
	"context"
	"fmt"
	"sync"

	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/client/data/poolmap"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

type groupKey struct {
	pool base.PoolID
	pg   base.PGID
}

// serverLinks is the connections to one server at one address.
type serverLinks struct {
	address string
	links   []*link.Link
}

func (l *serverLinks) close() {
	for _, x := range l.links {
		_ = x.Close()
	}
}

// link returns a connection to the server; which tells columns apart, so that
// they spread over connections.
func (d *Data) link(m *poolmap.Map, id base.NodeID, which uint64) (*link.Link, error) {
	info := m.Server(id)
	if info == nil {
		return nil, fserr.New(fserr.NotReady, "data", fmt.Errorf("server %d is unknown", id))
	}
	l, old, err := d.linksTo(id, info.Address)
	if old != nil {
		old.close()
	}
	if err != nil {
		return nil, err
	}
	return l.links[which%uint64(len(l.links))], nil
}

// linksTo returns the connections to an address of the server, and those to its
// old one if it moved.
func (d *Data) linksTo(id base.NodeID, address string) (l, old *serverLinks, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.links == nil {
		return nil, nil, errClosed
	}
	l = d.links[id]
	if l != nil && l.address == address {
		return l, nil, nil
	}
	old = l
	l = &serverLinks{address: address}
	for range d.config.ConnectionsPerServer {
		x, err := link.New(link.Config{Address: address, Caller: d.caller, Memory: d.config.Memory, Buffers: d.memory})
		if err != nil {
			l.close()
			return nil, nil, err
		}
		l.links = append(l.links, x)
	}
	d.links[id] = l
	return l, old, nil
}

// sequence numbers the writes of one placement group. A write keeps its number
// over all its attempts; the floor tells servers what was answered.
type sequence struct {
	mu   sync.Mutex
	next uint64
	open map[uint64]bool
}

func (d *Data) sequence(key groupKey) *sequence {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.sequences[key]
	if s == nil {
		s = &sequence{open: map[uint64]bool{}}
		d.sequences[key] = s
	}
	return s
}

func (s *sequence) begin() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	s.open[s.next] = true
	return s.next
}

func (s *sequence) end(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, seq)
}

// floor returns the lowest number without an answer.
func (s *sequence) floor() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	low := s.next + 1
	for seq := range s.open {
		low = min(low, seq)
	}
	return low
}

// budget bounds the bytes under way; who comes first is served first.
type budget struct {
	mu      sync.Mutex
	size    int64
	used    int64
	waiting []*waiter
}

type waiter struct {
	bytes   int64
	granted chan struct{}
}

func (b *budget) acquire(ctx context.Context, closed <-chan struct{}, n int64) error {
	n = min(n, b.size)
	b.mu.Lock()
	if len(b.waiting) == 0 && b.used+n <= b.size {
		b.used += n
		b.mu.Unlock()
		return nil
	}
	w := &waiter{n, make(chan struct{})}
	b.waiting = append(b.waiting, w)
	b.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
		b.forget(w)
		return ctx.Err()
	case <-closed:
		b.forget(w)
		return errClosed
	}
}

// forget takes a waiter out, or gives back what it got meanwhile.
func (b *budget) forget(w *waiter) {
	b.mu.Lock()
	for i, x := range b.waiting {
		if x == w {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			b.grantLocked()
			b.mu.Unlock()
			return
		}
	}
	b.mu.Unlock()
	b.release(w.bytes)
}

func (b *budget) release(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= min(n, b.size)
	b.grantLocked()
}

func (b *budget) grantLocked() {
	for len(b.waiting) > 0 && b.used+b.waiting[0].bytes <= b.size {
		w := b.waiting[0]
		b.waiting = b.waiting[1:]
		b.used += w.bytes
		close(w.granted)
	}
}
