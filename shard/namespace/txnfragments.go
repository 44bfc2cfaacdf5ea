package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// decideOp decides a transaction whose operation changes the attributes of a split
// directory: the operation's own handler carries it out at home, here and now. If it
// fails, that is the answer, and nothing is changed anywhere. Else the fragments' shares
// are what it changed (PROTOCOLS F1).
func (b *batch) decideOp(t schema.TxnID, c *canopyv1.TxnDecideCommand) error {
	op := new(canopyv1.Op)
	if err := op.UnmarshalVT(c.Op); err != nil {
		return fserr.Malformed
	}
	s, handler := b.m.subtrees[base.SubtreeID(op.Subtree)], applyHandler(op)
	switch {
	case handler == nil:
		return fserr.Malformed
	case s == nil:
		return fserr.Moved
	}
	b.locks = locks{own: t}
	b.enter(s)
	if p, err := b.prepared(t); err != nil {
		return err
	} else if p == nil {
		return fserr.Busy // its locks are gone, so that what it asked for may be wrong
	}
	b.deciding = true
	result, err := handler(b, op)
	b.deciding = false
	if result, err = outcome(op, result, err); err != nil {
		return err
	}
	kind := fserr.Kind(result.Error)
	if kind.IsProtocol() {
		return kind
	}
	encoded, err := result.MarshalVT()
	if err != nil {
		return err
	}
	b.keepResult(c.Request, encoded)
	home := &canopyv1.TxnShare{Shard: uint64(b.id), Commit: &canopyv1.TxnCommitCommand{Txn: c.Txn, Subtree: op.Subtree}}
	if kind != fserr.OK {
		for _, f := range append(c.Fragments, home) {
			if base.ShardID(f.Shard) == b.id {
				if _, err := b.abort(&canopyv1.TxnAbortCommand{Txn: c.Txn, Subtrees: []uint64{f.Commit.Subtree}}); err != nil {
					return err
				}
			}
		}
		return nil
	}
	edit, err := b.fragmentEdit(op)
	if err != nil {
		return err
	}
	for _, f := range c.Fragments {
		f.Commit.Edits = []*canopyv1.TxnEdit{edit}
	}
	return b.decideShares(t, append(c.Fragments, home), b.nowNS)
}

// fragmentEdit returns what the other fragments of a split directory are told of an
// operation that changed it here.
func (b *batch) fragmentEdit(op *canopyv1.Op) (*canopyv1.TxnEdit, error) {
	d, err := b.directory(base.Ino(op.Dir()))
	if err != nil {
		return nil, err
	}
	e := &canopyv1.TxnEdit{Kind: canopyv1.TxnEditKind_TXN_EDIT_FRAGMENT, Ino: uint64(d.Ino), Header: d.Header.Append(nil)}
	switch c := op.Call.(type) {
	case *canopyv1.Op_SetAttr:
		e.Atime = c.SetAttr.Mask&(maskAtime|maskAtimeNow) != 0
		e.Mtime = c.SetAttr.Mask&(maskMtime|maskMtimeNow) != 0
	case *canopyv1.Op_SetXattr:
		if !isACLXattr(c.SetXattr.Name) {
			e.Xattr, e.XattrValue = c.SetXattr.Name, c.SetXattr.Value
		}
	case *canopyv1.Op_RemoveXattr:
		if !isACLXattr(c.RemoveXattr.Name) {
			e.Xattr, e.XattrGone = c.RemoveXattr.Name, true
		}
	case *canopyv1.Op_SetPolicy:
		r, err := b.resolvePolicy(d)
		if err != nil {
			return nil, err
		}
		e.PolicySet = true
		if r != nil {
			e.Policy = schema.PolicyOf(policyOf(r.Effective)).Append(nil)
		}
	}
	return e, nil
}

// editFragment makes this fragment's copy of a split directory's header say what home's
// says of the directory as a whole. What the fragment counts is its own. Without a
// header, the directory is removed: a husk stays, which leads to home.
func (x *committing) editFragment(e *canopyv1.TxnEdit) error {
	d, err := x.directory(base.Ino(e.Ino))
	if err != nil {
		return err
	}
	if len(e.Header) == 0 {
		return x.dropFragment(d)
	}
	h, err := schema.DecodeHeader(e.Header)
	if err != nil {
		return err
	}
	if len(e.Xattr) > 0 {
		key := schema.XattrKey(x.key(&object{home: inHeader, dir: d}), e.Xattr)
		if e.XattrGone {
			err = x.w.Delete(key)
		} else {
			err = x.w.Set(key, e.XattrValue)
		}
		if err != nil {
			return err
		}
	}
	if e.PolicySet {
		var own *canopyv1.LayoutPolicy
		if len(e.Policy) > 0 {
			p, err := schema.DecodePolicy(e.Policy)
			if err != nil {
				return err
			}
			own = p.Proto()
		}
		if err := x.putPolicy(d.Ino, own); err != nil {
			return err
		}
		d.Seen = schema.Seen{}
	}
	d.Mode, d.UID, d.GID, d.ACL, d.DefaultACL, d.XattrNames = h.Mode, h.UID, h.GID, h.ACL, h.DefaultACL, h.XattrNames
	if e.Atime {
		d.AtimeNS = h.AtimeNS
	}
	// Names that another transaction changed after this one was decided count on.
	if later := d.CtimeNS > x.timeNS && d.MtimeNS == d.CtimeNS; e.Mtime && !later {
		d.MtimeNS = h.MtimeNS
	}
	d.CtimeNS = max(d.CtimeNS, h.CtimeNS)
	d.Version++
	x.touch(d)
	return nil
}

// dropFragment makes a husk of an empty fragment.
func (x *committing) dropFragment(d *directory) error {
	if d.Entries != 0 {
		return errTwice
	}
	if _, err := x.takeParts(&object{home: inHeader, dir: d}); err != nil {
		return err
	}
	d.Fragments = shard.Whole(d.Fragments.Home())
	d.Subdirs, d.Displaced, d.MaxProbe, d.Version, d.XattrNames = 0, 0, 0, 0, 0
	x.touch(d)
	return x.putPolicy(d.Ino, nil)
}

// editRemove removes a directory. Of a split one home alone stays, with what the
// fragments had: what stat showed does not go back.
func (x *committing) editRemove(e *canopyv1.TxnEdit) error {
	d, err := x.directory(base.Ino(e.Ino))
	if err != nil {
		return err
	}
	if len(e.Header) > 0 {
		h, err := schema.DecodeHeader(e.Header)
		if err != nil {
			return err
		}
		d.Fragments, d.Version = shard.Whole(x.subtree), max(d.Version, h.Version)
		d.AtimeNS, d.MtimeNS, d.CtimeNS = max(d.AtimeNS, h.AtimeNS), max(d.MtimeNS, h.MtimeNS), max(d.CtimeNS, h.CtimeNS)
	}
	return x.removeDirectory(d)
}
