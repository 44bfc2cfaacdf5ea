package edge

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/canopyfs/canopy/internal/base"
)

// healthy are the edges of four subtrees: 1 at "/", 2 carved out of 1 and 3 out of 2,
// each with a forward, and 4, whose root was moved from 1 into 3 by a rename. A file
// with its record in 1 has names in 2 and 3.
func healthy() []Edge {
	return []Edge{
		{Kind: Subtree, Shard: 1, Subtree: 1, Epoch: 1, Ino: 1},
		{Kind: Down, Shard: 1, Subtree: 1, Ino: 20, Dir: 1, To: 2, Top: 1, Name: []byte("b")},
		{Kind: Forward, Shard: 1, Subtree: 1, To: 2, Count: 5},
		{Kind: Record, Shard: 1, Subtree: 1, Ino: 100, Count: 2, Listed: []base.Ino{20, 31}, Lists: true},
		{Kind: Subtree, Shard: 2, Subtree: 2, Epoch: 1, Ino: 20},
		{Kind: Up, Shard: 2, Subtree: 2, Ino: 20, Dir: 1, To: 1, Name: []byte("b")},
		{Kind: Down, Shard: 2, Subtree: 2, Ino: 30, Dir: 20, To: 3, Top: 20, Name: []byte("c")},
		{Kind: Forward, Shard: 2, Subtree: 2, To: 3, Count: 2},
		{Kind: Name, Shard: 2, Subtree: 2, Ino: 100, Dir: 20, To: 1},
		{Kind: Subtree, Shard: 1, Subtree: 3, Epoch: 4, Ino: 30},
		{Kind: Up, Shard: 1, Subtree: 3, Ino: 30, Dir: 20, To: 2, Name: []byte("c")},
		{Kind: Down, Shard: 1, Subtree: 3, Ino: 40, Dir: 31, To: 4, Top: 30, Name: []byte("d")},
		{Kind: Name, Shard: 1, Subtree: 3, Ino: 100, Dir: 31, To: 1},
		{Kind: Subtree, Shard: 3, Subtree: 4, Epoch: 2, Ino: 40},
		{Kind: Up, Shard: 3, Subtree: 4, Ino: 40, Dir: 31, To: 3, Name: []byte("d")},
	}
}

