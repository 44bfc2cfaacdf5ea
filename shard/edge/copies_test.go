package edge

import (
	"slices"
	"strings"
	"testing"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

const quarter = shard.BorderEnd / 4

// split are the edges of directory 50, whose header in subtree 1 is named there, in
// fragments of subtrees 1, 5 and 6; subtree 7 had one that was merged. 60 was made when
// its name was in subtree 1, and 61 when it was in 7; both names are in 6 now. 70 was
// carved out below the fragment of 5, into 8.
func split() []Edge {
	now := shard.FragmentMap{{Lo: 0, Subtree: 1}, {Lo: quarter, Subtree: 5}, {Lo: 2 * quarter, Subtree: 6}}
	before := shard.FragmentMap{{Lo: 0, Subtree: 1}, {Lo: quarter, Subtree: 5}} // 5 gave [2, 4) away, and has not heard more
	before = before.With(shard.Range{Lo: 2 * quarter, Hi: shard.BorderEnd}, 6)
	return []Edge{
		{Kind: Subtree, Shard: 1, Subtree: 1, Epoch: 1, Ino: 1},
		{Kind: Copy, Shard: 1, Subtree: 1, Ino: 50, Top: 1, Fragments: now, Sum: 9},
		{Kind: Up, Shard: 1, Subtree: 1, Ino: 60, Dir: 50, To: 1, Name: []byte("a"), Border: 3 * quarter},
		{Kind: Subtree, Shard: 2, Subtree: 5, Epoch: 1, Ino: 50},
		{Kind: Copy, Shard: 2, Subtree: 5, Ino: 50, Top: 50, Fragments: before, Sum: 9},
		{Kind: Down, Shard: 2, Subtree: 5, Ino: 70, Dir: 62, To: 8, Top: 50, Name: []byte("c"), Border: 7},
		{Kind: Subtree, Shard: 1, Subtree: 6, Epoch: 1, Ino: 50},
		{Kind: Copy, Shard: 1, Subtree: 6, Ino: 50, Top: 50, Fragments: now, Sum: 9},
		{Kind: Down, Shard: 1, Subtree: 6, Ino: 60, Dir: 50, To: 1, Top: 50, Name: []byte("a"), Border: 3 * quarter},
		{Kind: Down, Shard: 1, Subtree: 6, Ino: 61, Dir: 50, To: 7, Top: 50, Name: []byte("b"), Border: 3*quarter + 16},
		{Kind: Subtree, Shard: 3, Subtree: 7, Epoch: 1, Ino: 50},
		{Kind: Copy, Shard: 3, Subtree: 7, Ino: 50, Top: 50, Fragments: shard.Whole(1), Sum: 8},
		{Kind: Up, Shard: 3, Subtree: 7, Ino: 61, Dir: 50, To: 7, Name: []byte("b"), Border: 3*quarter + 16},
		{Kind: Subtree, Shard: 3, Subtree: 8, Epoch: 1, Ino: 70},
		{Kind: Up, Shard: 3, Subtree: 8, Ino: 70, Dir: 62, To: 5, Name: []byte("c"), Border: 7},
	}
}

func TestCopies(t *testing.T) {
	find := func(edges []Edge, kind Kind, subtree base.SubtreeID) *Edge {
		i := slices.IndexFunc(edges, func(e Edge) bool { return e.Kind == kind && e.Subtree == subtree })
		return &edges[i]
	}
	drop := func(edges []Edge, kind Kind, subtree base.SubtreeID) []Edge {
		return slices.DeleteFunc(edges, func(e Edge) bool { return e.Kind == kind && e.Subtree == subtree })
	}
	for _, x := range []struct {
		what   string
		change func([]Edge) []Edge
		want   []string
		hints  int
	}{
		{"nothing", func(e []Edge) []Edge { return e }, nil, 2},
		{"merged", func(e []Edge) []Edge { // all names are at home again: nobody but there says so
			e = drop(drop(e, Copy, 1), Down, 6)
			for _, id := range []base.SubtreeID{5, 6} {
				find(e, Copy, id).Fragments = shard.Whole(1)
			}
			return append(e, Edge{Kind: Down, Shard: 1, Subtree: 1, Ino: 61, Dir: 50, To: 7, Top: 1, Name: []byte("b"), Border: 3*quarter + 16},
				Edge{Kind: Down, Shard: 1, Subtree: 1, Ino: 60, Dir: 50, To: 1, Top: 1, Name: []byte("a"), Border: 3 * quarter})
		}, nil, 1},
		{"a range without an owner", func(e []Edge) []Edge {
			find(e, Copy, 6).Fragments = find(e, Copy, 6).Fragments.With(shard.Range{Lo: 3 * quarter, Hi: shard.BorderEnd}, 5)
			return e
		}, []string{"5 no fragment of it owns the names [c000000, 10000000)"}, 2},
		{"a fragment that is not there", func(e []Edge) []Edge { return drop(e, Copy, 5) },
			[]string{"5 no fragment of it owns the names [4000000, 8000000)"}, 2},
		{"two owners", func(e []Edge) []Edge {
			find(e, Copy, 5).Fragments = find(e, Copy, 5).Fragments.With(shard.Range{Lo: 2 * quarter, Hi: 3 * quarter}, 5)
			return e
		}, []string{"5 its names [8000000, c000000) have two owners: subtrees 5 and 6"}, 2},
		{"an owner inside another one's range", func(e []Edge) []Edge {
			c := find(e, Copy, 7)
			c.Fragments, c.Sum = c.Fragments.With(shard.Range{Lo: 3 * quarter, Hi: 3*quarter + 8}, 7), 9
			return e
		}, []string{"5 its names [c000000, c000008) have two owners: subtrees 6 and 7"}, 2},
		{"attributes", func(e []Edge) []Edge { find(e, Copy, 6).Sum = 10; return e },
			[]string{"2 its copies in subtrees 1 and 6 differ in attributes"}, 2},
		{"two homes", func(e []Edge) []Edge { find(e, Copy, 7).Fragments = shard.Whole(8); return e },
			[]string{"2 its copies in subtrees 1 and 7 say that it is at home in 1 and in 8",
				"2 its header says that its name is in subtree 7, it is in 6, and no forward leads there"}, 1},
		{"two homes of those who own names", func(e []Edge) []Edge {
			find(e, Copy, 6).Fragments = slices.Clone(find(e, Copy, 6).Fragments)
			find(e, Copy, 6).Fragments[0].Subtree = 5
			return e
		}, []string{"2 its copies in subtrees 1 and 6 say that it is at home in 1 and in 5"}, 2},
		{"merged, and then carved out", func(e []Edge) []Edge { // what was merged before says where it was
			find(e, Copy, 7).Fragments = shard.Whole(8)
			return append(e, Edge{Kind: Forward, Shard: 3, Subtree: 8, To: 1, Count: 1})
		}, nil, 2},
		{"a map that is none", func(e []Edge) []Edge { find(e, Copy, 7).Fragments = shard.FragmentMap{{Lo: 5, Subtree: 1}}; return e },
			[]string{"5 its first fragment starts at 5, not at 0", "2 its header says that its name is in subtree 7, it is in 6, and no forward leads there"}, 1},
		{"a parent hint that leads nowhere", func(e []Edge) []Edge { find(e, Up, 1).To = 3; return e },
			[]string{"2 its header says that its name is in subtree 3, it is in 6, and no forward leads there"}, 1},
		{"a parent hint to a fragment of other names", func(e []Edge) []Edge {
			e = drop(e, Copy, 7)
			find(e, Up, 7).To = 8
			return e
		}, []string{"2 its header says that its name is in subtree 8, it is in 6, and no forward leads there"}, 1},
		{"a home that is not below the root", func(e []Edge) []Edge { find(e, Copy, 1).Top = 0; return e }, []string{
			"2 not below the root: its ancestors make a cycle or end in nothing",
			"2 not below the root: its ancestors make a cycle or end in nothing",
			"2 not below the root: its ancestors make a cycle or end in nothing",
		}, 2},
	} {
		r := Join(x.change(split()))
		var got []string
		for _, f := range r.Findings {
			got = append(got, f.Invariant+" "+f.Problem)
			if len(f.Subtrees) == 0 {
				t.Errorf("%s: %s names no subtree to look at again", x.what, f.Problem)
			}
		}
		if !slices.Equal(got, x.want) || len(r.Hints) != x.hints {
			t.Errorf("%s:\n%s\nwant:\n%s\nhints %v", x.what, strings.Join(got, "\n"), strings.Join(x.want, "\n"), r.Hints)
		}
	}
}

// A shard by itself sees some copies: the rest of the names is somewhere.
func TestCopiesWithin(t *testing.T) {
	known := map[base.SubtreeID]bool{1: true, 6: true}
	some := slices.DeleteFunc(split(), func(e Edge) bool { return !known[e.Subtree] })
	if r := JoinWithin(some, known); len(r.Findings) > 0 {
		t.Error(r.Findings)
	}
}
