package namespace

import (
	"bytes"
	"hash/fnv"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/edge"
	"github.com/canopyfs/canopy/shard/schema"
)

// checkedDir is what Check remembers of a directory.
type checkedDir struct {
	parent    base.Ino
	name      uint64 // sum of the name in its parent
	entries   uint64 // as the header says, less those found
	subdirs   uint64
	displaced uint64
	appeared  uint64
	top       base.Ino // the one above all others on the way up, in the subtree; 0: not known yet
	named     bool     // a dentry that agrees was found
	removed   bool
	copied    *directory // its header is one of several, or a husk
}

// stray reports whether the directory's home is in another subtree.
func (d *checkedDir) stray() bool { return d.copied != nil && !d.copied.isHome() }

// nameSum stands for a name, of which a check has too many to keep.
func nameSum(name []byte) uint64 {
	h := fnv.New64a()
	h.Write(name)
	return h.Sum64()
}

func (c *checker) edge(e edge.Edge) {
	e.Shard, e.Subtree = c.id, c.subtree
	e.Name = bytes.Clone(e.Name)
	c.edges = append(c.edges, e)
}

// scanForwards learns which directories do not count here any more, and where
// forwards lead.
func (c *checker) scanForwards() error {
	counts := map[base.SubtreeID]int64{}
	err := c.scanKind(schema.KindForward, func(key, value []byte) error {
		f, err := schema.DecodeForward(value)
		if err != nil {
			return err
		}
		dir, _, _ := schema.InoOf(key)
		if f.Into == c.carve.Into {
			if !c.carve.Done {
				return nil // it does not count yet
			}
			c.carved[base.Ino(dir)] = true
		}
		counts[f.Into]++
		return nil
	})
	for into, n := range counts {
		c.edge(edge.Edge{Kind: edge.Forward, To: into, Count: n})
	}
	return err
}

func (c *checker) scanHeaders() error {
	err := c.scanOwners(schema.KindHeader, func(key, value []byte) (belongings, error) {
		h, err := schema.DecodeHeader(value)
		if err != nil {
			return belongings{}, err
		}
		number, _, _ := schema.InoOf(key)
		if h.Ino != base.Ino(number) {
			c.problem("2", base.Ino(number), "its header has the number %d", h.Ino)
		}
		d := &checkedDir{
			parent: h.Parent, name: nameSum(h.Name), entries: h.Entries, subdirs: h.Subdirs, displaced: h.Displaced, appeared: h.Appeared, removed: h.Removed,
		}
		c.dirs[base.Ino(number)] = d
		if x := (&directory{Header: *h, subtree: c.subtree}); x.split() || !x.isHome() {
			d.copied = x
			c.copies = append(c.copies, x)
		}
		if isOrphan := c.orphans[h.Ino]; isOrphan != h.Removed && !d.stray() {
			c.problem("2", h.Ino, "directory removed=%v, but listed as orphan=%v", h.Removed, isOrphan)
		}
		if !h.Removed && !d.stray() {
			c.counted.Directories++
		}
		return belongings{names: h.XattrNames}, nil
	})
	if err == nil && c.dirs[c.root] == nil {
		c.problem("2", c.root, "the subtree's root has no header")
	}
	return err
}

func (c *checker) scanDentries() error {
	return c.scanOwners(schema.KindDentry, func(key, value []byte) (belongings, error) {
		e, err := schema.DecodeDentry(value)
		if err != nil {
			return belongings{}, err
		}
		dir, at, _ := schema.InoOf(key)
		c.dentry(base.Ino(dir), base.Cookie(at), e)
		if e.Kind != schema.Embedded {
			return belongings{}, nil
		}
		return belongingsOf(e.Inode), nil
	})
}

