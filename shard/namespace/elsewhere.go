package namespace

import (
	"fmt"
	"hash/fnv"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// elsewhere is the error of what is known, but lies in another subtree, or in one
// that this shard does not own. Handlers find it before they change anything.
type elsewhere struct {
	subtree base.SubtreeID
	ino     base.Ino
	// forward: the directory was carved out of the subtree that was asked
	// (PROTOCOLS E7). Nil: subtree is what a dentry, a header or a relocation says.
	forward *schema.Forward
	// split: the directory ino is split, and subtree has the name, or is its home.
	split *splitOff
	met   bool // the operation is addressed by something else
	// place is where an inode is in subtree that was addressed by its place; nil: ino
	// is a directory, or something else that the operation met.
	place *canopyv1.Place
}

func (e *elsewhere) Error() string {
	return fmt.Sprintf("inode %d is in subtree %d", e.ino, e.subtree)
}

// redirect returns the answer that sends the client to where that is which op
// addresses. Nil: op met ino on its way, which no redirect would help.
func (e *elsewhere) redirect(op *canopyv1.Op) *canopyv1.Result {
	addressed := e.place != nil || (e.forward != nil || e.split != nil) && uint64(e.ino) == op.Dir()
	if !addressed || e.met {
		return nil
	}
	r := e.moved()
	if e.split != nil && e.place == nil {
		r.Redirect.Subtree = uint64(e.split.holderOf(op))
	}
	return r
}

// moved is the answer that tells where that is which was asked for.
func (e *elsewhere) moved() *canopyv1.Result {
	r := &canopyv1.Redirect{Subtree: uint64(e.subtree)}
	if e.forward != nil {
		r.Shard, r.Epoch, r.Dir = uint64(e.forward.Shard), uint64(e.forward.Epoch), uint64(e.ino)
	}
	if e.split != nil {
		r.Dir, r.Fragments = uint64(e.ino), e.split.fragments.Proto()
	}
	return &canopyv1.Result{Error: uint32(fserr.Moved), Redirect: r, Place: e.place}
}

// at returns e as the error of an inode that was addressed, and is at p.
func (e *elsewhere) at(p *canopyv1.Place) *elsewhere {
	a := *e
	a.place = p
	return &a
}

// isElsewhere reports whether err is an elsewhere.
func isElsewhere(err error) bool {
	_, ok := err.(*elsewhere)
	return ok
}

// MovedError says that a place is not in the subtree that was asked, and what a
// client has to be told.
type MovedError struct{ Result *canopyv1.Result }

func (e *MovedError) Error() string {
	return "moved to subtree " + base.SubtreeID(e.Result.Redirect.GetSubtree()).String()
}

// Unwrap makes it an error of kind Moved.
func (e *MovedError) Unwrap() error { return fserr.Moved }

// forward returns an elsewhere if the directory was carved out of the view's
// subtree, nil if it was not.
func (v *view) forward(dir base.Ino) error { return v.forwardIn(v.subtree, v.carve, dir) }

func (v *view) forwardIn(subtree base.SubtreeID, carve schema.Carve, dir base.Ino) error {
	b, found, err := v.r.Get(schema.ForwardKey(v.id, subtree, dir))
	if err != nil || !found {
		return err
	}
	f, err := schema.DecodeForward(b)
	if err != nil {
		return err
	}
	if f.Into == carve.Into && !carve.Done {
		return nil // it is about to go
	}
	return &elsewhere{subtree: f.Into, ino: dir, forward: f}
}

// carvedOut is forward for a directory whose rows may still be stored here: it
// costs nothing unless a carve was handed off and is not cleaned yet.
func (v *view) carvedOut(dir base.Ino) error {
	if !v.carve.Done {
		return nil
	}
	return v.forward(dir)
}

// owned returns the state of a subtree if the shard owns it, so that what is
// stored of it here counts; else nil.
func (v *view) owned(subtree base.SubtreeID) (*schema.Subtree, error) {
	b, found, err := v.r.Get(schema.SubtreeKey(v.id, subtree))
	if err != nil || !found || subtree == base.ShardMeta {
		return nil, err
	}
	s, err := schema.DecodeSubtree(b)
	if err != nil || s.State != schema.Active && s.State != schema.Frozen {
		return nil, err
	}
	return s, nil
}

// enterForeign returns what a read that comes to a directory in another subtree
// needs to know of that; elsewhere if what is stored of the directory here does not
// count. In a batch it never does: an operation changes one subtree, and what it
// meets of another is a transaction's, be that on the same shard.
func (v *view) enterForeign(subtree base.SubtreeID, dir base.Ino) (*schema.Subtree, error) {
	if v.dirs != nil {
		return nil, &elsewhere{subtree: subtree, ino: dir}
	}
	s, err := v.owned(subtree)
	switch {
	case err != nil:
		return nil, err
	case s == nil:
		return nil, &elsewhere{subtree: subtree, ino: dir}
	case s.Carve.Done:
		return s, v.forwardIn(subtree, s.Carve, dir)
	}
	return s, nil
}

// viewIn returns a view of another subtree for a read; nil if the shard does not
// own it.
func (v *view) viewIn(subtree base.SubtreeID) (*view, error) {
	s, err := v.owned(subtree)
	if err != nil || s == nil {
		return nil, err
	}
	there := &view{r: v.r, id: v.id, hash: v.hash, locks: locks{past: v.locks.past}}
	there.in(subtree, s)
	return there, nil
}

// holderView is viewIn for the holder's own work: MovedError if the subtree is not
// the shard's.
func (m *Machine) holderView(r shard.Reader, subtree base.SubtreeID) (*view, error) {
	shardView := &view{r: r, id: m.cfg.Shard, hash: m.cfg.Hash}
	v, err := shardView.viewIn(subtree)
	if v != nil {
		v.locks.bypassed = true
	}
	if err != nil || v != nil {
		return v, err
	}
	red := &canopyv1.Redirect{Subtree: uint64(subtree)}
	b, found, err := r.Get(schema.SubtreeKey(m.cfg.Shard, subtree))
	if err != nil {
		return nil, err
	}
	if found {
		s, err := schema.DecodeSubtree(b)
		if err != nil {
			return nil, err
		}
		red.Epoch, red.Shard = uint64(s.Epoch), uint64(s.ToShard)
	}
	return nil, &MovedError{&canopyv1.Result{Error: uint32(fserr.Moved), Redirect: red}}
}

// movedError returns err, of an operation on place in the holder's own work, with
// an elsewhere as MovedError.
func movedError(err error, place *canopyv1.Place) error {
	e, ok := err.(*elsewhere)
	if !ok {
		return err
	}
	addressing := &canopyv1.Op{Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: place}}}
	if r := e.redirect(addressing); r != nil {
		return &MovedError{r}
	}
	return fserr.Stale
}

