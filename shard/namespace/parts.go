package namespace

import (
	"bytes"

	"github.com/canopyfs/canopy/shard/schema"
)

// part is a key that belongs to an object and moves with it: an xattr or the
// locks of one owner (PROTOCOLS A8).
type part struct{ owner, key, value []byte }

// hasParts reports whether there may be any.
func (o *object) hasParts() bool {
	return *o.xattrNames() > 0 || !o.isDir() && o.inode.Locked
}

// takeParts reads and deletes all parts of o.
func (b *batch) takeParts(o *object) ([]part, error) {
	if !o.hasParts() {
		return nil, nil
	}
	owner := b.key(o)
	var all []part
	lo, hi := schema.PartsRange(owner)
	err := b.r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		all = append(all, part{owner, bytes.Clone(key), bytes.Clone(value)})
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if err := b.w.Delete(p.key); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// putParts writes parts that were taken behind o's present key.
func (b *batch) putParts(o *object, all []part) error {
	owner := b.key(o)
	for _, p := range all {
		if err := b.w.Set(schema.PartKey(p.owner, owner, p.key), p.value); err != nil {
			return err
		}
	}
	return nil
}
