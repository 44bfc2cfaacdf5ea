package namespace

import (
	"bytes"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// maxPartBytes bounds what stands behind a dentry that a transaction moves: it
// travels in log entries. Who moves more copies (CrossDevice).
const maxPartBytes = 1 << 20

// prepare locks what a transaction wants in one subtree and answers what is there
// (PROTOCOLS D2). What it meets of another transaction makes it fail as a whole; it
// never waits. Repeating it answers the same.
func (b *batch) prepare(c *canopyv1.TxnPrepareCommand) (*canopyv1.Result, error) {
	b.locks = locks{own: schema.TxnOf(c.Txn)}
	b.follow(c.TimeNs)
	out := &canopyv1.Result{TimeNs: b.nowNS}
	if base.SubtreeID(c.Subtree) == base.ShardMeta {
		for range c.Wants {
			out.Facts = append(out.Facts, b.allocate())
		}
		return out, nil
	}
	s := b.m.subtrees[base.SubtreeID(c.Subtree)]
	at := &canopyv1.Op{Subtree: c.Subtree, Epoch: c.Epoch}
	if s == nil {
		return unknown(b.r, b.id, at)
	}
	if refused := route(at, &s.Subtree); refused != nil {
		return refused, nil // frozen: E4
	}
	if c.Request != nil {
		stored, err := b.answered(c.Request)
		if stored != nil || err != nil {
			return &canopyv1.Result{Stored: stored}, err
		}
	}
	b.enter(s)
	p, err := b.prepared(b.locks.own)
	if err != nil {
		return nil, err
	}
	l := &locking{batch: b, known: p != nil, Prepared: schema.Prepared{SinceNS: b.nowNS}}
	if p != nil {
		l.Prepared = *p
	}
	for _, w := range c.Wants {
		f, err := l.want(w)
		if k, ok := err.(fserr.Kind); ok {
			f, err = &canopyv1.TxnFact{Error: uint32(k)}, nil
		}
		if e, ok := err.(*elsewhere); ok {
			return e.moved(), nil
		}
		if err != nil {
			return nil, err
		}
		f.Epoch = uint64(b.epoch)
		out.Facts = append(out.Facts, f)
	}
	return out, l.write()
}

// follow takes in the time of another shard (PROTOCOLS A3).
func (b *batch) follow(timeNS int64) {
	b.nowNS = max(b.nowNS, timeNS)
	b.m.state.TimeNS = b.nowNS
}

// answered returns the stored result of a request, or why it may not run now.
func (b *batch) answered(q *canopyv1.TxnRequest) ([]byte, error) {
	s := b.m.subtrees[base.SubtreeID(q.Subtree)]
	if s == nil {
		return nil, fserr.Moved
	}
	session := b.m.sessions[base.ClientID(q.Client)]
	if session == nil {
		return nil, fserr.SessionExpired
	}
	if base.Seq(q.Seq) < session.Base {
		return nil, fserr.BelowFloor
	}
	w := s.windows[base.ClientID(q.Client)]
	if w == nil {
		return nil, nil
	}
	fresh, err := w.admit(base.Seq(q.Seq), max(base.Seq(q.Floor), session.Base))
	if err != nil || fresh {
		return nil, err
	}
	return w.result(b.r, func(first base.Seq) []byte {
		return schema.ResultsKey(b.id, s.id, base.ClientID(q.Client), first)
	}, base.Seq(q.Seq))
}

func (b *batch) prepared(t schema.TxnID) (*schema.Prepared, error) {
	v, found, err := b.r.Get(schema.PreparedKey(b.id, b.subtree, t))
	if err != nil || !found {
		return nil, err
	}
	return schema.DecodePrepared(v)
}

// allocate takes numbers for a new subtree and its root (PROTOCOLS A7).
func (b *batch) allocate() *canopyv1.TxnFact {
	id := base.SubtreeID(base.NewIno(b.id, uint64(b.m.state.NextSubtree)))
	b.m.state.NextSubtree++
	return &canopyv1.TxnFact{Ino: uint64(b.newIno()), Subtree: uint64(id), Epoch: 1}
}

// locking gathers the locks of one prepare: they are written when all can be had.
type locking struct {
	*batch
	schema.Prepared
	known bool // there was a record before
	fresh []newLock
}

type newLock struct {
	key    []byte
	intent schema.Intent
}

func (l *locking) lock(key []byte) { l.lockAs(key, schema.Intent{}) }

// lockAs is lock for a lock of a special kind.
func (l *locking) lockAs(key []byte, i schema.Intent) {
	if !l.Has(key) {
		l.Add(key)
	}
	i.Txn = l.locks.own
	l.fresh = append(l.fresh, newLock{key, i})
}

func (l *locking) write() error {
	for _, x := range l.fresh {
		if err := l.set(x.key, &x.intent); err != nil {
			return err
		}
	}
	if len(l.fresh) == 0 {
		return nil
	}
	if !l.known {
		l.sub.Intents++
		if err := l.set(schema.SubtreeKey(l.id, l.subtree), &l.sub.Subtree); err != nil {
			return err
		}
	}
	return l.set(schema.PreparedKey(l.id, l.subtree, l.locks.own), &l.Prepared)
}

func (l *locking) want(w *canopyv1.TxnWant) (*canopyv1.TxnFact, error) {
	switch w.Kind {
	case canopyv1.TxnWantKind_TXN_WANT_NAME:
		return l.wantName(w)
	case canopyv1.TxnWantKind_TXN_WANT_HOME:
		return l.wantHome(w)
	case canopyv1.TxnWantKind_TXN_WANT_RECORD:
		return l.wantPlace(&canopyv1.Place{Ino: w.Ino})
	case canopyv1.TxnWantKind_TXN_WANT_PLACE:
		return l.wantPlace(w.Place)
	case canopyv1.TxnWantKind_TXN_WANT_WALK:
		return l.wantWalk(base.Ino(w.Dir))
	case canopyv1.TxnWantKind_TXN_WANT_MOVE_LOCK:
		key := schema.MoveLockKey(l.id, l.subtree)
		i, err := l.lockAt(key)
		if i != nil {
			return nil, &blocked{[]schema.TxnID{i.Txn}}
		}
		l.lock(key)
		return &canopyv1.TxnFact{}, err
	}
	return nil, fserr.Malformed
}

// wantName locks a name, whether it is there or not. One that cannot be a name is
// not locked: the coordinator finds out what to answer.
func (l *locking) wantName(w *canopyv1.TxnWant) (*canopyv1.TxnFact, error) {
	d, err := l.directory(base.Ino(w.Dir))
	if err != nil {
		return nil, named(err, w.Name)
	}
	f := &canopyv1.TxnFact{Header: d.Header.Append(nil)}
	above, err := l.quotasAbove(d.Ino)
	if err != nil {
		return nil, err
	}
	f.Quota = len(above) > 0
	if checkName(w.Name) != nil || isDot(w.Name) || isDotDot(w.Name) {
		return f, nil
	}
	s, err := l.find(d, w.Name)
	if err != nil {
		return nil, err
	}
	if s.found() {
		f.Dentry = s.Dentry.Append(nil)
		if w.Parts {
			if f.Parts, err = l.partsAt(s.entry); err != nil {
				return nil, err
			}
		}
	} else if _, err := l.position(s, d.Ino); err != nil {
		return nil, err
	}
	l.lock(schema.IntentKey(l.id, l.subtree, d.Ino, l.hash(w.Name).Cookie(0), w.Name))
	return f, l.placement(d, f)
}

// placement adds where new directories of d go, and what they inherit.
func (l *locking) placement(d *directory, f *canopyv1.TxnFact) error {
	r, err := l.resolvePolicy(d)
	if err != nil || r == nil {
		return err
	}
	f.Spread, f.Pin = r.Spread, r.Pin
	if p := r.Inherited(); p != nil {
		f.Policy = schema.PolicyOf(p).Append(nil)
	}
	return nil
}

// partsAt reads what stands behind a dentry.
func (l *locking) partsAt(e entry) ([]*canopyv1.TxnPart, error) {
	if e.Kind != schema.Embedded {
		return nil, nil
	}
	o := &object{home: inDentry, inode: e.Inode, entry: e}
	if !o.hasParts() {
		return nil, nil
	}
	owner := l.key(o)
	var parts []*canopyv1.TxnPart
	size := 0
	lo, hi := schema.PartsRange(owner)
	err := l.r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		parts = append(parts, &canopyv1.TxnPart{Suffix: bytes.Clone(schema.PartSuffix(owner, key)), Value: bytes.Clone(value)})
		size += len(value)
		return true, nil
	})
	if err == nil && size > maxPartBytes {
		err = fserr.CrossDevice
	}
	return parts, err
}

