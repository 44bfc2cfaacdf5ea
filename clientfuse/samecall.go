package clientfuse

import (
	"sync/atomic"
	"time"

	"github.com/canopyfs/canopy/client"
)

// In strict mode the kernel keeps neither names nor attributes, so one system call
// with a path asks for each name of it, and for the attributes of each directory
// twice: LOOKUP of a name brings the attributes of what it found and of the
// directory, and the next request of that call is a GETATTR of one of them, for
// the permission to go on or for stat itself. Two things are done about it:
//
//   - What a LOOKUP or CREATE brought answers the GETATTR that follows in the same
//     system call (FUSE K2: "refresh them with the reply's own parent attributes").
//   - A walk begins with a GETATTR of the directory where the path begins. The
//     names that the same thread's last walk went through are looked up along with
//     it, in one message, and answer the LOOKUPs that follow in the same call.
//
// Every system call still asks the server, and stays exact: what answers it was
// read after it began. That a request belongs to the system call of the one before
// is known by this: the same thread asks, it asked nothing in between, this mount
// changed nothing of what is answered in between, and it follows at once. A call
// that ends with a LOOKUP or with its directory's GETATTR (mkdir of a name that is
// there), followed by one that begins at that very inode (fstat of it, or a path
// relative to it), is taken for one call if no more than sameCallWithin lies
// between: then, and only then, is the answer that old.

// sameCallWithin is how long after the server's answer it can be used.
const sameCallWithin = 10 * time.Millisecond

// lastCall is what a thread's last request left for the next one.
type lastCall struct {
	tid       uint32
	asked, at time.Time // when the server was asked, and when it had answered

	// Attributes for one GETATTR; nil: none, or used.
	found, dir    *node
	attr, dirAttr *client.Attr
	handles       int32 // open for writing on found, by this very call

	walk pathWalk
	acls knownACLs
}

const threadSlots = 256

// sameCall holds the last request of threads, and which walk they did last, by a
// hash of their ids: another thread's in the slot costs a question, nothing else.
type sameCall struct {
	last  [threadSlots]atomic.Pointer[lastCall]
	walks [threadSlots]atomic.Pointer[lastWalk]
}

func threadSlot(tid uint32) int { return int(tid * 0x9e3779b1 >> 24) }

// sameCalls says whether requests of one system call are told: not if the kernel
// keeps answers itself, nor for threads of other pid namespaces, which are all 0.
func (f *fileSystem) sameCalls(c *call) bool { return f.options.AttrTimeout() == 0 && c.tid != 0 }

// take returns what the thread's last request left, once.
func (s *sameCall) take(tid uint32) *lastCall {
	slot := &s.last[threadSlot(tid)]
	l := slot.Load()
	if l == nil || l.tid != tid || tid == 0 || !slot.CompareAndSwap(l, nil) {
		return nil
	}
	return l
}

func (s *sameCall) put(l *lastCall) { s.last[threadSlot(l.tid)].Store(l) }

// keepCreate leaves what a CREATE made: the kernel asks for the permission to
// open it.
func (f *fileSystem) keepCreate(c *call, n *node, attr *client.Attr) {
	if f.sameCalls(c) {
		f.sameCall.put(&lastCall{tid: c.tid, asked: c.start, at: time.Now(), found: n, attr: attr, handles: 1})
	}
}

// fresh says whether what l holds can answer a request that comes now.
func (l *lastCall) fresh(now time.Time) bool { return l != nil && now.Sub(l.at) <= sameCallWithin }

// attrOf returns the node's attributes if l brought them just now.
func (l *lastCall) attrOf(n *node, now time.Time) *client.Attr {
	if !l.fresh(now) || n.changedSince(l.asked, l.handles) {
		return nil
	}
	a := l.attr
	if n == l.dir {
		a = l.dirAttr
	} else if n != l.found {
		return nil
	}
	if a.GetNlink() == 0 {
		return nil // not complete: a directory whose header is elsewhere
	}
	return a
}

// clockStart is what times of changes are counted from.
var clockStart = time.Now()

// changes tells whether this mount has changed something, also while it does.
type changes struct {
	running atomic.Int32
	ended   atomic.Int64 // when the last one was answered, in ns since clockStart
}

// begin is called before the server is asked, end after it has answered.
func (c *changes) begin() { c.running.Add(1) }

func (c *changes) end() {
	c.ended.Store(time.Since(clockStart).Nanoseconds())
	c.running.Add(-1)
}

func (c *changes) since(then time.Time) bool {
	return c.running.Load() > 0 || c.ended.Load() >= then.Sub(clockStart).Nanoseconds()
}

// changedSince says whether this mount may have changed the node's size or mode
// after then. Up to so many handles for writing are the asker's own.
func (n *node) changedSince(then time.Time, own int32) bool {
	return n.writers.Load() > own || n.inodeChanges.since(then)
}
