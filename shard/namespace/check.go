package namespace

import (
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
	// Repair is what mends it without a guess; nil: nothing does.
	Repair *canopyv1.Repair
}

// Summary is what a check looked at.
type Summary struct {
	Files, Directories, Orphans, Bytes uint64
	Problems                           uint64
}

// Look says what a check looks at, and who hears of it.
type Look struct {
	// Only bounds it to some subtrees; none: all that the shard owns, and what the
	// shard has beside them.
	Only map[base.SubtreeID]bool
	// NowNS is the time by which something is old; 0: that of the shard's last entry.
	NowNS int64
	Found func(Finding)
	// Edge hears of what takes a look at two subtrees, for edge.Join over all shards.
	// An error ends the check.
	Edge func(edge.Edge) error
	// Progress hears of each so many rows that were read; nil: nobody. An error ends
	// the check.
	Progress func(rows uint64) error
}

// Check verifies the invariants over the whole shard, as far as they can be seen here,
// and calls report for each violation. Its memory grows with what lies at the borders
// of subtrees. An error means that the state cannot be read.
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
		report(Finding{Invariant: f.Invariant, Object: "inode " + f.Ino.String(), Problem: f.Problem, Repair: f.Mend.Repair()})
	}
	return sum, nil
}

// ends tells whether all edges end in subtrees that are known.
func ends(edges []edge.Edge, known map[base.SubtreeID]bool) bool {
	for _, e := range edges {
		if e.To != 0 && !known[e.To] || e.Peer != 0 && e.Peer != e.Shard {
			return false
		}
	}
	return true
}

// CheckEdges is CheckSubtrees for who keeps the edges.
func (m *Machine) CheckEdges(r shard.Reader, only map[base.SubtreeID]bool, report func(Finding)) ([]edge.Edge, Summary, error) {
	var edges []edge.Edge
	sum, err := m.CheckSubtrees(r, Look{Only: only, Found: report, Edge: func(e edge.Edge) error {
		edges = append(edges, e)
		return nil
	}})
	return edges, sum, err
}

// CheckSubtrees is Check without what takes a look at two subtrees: that it tells
// look.Edge. It is bounded in memory: some 25 MB, whatever the shard holds. It reads
// every row once, and two or three more for each directory and each lock.
func (m *Machine) CheckSubtrees(r shard.Reader, look Look) (Summary, error) {
	var all Summary
	found := look.Found
	look.Found = func(f Finding) {
		all.Problems++
		found(f)
	}
	type owned struct {
		id base.SubtreeID
		schema.Subtree
	}
	var subtrees []owned
	err := eachSubtree(r, m.cfg.Shard, func(id base.SubtreeID, s schema.Subtree) {
		if len(look.Only) == 0 || look.Only[id] {
			subtrees = append(subtrees, owned{id, s})
		}
	})
	if err != nil {
		return all, err
	}
	if look.NowNS, err = m.timeOf(r, look.NowNS); err != nil {
		return all, err
	}
	if err := m.checkShard(r, look); err != nil {
		return all, err
	}
	for i := range subtrees {
		s := &subtrees[i]
		if err := m.checkStay(r, look, s.id, &s.Subtree); err != nil {
			return all, err
		}
		if s.State != schema.Active && s.State != schema.Frozen {
			continue
		}
		c := &checker{
			view: view{r: r, id: m.cfg.Shard, hash: m.cfg.Hash, locks: locks{bypassed: true}},
			look: look, sum: &all, state: &s.Subtree, tops: map[base.Ino]base.Ino{},
		}
		c.in(s.id, &s.Subtree)
		if err := c.run(); err != nil {
			return all, err
		}
	}
	return all, nil
}

// timeOf returns the later of a time and that of the shard's last entry.
func (m *Machine) timeOf(r shard.Reader, nowNS int64) (int64, error) {
	b, found, err := r.Get(schema.ShardKey(m.cfg.Shard))
	if err != nil || !found {
		return nowNS, err
	}
	s, err := schema.DecodeShardState(b)
	if err != nil {
		return 0, err
	}
	return max(nowNS, s.TimeNS), nil
}

