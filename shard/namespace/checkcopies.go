package namespace

import (
	"fmt"
	"hash/fnv"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/edge"
	"github.com/canopyfs/canopy/shard/schema"
)

// uncounted reports whether a row of a directory is there and does not count: a carve
// took the directory along, or the name went to another fragment or is about to come.
func (c *checker) uncounted(kind schema.Kind, key []byte) bool {
	dir, at, _ := schema.InoOf(key)
	if c.carved[base.Ino(dir)] {
		return true
	}
	if !c.hides || kind != schema.KindDentry {
		return false
	}
	d := c.dirs[base.Ino(dir)]
	return d != nil && d.copied != nil && !d.copied.Fragments.Has(c.subtree, shard.HashOf(base.Cookie(at)))
}

// reportCopies reports the headers of directories that have, or had, several.
func (c *checker) reportCopies() error {
	for _, d := range c.copies {
		if d.Removed && !d.split() && d.isHome() {
			continue
		}
		sum, err := c.common(d)
		if err != nil {
			return err
		}
		c.edge(edge.Edge{Kind: edge.Copy, Ino: d.Ino, Top: c.top(d.Ino), Fragments: d.Fragments, Sum: sum})
	}
	return nil
}

// common sums what all headers of a split directory have in common (PROTOCOLS F1).
func (c *checker) common(d *directory) (uint64, error) {
	h := fnv.New64a()
	fmt.Fprintln(h, d.Mode, d.UID, d.GID, d.BtimeNS, d.XattrNames, d.Layout, d.ACL, d.DefaultACL)
	if d.XattrNames == 0 {
		return h.Sum64(), nil
	}
	owner := schema.HeaderKey(c.id, c.subtree, d.Ino)
	lo, hi := schema.XattrRange(owner)
	err := c.r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		fmt.Fprintf(h, "%q %q\n", schema.XattrName(owner, key), value)
		return true, nil
	})
	return h.Sum64(), err
}
