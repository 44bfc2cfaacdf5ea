package namespace

import (
	"fmt"
	"hash/fnv"

	"github.com/canopyfs/canopy/shard/edge"
	"github.com/canopyfs/canopy/shard/schema"
)

// reportCopy reports the header of a directory that has, or had, several.
func (c *checker) reportCopy(d *directory) error {
	sum, err := c.common(d)
	if err != nil {
		return err
	}
	top, err := c.top(d.Ino)
	if err != nil {
		return err
	}
	return c.edge(edge.Edge{Kind: edge.Copy, Ino: d.Ino, Top: top, Fragments: d.Fragments, Sum: sum})
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
