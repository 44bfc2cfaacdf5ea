package edge

import (
	"cmp"
	"slices"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// checkCopies: the headers of a split directory agree, and each of its names has
// exactly one owner (F1; invariant 5). What a copy says of other fragments is a hint,
// and one that owns nothing any more has only that to say.
func (j *joiner) checkCopies() {
	for ino, copies := range j.copies {
		about := make([]base.SubtreeID, 0, len(copies))
		for _, c := range copies {
			about = append(about, c.Subtree)
		}
		slices.Sort(about)
		slices.SortStableFunc(copies, func(a, b Edge) int { return cmp.Compare(a.Subtree, b.Subtree) })
		j.checkHome(copies, about)
		j.checkAttributes(copies, about)
		j.checkRanges(ino, copies, about)
	}
}

// checkHome: all copies that own names say the same home, and the others lead there:
// what was merged before the directory was carved out says where it was at home then.
func (j *joiner) checkHome(copies []Edge, about []base.SubtreeID) {
	first := copies[max(slices.IndexFunc(copies, Edge.owns), 0)]
	for _, c := range copies {
		if !j.comesHome(c, first) && !j.comesHome(first, c) {
			j.find("2", c, about, "its copies in subtrees %v and %v say that it is at home in %v and in %v",
				first.Subtree, c.Subtree, first.Fragments.Home(), c.Fragments.Home())
			return
		}
	}
}

// owns reports whether any of the directory's names are the copy's.
func (e Edge) owns() bool { return len(e.Fragments.In(e.Subtree)) > 0 }

// comesHome reports whether what copy c says leads to where the other one says that home is.
func (j *joiner) comesHome(c, other Edge) bool {
	from, to := c.Fragments.Home(), other.Fragments.Home()
	return from == to || !c.owns() && (!j.knows(from) || j.leads(from, to, c.Ino, 0))
}

// checkAttributes: all copies that own names have the same attributes.
func (j *joiner) checkAttributes(copies []Edge, about []base.SubtreeID) {
	var first *Edge
	for i, c := range copies {
		switch {
		case !c.owns():
		case first == nil:
			first = &copies[i]
		case first.Sum != c.Sum:
			j.find("2", c, about, "its copies in subtrees %v and %v differ in attributes", first.Subtree, c.Subtree)
			return
		}
	}
}

// claim is a range that a copy has in its own subtree.
type claim struct {
	shard.Range
	by Edge
}

// checkRanges: the ranges that copies claim for themselves cover every hash once.
func (j *joiner) checkRanges(ino base.Ino, copies []Edge, about []base.SubtreeID) {
	var claims []claim
	for _, c := range copies {
		for _, r := range c.Fragments.In(c.Subtree) {
			claims = append(claims, claim{r, c})
		}
	}
	if len(claims) == 0 {
		return // merged: the one at home is like any other header
	}
	slices.SortStableFunc(claims, func(a, b claim) int { return cmp.Compare(a.Lo, b.Lo) })
	gap := func(lo, hi uint32) {
		if lo < hi && j.complete() {
			r := shard.Range{Lo: lo, Hi: hi}
			owner := claims[0].by.Fragments.Of(lo)
			j.find("5", claims[0].by, append(about, owner), "no fragment of it owns the names %v", r)
		}
	}
	next, last := uint32(0), claims[0]
	for _, c := range claims {
		if c.Lo < next {
			r := shard.Range{Lo: c.Lo, Hi: min(c.Hi, next)}
			j.find("5", c.by, about, "its names %v have two owners: subtrees %v and %v", r, last.by.Subtree, c.by.Subtree)
		}
		gap(next, c.Lo)
		if c.Hi > next {
			next, last = c.Hi, c
		}
	}
	gap(next, shard.BorderEnd)
}

// copyIn returns the copy that a subtree has of a directory's header, nil if it has
// none that is known.
func (j *joiner) copyIn(dir base.Ino, subtree base.SubtreeID) *Edge {
	for i, c := range j.copies[dir] {
		if c.Subtree == subtree {
			return &j.copies[dir][i]
		}
	}
	return nil
}

// stray tells whether a subtree's header of a directory is a copy that is not at home:
// its own way up says nothing.
func (j *joiner) stray(subtree base.SubtreeID, dir base.Ino) bool {
	c := j.copyIn(dir, subtree)
	return c != nil && !c.home()
}

// copiesBelowHomes makes the ways up from copies go on at their homes.
func (j *joiner) copiesBelowHomes(above map[inoIn]inoIn) {
	for ino, copies := range j.copies {
		for _, c := range copies {
			if c.home() {
				continue
			}
			if home := j.copyIn(ino, c.Fragments.Home()); home != nil {
				above[inoIn{c.Subtree, ino}] = inoIn{home.Subtree, home.Top}
			}
		}
	}
}