// wantHome locks a directory where its header is (PROTOCOLS D5), or a fragment of a
// split one.
func (l *locking) wantHome(w *canopyv1.TxnWant) (*canopyv1.TxnFact, error) {
	d, err := l.directory(base.Ino(w.Ino))
	switch {
	case err != nil:
		return nil, err
	case !d.isHome() && !w.Fragment:
		return nil, l.atHome(d)
	case w.Closing:
		err = l.mayRemove(d.Ino)
	default:
		err = l.homeLocked(d.Ino)
	}
	if err != nil {
		return nil, err
	}
	l.lockAs(schema.HomeLockKey(l.id, l.subtree, d.Ino), schema.Intent{Closing: w.Closing, Attributes: w.Fragment && !w.Closing})
	return &canopyv1.TxnFact{Header: d.Header.Append(nil)}, nil
}

// wantPlace locks a file where it is: its name, if it is embedded, else its number.
func (l *locking) wantPlace(p *canopyv1.Place) (*canopyv1.TxnFact, error) {
	o, err := l.resolve(p)
	if err != nil {
		return nil, err
	}
	f := &canopyv1.TxnFact{Place: o.place()}
	switch o.home {
	case inHeader:
		f.Header = o.dir.Header.Append(nil)
		return f, nil
	case inDentry:
		l.lock(schema.IntentKey(l.id, l.subtree, o.entry.dir, l.hash(o.entry.Name).Cookie(0), o.entry.Name))
		above, err := l.quotasAbove(o.entry.dir)
		if err != nil {
			return nil, err
		}
		f.Quota = len(above) > 0
	default:
		f.Anonymous = o.home == inOrphan
		f.Quota = o.home == inRecord && len(l.sub.quotas) > 0
		l.lock(schema.HomeLockKey(l.id, l.subtree, o.inode.Ino))
	}
	f.Inode = o.inode.Append(nil)
	return f, nil
}

