package mds

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

const (
	// markDeadline ends a mark that is not freed: its lister takes all anew.
	markDeadline = time.Second
	// maxMarks bounds the marks that stand at once; whoever wants more comes back.
	maxMarks = 1 << 14
)

// markTable are the marks that listings of split directories have taken in a term
// (PROTOCOLS F3). While one stands, the answers to what adds names to its fragment are
// held back that get ready. So a name that a listing does not show at one fragment was
// not acknowledged before the listing has its marks of all fragments: what it shows at
// another one was asked for before. An answer waits for the marks that stood when it got
// ready, and for no later one.
//
// A mark is memory of its term and knows nothing of names that go to another holder: it
// does not stand any more when a subtree, or a part of one, left this shard or came to it.
type markTable struct {
	active atomic.Int32 // marks that stand; read without the lock

	taken, expired, waited prometheus.Counter

	mu     sync.Mutex
	of     map[fragment]map[markID]*mark
	count  int
	closed bool
}

// fragment is a directory in one of its subtrees.
type fragment struct {
	subtree base.SubtreeID
	dir     base.Ino
}

// markID tells the marks of a fragment apart: the token is the client's.
type markID struct {
	client base.ClientID
	token  uint64
}

// mark is one that stands. moves is how many hand-offs there had been when it was taken.
type mark struct {
	moves uint64
	timer *time.Timer
	held  []*heldAnswer
}

// heldAnswer is an answer that waits for marks.
type heldAnswer struct {
	left   int // marks
	answer func()
}

func newMarkTable(events *prometheus.CounterVec) *markTable {
	return &markTable{of: map[fragment]map[markID]*mark{},
		taken: events.WithLabelValues("taken"), expired: events.WithLabelValues("expired"), waited: events.WithLabelValues("answer waited")}
}

// take makes a mark stand, before the fragment is read. One that stands under its id, by
// an earlier copy of the request, stays: either answer can be the one that counts.
// false: there are too many.
func (m *markTable) take(f fragment, id markID, moves uint64, deadline time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.of[f][id] != nil:
		return true
	case m.closed || m.count >= maxMarks:
		return false
	}
	k := &mark{moves: moves}
	if m.of[f] == nil {
		m.of[f] = map[markID]*mark{}
	}
	m.of[f][id] = k
	m.count++
	m.active.Add(1)
	m.taken.Inc()
	k.timer = time.AfterFunc(deadline, func() {
		if m.drop(f, id, k) {
			m.expired.Inc()
		}
	})
	return true
}

// free ends a mark; it reports whether it stood until now.
func (m *markTable) free(f fragment, id markID, moves uint64) bool {
	if m.active.Load() == 0 {
		return false
	}
	m.mu.Lock()
	k := m.of[f][id]
	m.mu.Unlock()
	return k != nil && m.drop(f, id, k) && k.moves == moves
}

// drop ends a mark, once, and gives the answers that waited for it alone.
func (m *markTable) drop(f fragment, id markID, k *mark) bool {
	m.mu.Lock()
	if m.of[f][id] != k {
		m.mu.Unlock()
		return false
	}
	k.timer.Stop()
	delete(m.of[f], id)
	if len(m.of[f]) == 0 {
		delete(m.of, f)
	}
	m.count--
	m.active.Add(-1)
	var ready []func()
	for _, h := range k.held {
		if h.left--; h.left == 0 {
			ready = append(ready, h.answer)
		}
	}
	m.mu.Unlock()
	for _, answer := range ready {
		answer()
	}
	return true
}

// hold keeps an answer to what has added names until the marks that stand in those
// fragments are freed; false: there are none, and the answer is still the caller's to
// give. answer does not block.
func (m *markTable) hold(answer func(), added ...fragment) bool {
	if m.active.Load() == 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h := &heldAnswer{answer: answer}
	for _, f := range added {
		for _, k := range m.of[f] {
			k.held = append(k.held, h)
			h.left++
		}
	}
	if h.left > 0 {
		m.waited.Inc()
	}
	return h.left > 0
}

// close ends all marks, with the term.
func (m *markTable) close() {
	m.mu.Lock()
	m.closed = true
	type standing struct {
		f  fragment
		id markID
		k  *mark
	}
	var all []standing
	for f, marks := range m.of {
		for id, k := range marks {
			all = append(all, standing{f, id, k})
		}
	}
	m.mu.Unlock()
	for _, s := range all {
		m.drop(s.f, s.id, s.k)
	}
}

// markFragment makes the mark stand that op asks for, before the fragment is read.
// false: the client has to come back.
func (st *opStream) markFragment(h *hosted, op *canopyv1.Op) bool {
	c, t := op.GetMarkNames(), h.tenure()
	if c.Free || t == nil {
		return true // whether it is the holder turns out when it reads
	}
	return t.marks.take(fragmentOf(op), markID{st.client, c.Token}, h.machine.Moved(), markDeadline)
}

// marked completes the answer to a mark that is taken or freed. The lease is looked at
// after it, and was of one epoch throughout (PROTOCOLS B4): what the table of just that
// epoch's term says was so while this node held the shard.
func (st *opStream) marked(h *hosted, op *canopyv1.Op, result *canopyv1.Result) {
	c, t := op.GetMarkNames(), h.tenure()
	kind := fserr.Kind(result.Error)
	if kind == fserr.Locked || kind == fserr.OK && !c.Free {
		return // it stands, or is read once more
	}
	stood := false
	if t != nil {
		_, epoch, self := h.group.Holder()
		stood = t.marks.free(fragmentOf(op), markID{st.client, c.Token}, h.machine.Moved()) && self && epoch == t.epoch
	}
	if kind == fserr.OK && !stood {
		result.Error = uint32(fserr.Again)
	}
}

func fragmentOf(op *canopyv1.Op) fragment {
	return fragment{base.SubtreeID(op.Subtree), base.Ino(op.Dir())}
}

// addsTo returns the directory that an operation adds a name to, 0 if to none.
func addsTo(op *canopyv1.Op) base.Ino {
	switch c := op.Call.(type) {
	case *canopyv1.Op_Create:
		if c.Create.Anonymous {
			return 0
		}
		return base.Ino(c.Create.Dir)
	case *canopyv1.Op_Mkdir:
		return base.Ino(c.Mkdir.Dir)
	case *canopyv1.Op_Mknod:
		return base.Ino(c.Mknod.Dir)
	case *canopyv1.Op_Symlink:
		return base.Ino(c.Symlink.Dir)
	case *canopyv1.Op_Link:
		return base.Ino(c.Link.Dir)
	case *canopyv1.Op_Rename:
		return base.Ino(c.Rename.DstDir)
	}
	return 0
}

// heldBack returns a channel that is closed when what commits have added to fragments of
// this shard may be told; nil if it may be at once.
func (t *tenure) heldBack(commits ...*canopyv1.TxnCommitCommand) <-chan struct{} {
	if t.marks.active.Load() == 0 {
		return nil
	}
	var added []fragment
	for _, c := range commits {
		for _, e := range c.Edits {
			if e.Kind == canopyv1.TxnEditKind_TXN_EDIT_NAME && len(e.Dentry) > 0 {
				added = append(added, fragment{base.SubtreeID(c.Subtree), base.Ino(e.Dir)})
			}
		}
	}
	free := make(chan struct{})
	if !t.marks.hold(func() { close(free) }, added...) {
		return nil
	}
	return free
}
