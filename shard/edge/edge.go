// Package edge joins what a check of the namespace finds at the borders of
// subtrees. Each subtree is checked by itself, at its shard; what it has that leads
// into another subtree, or should be led to from one, it reports as edges, and Join
// compares them over all subtrees (DESIGN section 10, invariants 1 to 3). Edges are
// few: two for each subtree and for each directory that was moved over a border, one
// for each name of a file with links over a border.
//
// It is pure. namespace makes edges, client/inspect and tests join them.
package edge

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// Kind says what an edge is.
type Kind uint32

// The kinds; they travel in messages.
const (
	Subtree Kind = 1 // an owned subtree: its root is Ino
	Down    Kind = 2 // a name of directory Ino, which is not in the name's subtree
	Up      Kind = 3 // a directory that no name in its own subtree leads to
	Name    Kind = 4 // a name in Dir of the de-inlined inode Ino, whose record is in To
	Record  Kind = 5 // a de-inlined inode with Count names in other subtrees, in directories Listed
	Forward Kind = 6 // Count directories were carved out into To
	Copy    Kind = 7 // a header of the split directory Ino, or one that a merge left behind: there are others

	Relocation Kind = 8  // Count relocations lead into To
	Gone       Kind = 9  // the subtree was removed: said of those that were asked for
	Left       Kind = 10 // the subtree was handed off, to shard Peer under Epoch
	Going      Kind = 11 // the subtree, or a part of it, is moved to shard Peer, as To under Epoch
	Coming     Kind = 12 // something is moved here from shard Peer, as or into To
)

// Edge is one of them. Shard and Subtree are where it was found.
type Edge struct {
	Kind    Kind
	Shard   base.ShardID
	Subtree base.SubtreeID
	Epoch   base.Epoch     // Subtree, Left, Going, Coming; Up, Record: of the subtree
	Ino     base.Ino       // all but Forward, Relocation and Gone
	Dir     base.Ino       // Down, Name: the name's directory; Up: the parent, as the header says
	To      base.SubtreeID // Down: of Ino; Up: of the parent; Name: of the record; Forward, Relocation, Going, Coming
	Peer    base.ShardID   // Left, Going, Coming
	// Top is the directory of the own subtree that is above all others on the way up
	// from Dir (Down), or from Ino (Copy): the subtree's root, or one that an Up edge is
	// about. 0: none, the way is a circle.
	Top    base.Ino
	Name   []byte // Down, Up
	Border uint32 // Down, Up: border bits of Name's hash
	Count  int64  // Record, Forward, Relocation
	// Version is that of the header (Up) or the record (Record), Links its link count.
	Version uint64
	Links   uint32
	Listed  []base.Ino
	// Lists: Listed counts: a shard of an older format has no lists.
	Lists bool
	// Fragments is the map of a Copy. The first one's subtree is the directory's home;
	// a Copy is right about the ranges that it has in its own subtree.
	Fragments shard.FragmentMap
	// Sum is over what all copies of a directory have in common (Copy).
	Sum uint64
}

// home reports whether a Copy is the one that the directory's name leads to.
func (e Edge) home() bool { return e.Fragments.Home() == e.Subtree }

// Finding is a violated invariant; Subtrees are those that it is about.
type Finding struct {
	Invariant string // number in DESIGN section 10
	Shard     base.ShardID
	Ino       base.Ino
	Subtrees  []base.SubtreeID
	Problem   string
	Mend      *Mend // what mends it without a guess; nil: nothing does
}

// Result is what Join found.
type Result struct {
	Findings []Finding
	// Hints are edges that name a subtree that the directory, or the name, has left; a
	// forward, or a copy of the parent's header, leads on from there.
	Hints []Edge
}

type inoIn struct {
	subtree base.SubtreeID
	ino     base.Ino
}

type joiner struct {
	Result
	owners   map[base.SubtreeID][]Edge
	down     map[base.Ino][]Edge
	up       map[base.Ino][]Edge
	names    map[inoIn][]Edge
	records  map[inoIn]Edge
	forwards map[base.SubtreeID][]base.SubtreeID
	copies   map[base.Ino][]Edge
	gone     map[base.SubtreeID]bool
	moves    []Edge // Left, Going and Coming
	// known bounds what is looked at: edges to other subtrees are passed over. nil:
	// all of them.
	known map[base.SubtreeID]bool
}

// Join compares the edges of all subtrees of a cluster.
func Join(edges []Edge) Result { return join(edges, nil) }

// JoinWithin compares the edges of some subtrees: what leads to others is passed
// over.
func JoinWithin(edges []Edge, known map[base.SubtreeID]bool) Result { return join(edges, known) }

