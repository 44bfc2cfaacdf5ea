package clientfuse

import (
	"sync/atomic"
	"time"

	"github.com/canopyfs/canopy/client"
)

// In strict mode the kernel keeps no attributes, so one system call asks twice
// for the same: LOOKUP of a name brings the attributes of what it found and of
// the directory, and the next request of that call is a GETATTR of one of them,
// for the permission to go on or for stat itself. These answers are kept for just
// that request (FUSE K2: "refresh them with the reply's own parent attributes").
//
// What is asked counts as one operation of the server, and stays exact in its
// sense: the attributes were read after the system call began. That a GETATTR
// belongs to the call of the LOOKUP is known by this: the same thread asks, it
// asked nothing in between, this mount changed neither its size nor its mode in between,
// and it follows at once. A call that ends with its LOOKUP (mkdir of a name that is
// there), followed by an fstat of that very inode, is taken for one call if no
// more than sameCallWithin lies between: then, and only then, is the answer that
// old.

// sameCallWithin is how long after LOOKUP's answer the GETATTR has to come.
const sameCallWithin = 2 * time.Millisecond

// lookedUp is what a thread's last request, a LOOKUP or CREATE, brought.
type lookedUp struct {
	tid           uint32
	asked, at     time.Time // when it came, and when it was answered
	found, dir    *node
	attr, dirAttr *client.Attr
	handles       int32 // open for writing on what was found, by this very call
}

const lookupSlots = 256

// sameCall holds the last LOOKUP or CREATE of threads, by a hash of their ids: another
// thread's in the slot costs a question, nothing else.
type sameCall [lookupSlots]atomic.Pointer[lookedUp]

func (s *sameCall) slot(tid uint32) *atomic.Pointer[lookedUp] {
	return &s[tid*0x9e3779b1>>24]
}

// keepLookup keeps what a LOOKUP brought for the request that follows.
func (f *fileSystem) keepLookup(c *call, dir *node, dirAttr *client.Attr, found *node, attr *client.Attr) {
	if f.options.AttrTimeout() > 0 || c.tid == 0 {
		return // the kernel keeps them itself; or nobody can tell who asks next
	}
	f.sameCall.put(&lookedUp{tid: c.tid, asked: c.start, at: time.Now(), dir: dir, dirAttr: dirAttr, found: found, attr: attr})
}

// keepCreate does the same for a CREATE: the kernel asks for the permission to
// open what it has just made.
func (f *fileSystem) keepCreate(c *call, n *node, attr *client.Attr) {
	if f.options.AttrTimeout() > 0 || c.tid == 0 {
		return
	}
	f.sameCall.put(&lookedUp{tid: c.tid, asked: c.start, at: time.Now(), found: n, attr: attr, handles: 1})
}

// take returns what the thread's last request brought, once. Thread 0 is many:
// those of other pid namespaces.
func (s *sameCall) take(tid uint32) *lookedUp {
	slot := s.slot(tid)
	l := slot.Load()
	if l == nil || l.tid != tid || tid == 0 || !slot.CompareAndSwap(l, nil) {
		return nil
	}
	return l
}

func (s *sameCall) put(l *lookedUp) { s.slot(l.tid).Store(l) }

// attrOf returns the node's attributes if l brought them just now.
func (l *lookedUp) attrOf(n *node, now time.Time) *client.Attr {
	if l == nil || now.Sub(l.at) > sameCallWithin || n.changedSince(l.asked, l.handles) {
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

// change notes that this mount begins to change the node's size or mode.
func (n *node) change() { n.changing.Add(1) }

// changeEnded notes that the change was answered.
func (n *node) changeEnded() {
	n.changed.Store(time.Since(clockStart).Nanoseconds())
	n.changing.Add(-1)
}

// changedSince says whether this mount may have changed the node after then.
// Up to so many handles for writing are the asker's own.
func (n *node) changedSince(then time.Time, own int32) bool {
	return n.changing.Load() > 0 || n.writers.Load() > own || n.changed.Load() >= then.Sub(clockStart).Nanoseconds()
}
