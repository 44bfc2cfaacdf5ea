package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// lookup finds one name in a directory.
func lookup(v *view, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetLookup()
	d, err := v.searchable(identityOf(op.Cred), base.Ino(c.Dir))
	if err != nil {
		return nil, err
	}
	r := &canopyv1.Result{DirAttr: v.dirAttr(d)}
	switch {
	case isDot(c.Name):
		r.Attr = v.dirAttr(d)
		return r, nil
	case isDotDot(c.Name):
		if !d.isHome() {
			return nil, v.atHome(d)
		}
		r.Attr, err = v.dirAttrIn(d.ParentSubtree, d.Parent)
		return r, err
	}
	s, err := v.namedNew(d, c.Name)
	if err != nil {
		return nil, err
	}
	if !s.found() {
		return r, fserr.NotFound // with the directory's attributes, for a negative entry
	}
	r.Cookie = uint64(s.at)
	o, err := v.objectOf(s.entry)
	there := v
	if e, ok := err.(*elsewhere); ok {
		if there, o, err = v.readElsewhere(e); o == nil && err == nil {
			r.Attr = pointerTo(s.Ino, s.Type, e.subtree)
			return r, nil
		}
	}
	if err != nil {
		return nil, err
	}
	if err := there.contentLocked(o); err != nil {
		return nil, err
	}
	r.Attr = there.attr(o)
	r.DataRights = uint32(identityOf(op.Cred).dataRights(o))
	return r, nil
}

func getAttr(v *view, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetGetAttr()
	o, err := v.resolve(c.Place)
	if err != nil {
		return nil, err
	}
	if err := v.contentLocked(o); err != nil {
		return nil, err
	}
	r := v.answer(o)
	if c.DataRights != 0 {
		r.DataRights = uint32(identityOf(op.Cred).dataRights(o)) & c.DataRights
	}
	return r, nil
}

func readlink(v *view, op *canopyv1.Op) (*canopyv1.Result, error) {
	o, err := v.resolve(op.GetReadlink().Place)
	if err != nil {
		return nil, err
	}
	if o.isDir() || o.inode.Mode&schema.TypeMask != schema.TypeLink {
		return nil, fserr.Invalid
	}
	r := v.answer(o)
	r.Data = o.inode.Target
	return r, nil
}

func access(v *view, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetAccess()
	if c.Mask&^(mayRead|mayWrite|mayExec) != 0 {
		return nil, fserr.Invalid
	}
	o, err := v.resolve(c.Place)
	if err != nil {
		return nil, err
	}
	return v.answer(o), identityOf(op.Cred).accessObject(o, c.Mask)
}

// parent answers where a directory is, and its parent's attributes.
func parent(v *view, op *canopyv1.Op) (*canopyv1.Result, error) {
	d, err := v.directory(base.Ino(op.GetParent().Dir))
	if err == nil && !d.isHome() {
		err = v.atHome(d)
	}
	if err != nil {
		return nil, err
	}
	up, err := v.dirAttrIn(d.ParentSubtree, d.Parent)
	if err != nil {
		return nil, err
	}
	return &canopyv1.Result{
		Place: &canopyv1.Place{Ino: uint64(d.Ino), Dir: uint64(d.Parent), Name: d.Name},
		Attr:  up,
	}, nil
}

// dirAttrIn returns a directory's attributes, or only where they are to be asked for.
func (v *view) dirAttrIn(subtree base.SubtreeID, ino base.Ino) (*canopyv1.Attr, error) {
	d, err := v.directoryIn(subtree, ino)
	if e, ok := err.(*elsewhere); ok {
		return pointerTo(ino, schema.TypeDir, e.subtree), nil
	}
	if err != nil {
		return nil, err
	}
	return v.dirAttr(d), nil
}

// statFS counts the inodes of all subtrees of the shard. Bytes are the data
// servers' affair: whoever serves the answer adds them. Of a place in a quota it is
// the quota's size.
func statFS(v *view, op *canopyv1.Op) (*canopyv1.Result, error) {
	var used uint64
	err := Subtrees(v.r, v.id, func(s SubtreeInfo) bool {
		if s.State == schema.Active.String() || s.State == schema.Frozen.String() {
			used += s.Files + s.Directories
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	b, found, err := v.r.Get(schema.ShardKey(v.id))
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fserr.NotReady
	}
	s, err := schema.DecodeShardState(b)
	if err != nil {
		return nil, err
	}
	free := uint64(1)<<base.InoCounterBits - s.NextIno
	f := &canopyv1.StatFs{Files: used + free, FreeFiles: free}
	return &canopyv1.Result{Statfs: f}, v.boundStatFS(f, op.GetStatFs().GetPlace())
}
