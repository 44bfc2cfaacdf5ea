package namespace

import (
	"bytes"
	"math"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/edge"
	"github.com/canopyfs/canopy/shard/schema"
)

// Headers and dentries are stored in the order of their directories: both are gone
// through side by side, so that of one directory at a time its names are counted. What
// leads from one directory to another is looked up.

// scanForwards counts where forwards lead.
func (c *checker) scanForwards() error {
	counts := map[base.SubtreeID]int64{}
	err := c.each(schema.KindForward, func(_, value []byte) error {
		f, err := schema.DecodeForward(value)
		if err != nil {
			return err
		}
		if f.Into != c.carve.Into || c.carve.Done { // else it does not count yet
			counts[f.Into]++
		}
		return nil
	})
	for into, n := range counts {
		if err == nil {
			err = c.edge(edge.Edge{Kind: edge.Forward, To: into, Count: n})
		}
	}
	return err
}

// checkedDir is a directory and what was found of its names.
type checkedDir struct {
	*directory
	carved                      bool // its rows do not count any more
	entries, subdirs, displaced uint64
}

func (c *checker) scanTree() error {
	headers, dentries := c.rows(schema.KindHeader), c.rows(schema.KindDentry)
	of, named := &owners{c: c}, &owners{c: c}
	root := false
	for {
		d, err := c.nextDir(headers, of)
		if err != nil {
			return err
		}
		end := base.Ino(math.MaxUint64)
		if d != nil {
			end = d.Ino
			root = root || end == c.root && !d.carved
		}
		if err := c.scanNames(dentries, named, d, end); err != nil {
			return err
		}
		if d == nil {
			of.settle()
			named.settle()
			break
		}
		if err := c.settleDir(d); err != nil {
			return err
		}
	}
	// Of another subtree the root may have been removed, with something left that goes
	// later, or is used by who knew it; if it was not, its name is there and shows it.
	if !root && c.root == base.RootIno {
		c.problem("2", c.root, "the root has no header")
	}
	return nil
}

// nextDir reads the next header with all that stands behind the one before; nil: there
// is none.
func (c *checker) nextDir(headers *rows, of *owners) (*checkedDir, error) {
	for {
		some, err := headers.more()
		if err != nil || !some {
			return nil, err
		}
		key := headers.key()
		number, _, _ := schema.InoOf(key)
		ino := base.Ino(number)
		if err := c.carvedOut(ino); isElsewhere(err) {
			headers.at++
			if schema.IsSelf(key) {
				of.ignore(key)
				return &checkedDir{directory: &directory{Header: schema.Header{Ino: ino}}, carved: true}, nil
			}
			continue
		} else if err != nil {
			return nil, err
		}
		part, err := of.part(key, headers.value())
		if err != nil {
			return nil, err
		}
		if part {
			headers.at++
			continue
		}
		h, err := schema.DecodeHeader(headers.value())
		if err != nil {
			return nil, err
		}
		if h.Ino != ino {
			c.problem("2", ino, "its header has the number %d", h.Ino)
			h.Ino = ino
		}
		of.begin(key, belongings{names: h.XattrNames})
		headers.at++
		return &checkedDir{directory: &directory{Header: *h, subtree: c.subtree, epoch: c.epoch}}, nil
	}
}

// stray reports whether a directory's home is in another subtree.
func stray(d *directory) bool { return !d.isHome() }

// copied reports whether a header is one of several, or a husk.
func copied(d *directory) bool { return d.split() || !d.isHome() }

// scanNames goes through the names of directories up to number end; d is the one of
// that number.
func (c *checker) scanNames(dentries *rows, named *owners, d *checkedDir, end base.Ino) error {
	for {
		some, err := dentries.more()
		if err != nil || !some {
			return err
		}
		key, value := dentries.key(), dentries.value()
		number, at, _ := schema.InoOf(key)
		dir := base.Ino(number)
		if dir > end {
			return nil
		}
		of := d
		if dir < end || d == nil {
			of = nil
		}
		ignored, err := c.ignores(of, dir, base.Cookie(at))
		if err != nil {
			return err
		}
		if ignored {
			if schema.IsSelf(key) {
				named.ignore(key)
			}
			dentries.at++
			continue
		}
		part, err := named.part(key, value)
		if err == nil && !part {
			err = c.scanName(named, of, dir, base.Cookie(at), key, value)
		}
		if err != nil {
			return err
		}
		dentries.at++
	}
}

