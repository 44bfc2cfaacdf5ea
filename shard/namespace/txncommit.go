package namespace

import (
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// committing makes a decided transaction's changes in one subtree. What it changes
// is locked since prepare, but for directory headers: those are changed as they are
// now, so that other names of the directory came and went meanwhile.
type committing struct {
	*batch
	txn    schema.TxnID
	timeNS int64 // of the decision: the time that the client is told
}

// commit makes the changes, once: what was prepared goes with them.
func (b *batch) commit(c *canopyv1.TxnCommitCommand) (*canopyv1.Result, error) {
	x := &committing{b, schema.TxnOf(c.Txn), c.TimeNs}
	b.locks = locks{own: x.txn, bypassed: true}
	b.follow(c.TimeNs)
	id := base.SubtreeID(c.Subtree)
	if len(c.Edits) == 1 && c.Edits[0].Kind == canopyv1.TxnEditKind_TXN_EDIT_SUBTREE {
		return &canopyv1.Result{}, x.makeSubtree(id, c.Edits[0])
	}
	s := b.m.subtrees[id]
	if s == nil {
		return &canopyv1.Result{}, nil
	}
	b.enter(s)
	p, err := b.prepared(x.txn)
	if err != nil || p == nil {
		return &canopyv1.Result{}, err // it was done before
	}
	if err := x.departAll(c.Edits); err != nil {
		return nil, err
	}
	for _, e := range c.Edits {
		if err := x.edit(e); err != nil {
			return nil, fmt.Errorf("namespace: transaction %v, which is decided, cannot be committed: %s %d %q: %w", x.txn, e.Kind, e.Dir|e.Ino, e.Name, broken{err})
		}
	}
	return &canopyv1.Result{}, b.release(x.txn)
}

// broken keeps a business failure from passing as an answer.
type broken struct{ error }

func (x *committing) edit(e *canopyv1.TxnEdit) error {
	switch e.Kind {
	case canopyv1.TxnEditKind_TXN_EDIT_NAME:
		return x.editName(e)
	case canopyv1.TxnEditKind_TXN_EDIT_RECORD:
		return x.editRecord(e)
	case canopyv1.TxnEditKind_TXN_EDIT_PLACE:
		return x.editPlace(e)
	case canopyv1.TxnEditKind_TXN_EDIT_HOME:
		return x.editHome(e)
	case canopyv1.TxnEditKind_TXN_EDIT_REMOVE:
		return x.editRemove(e)
	case canopyv1.TxnEditKind_TXN_EDIT_FRAGMENT:
		return x.editFragment(e)
	}
	return fserr.Malformed
}

// editName changes what a name has.
func (x *committing) editName(e *canopyv1.TxnEdit) error {
	d, err := x.directory(base.Ino(e.Dir))
	if err != nil {
		return err
	}
	s, err := x.find(d, e.Name)
	if err != nil {
		return err
	}
	if s.found() != (e.Old != canopyv1.TxnOld_TXN_OLD_ABSENT) {
		return fserr.Internal
	}
	if s.found() && s.Kind == schema.Embedded && e.Old == canopyv1.TxnOld_TXN_OLD_LOSES {
		o, err := x.objectOf(s.entry)
		if err == nil {
			err = x.lose(o)
		}
		if err != nil {
			return err
		}
	}
	if len(e.Dentry) == 0 {
		return x.vanish(d, s.entry)
	}
	next, err := schema.DecodeDentry(e.Dentry)
	if err != nil {
		return err
	}
	next.Name = e.Name
	if next.Inode != nil {
		x.stamp(next.Inode)
	}
	var at entry
	if s.found() {
		at, err = x.replace(d, s.entry, next)
	} else {
		var p position
		if p.at, p.probe, err = x.freePosition(s, d.Ino, maxProbeDecided); err == nil {
			at, err = x.appear(d, p, next)
		}
	}
	if err != nil || next.Inode == nil {
		return err
	}
	return x.arrive(at, e)
}

// departAll takes out the embedded inodes that leave, before any comes in: of an
// exchange within the subtree both do.
func (x *committing) departAll(edits []*canopyv1.TxnEdit) error {
	for _, e := range edits {
		if e.Old != canopyv1.TxnOld_TXN_OLD_LEAVES {
			continue
		}
		d, err := x.directory(base.Ino(e.Dir))
		if err != nil {
			return broken{err}
		}
		s, err := x.find(d, e.Name)
		if err != nil {
			return err
		}
		if !s.found() || s.Kind != schema.Embedded {
			continue
		}
		o, err := x.objectOf(s.entry)
		if err == nil {
			err = x.depart(o, e)
		}
		if err != nil {
			return broken{err}
		}
	}
	return nil
}

// stamp gives the decision's time to what was left open.
func (x *committing) stamp(n *schema.Inode) {
	for _, t := range []*int64{&n.AtimeNS, &n.MtimeNS, &n.CtimeNS, &n.BtimeNS} {
		if *t == 0 {
			*t = x.timeNS
		}
	}
}

// lose takes a name from an inode, at the decision's time.
func (x *committing) lose(o *object) error {
	now := x.nowNS
	x.nowNS = x.timeNS
	defer func() { x.nowNS = now }()
	return x.loseName(o)
}

// depart takes an embedded inode out of the subtree, with all that belongs to it,
// and leaves behind where it went (PROTOCOLS H1).
func (x *committing) depart(o *object, e *canopyv1.TxnEdit) error {
	all, err := x.locksOf(o)
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := x.indexLocks(o, h.owner.Client, false); err != nil {
			return err
		}
	}
	if _, err := x.takeParts(o); err != nil {
		return err
	}
	ino := o.inode.Ino
	for _, key := range [][]byte{schema.CutKey(x.id, x.subtree, ino), schema.AppendKey(x.id, x.subtree, ino), schema.LockedKey(x.id, x.subtree, ino)} {
		if err := x.w.Delete(key); err != nil {
			return err
		}
	}
	c := x.counters()
	c.Files--
	if o.inode.IsFile() {
		c.Bytes -= o.size
	}
	return x.set(schema.RelocationKey(x.id, x.subtree, ino), &schema.Relocation{
		SinceNS: x.timeNS, Subtree: base.SubtreeID(e.ToSubtree), Dir: base.Ino(e.ToDir), Name: e.ToName})
}