// wantWalk goes up from a directory to where the subtree ends, and keeps its
// directories where they are (PROTOCOLS D6). From a copy of a split directory's header
// the way goes on at the directory's home.
func (l *locking) wantWalk(dir base.Ino) (*canopyv1.TxnFact, error) {
	d, err := l.directory(dir)
	if err != nil {
		return nil, err
	}
	f := &canopyv1.TxnFact{}
	for range maxDepth {
		f.Path = append(f.Path, uint64(d.Ino))
		if d.Ino == l.root || d.ParentSubtree != l.subtree || !d.isHome() {
			break
		}
		if d, err = l.headerIn(l.subtree, d.Parent); err != nil {
			return nil, err
		}
	}
	switch {
	case !d.isHome():
		f.NextSubtree, f.NextDir = uint64(d.Fragments.Home()), uint64(d.Ino)
	case d.Ino != base.RootIno:
		f.NextSubtree, f.NextDir = uint64(d.ParentSubtree), uint64(d.Parent)
	}
	l.lock(schema.NoMovesKey(l.id, l.subtree, l.locks.own))
	return f, nil
}

// release gives back what a transaction has locked in the present subtree.
func (b *batch) release(t schema.TxnID) error {
	p, err := b.prepared(t)
	if err != nil || p == nil {
		return err
	}
	for _, k := range p.Keys(b.id) {
		if err := b.w.Delete(k); err != nil {
			return err
		}
	}
	if b.sub.Intents--; b.sub.Intents == 0 {
		b.locks.any = false
	}
	if err := b.set(schema.SubtreeKey(b.id, b.subtree), &b.sub.Subtree); err != nil {
		return err
	}
	return b.w.Delete(schema.PreparedKey(b.id, b.subtree, t))
}

// abort gives back what a transaction has locked in subtrees of this shard.
func (b *batch) abort(c *canopyv1.TxnAbortCommand) (*canopyv1.Result, error) {
	for _, id := range c.Subtrees {
		s := b.m.subtrees[base.SubtreeID(id)]
		if s == nil {
			continue
		}
		b.enter(s)
		if err := b.release(schema.TxnOf(c.Txn)); err != nil {
			return nil, err
		}
	}
	return &canopyv1.Result{}, nil
}