// checker checks one subtree.
type checker struct {
	view
	look    Look
	sum     *Summary
	state   *schema.Subtree
	counted schema.Counters
	orphans *inoFilter            // nil: there are none
	tops    map[base.Ino]base.Ino // of the directories last looked at: see top
	parent  *directory            // that was last looked at
	links   linkNames             // names of de-inlined inodes
	lists   bool                  // de-inlined inodes have lists of their names
}

func (c *checker) found(f Finding) { c.look.Found(f) }

func (c *checker) problem(invariant string, ino base.Ino, format string, args ...any) {
	c.found(Finding{Invariant: invariant, Object: "inode " + ino.String(), Problem: fmt.Sprintf(format, args...)})
}

// repairable is problem with what mends it.
func (c *checker) repairable(repair *canopyv1.Repair, invariant string, ino base.Ino, format string, args ...any) {
	c.found(Finding{Invariant: invariant, Object: "inode " + ino.String(), Problem: fmt.Sprintf(format, args...), Repair: repair})
}

func (c *checker) edge(e edge.Edge) error {
	e.Shard, e.Subtree = c.id, c.subtree
	return c.look.Edge(e)
}

func (c *checker) run() error {
	if err := c.edge(edge.Edge{Kind: edge.Subtree, Epoch: c.epoch, Ino: c.root}); err != nil {
		return err
	}
	steps := []func() error{c.scanForwards, c.scanOrphans, c.scanTree, c.checkLinks, c.checkCounters, c.checkIntents}
	if !c.carve.Done && !c.hides { // what a move leaves to be cleaned, or brings, is found by these, too
		steps = append(steps, c.scanRelocations, c.scanQueues, c.checkLocks, c.checkClients, c.checkPolicies, c.checkQuotas)
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

func (c *checker) scanOrphans() error {
	return c.eachOwner(schema.KindOrphan, func(key, value []byte) (belongings, error) {
		o, err := schema.DecodeOrphan(value)
		if err != nil {
			return belongings{}, err
		}
		number, _, _ := schema.InoOf(key)
		ino := base.Ino(number)
		c.sum.Orphans++
		if c.orphans == nil {
			c.orphans = &inoFilter{}
		}
		c.orphans.add(ino)
		if o.Inode == nil {
			d, err := c.header(ino)
			if err == nil && (d == nil || !d.Removed && d.isHome()) {
				c.problem("2", ino, "listed as a removed directory, which it is not")
			}
			return belongings{}, err
		}
		if o.Inode.Nlink != 0 || o.Inode.Ino != ino {
			c.problem("3", ino, "an orphan has number %d and link count %d", o.Inode.Ino, o.Inode.Nlink)
		}
		return belongingsOf(o.Inode), nil
	})
}

// isOrphan tells whether an inode is listed as an orphan.
func (c *checker) isOrphan(ino base.Ino) (bool, error) {
	if c.orphans == nil || !c.orphans.mayHave(ino) {
		return false, nil
	}
	_, found, err := c.r.Get(schema.OrphanKey(c.id, c.subtree, ino))
	return found, err
}

// inoFilter answers fast for most numbers that it does not have: 1 MB, whatever is
// added.
type inoFilter struct{ bits [filterBits / 64]uint64 }

const filterBits = 1 << 23

func (f *inoFilter) slot(ino base.Ino) (word int, bit uint64) {
	h := uint64(ino) * 0x9e3779b97f4a7c15 >> (64 - 23)
	return int(h / 64), 1 << (h % 64)
}

func (f *inoFilter) add(ino base.Ino) {
	word, bit := f.slot(ino)
	f.bits[word] |= bit
}

func (f *inoFilter) mayHave(ino base.Ino) bool {
	word, bit := f.slot(ino)
	return f.bits[word]&bit != 0
}

func (c *checker) checkCounters() error {
	have, err := countersOf(c.r, c.id, c.subtree)
	if err != nil || have == c.counted {
		return err
	}
	repair, err := c.recount(have)
	if err != nil {
		return err
	}
	c.repairable(repair, "3", c.root, "counters of subtree %d say %+v, a recount %+v", c.subtree, have, c.counted)
	return nil
}

// stale reports whether err says that something is not where it was looked for.
func stale(err error) bool { return err == fserr.Stale || err == fserr.NotFound || isElsewhere(err) }