// pointerTo returns the attributes of what lies in a subtree that is not here: who asks
// there gets the rest. They have number, type and subtree, but no links and no
// version.
func pointerTo(ino base.Ino, kind uint32, subtree base.SubtreeID) *canopyv1.Attr {
	return &canopyv1.Attr{Ino: uint64(ino), Mode: kind, Subtree: uint64(subtree)}
}

// readElsewhere returns the object that a read met in another subtree, and the view
// that shows it, if the shard owns that and has it; else nil.
func (v *view) readElsewhere(e *elsewhere) (*view, *object, error) {
	there, err := v.viewIn(e.subtree)
	if there == nil || err != nil {
		return nil, nil, err
	}
	o, err := there.byNumber(e.ino, false)
	if err == fserr.Stale || isElsewhere(err) {
		return nil, nil, nil
	}
	return there, o, err
}

// locate answers which of the shard's subtrees has an inode (PROTOCOLS E7).
func (m *Machine) locate(r shard.Reader, c *canopyv1.LocateCall) (*canopyv1.Result, error) {
	var ids []base.SubtreeID
	moves := fnv.New64a()
	err := eachSubtree(r, m.cfg.Shard, func(id base.SubtreeID, s schema.Subtree) {
		fmt.Fprintln(moves, id, s.Epoch, s.State, s.ToShard, s.Carve, s.Hidden)
		if s.State == schema.Active || s.State == schema.Frozen {
			ids = append(ids, id)
		}
	})
	if err != nil {
		return nil, err
	}
	out := &canopyv1.Result{Moves: moves.Sum64()}
	shardView := &view{r: r, id: m.cfg.Shard, hash: m.cfg.Hash}
	var dirAt base.SubtreeID
	var dirEpoch base.Epoch
	for _, id := range ids {
		v, err := shardView.viewIn(id)
		if err != nil {
			return nil, err
		}
		v.locks.bypassed = true // where something was is as good: it leads on
		found, err := v.locateNumber(base.Ino(c.Ino), out)
		if err != nil || found {
			return out, err
		}
		if c.Dir == 0 || dirAt != 0 {
			continue
		}
		switch d, err := v.directory(base.Ino(c.Dir)); {
		case err == nil:
			if dirAt = d.Fragments.Home(); dirAt == id {
				dirEpoch = v.epoch
			}
		case err != fserr.Stale && !isElsewhere(err):
			return nil, err
		}
	}
	if dirAt == 0 {
		return out, fserr.Stale
	}
	out.Attr = pointerTo(base.Ino(c.Dir), schema.TypeDir, dirAt)
	out.Attr.Epoch = uint64(dirEpoch)
	return out, nil
}

// lastKnown fills in out with the name that a file had when its directory was in the
// subtree, of which nothing else is known any more. It is a hint: nobody has the file.
func (v *view) lastKnown(ino base.Ino, out *canopyv1.Result) error {
	b, found, err := v.r.Get(schema.RelocationKey(v.id, v.subtree, ino))
	if err != nil || !found {
		return err
	}
	to, err := schema.DecodeRelocation(b)
	if err != nil || to.Dir == 0 {
		return err
	}
	if _, err := v.directory(to.Dir); err == fserr.Stale {
		out.Place = &canopyv1.Place{Ino: uint64(ino), Dir: uint64(to.Dir), Name: to.Name}
	} else if err != nil && !isElsewhere(err) {
		return err
	}
	return nil
}

// locateNumber looks in one subtree for what an inode number leads to: it fills in
// out and reports whether there is anything.
func (v *view) locateNumber(ino base.Ino, out *canopyv1.Result) (bool, error) {
	o, err := v.byNumber(ino, true)
	if e, ok := err.(*elsewhere); ok && e.place != nil {
		out.Attr, out.Place = pointerTo(ino, 0, e.subtree), e.place
		return true, nil
	}
	switch {
	case err == fserr.Stale || isElsewhere(err):
		return false, v.lastKnown(ino, out)
	case err != nil:
		return false, err
	case o.isDir():
		out.Attr = pointerTo(ino, schema.TypeDir, o.dir.Fragments.Home())
		if !o.dir.isHome() {
			return true, nil
		}
	default:
		out.Attr, out.Place = pointerTo(ino, 0, v.subtree), o.place()
	}
	out.Attr.Epoch = uint64(v.epoch)
	return true, nil
}