func TestJoin(t *testing.T) {
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
		{"nothing", func(e []Edge) []Edge { return e }, nil, 0},
		{"two owners", func(e []Edge) []Edge { return append(e, Edge{Kind: Subtree, Shard: 2, Subtree: 4, Epoch: 1, Ino: 40}) },
			[]string{"1 subtree 4 is owned by shard 3 at epoch 2 and by shard 2 at epoch 1"}, 0},
		{"a forward to nothing", func(e []Edge) []Edge { return append(e, Edge{Kind: Forward, Subtree: 3, To: 9, Count: 7}) },
			[]string{"2 7 forwards of subtree 3 lead to subtree 9, which no shard owns"}, 0},
		{"a name without its directory", func(e []Edge) []Edge { return drop(e, Up, 4) },
			[]string{`2 name "d" in directory 31 says that it is in subtree 4, which has no header of it that says so`}, 0},
		{"a directory without its name", func(e []Edge) []Edge { return drop(e, Down, 3) },
			[]string{"2 no name in directory 31 of subtree 3 refers to it"}, 0},
		{"another name", func(e []Edge) []Edge { find(e, Up, 4).Name = []byte("x"); return e },
			[]string{`2 named "d" in directory 31, but its header says "x" in 31`}, 0},
		{"another parent", func(e []Edge) []Edge { find(e, Up, 4).Dir = 30; return e },
			[]string{`2 named "d" in directory 31, but its header says "d" in 30`}, 0},
		{"two names", func(e []Edge) []Edge {
			return append(e, Edge{Kind: Down, Subtree: 1, Ino: 40, Dir: 1, To: 4, Top: 1, Name: []byte("d")})
		}, []string{`2 a directory with two names: "d" in directory 31 and "d" in directory 1`, `2 named "d" in directory 1, but its header says "d" in 31`}, 0},
		{"two headers", func(e []Edge) []Edge {
			return append(e, Edge{Kind: Up, Subtree: 2, Ino: 40, Dir: 31, To: 3, Name: []byte("d")})
		}, []string{"2 subtrees 4 and 2 both have its header"}, 0},
		{"a name that lags, with a forward", func(e []Edge) []Edge { find(e, Down, 2).To = 1; return e }, nil, 1},
		{"a name that lags, without one", func(e []Edge) []Edge { find(e, Down, 2).To = 4; return e },
			[]string{`2 name "c" in directory 20 says that it is in subtree 4, it is in 3, and no forward leads there`}, 0},
		{"a parent that lags, without a forward", func(e []Edge) []Edge { find(e, Up, 4).To = 4; return e },
			[]string{"2 its header says that its name is in subtree 4, it is in 3, and no forward leads there"}, 0},
		{"a cycle", func(e []Edge) []Edge {
			d := find(e, Down, 1) // "b" is below "d" now
			d.Subtree, d.Dir, d.Top = 4, 41, 40
			u := find(e, Up, 2)
			u.Dir, u.To = 41, 4
			return e
		}, []string{"2 not below the root: its ancestors make a cycle or end in nothing", "2 not below the root: its ancestors make a cycle or end in nothing", "2 not below the root: its ancestors make a cycle or end in nothing"}, 0},
		{"a circle within a subtree", func(e []Edge) []Edge { find(e, Down, 3).Top = 0; return e },
			[]string{"2 not below the root: its ancestors make a cycle or end in nothing"}, 0},
		{"a link count", func(e []Edge) []Edge { find(e, Record, 1).Count = 3; return e },
			[]string{"3 its link count counts 3 names in other subtrees, there are 2"}, 0},
		{"a list of names", func(e []Edge) []Edge { find(e, Record, 1).Listed[0] = 21; return e },
			[]string{"3 its names in other subtrees are listed in directories [21 31], they are in [20 31]"}, 0},
		{"names without a record", func(e []Edge) []Edge { return drop(e, Record, 1) },
			[]string{"3 2 names in other subtrees refer to it, its record in subtree 1 counts none of them, or is not there"}, 0},
	} {
		r := Join(x.change(healthy()))
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

// What leads to subtrees that are not looked at is passed over.
func TestJoinWithin(t *testing.T) {
	var some []Edge
	for _, e := range healthy() {
		if e.Subtree == 1 || e.Subtree == 3 {
			some = append(some, e)
		}
	}
	if r := JoinWithin(some, map[base.SubtreeID]bool{1: true, 3: true}); len(r.Findings) > 0 {
		t.Error(fmt.Sprint(r.Findings))
	}
}

// What one shard gives away another one has, or it was removed; what comes is given.
func TestMovesJoin(t *testing.T) {
	left := Edge{Kind: Left, Shard: 1, Subtree: 9, Peer: 3, Epoch: 4, Ino: 50}
	coming := Edge{Kind: Coming, Shard: 2, Subtree: 8, To: 8, Peer: 3, Epoch: 2, Ino: 60}
	for _, x := range []struct {
		what string
		more []Edge
		want string
	}{
		{"handed off to nobody", []Edge{left}, "no shard owns subtree 9: shard 1 handed it to shard 3 at epoch 4"},
		{"handed off, and removed there", []Edge{left, {Kind: Gone, Shard: 3, Subtree: 9}}, ""},
		{"handed off", []Edge{left, {Kind: Subtree, Shard: 3, Subtree: 9, Epoch: 4, Ino: 50}}, ""},
		{"coming from nobody", []Edge{coming}, "shard 2 takes in subtree 8 from shard 3, which does not move it"},
		{"coming", []Edge{coming, {Kind: Going, Shard: 3, Subtree: 8, To: 8, Peer: 2}}, ""},
		{"coming from another", []Edge{coming, {Kind: Going, Shard: 1, Subtree: 8, To: 8, Peer: 2}}, "which does not move it"},
		{"relocations", []Edge{{Kind: Relocation, Shard: 1, Subtree: 1, To: 77, Count: 2}}, "2 relocations of subtree 1 lead to subtree 77, which no shard owns"},
		{"relocations to what was removed", []Edge{{Kind: Relocation, Shard: 1, Subtree: 1, To: 77, Count: 2}, {Kind: Gone, Shard: 2, Subtree: 77}}, ""},
	} {
		got := ""
		for _, f := range Join(append(healthy(), x.more...)).Findings {
			got += f.Problem
		}
		if (x.want == "") != (got == "") || !strings.Contains(got, x.want) {
			t.Errorf("%s: %q, want %q", x.what, got, x.want)
		}
	}
}

// Routes are compared with who owns; what an owner says mends them (PROTOCOLS E8).
func TestRoutesJoin(t *testing.T) {
	right := func() map[base.SubtreeID]RouteOf {
		return map[base.SubtreeID]RouteOf{1: {1, 1}, 2: {2, 1}, 3: {1, 4}, 4: {3, 2}}
	}
	for _, x := range []struct {
		what   string
		change func(map[base.SubtreeID]RouteOf) []Edge
		want   string
		mends  bool
	}{
		{"nothing", func(map[base.SubtreeID]RouteOf) []Edge { return nil }, "", false},
		{"none", func(r map[base.SubtreeID]RouteOf) []Edge { delete(r, 4); return nil }, "has no route of it", true},
		{"of before", func(r map[base.SubtreeID]RouteOf) []Edge { r[3] = RouteOf{2, 3}; return nil }, "the placement map says shard 2 at epoch 3", true},
		{"another shard", func(r map[base.SubtreeID]RouteOf) []Edge { r[3] = RouteOf{2, 4}; return nil }, "the placement map says shard 2 at epoch 4", true},
		{"from the future", func(r map[base.SubtreeID]RouteOf) []Edge { r[3] = RouteOf{1, 9}; return nil }, "which no owner has had", true},
		{"of nothing", func(r map[base.SubtreeID]RouteOf) []Edge { r[9] = RouteOf{1, 9}; return nil }, "no shard owns it", false},
		{"of what was removed", func(r map[base.SubtreeID]RouteOf) []Edge {
			r[9] = RouteOf{1, 9}
			return []Edge{{Kind: Gone, Shard: 1, Subtree: 9}}
		}, "", false},
	} {
		routes := right()
		edges := append(healthy(), x.change(routes)...)
		found := JoinRoutes(edges, routes)
		if (x.want == "") != (len(found) == 0) || len(found) > 1 || len(found) == 1 && (!strings.Contains(found[0].Problem, x.want) || (found[0].Mend != nil) != x.mends) {
			t.Errorf("%s: %+v, want %q", x.what, found, x.want)
		}
	}
}
