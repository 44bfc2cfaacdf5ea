package namespace

import (
	"bytes"
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// Finding is a violated invariant of DESIGN section 10.
type Finding struct {
	Invariant string // number in DESIGN section 10
	Object    string // what it is about, e.g. "inode 17592186044417"
	Problem   string
}

// Summary is what Check looked at.
type Summary struct {
	Files, Directories, Orphans, Bytes uint64
	Problems                           uint64
}

// Check verifies invariants 2, 3 and 6 (the shard's part) over the whole shard
// and calls report for each violation. Its memory grows with directories, hard
// links and orphans, not with files. An error means that the state cannot be read.
func (m *Machine) Check(r shard.Reader, report func(Finding)) (Summary, error) {
	var all Summary
	var subtrees []base.SubtreeID
	roots := map[base.SubtreeID]schema.Subtree{}
	err := eachSubtree(r, m.cfg.Shard, func(id base.SubtreeID, s schema.Subtree) {
		subtrees = append(subtrees, id)
		roots[id] = s
	})
	if err != nil {
		return all, err
	}
	for _, id := range subtrees {
		s := roots[id]
		c := &checker{
			view:   view{r: r, id: m.cfg.Shard, hash: m.cfg.Hash, subtree: id, epoch: s.Epoch, root: s.Root, quotas: s.Quotas > 0},
			report: report, sum: &all,
			dirs: map[base.Ino]*checkedDir{}, links: map[base.Ino]uint32{}, named: map[base.Ino][]base.Ino{}, orphans: map[base.Ino]bool{}, locks: map[clientLocks]bool{},
		}
		if err := c.run(); err != nil {
			return all, err
		}
	}
	return all, nil
}

// checkedDir is what Check remembers of a directory.
type checkedDir struct {
	parent    base.Ino
	entries   uint64 // as the header says, less those found
	subdirs   uint64
	displaced uint64
	appeared  uint64
	named     bool // a dentry that agrees was found
	removed   bool
	reachable bool
}

// checker checks one subtree.
type checker struct {
	view
	report  func(Finding)
	sum     *Summary
	dirs    map[base.Ino]*checkedDir
	links   map[base.Ino]uint32     // dentries that refer to a record
	named   map[base.Ino][]base.Ino // their directories
	orphans map[base.Ino]bool       // true: a directory
	locks   map[clientLocks]bool
	counted schema.Counters
}

func (c *checker) problem(invariant string, ino base.Ino, format string, args ...any) {
	c.sum.Problems++
	c.report(Finding{invariant, "inode " + ino.String(), fmt.Sprintf(format, args...)})
}

func (c *checker) run() error {
	for _, step := range []func() error{
		c.scanOrphans, c.scanHeaders, c.scanDentries, c.checkDirs, c.scanRecords, c.scanRelocations, c.scanQueues, c.checkLocks, c.checkPolicies, c.checkCounters, c.checkNames, c.checkQuotas,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	c.sum.Files += c.counted.Files
	c.sum.Directories += c.counted.Directories
	c.sum.Bytes += c.counted.Bytes
	return nil
}

func (c *checker) scanKind(kind schema.Kind, fn func(key, value []byte) error) error {
	lo, hi := schema.KindRange(c.id, c.subtree, kind)
	return c.r.Scan(lo, hi, func(key, value []byte) (bool, error) { return true, fn(key, value) })
}

// belongings is what stands behind an owner's key.
type belongings struct {
	names  uint32   // bytes of xattr names
	locked bool     // there are locks
	ino    base.Ino // of a file, to find locks again
}

func belongingsOf(n *schema.Inode) belongings {
	return belongings{n.XattrNames, n.Locked, n.Ino}
}

// scanOwners calls fn for the keys of a kind that can own xattrs and locks. fn
// returns what there must be: it follows its owner.
func (c *checker) scanOwners(kind schema.Kind, fn func(key, value []byte) (belongings, error)) error {
	var owner []byte
	var want, have belongings
	settle := func() {
		if want.names != have.names {
			c.sum.Problems++
			c.report(Finding{"3", schema.Format(owner), fmt.Sprintf("its count of xattr names is %d bytes, the names have %d", want.names, have.names)})
		}
		if want.locked != have.locked {
			c.sum.Problems++
			c.report(Finding{"3", schema.Format(owner), fmt.Sprintf("locked=%v, but there are locks=%v", want.locked, have.locked)})
		}
	}
	err := c.scanKind(kind, func(key, value []byte) error {
		if name, ok := schema.XattrOf(owner, key); ok {
			have.names += uint32(len(name)) + 1
			return nil
		}
		if lock, ok := schema.LockOf(owner, key); ok {
			have.locked = true
			c.locks[clientLocks{lock.Client, want.ino}] = true
			return nil
		}
		if !schema.IsSelf(key) {
			c.sum.Problems++
			c.report(Finding{"3", schema.Format(key), "it belongs to nothing"})
			return nil
		}
		settle()
		owner, have = bytes.Clone(key), belongings{}
		var err error
		want, err = fn(key, value)
		return err
	})
	settle()
	return err
}

// clientLocks says that a client has locks in an inode.
type clientLocks struct {
	client base.ClientID
	ino    base.Ino
}

// checkLocks compares the clients' index with the locks that were found.
func (c *checker) checkLocks() error {
	err := c.scanKind(schema.KindLockClient, func(key, _ []byte) error {
		client, ino, _ := schema.InoOf(key)
		l := clientLocks{base.ClientID(client), base.Ino(ino)}
		if !c.locks[l] {
			c.problem("6", l.ino, "listed as locked by client %v, which has no locks there", l.client)
		}
		delete(c.locks, l)
		return nil
	})
	for l := range c.locks {
		c.problem("6", l.ino, "locks of client %v are not listed: they would outlive its session", l.client)
	}
	return err
}

// checkPolicies holds that each policy is of a directory that is there.
func (c *checker) checkPolicies() error {
	return c.scanKind(schema.KindPolicy, func(key, value []byte) error {
		dir, _, _ := schema.InoOf(key)
		if c.dirs[base.Ino(dir)] == nil {
			c.problem("2", base.Ino(dir), "has a layout policy and is no directory")
		}
		_, err := schema.DecodePolicy(value)
		return err
	})
}

func (c *checker) scanOrphans() error {
	return c.scanOwners(schema.KindOrphan, func(key, value []byte) (belongings, error) {
		o, err := schema.DecodeOrphan(value)
		if err != nil {
			return belongings{}, err
		}
		number, _, _ := schema.InoOf(key)
		ino := base.Ino(number)
		c.sum.Orphans++
		c.orphans[ino] = o.Inode == nil
		if o.Inode != nil && (o.Inode.Nlink != 0 || o.Inode.Ino != ino) {
			c.problem("3", ino, "an orphan has number %d and link count %d", o.Inode.Ino, o.Inode.Nlink)
		}
		if o.Inode == nil {
			return belongings{}, nil
		}
		return belongingsOf(o.Inode), nil
	})
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
		c.dirs[base.Ino(number)] = &checkedDir{
			parent: h.Parent, entries: h.Entries, subdirs: h.Subdirs, displaced: h.Displaced, appeared: h.Appeared, removed: h.Removed,
		}
		if isOrphan := c.orphans[h.Ino]; isOrphan != h.Removed {
			c.problem("2", h.Ino, "directory removed=%v, but listed as orphan=%v", h.Removed, isOrphan)
		}
		if !h.Removed {
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
	// Headers of subdirectories are read beside the scan of their names.
	type child struct {
		dir base.Ino
		e   *schema.Dentry
	}
	var children []child
	err := c.scanOwners(schema.KindDentry, func(key, value []byte) (belongings, error) {
		e, err := schema.DecodeDentry(value)
		if err != nil {
			return belongings{}, err
		}
		dir, at, _ := schema.InoOf(key)
		if e.Kind == schema.Directory {
			children = append(children, child{base.Ino(dir), e})
		}
		c.dentry(base.Ino(dir), base.Cookie(at), e)
		if e.Kind != schema.Embedded {
			return belongings{}, nil
		}
		return belongingsOf(e.Inode), nil
	})
	if err != nil {
		return err
	}
	for _, x := range children {
		if err := c.child(x.dir, x.e); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) dentry(dir base.Ino, at base.Cookie, e *schema.Dentry) {
	d := c.dirs[dir]
	if d == nil {
		c.problem("2", e.Ino, "name %q is in directory %d, which has no header", e.Name, dir)
		return
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
	case schema.Link:
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

// child checks that a directory's header agrees with its dentry.
func (c *checker) child(dir base.Ino, e *schema.Dentry) error {
	h, err := c.directoryIn(e.Subtree, e.Ino)
	if err == fserr.Stale {
		if e.Subtree == c.subtree {
			c.problem("2", e.Ino, "name %q in directory %d has no header", e.Name, dir)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if h.Parent != dir || !bytes.Equal(h.Name, e.Name) {
		c.problem("2", e.Ino, "named %q in directory %d, but its header says %q in %d", e.Name, dir, h.Name, h.Parent)
		return nil
	}
	if d := c.dirs[e.Ino]; d != nil {
		if d.named {
			c.problem("2", e.Ino, "a directory with two names in directory %d", dir)
		}
		d.named = true
	}
	return nil
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
		if ino == c.root || d.removed {
			continue
		}
		if !d.named {
			c.problem("2", ino, "no name in directory %d refers to it", d.parent)
		}
		if !c.reaches(ino) {
			c.problem("2", ino, "not below the root: its ancestors make a cycle or end in nothing")
		}
	}
	return nil
}

// reaches walks up from ino to the root, and remembers the way.
func (c *checker) reaches(ino base.Ino) bool {
	var way []*checkedDir
	for steps := 0; ino != c.root; steps++ {
		d := c.dirs[ino]
		if d == nil || steps > len(c.dirs) {
			return false
		}
		if d.reachable {
			break
		}
		way = append(way, d)
		ino = d.parent
	}
	for _, d := range way {
		d.reachable = true
	}
	return true
}

func (c *checker) scanRecords() error {
	err := c.scanOwners(schema.KindInode, func(key, value []byte) (belongings, error) {
		n, err := schema.DecodeInode(value)
		if err != nil {
			return belongings{}, err
		}
		c.file(n)
		if have := c.links[n.Ino]; n.Nlink == 0 || have != n.Nlink {
			c.problem("3", n.Ino, "its link count is %d, its names are %d", n.Nlink, have)
		}
		delete(c.links, n.Ino)
		return belongingsOf(n), nil
	})
	for ino, names := range c.links {
		c.problem("2", ino, "%d names refer to it, but it has no record", names)
	}
	return err
}

// scanRelocations checks that relocations lead to what they name, if it exists.
func (c *checker) scanRelocations() error {
	type hop struct {
		ino base.Ino
		to  *schema.Relocation
	}
	var hops []hop
	err := c.scanKind(schema.KindRelocation, func(key, value []byte) error {
		r, err := schema.DecodeRelocation(value)
		number, _, _ := schema.InoOf(key)
		hops = append(hops, hop{base.Ino(number), r})
		return err
	})
	if err != nil {
		return err
	}
	for _, h := range hops {
		if h.to.Dir == 0 || c.dirs[h.to.Dir] == nil {
			continue
		}
		e, err := c.entryAt(h.to.Dir, h.to.Name)
		if err != nil && err != fserr.Stale {
			return err
		}
		_, orphan := c.orphans[h.ino]
		if (e.Dentry == nil || e.Ino != h.ino) && !orphan {
			if _, err := c.record(h.ino); err == fserr.Stale {
				c.problem("2", h.ino, "its relocation names %q in directory %d, where it is not", h.to.Name, h.to.Dir)
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

// scanQueues checks that what workers must come back to can be found.
func (c *checker) scanQueues() error {
	for _, kind := range []schema.Kind{schema.KindCut, schema.KindAppend, schema.KindLocked} {
		var places []*canopyv1.Place
		err := c.scanKind(kind, func(key, value []byte) error {
			p, err := locatorPlace(key, value)
			places = append(places, p)
			return err
		})
		if err != nil {
			return err
		}
		for _, p := range places {
			o, err := c.resolve(p)
			switch {
			case err == fserr.Stale || err == fserr.NotFound:
				c.problem("6", base.Ino(p.Ino), "it is queued for a worker, but cannot be found")
			case err != nil:
				return err
			case o.moved || o.isDir():
				c.problem("6", base.Ino(p.Ino), "it is queued for a worker at a place where it is not")
			case kind == schema.KindCut && len(o.inode.Cuts) == 0, kind == schema.KindAppend && len(o.inode.Reservations) == 0,
				kind == schema.KindLocked && !o.inode.Locked:
				c.problem("6", base.Ino(p.Ino), "it is queued for a worker that has nothing to do")
			}
		}
	}
	return nil
}

func (c *checker) checkCounters() error {
	have, err := countersOf(c.r, c.id, c.subtree)
	if err != nil {
		return err
	}
	if have != c.counted {
		c.problem("3", c.root, "counters of subtree %d say %+v, a recount %+v", c.subtree, have, c.counted)
	}
	return nil
}