func join(edges []Edge, known map[base.SubtreeID]bool) Result {
	j := &joiner{
		owners: map[base.SubtreeID][]Edge{}, down: map[base.Ino][]Edge{}, up: map[base.Ino][]Edge{},
		names: map[inoIn][]Edge{}, records: map[inoIn]Edge{}, forwards: map[base.SubtreeID][]base.SubtreeID{},
		copies: map[base.Ino][]Edge{}, gone: map[base.SubtreeID]bool{}, known: known,
	}
	for _, e := range edges {
		switch e.Kind {
		case Subtree:
			j.owners[e.Subtree] = append(j.owners[e.Subtree], e)
		case Down:
			j.down[e.Ino] = append(j.down[e.Ino], e)
		case Up:
			j.up[e.Ino] = append(j.up[e.Ino], e)
		case Name:
			id := inoIn{e.To, e.Ino}
			j.names[id] = append(j.names[id], e)
		case Record:
			j.records[inoIn{e.Subtree, e.Ino}] = e
		case Forward:
			j.forwards[e.Subtree] = append(j.forwards[e.Subtree], e.To)
		case Copy:
			if err := e.Fragments.Check(); err != nil {
				j.find("5", e, []base.SubtreeID{e.Subtree}, "its %v", err)
				continue
			}
			j.copies[e.Ino] = append(j.copies[e.Ino], e)
		case Gone:
			j.gone[e.Subtree] = true
		case Left, Going, Coming:
			j.moves = append(j.moves, e)
		}
	}
	j.checkOwners()
	j.checkMoves()
	j.checkForwards(edges)
	j.checkCopies()
	j.checkDirectories()
	j.checkWays()
	j.checkLinks()
	slices.SortStableFunc(j.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Ino, b.Ino), cmp.Compare(a.Problem, b.Problem))
	})
	return j.Result
}

func (j *joiner) knows(id base.SubtreeID) bool { return j.known == nil || j.known[id] }

// checkOwners: every subtree is active in one shard (invariant 1).
func (j *joiner) checkOwners() {
	for id, owners := range j.owners {
		for _, other := range owners[1:] {
			j.find("1", other, []base.SubtreeID{id}, "subtree %v is owned by shard %v at epoch %v and by shard %v at epoch %v",
				id, owners[0].Shard, owners[0].Epoch, other.Shard, other.Epoch)
		}
	}
}

// checkForwards: what leads on leads to a subtree that is alive (E7, H1), or that was
// removed.
func (j *joiner) checkForwards(edges []Edge) {
	for _, e := range edges {
		what := "forwards"
		if e.Kind == Relocation {
			what = "relocations"
		} else if e.Kind != Forward {
			continue
		}
		if len(j.owners[e.To]) == 0 && !j.gone[e.To] && j.knows(e.To) {
			j.find("2", e, []base.SubtreeID{e.Subtree, e.To}, "%d %s of subtree %v lead to subtree %v, which no shard owns", e.Count, what, e.Subtree, e.To)
		}
	}
}

// leads tells whether who looks for a name, with a border hash, of directory dir in
// one subtree is led to another, by forwards or by copies of the directory's header.
func (j *joiner) leads(from, to base.SubtreeID, dir base.Ino, border uint32) bool {
	seen := map[base.SubtreeID]bool{from: true}
	for next := []base.SubtreeID{from}; len(next) > 0; next = next[1:] {
		if next[0] == to {
			return true
		}
		ways := j.forwards[next[0]]
		if c := j.copyIn(dir, next[0]); c != nil {
			ways = append(slices.Clone(ways), c.Fragments.Of(border))
		}
		for _, s := range ways {
			if !seen[s] {
				seen[s] = true
				next = append(next, s)
			}
		}
	}
	return false
}

// checkDirectories: each directory has one name, and both agree (invariant 2).
func (j *joiner) checkDirectories() {
	for ino, downs := range j.down {
		for _, d := range downs {
			j.checkName(ino, d)
		}
		if len(downs) > 1 {
			j.find("2", downs[1], []base.SubtreeID{downs[0].Subtree, downs[1].Subtree}, "a directory with two names: %q in directory %v and %q in directory %v",
				downs[0].Name, downs[0].Dir, downs[1].Name, downs[1].Dir)
		}
	}
	for ino, ups := range j.up {
		for _, u := range ups {
			if len(j.down[ino]) == 0 && j.knows(u.To) {
				j.find("2", u, []base.SubtreeID{u.Subtree, u.To}, "no name in directory %v of subtree %v refers to it", u.Dir, u.To)
				if len(ups) == 1 {
					j.mend(j.reconnect(u))
				}
			}
		}
		if len(ups) > 1 {
			j.find("2", ups[1], []base.SubtreeID{ups[0].Subtree, ups[1].Subtree}, "subtrees %v and %v both have its header", ups[0].Subtree, ups[1].Subtree)
		}
	}
}