// arrive takes in an embedded inode with all that belongs to it. Of a client that
// has locks in it and no session here one is made, so that they end with it.
func (x *committing) arrive(at entry, e *canopyv1.TxnEdit) error {
	o := &object{home: inDentry, inode: at.Inode, entry: at, size: at.Inode.SizeBytes, charged: chargedBytes(at.Inode)}
	c := x.counters()
	c.Files++
	if e.Made {
		return nil
	}
	if o.inode.IsFile() {
		c.Bytes += o.size
	}
	owner := x.key(o)
	for _, p := range e.Parts {
		key := schema.KeyOfPart(owner, p.Suffix)
		if err := x.w.Set(key, p.Value); err != nil {
			return err
		}
		if l, ok := schema.LockOf(owner, key); ok {
			if err := x.indexLocks(o, l.Client, true); err != nil {
				return err
			}
			if err := x.introduce(l.Client); err != nil {
				return err
			}
		}
	}
	if err := x.relocate(o.inode.Ino, at.dir, at.Name); err != nil {
		return err
	}
	return x.locateObject(o)
}

// introduce makes a session for a client that has none.
func (b *batch) introduce(client base.ClientID) error {
	if b.m.sessions[client] != nil {
		return nil
	}
	s := &schema.Session{OpenedNS: b.nowNS}
	if e := b.m.ended[client]; e != nil {
		s.Base = e.MaxSeq + 1
	}
	b.m.sessions[client] = s
	return b.set(schema.SessionKey(b.id, client), s)
}

// editRecord adds to the link count of a de-inlined inode, or notes that it was
// renamed.
func (x *committing) editRecord(e *canopyv1.TxnEdit) error {
	o, err := x.view.record(base.Ino(e.Ino))
	if err != nil {
		return err
	}
	if e.Links < 0 {
		o.entry.dir = base.Ino(e.FromDir)
		return x.lose(o)
	}
	x.touchInode(o.inode)
	if err := x.save(o); err != nil {
		return err
	}
	return x.changeNames(o.inode.Ino, base.Ino(e.FromDir), base.Ino(e.Parent))
}

