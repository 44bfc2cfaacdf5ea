package namespace

import (
	"errors"
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

var (
	errLostResult = errors.New("namespace: a session's window names a result that is not stored")
	errTwice      = errors.New("namespace: a removed directory still has names")
)

// batch applies the commands of one entry. Headers, counters and the shard's
// state are changed in memory and written once, by flush; dentries, inodes and
// the rest go to the writer at once. A handler checks all that can fail before it
// changes anything.
type batch struct {
	view
	m        *Machine
	w        shard.Writer
	nowNS    int64 // of the entry, never before the last entry's (PROTOCOLS A3)
	sub      *subtree
	client   base.ClientID // of the command; 0: the holder's own
	seq      base.Seq
	floor    base.Seq
	ordered  []*directory // dirty headers, in the order first changed
	windows  []openWindow // with pending results
	counted  []*subtree   // with changed counters
	accounts []account    // with changed quotas
	buf      []byte       // scratch of set
	// deciding: the operation runs as the decision of a transaction, which changes the
	// other fragments of a split directory as it changes the first one.
	deciding bool
	restated bool // a subtree may be in another state
}

type openWindow struct {
	window  *window
	subtree base.SubtreeID
	client  base.ClientID
}

func newBatch(m *Machine, w shard.Writer, timeNS int64) *batch {
	b := &batch{m: m, w: w, nowNS: timeNS, buf: m.scratch[:0]}
	b.view = view{r: w, id: m.cfg.Shard, hash: m.cfg.Hash, dirs: map[dirID]*directory{}}
	if m.state != nil {
		b.nowNS = max(timeNS, m.state.TimeNS)
		m.state.TimeNS = b.nowNS
	}
	b.record()
	return b
}

// flush writes what the batch kept in memory.
func (b *batch) flush() error {
	for _, d := range b.ordered {
		d.dirty = false
		if d.gone {
			continue
		}
		if err := b.set(schema.HeaderKey(b.id, d.subtree, d.Ino), &d.Header); err != nil {
			return err
		}
	}
	for _, s := range b.counted {
		s.countersDirty = false
		if s.forgotten {
			continue
		}
		if err := b.set(schema.CountersKey(b.id, s.id), &s.counters); err != nil {
			return err
		}
	}
	if err := b.flushQuotas(); err != nil {
		return err
	}
	for _, o := range b.windows {
		if err := b.flushWindow(o); err != nil {
			return err
		}
	}
	if b.m.state != nil {
		if err := b.set(schema.ShardKey(b.id), b.m.state); err != nil {
			return err
		}
	}
	if cap(b.buf) <= maxScratchBytes {
		b.m.scratch = b.buf
	}
	return nil
}

// maxScratchBytes bounds the buffer that is kept between batches.
const maxScratchBytes = 1 << 20

func (b *batch) flushWindow(o openWindow) error {
	if len(o.window.pending) == 0 {
		return nil // its session ended in this batch
	}
	write, first, dead := o.window.close()
	for _, seq := range dead {
		if err := b.w.Delete(schema.ResultsKey(b.id, o.subtree, o.client, seq)); err != nil {
			return err
		}
	}
	return b.set(schema.ResultsKey(b.id, o.subtree, o.client, first), write)
}

// value is what schema's values have in common.
type value interface{ Append(dst []byte) []byte }

func (b *batch) set(key []byte, v value) error {
	b.buf = v.Append(b.buf[:0])
	return b.w.Set(key, b.buf)
}

// enter makes the subtree the one that the following operation works on.
func (b *batch) enter(s *subtree) {
	b.sub = s
	b.in(s.id, &s.Subtree)
	b.quotas = len(s.quotas) > 0
}

// run applies one command and returns its encoded result.
func (b *batch) run(c *canopyv1.Command) ([]byte, error) {
	b.client, b.seq, b.floor = base.ClientID(c.Client), base.Seq(c.Op.GetSeq()), base.Seq(c.Floor)
	b.locks = locks{bypassed: c.Op == nil || c.Op.Subtree == uint64(base.ShardMeta)}
	if c.Op == nil {
		if c.Client != 0 {
			return encode(failure(fserr.Malformed))
		}
		return encodeOutcome(b.runOwn(c))
	}
	if c.Own != nil || c.Client == 0 || b.seq == 0 {
		return encode(failure(fserr.Malformed))
	}
	if b.m.state == nil {
		return encode(failure(fserr.NotReady))
	}
	if c.Op.Subtree == uint64(base.ShardMeta) {
		return encodeOutcome(b.runSession(c.Op))
	}
	return b.runClient(c.Op, c.AnsweredOnly)
}

// runClient runs an operation on the namespace, exactly once (PROTOCOLS C2, C3).
// With answeredOnly one that was not executed yet is refused for want of space, for
// good: whatever copy of it comes later gets that answer too.
func (b *batch) runClient(op *canopyv1.Op, answeredOnly bool) ([]byte, error) {
	handler := applyHandler(op)
	if handler == nil {
		return encode(failure(fserr.Malformed))
	}
	if answeredOnly {
		handler = func(*batch, *canopyv1.Op) (*canopyv1.Result, error) { return nil, fserr.NoSpace }
	}
	s := b.m.subtrees[base.SubtreeID(op.Subtree)]
	if s == nil {
		refused, err := unknown(b.r, b.id, op)
		if err != nil {
			return nil, err
		}
		return encode(refused)
	}
	session := b.m.sessions[b.client]
	if session == nil {
		return encode(failure(fserr.SessionExpired))
	}
	if redirect := route(op, &s.Subtree); redirect != nil && !s.answers(b.client, b.seq) {
		return encode(redirect)
	}
	if b.seq < session.Base {
		return encode(failure(fserr.BelowFloor))
	}
	b.enter(s)
	floor := max(b.floor, session.Base)
	w := s.windows[b.client]
	if w == nil {
		w = &window{floor: floor}
	}
	fresh, err := w.admit(b.seq, floor)
	if err != nil {
		return encode(failure(err))
	}
	if !fresh {
		return w.result(b.r, func(first base.Seq) []byte {
			return schema.ResultsKey(b.id, s.id, b.client, first)
		}, b.seq)
	}
	result, err := handler(b, op)
	if result, err = outcome(op, result, err); err != nil {
		return nil, err
	}
	encoded, err := result.MarshalVT()
	if err != nil {
		return nil, err
	}
	if fserr.Kind(result.Error).IsProtocol() { // C4: no result
		return encoded, nil
	}
	s.windows[b.client] = w
	if len(w.pending) == 0 {
		b.windows = append(b.windows, openWindow{w, s.id, b.client})
	}
	w.store(b.seq, floor, encoded)
	return encoded, nil
}

// outcome turns what a handler returned into a result, or into the error that
// means a broken replica. A handler may return a result with a kind as error.
func outcome(op *canopyv1.Op, r *canopyv1.Result, err error) (*canopyv1.Result, error) {
	if err == nil {
		return r, nil
	}
	if e, ok := err.(*elsewhere); ok {
		if r := e.redirect(op); r != nil {
			return r, nil
		}
		err = fserr.CrossSubtree
	}
	if e, ok := err.(*blocked); ok {
		return e.result(), nil
	}
	k, ok := err.(fserr.Kind)
	if !ok {
		return nil, err
	}
	if r == nil {
		r = &canopyv1.Result{}
	}
	r.Error = uint32(k)
	return r, nil
}

func encodeOutcome(r *canopyv1.Result, err error) ([]byte, error) {
	r, err = outcome(nil, r, err)
	if err != nil {
		return nil, err
	}
	return encode(r)
}

func encode(r *canopyv1.Result) ([]byte, error) {
	encoded, err := r.MarshalVT()
	if err != nil {
		return nil, fmt.Errorf("namespace: encoding a result: %w", err)
	}
	return encoded, nil
}

// touch marks the header as changed.
func (b *batch) touch(d *directory) {
	if !d.dirty {
		d.dirty = true
		b.ordered = append(b.ordered, d)
	}
}

// counters returns the subtree's counters for a change.
func (b *batch) counters() *schema.Counters {
	if !b.sub.countersDirty {
		b.sub.countersDirty = true
		b.counted = append(b.counted, b.sub)
	}
	return &b.sub.counters
}

// newIno allocates an inode number (PROTOCOLS A7).
func (b *batch) newIno() base.Ino {
	n := base.NewIno(b.id, b.m.state.NextIno)
	b.m.state.NextIno++
	return n
}

// changed moves the object's ctime and version, and writes it.
func (b *batch) changed(o *object) error {
	if o.isDir() {
		o.dir.CtimeNS = b.nowNS
		o.dir.Version++
		b.touch(o.dir)
		return nil
	}
	o.inode.CtimeNS = b.nowNS
	o.inode.Version++
	return b.save(o)
}

// write writes an object whose times and version are the caller's.
func (b *batch) write(o *object) error {
	if o.isDir() {
		b.touch(o.dir)
		return nil
	}
	return b.save(o)
}

// save writes an inode where it stands and keeps the counters right.
func (b *batch) save(o *object) error {
	if o.home != inOrphan && o.inode.IsFile() {
		if o.inode.SizeBytes != o.size {
			c := b.counters()
			c.Bytes += o.inode.SizeBytes - o.size
			o.size = o.inode.SizeBytes
		}
		if err := b.recharge(o); err != nil {
			return err
		}
	}
	switch o.home {
	case inRecord:
		return b.set(b.key(o), o.inode)
	case inOrphan:
		return b.set(b.key(o), &schema.Orphan{SinceNS: o.sinceNS, Inode: o.inode})
	}
	return b.set(b.key(o), o.entry.Dentry)
}

// locate writes where a worker finds an inode that it must come back to, if it
// is one; it is called after every move.
func (b *batch) locate(n *schema.Inode, dir base.Ino, name []byte) error {
	l := &schema.Locator{Dir: dir, Name: name}
	if len(n.Cuts) > 0 {
		if err := b.set(schema.CutKey(b.id, b.subtree, n.Ino), l); err != nil {
			return err
		}
	}
	if n.Locked {
		if err := b.set(schema.LockedKey(b.id, b.subtree, n.Ino), l); err != nil {
			return err
		}
	}
	if len(n.Reservations) > 0 {
		return b.set(schema.AppendKey(b.id, b.subtree, n.Ino), l)
	}
	return nil
}

// locateObject is locate for an object where it stands.
func (b *batch) locateObject(o *object) error {
	if o.home == inDentry {
		return b.locate(o.inode, o.entry.dir, o.entry.Name)
	}
	return b.locate(o.inode, 0, nil)
}

// relocate writes where an inode went (PROTOCOLS H1); dir 0: it was de-inlined.
func (b *batch) relocate(ino, dir base.Ino, name []byte) error {
	return b.set(schema.RelocationKey(b.id, b.subtree, ino),
		&schema.Relocation{SinceNS: b.nowNS, Subtree: b.subtree, Dir: dir, Name: name})
}