// ignores reports whether a name is there and does not count: a carve took the
// directory along, or the name went to another fragment or is about to come.
func (c *checker) ignores(d *checkedDir, dir base.Ino, at base.Cookie) (bool, error) {
	switch {
	case d != nil && d.carved:
		return true, nil
	case d != nil:
		return c.hides && copied(d.directory) && !d.Fragments.Has(c.subtree, shard.HashOf(at)), nil
	}
	err := c.carvedOut(dir)
	if isElsewhere(err) {
		return true, nil
	}
	return false, err
}

func (c *checker) scanName(named *owners, d *checkedDir, dir base.Ino, at base.Cookie, key, value []byte) error {
	e, err := schema.DecodeDentry(value)
	if err != nil {
		return err
	}
	want := belongings{}
	if e.Kind == schema.Embedded {
		want = belongingsOf(e.Inode)
	}
	named.begin(key, want)
	if d == nil {
		c.problem("2", e.Ino, "name %q is in directory %d, which has no header", e.Name, dir)
		return nil
	}
	return c.dentry(d, at, e)
}

func (c *checker) dentry(d *checkedDir, at base.Cookie, e *schema.Dentry) error {
	if copied(d.directory) && !d.Fragments.Has(c.subtree, shard.HashOf(at)) {
		c.problem("5", e.Ino, "name %q in directory %d lies in another fragment", e.Name, d.Ino)
	}
	d.entries++
	if c.displaced(e.Name, at) {
		d.displaced++
	}
	if e.Appeared == 0 || e.Appeared > d.Appeared {
		c.problem("5", e.Ino, "name %q appeared at version %d of %d", e.Name, e.Appeared, d.Appeared)
	}
	orphan, err := c.isOrphan(e.Ino)
	if err != nil {
		return err
	}
	if orphan {
		c.problem("2", e.Ino, "an orphan has the name %q in directory %d", e.Name, d.Ino)
	}
	switch e.Kind {
	case schema.Directory:
		d.subdirs++
		return c.child(d.Ino, e)
	case schema.Link:
		if e.Subtree != c.subtree {
			return c.edge(edge.Edge{Kind: edge.Name, Ino: e.Ino, Dir: d.Ino, To: e.Subtree})
		}
		c.links.add(e.Ino, d.Ino)
	case schema.Embedded:
		c.file(e.Inode)
		if e.Inode.Nlink != 1 {
			c.problem("3", e.Ino, "embedded in one dentry, but its link count is %d", e.Inode.Nlink)
		}
	}
	return nil
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

// header returns the header that counts of a directory here, nil if there is none.
func (c *checker) header(ino base.Ino) (*directory, error) {
	if err := c.carvedOut(ino); err != nil {
		if isElsewhere(err) {
			return nil, nil
		}
		return nil, err
	}
	b, found, err := c.r.Get(schema.HeaderKey(c.id, c.subtree, ino))
	if err != nil || !found {
		return nil, err
	}
	h, err := schema.DecodeHeader(b)
	if err != nil {
		return nil, err
	}
	h.Ino = ino
	return &directory{Header: *h, subtree: c.subtree, epoch: c.epoch}, nil
}

// child checks that a directory's header agrees with its dentry, if it is here.
func (c *checker) child(dir base.Ino, e *schema.Dentry) error {
	h, err := c.header(e.Ino)
	if err != nil {
		return err
	}
	if h == nil || stray(h) {
		top, err := c.top(dir)
		if err != nil {
			return err
		}
		return c.edge(edge.Edge{Kind: edge.Down, Ino: e.Ino, Dir: dir, To: e.Subtree, Top: top, Name: e.Name, Border: c.hash(e.Name).Border()})
	}
	if e.Ino != c.root && h.Parent == dir && bytes.Equal(h.Name, e.Name) {
		return nil
	}
	if other, err := c.hasName(h); err != nil || other {
		c.problem("2", e.Ino, "a directory with two names: %q in directory %d and %q in directory %d", h.Name, h.Parent, e.Name, dir)
		return err
	}
	c.repairable(c.reparent(h, dir, e.Name), "2", e.Ino, "named %q in directory %d, but its header says a name in %d, or another one", e.Name, dir, h.Parent)
	return nil
}

// hasName reports whether the name that a directory's header says is in the subtree and
// leads to it.
func (c *checker) hasName(d *directory) (bool, error) {
	if c.parent == nil || c.parent.Ino != d.Parent { // of neighbours it is the same, mostly
		var err error
		if c.parent, err = c.header(d.Parent); err != nil || c.parent == nil {
			return false, err
		}
	}
	s, err := c.find(c.parent, d.Name)
	if stale(err) {
		return false, nil
	}
	return err == nil && s.found() && s.Kind == schema.Directory && s.Ino == d.Ino, err
}

// settleDir compares what a directory's header says with what was found of its names,
// and looks at its own place.
func (c *checker) settleDir(d *checkedDir) error {
	if d.carved {
		return nil
	}
	c.compareCounts(d)
	orphan, err := c.isOrphan(d.Ino)
	if err != nil {
		return err
	}
	if orphan != d.Removed && !stray(d.directory) {
		c.problem("2", d.Ino, "directory removed=%v, but listed as orphan=%v", d.Removed, orphan)
	}
	if copied(d.directory) && !(d.Removed && !d.split() && d.isHome()) {
		if err := c.reportCopy(d.directory); err != nil {
			return err
		}
	}
	if d.Removed {
		return nil
	}
	if !stray(d.directory) {
		c.counted.Directories++
	}
	here, err := c.nameIsHere(d.directory)
	if err != nil {
		return err
	}
	if here {
		top, err := c.top(d.Parent)
		if err != nil {
			return err
		}
		if top == 0 {
			c.problem("2", d.Ino, "not below the root: its ancestors make a cycle or end in nothing")
		}
		c.isBelow(d.Ino, top)
		return nil
	}
	if stray(d.directory) || d.Ino == c.root && d.Parent == d.Ino { // as "/", which has no name
		return nil
	}
	if here, err := c.hasName(d.directory); err != nil || here {
		return err
	}
	return c.edge(edge.Edge{Kind: edge.Up, Ino: d.Ino, Dir: d.Parent, To: d.ParentSubtree, Name: d.Name, Border: c.hash(d.Name).Border(), Epoch: c.epoch, Version: d.Version})
}

func (c *checker) compareCounts(d *checkedDir) {
	if d.Entries == d.entries && d.Subdirs == d.subdirs && d.Displaced == d.displaced {
		return
	}
	repair := c.recountDir(d)
	if d.Entries != d.entries {
		c.repairable(repair, "3", d.Ino, "its count of names is %d more than its names", int64(d.Entries-d.entries))
	}
	if d.Subdirs != d.subdirs {
		c.repairable(repair, "3", d.Ino, "its count of subdirectories is %d more than there are", int64(d.Subdirs-d.subdirs))
	}
	if d.Displaced != d.displaced {
		c.repairable(repair, "5", d.Ino, "its count of displaced names is %d more than there are", int64(d.Displaced-d.displaced))
	}
}

// maxTops bounds the directories of which a check remembers the top.
const maxTops = 1 << 17

// top walks up from ino to the subtree's root, or to a directory whose name is in
// another subtree, and remembers the way. 0: the way is a circle, or ends in nothing.
func (c *checker) top(ino base.Ino) (base.Ino, error) {
	var way []base.Ino
	var err error
	found := base.Ino(0)
	mark, turn := base.Ino(0), 1 // Brent: who comes to the mark again goes in a circle
	for at := ino; at != mark; {
		if top, known := c.tops[at]; known {
			found = top
			break
		}
		var d *directory
		if d, err = c.header(at); d == nil {
			break
		}
		way = append(way, at)
		here := false
		if here, err = c.nameIsHere(d); err != nil || !here {
			found = at
			break
		}
		if len(way) == turn {
			mark, turn = at, 2*turn
		}
		at = d.Parent
	}
	if err != nil {
		return 0, err
	}
	for _, at := range way[:min(len(way), maxTops)] {
		c.isBelow(at, found)
	}
	return found, nil
}

// isBelow remembers the top of a directory.
func (c *checker) isBelow(ino, top base.Ino) {
	if len(c.tops) >= maxTops {
		clear(c.tops)
	}
	c.tops[ino] = top
}

// nameIsHere reports whether the way up from a directory goes on in the subtree.
func (c *checker) nameIsHere(d *directory) (bool, error) {
	if d.Ino == c.root || stray(d) {
		return false, nil
	}
	return c.hasName(d)
}