func (x *committing) touchInode(n *schema.Inode) {
	n.CtimeNS = max(n.CtimeNS, x.timeNS)
	n.Version++
}

// editPlace gives a file one more name, which lies in another subtree: its inode
// goes to a record of its own, if it has none (PROTOCOLS A9).
func (x *committing) editPlace(e *canopyv1.TxnEdit) error {
	o, err := x.resolve(e.Place)
	if err != nil {
		return err
	}
	n := o.inode
	n.Nlink++
	x.touchInode(n)
	if o.home != inRecord {
		if err := x.toRecord(o); err != nil {
			return err
		}
	}
	if err := x.save(o); err != nil {
		return err
	}
	return x.changeNames(n.Ino, 0, base.Ino(e.Parent))
}

// toRecord makes a de-inlined inode of one that is embedded or has no name.
func (x *committing) toRecord(o *object) error {
	parts, err := x.takeParts(o)
	if err != nil {
		return err
	}
	n := o.inode
	if o.home == inOrphan {
		if err := x.w.Delete(x.key(o)); err != nil {
			return err
		}
		n.Linkable = false
		o.size, o.charged = n.SizeBytes, chargedBytes(n)
		c := x.counters()
		c.Files++
		if n.IsFile() {
			c.Bytes += o.size
		}
	} else {
		first := o.entry
		old := &schema.Dentry{Kind: schema.Link, Name: first.Name, Appeared: first.Appeared, Ino: first.Ino, Type: first.Type, Subtree: x.subtree}
		if err := x.set(schema.DentryKey(x.id, x.subtree, first.dir, first.at), old); err != nil {
			return err
		}
		if err := x.changeNames(n.Ino, 0, first.dir); err != nil {
			return err
		}
	}
	o.home = inRecord
	if err := x.putParts(o, parts); err != nil {
		return err
	}
	if err := x.relocate(n.Ino, 0, nil); err != nil {
		return err
	}
	return x.locateObject(o)
}

// editHome tells a directory where its name is now.
func (x *committing) editHome(e *canopyv1.TxnEdit) error {
	d, err := x.directory(base.Ino(e.Ino))
	if err != nil {
		return err
	}
	if d.Parent != base.Ino(e.Parent) || d.ParentSubtree != base.SubtreeID(e.ParentSubtree) {
		x.directoryMoved()
		clear(x.sub.above)
	}
	d.Parent, d.ParentSubtree, d.Name = base.Ino(e.Parent), base.SubtreeID(e.ParentSubtree), append([]byte(nil), e.Name...)
	d.CtimeNS = max(d.CtimeNS, x.timeNS)
	d.Version++
	x.touch(d)
	return nil
}

// makeSubtree makes a subtree of a new directory. What is there stays: it was done
// before.
func (x *committing) makeSubtree(id base.SubtreeID, e *canopyv1.TxnEdit) error {
	if x.m.subtrees[id] != nil {
		return nil
	}
	h, err := schema.DecodeHeader(e.Header)
	if err != nil {
		return err
	}
	s := newSubtree(id, schema.Subtree{Epoch: 1, State: schema.Active, Root: h.Ino})
	x.m.subtrees[id] = s
	x.enter(s)
	for _, t := range []*int64{&h.AtimeNS, &h.MtimeNS, &h.CtimeNS, &h.BtimeNS} {
		*t = x.timeNS
	}
	h.Fragments = shard.Whole(id)
	root := &directory{subtree: id, Header: *h}
	x.dirs[dirID{id, h.Ino}] = root
	x.touch(root)
	x.counters().Directories++
	if len(e.Policy) > 0 {
		p, err := schema.DecodePolicy(e.Policy)
		if err != nil {
			return err
		}
		if err := x.putPolicy(h.Ino, p.Proto()); err != nil {
			return err
		}
	}
	return x.set(schema.SubtreeKey(x.id, id), &s.Subtree)
}
