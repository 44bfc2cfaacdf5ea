package namespace

import (
	"bytes"
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/edge"
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

// Check verifies invariants 1, 2, 3 and 6 (the shard's part) over the whole shard,
// as far as it can be seen here, and calls report for each violation. Its memory
// grows with directories, hard links and orphans, not with files. An error means that
// the state cannot be read.
func (m *Machine) Check(r shard.Reader, report func(Finding)) (Summary, error) {
	edges, sum, err := m.CheckEdges(r, nil, report)
	if err != nil {
		return sum, err
	}
	known := map[base.SubtreeID]bool{}
	for _, e := range edges {
		if e.Kind == edge.Subtree {
			known[e.Subtree] = true
		}
	}
	if ends(edges, known) {
		known = nil
	}
	for _, f := range edge.JoinWithin(edges, known).Findings {
		sum.Problems++
		report(Finding{f.Invariant, "inode " + f.Ino.String(), f.Problem})
	}
	return sum, nil
}

// ends tells whether all edges end in subtrees that are known.
func ends(edges []edge.Edge, known map[base.SubtreeID]bool) bool {
	for _, e := range edges {
		if e.To != 0 && !known[e.To] {
			return false
		}
	}
	return true
}

// CheckEdges is Check without what takes a look at two subtrees: that it returns as
// edges, for edge.Join over all shards. Only the subtrees that the shard owns are
// looked at, and of those only the ones named, if any are.
func (m *Machine) CheckEdges(r shard.Reader, only map[base.SubtreeID]bool, report func(Finding)) ([]edge.Edge, Summary, error) {
	var all Summary
	var subtrees []base.SubtreeID
	states := map[base.SubtreeID]schema.Subtree{}
	err := eachSubtree(r, m.cfg.Shard, func(id base.SubtreeID, s schema.Subtree) {
		if (s.State == schema.Active || s.State == schema.Frozen) && (len(only) == 0 || only[id]) {
			subtrees = append(subtrees, id)
			states[id] = s
		}
	})
	if err != nil {
		return nil, all, err
	}
	var edges []edge.Edge
	for _, id := range subtrees {
		s := states[id]
		edges = append(edges, edge.Edge{Kind: edge.Subtree, Shard: m.cfg.Shard, Subtree: id, Epoch: s.Epoch, Ino: s.Root})
		c := &checker{
			view:   view{r: r, id: m.cfg.Shard, hash: m.cfg.Hash, locks: locks{bypassed: true}},
			report: report, sum: &all,
			dirs: map[base.Ino]*checkedDir{}, links: map[base.Ino]uint32{}, named: map[base.Ino][]base.Ino{}, orphans: map[base.Ino]bool{},
			locks: map[clientLocks]bool{}, carved: map[base.Ino]bool{}, elsewhere: map[base.Ino]int64{}, listed: map[base.Ino][]base.Ino{},
		}
		c.in(id, &s)
		if err := c.run(); err != nil {
			return nil, all, err
		}
		edges = append(edges, c.edges...)
	}
	return edges, all, nil
}

// checker checks one subtree.
type checker struct {
	view
	report  func(Finding)
	sum     *Summary
	edges   []edge.Edge
	dirs    map[base.Ino]*checkedDir
	links   map[base.Ino]uint32     // dentries that refer to a record
	named   map[base.Ino][]base.Ino // their directories
	orphans map[base.Ino]bool       // true: a directory
	locks   map[clientLocks]bool
	counted schema.Counters
	// carved are directories whose rows are still here, though a carve has handed
	// them off (E7).
	carved map[base.Ino]bool
	// elsewhere is how many of a record's names must be in other subtrees.
	elsewhere map[base.Ino]int64
	// listed are the directories of those names by the records' lists, if it has some.
	listed map[base.Ino][]base.Ino
	lists  bool
	copies []*directory // headers of split directories, and husks
}

func (c *checker) problem(invariant string, ino base.Ino, format string, args ...any) {
	c.sum.Problems++
	c.report(Finding{invariant, "inode " + ino.String(), fmt.Sprintf(format, args...)})
}

func (c *checker) run() error {
	steps := []func() error{
		c.scanForwards, c.scanOrphans, c.scanHeaders, c.scanDentries, c.checkDirs, c.reportCopies, c.scanRecords, c.checkNames, c.reportRecords, c.checkCounters,
	}
	if !c.carve.Done && !c.hides { // what a move leaves to be cleaned, or brings, is found by these, too
		steps = append(steps, c.scanRelocations, c.scanQueues, c.checkLocks, c.checkPolicies, c.checkQuotas)
	}
	for _, step := range steps {
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
		if (kind == schema.KindHeader || kind == schema.KindDentry) && c.uncounted(kind, key) {
			return nil
		}
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

func (c *checker) scanRecords() error {
	err := c.scanOwners(schema.KindInode, func(key, value []byte) (belongings, error) {
		n, err := schema.DecodeInode(value)
		if err != nil {
			return belongings{}, err
		}
		c.file(n)
		if have := c.links[n.Ino]; n.Nlink == 0 || have > n.Nlink {
			c.problem("3", n.Ino, "its link count is %d, its names are %d", n.Nlink, have)
		} else if have < n.Nlink {
			c.elsewhere[n.Ino] = int64(n.Nlink - have)
		}
		delete(c.links, n.Ino)
		return belongingsOf(n), nil
	})
	for ino, names := range c.links {
		c.problem("2", ino, "%d names refer to it, but it has no record", names)
	}
	return err
}

// reportRecords reports the records with names in other subtrees.
func (c *checker) reportRecords() error {
	for ino, listed := range c.listed {
		c.edge(edge.Edge{Kind: edge.Record, Ino: ino, Count: c.elsewhere[ino], Listed: listed, Lists: true})
		delete(c.elsewhere, ino)
	}
	for ino, n := range c.elsewhere {
		c.edge(edge.Edge{Kind: edge.Record, Ino: ino, Count: n, Lists: c.lists})
	}
	return nil
}

// scanRelocations checks that relocations lead to what they name, if it exists. What
// was moved takes them along (H1), but not the orphans, which stay (A9): so where
// directories or names have come, or come back, a relocation can name what has been
// unlinked before, and is an orphan elsewhere.
func (c *checker) scanRelocations() error {
	if alone, err := c.nothingMoved(); err != nil || !alone {
		return err
	}
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
		if isElsewhere(err) {
			continue
		}
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

// nothingMoved reports whether the subtree is that of "/", has not come from another
// shard, and no other one was ever made, or moved, at its shard.
func (c *checker) nothingMoved() (bool, error) {
	if c.subtree != base.RootSubtree {
		return false, nil
	}
	if _, came, err := c.r.Get(schema.ImportKey(c.id, c.subtree)); err != nil || came {
		return false, err
	}
	b, found, err := c.r.Get(schema.ShardKey(c.id))
	if err != nil || !found {
		return false, err
	}
	s, err := schema.DecodeShardState(b)
	return err == nil && s.NextSubtree == 1, err
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
			case isElsewhere(err):
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
