package clientfuse

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/internal/fserr"
)

// call is one request of the kernel: who asks, and the context under which the
// cluster is asked.
//
// Every signal of the caller interrupts its request, an ordinary SIGALRM too,
// and the kernel tells only of the first. So an interrupt ends nothing by itself
// (FUSE K12): while it stands, the watch looks whether the caller has been
// killed, and only that ends the context. The context is made without a
// goroutine; its channel exists only if somebody waits for it.
type call struct {
	fs          *fileSystem
	op          op
	start       time.Time
	interrupted <-chan struct{}
	uid, gid    uint32
	tid         uint32
	last        *lastCall // what the thread's last request left

	// Place in the watch's list, guarded by its shard's mu.
	shard      *watchShard
	prev, next *call

	mu    sync.Mutex
	done  chan struct{}
	ended bool
	onEnd map[*func()]struct{}
}

var _ context.Context = (*call)(nil)

// begin registers a request.
func (f *fileSystem) begin(o op, cancel <-chan struct{}, h *fuse.InHeader) *call {
	c := &call{fs: f, op: o, start: time.Now(), interrupted: cancel, uid: h.Uid, gid: h.Gid, tid: h.Pid}
	c.last = f.sameCall.take(h.Pid)
	f.watch.add(c)
	return c
}

// end counts the request and returns its status.
func (c *call) end(s fuse.Status) fuse.Status {
	c.fs.watch.remove(c)
	c.fs.metrics.observe(c.op, time.Since(c.start), s)
	return s
}

// cred returns for whom the server is to check the request.
func (c *call) cred() client.Cred { return c.fs.groups.cred(c.tid, c.uid, c.gid) }

// Deadline implements context.Context: there is none.
func (c *call) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements context.Context.
func (c *call) Value(any) any { return nil }

// Done implements context.Context.
func (c *call) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.ended {
			close(c.done)
		}
	}
	return c.done
}

// Err implements context.Context.
func (c *call) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return context.Canceled
	}
	return nil
}

// AfterFunc lets package context derive from a call without a goroutine.
func (c *call) AfterFunc(f func()) (stop func() bool) {
	key := &f
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		go f()
		return func() bool { return false }
	}
	if c.onEnd == nil {
		c.onEnd = make(map[*func()]struct{})
	}
	c.onEnd[key] = struct{}{}
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, waiting := c.onEnd[key]
		delete(c.onEnd, key)
		return waiting
	}
}

// kill ends the context.
func (c *call) kill() {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return
	}
	c.ended = true
	if c.done != nil {
		close(c.done)
	}
	waiting := c.onEnd
	c.onEnd = nil
	c.mu.Unlock()
	for f := range waiting {
		(*f)()
	}
}

// fatal reports whether nobody waits for the answer any more.
func (c *call) fatal() bool {
	select {
	case <-c.interrupted:
		return killed(c.fs.groups.proc, c.tid)
	default:
	}
	// A process that was killed closes its files on the way out, when signals
	// interrupt nothing any more.
	return c.op == opFlush && exitingBySignal(c.fs.groups.proc, c.tid)
}

// errno turns an error of the backend into the kernel's answer.
func errno(err error) fuse.Status { return fuse.Status(fserr.Errno(err)) }

const watchShards = 16

// watchEvery is how often requests that take long are looked at.
const watchEvery = 100 * time.Millisecond

// watch holds the requests that are being answered. Its goroutine runs only
// while there are some.
type watch struct {
	dead   func() bool // the kernel has ended the connection
	shards [watchShards]watchShard
	turn   atomic.Uint32
	armed  atomic.Bool
	wake   chan struct{}
	stop   chan struct{}
	gone   chan struct{}
}

type watchShard struct {
	mu    sync.Mutex
	first *call
}

func newWatch() *watch {
	return &watch{wake: make(chan struct{}, 1), stop: make(chan struct{}), gone: make(chan struct{})}
}

func (w *watch) add(c *call) {
	s := &w.shards[w.turn.Add(1)%watchShards]
	c.shard = s
	s.mu.Lock()
	c.next = s.first
	if s.first != nil {
		s.first.prev = c
	}
	s.first = c
	s.mu.Unlock()
	if !w.armed.Load() && w.armed.CompareAndSwap(false, true) {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (w *watch) remove(c *call) {
	s := c.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		s.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
}

// run looks at long requests until close.
func (w *watch) run() {
	defer close(w.gone)
	for {
		select {
		case <-w.wake:
		case <-w.stop:
			return
		}
		for {
			select {
			case <-time.After(watchEvery):
			case <-w.stop:
				return
			}
			if w.look(time.Now()) {
				continue
			}
			// Disarm, then look again: a request may have come in between.
			w.armed.Store(false)
			if w.empty() || !w.armed.CompareAndSwap(false, true) {
				break
			}
		}
	}
}

func (w *watch) empty() bool {
	for i := range w.shards {
		s := &w.shards[i]
		s.mu.Lock()
		some := s.first != nil
		s.mu.Unlock()
		if some {
			return false
		}
	}
	return true
}

// look ends the contexts of requests whose callers were killed, and of all when
// the mount is gone. It reports whether any request is there.
func (w *watch) look(now time.Time) (busy bool) {
	var old []*call
	for i := range w.shards {
		s := &w.shards[i]
		s.mu.Lock()
		for c := s.first; c != nil; c = c.next {
			busy = true
			if now.Sub(c.start) >= watchEvery/2 {
				old = append(old, c)
			}
		}
		s.mu.Unlock()
	}
	if len(old) == 0 {
		return busy
	}
	dead := w.dead()
	for _, c := range old {
		if dead || c.fatal() {
			c.kill()
		}
	}
	return busy
}

func (w *watch) close() {
	close(w.stop)
	<-w.gone
}