func (j *joiner) checkName(ino base.Ino, d Edge) {
	ups := j.up[ino]
	if len(ups) == 0 {
		if j.knows(d.To) {
			j.find("2", d, []base.SubtreeID{d.Subtree, d.To}, "name %q in directory %v says that it is in subtree %v, which has no header of it that says so", d.Name, d.Dir, d.To)
		}
		return
	}
	u := ups[0]
	both := []base.SubtreeID{d.Subtree, u.Subtree}
	if u.Dir != d.Dir || string(u.Name) != string(d.Name) {
		j.find("2", d, both, "named %q in directory %v, but its header says %q in %v", d.Name, d.Dir, u.Name, u.Dir)
		if len(ups) == 1 && len(j.down[ino]) == 1 {
			j.mend(reparent(u, d))
		}
		return
	}
	if d.To != u.Subtree {
		j.hint(d, d.To, u.Subtree, both, "name %q in directory %v says that it is in subtree %v, it is in %v, and no forward leads there", d.Name, d.Dir, d.To, u.Subtree)
	}
	if u.To != d.Subtree {
		j.hint(u, u.To, d.Subtree, both, "its header says that its name is in subtree %v, it is in %v, and no forward leads there", u.To, d.Subtree)
	}
}

// hint notes an edge that names a subtree of before.
func (j *joiner) hint(e Edge, from, to base.SubtreeID, about []base.SubtreeID, format string, args ...any) {
	if j.leads(from, to, e.Dir, e.Border) {
		j.Hints = append(j.Hints, e)
		return
	}
	j.find("2", e, append(about, from), format, args...)
}

// checkWays: every directory that heads a part of a subtree is below "/" (invariant
// 2: no cycle, nothing unreachable).
func (j *joiner) checkWays() {
	above := map[inoIn]inoIn{} // heads of parts -> the head of the part that its name is in
	for ino, ups := range j.up {
		for _, u := range ups {
			if downs := j.down[ino]; len(downs) > 0 {
				above[inoIn{u.Subtree, ino}] = inoIn{downs[0].Subtree, downs[0].Top}
			}
		}
	}
	j.copiesBelowHomes(above)
	good := map[inoIn]bool{}
	for id, owners := range j.owners {
		if root := owners[0].Ino; !j.isUp(id, root) && !j.stray(id, root) {
			good[inoIn{id, root}] = true // as "/"
		}
	}
	for head := range above {
		var way []inoIn
		at, ok := head, false
		for len(way) <= len(above) {
			if good[at] {
				ok = true
				break
			}
			next, there := above[at]
			if !there {
				ok = at.ino != 0 && !j.complete() || j.unnamed(at) || j.stray(at.subtree, at.ino) // said already, or not known
				break
			}
			way = append(way, at)
			at = next
		}
		if ok {
			for _, x := range way {
				good[x] = true
			}
			continue
		}
		if len(j.up[head.ino]) == 0 {
			continue // a copy: said of its home
		}
		u := j.up[head.ino][0]
		j.find("2", u, []base.SubtreeID{u.Subtree, u.To}, "not below the root: its ancestors make a cycle or end in nothing")
	}
}

func (j *joiner) isUp(id base.SubtreeID, ino base.Ino) bool {
	return slices.ContainsFunc(j.up[ino], func(u Edge) bool { return u.Subtree == id })
}

// complete tells whether all subtrees are looked at.
func (j *joiner) complete() bool { return j.known == nil }

// unnamed tells whether a part's head was reported as having no name.
func (j *joiner) unnamed(at inoIn) bool { return len(j.up[at.ino]) > 0 && len(j.down[at.ino]) == 0 }

// checkLinks: the link count of a file with names in several subtrees is their
// number, and its list names their directories (invariant 3, A9).
func (j *joiner) checkLinks() {
	for id, record := range j.records {
		names := j.names[id]
		about := []base.SubtreeID{id.subtree}
		dirs := []base.Ino{}
		for _, n := range names {
			about, dirs = append(about, n.Subtree), append(dirs, n.Dir)
		}
		if !j.complete() && int64(len(names)) < record.Count {
			continue // the others may be in subtrees that are not looked at
		}
		if record.Count != int64(len(names)) {
			j.find("3", record, about, "its link count counts %d names in other subtrees, there are %d", record.Count, len(names))
			j.mend(relink(record, len(names)))
			continue
		}
		listed := slices.Sorted(slices.Values(record.Listed))
		slices.Sort(dirs)
		if record.Lists && !slices.Equal(listed, dirs) {
			j.find("3", record, about, "its names in other subtrees are listed in directories %v, they are in %v", listed, dirs)
		}
	}
	for id, names := range j.names {
		if _, there := j.records[id]; there || !j.knows(id.subtree) {
			continue
		}
		about := []base.SubtreeID{id.subtree}
		for _, n := range names {
			about = append(about, n.Subtree)
		}
		j.find("3", names[0], about, "%d names in other subtrees refer to it, its record in subtree %v counts none of them, or is not there", len(names), id.subtree)
	}
}

func (j *joiner) find(invariant string, e Edge, about []base.SubtreeID, format string, args ...any) {
	j.Findings = append(j.Findings, Finding{Invariant: invariant, Shard: e.Shard, Ino: e.Ino, Subtrees: about, Problem: fmt.Sprintf(format, args...)})
}
