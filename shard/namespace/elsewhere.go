package namespace

import (
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// elsewhere is the error of what is known, but lies in another subtree, or in one
// that this shard does not own. Handlers find it before they change anything.
type elsewhere struct {
	subtree base.SubtreeID
	ino     base.Ino
	// forward: the directory was carved out of the subtree that was asked
	// (PROTOCOLS E7). Nil: something that the operation met lies in subtree.
	forward *schema.Forward
}

func (e *elsewhere) Error() string {
	return fmt.Sprintf("inode %d is in subtree %d", e.ino, e.subtree)
}

// redirect returns the answer that sends the client to where the directory is that
// it named; nil if it would not help, as the directory was not carved out.
func (e *elsewhere) redirect() *canopyv1.Result {
	if e.forward == nil {
		return nil
	}
	return &canopyv1.Result{Error: uint32(fserr.Moved), Redirect: &canopyv1.Redirect{
		Subtree: uint64(e.subtree), Shard: uint64(e.forward.Shard), Epoch: uint64(e.forward.Epoch), Dir: uint64(e.ino),
	}}
}

// isElsewhere reports whether err is an elsewhere.
func isElsewhere(err error) bool {
	_, ok := err.(*elsewhere)
	return ok
}

// forward returns an elsewhere if the directory was carved out of the view's
// subtree, nil if it was not.
func (v *view) forward(dir base.Ino) error {
	b, found, err := v.r.Get(schema.ForwardKey(v.id, v.subtree, dir))
	if err != nil || !found {
		return err
	}
	f, err := schema.DecodeForward(b)
	if err != nil {
		return err
	}
	if f.Into == v.carve.Into && !v.carve.Done {
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

// owns reports whether the shard owns the subtree, so that what is stored of it
// here counts.
func (v *view) owns(subtree base.SubtreeID) (bool, error) {
	if subtree == v.subtree {
		return true, nil
	}
	b, found, err := v.r.Get(schema.SubtreeKey(v.id, subtree))
	if err != nil || !found {
		return false, err
	}
	s, err := schema.DecodeSubtree(b)
	if err != nil {
		return false, err
	}
	return s.State == schema.Active || s.State == schema.Frozen, nil
}