func (c *checker) dentry(dir base.Ino, at base.Cookie, e *schema.Dentry) {
	d := c.dirs[dir]
	if d == nil {
		c.problem("2", e.Ino, "name %q is in directory %d, which has no header", e.Name, dir)
		return
	}
	if d.copied != nil && !d.copied.Fragments.Has(c.subtree, shard.HashOf(at)) {
		c.problem("5", e.Ino, "name %q in directory %d lies in another fragment", e.Name, dir)
	}
	d.entries--
	if c.displaced(e.Name, at) {
		d.displaced--
	}
	if e.Appeared == 0 || e.Appeared > d.appeared {
		c.problem("5", e.Ino, "name %q appeared at version %d of %d", e.Name, e.Appeared, d.appeared)
	}
	if _, orphan := c.orphans[e.Ino]; orphan {
		c.problem("2", e.Ino, "an orphan has the name %q in directory %d", e.Name, dir)
	}
	switch e.Kind {
	case schema.Directory:
		d.subdirs--
		c.child(dir, e)
	case schema.Link:
		if e.Subtree != c.subtree {
			c.edge(edge.Edge{Kind: edge.Name, Ino: e.Ino, Dir: dir, To: e.Subtree})
			break
		}
		c.links[e.Ino]++
		c.named[e.Ino] = append(c.named[e.Ino], dir)
	case schema.Embedded:
		c.file(e.Inode)
		if e.Inode.Nlink != 1 {
			c.problem("3", e.Ino, "embedded in one dentry, but its link count is %d", e.Inode.Nlink)
		}
	}
}

func (c *checker) file(n *schema.Inode) {
	c.counted.Files++
	if n.IsFile() {
		c.counted.Bytes += n.SizeBytes
	}
	for i, cut := range n.Cuts {
		if cut.SizeEpoch > n.SizeEpoch || i > 0 && (cut.SizeEpoch <= n.Cuts[i-1].SizeEpoch || cut.SizeBytes <= n.Cuts[i-1].SizeBytes) {
			c.problem("6", n.Ino, "its cuts are not in order")
		}
	}
}

// child checks that a directory's header agrees with its dentry, if it is here.
func (c *checker) child(dir base.Ino, e *schema.Dentry) {
	h := c.dirs[e.Ino]
	if h == nil {
		c.edge(edge.Edge{Kind: edge.Down, Ino: e.Ino, Dir: dir, To: e.Subtree, Name: e.Name, Border: c.hash(e.Name).Border()})
		return
	}
	switch {
	case h.stray():
		c.edge(edge.Edge{Kind: edge.Down, Ino: e.Ino, Dir: dir, To: e.Subtree, Name: e.Name, Border: c.hash(e.Name).Border()})
		return
	case e.Ino == c.root || h.parent != dir || h.name != nameSum(e.Name):
		c.problem("2", e.Ino, "named %q in directory %d, but its header says a name in %d, or another one", e.Name, dir, h.parent)
	case h.named:
		c.problem("2", e.Ino, "a directory with two names in directory %d", dir)
	}
	h.named = true
}

func (c *checker) checkDirs() error {
	for ino, d := range c.dirs {
		if d.entries != 0 {
			c.problem("3", ino, "its count of names is %d more than its names", int64(d.entries))
		}
		if d.subdirs != 0 {
			c.problem("3", ino, "its count of subdirectories is %d more than there are", int64(d.subdirs))
		}
		if d.displaced != 0 {
			c.problem("5", ino, "its count of displaced names is %d more than there are", int64(d.displaced))
		}
		if d.removed {
			continue
		}
		if c.top(ino) == 0 {
			c.problem("2", ino, "not below the root: its ancestors make a cycle or end in nothing")
		}
		if d.named || d.stray() || ino == c.root && d.parent == ino { // as "/", which has no name
			continue
		}
		if err := c.up(ino); err != nil {
			return err
		}
	}
	for i := range c.edges {
		if e := &c.edges[i]; e.Kind == edge.Down {
			e.Top = c.top(e.Dir)
		}
	}
	return nil
}

// up reports a directory that no name in the subtree leads to.
func (c *checker) up(ino base.Ino) error {
	b, found, err := c.r.Get(schema.HeaderKey(c.id, c.subtree, ino))
	if err != nil || !found {
		return err
	}
	h, err := schema.DecodeHeader(b)
	if err == nil {
		c.edge(edge.Edge{Kind: edge.Up, Ino: ino, Dir: h.Parent, To: h.ParentSubtree, Name: h.Name, Border: c.hash(h.Name).Border()})
	}
	return err
}

// top walks up from ino to the subtree's root, or to a directory whose name is in
// another subtree, and remembers the way. 0: the way is a circle, or ends in nothing.
func (c *checker) top(ino base.Ino) base.Ino {
	var way []*checkedDir
	found := base.Ino(0)
	for at := ino; len(way) <= len(c.dirs); {
		d := c.dirs[at]
		if d == nil {
			break
		}
		if d.top != 0 {
			found = d.top
			break
		}
		if at == c.root || !d.named {
			found = at
			d.top = at
			break
		}
		way = append(way, d)
		at = d.parent
	}
	for _, d := range way {
		d.top = found
	}
	return found
}
