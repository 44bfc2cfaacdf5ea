package mdsctl

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// carriedOut does what a plan says until nothing is left, as if each subtree had the
// shard that it was made at, and returns the fragments.
func carriedOut(t *testing.T, now []client.Fragment, next plan, most int) []client.Fragment {
	t.Helper()
	m := shard.FragmentMap{}
	at := map[base.SubtreeID]base.ShardID{}
	for _, f := range now {
		m = append(m, shard.Fragment{Lo: f.Lo, Subtree: f.Subtree})
		at[f.Subtree] = f.Shard
	}
	of := func() (all []client.Fragment) {
		for i, f := range m {
			all = append(all, client.Fragment{Range: m.Range(i), Subtree: f.Subtree, Shard: at[f.Subtree]})
		}
		return all
	}
	for range most {
		move := next(of())
		if move == nil {
			return of()
		}
		if i := slices.IndexFunc(of(), func(f client.Fragment) bool { return f.Range == move.from.Range }); i < 0 ||
			move.names.Lo < move.from.Lo || move.names.Hi > move.from.Hi || move.names.Lo == 0 || move.names.Lo >= move.names.Hi {
			t.Fatalf("%v: the names %v of %v", m, move.names, move.from)
		}
		into := move.into
		if into == 0 {
			into = base.SubtreeID(100 + len(at))
			at[into] = move.to
		}
		if at[into] != move.to {
			t.Fatalf("%v: join subtree %v at shard %v, said %v", m, into, at[into], move.to)
		}
		m = m.With(move.names, into)
	}
	t.Fatalf("not carried out by %d moves: %v", most, m)
	return nil
}

func shardsOf(all []client.Fragment) (ids []base.ShardID) {
	for _, f := range all {
		ids = append(ids, f.Shard)
	}
	return ids
}

// TestSplitPlan: equal ranges, as many on each shard, whatever was there before; the
// first one stays. Merging undoes it.
func TestSplitPlan(t *testing.T) {
	for _, x := range []struct {
		shards, first, then int // split into first, then further
		want                string
	}{
		{1, 4, 4, "[1 1 1 1]"},
		{2, 2, 4, "[1 1 2 2]"},
		{2, 4, 4, "[1 2 1 2]"},
		{3, 8, 8, "[1 2 3 1 2 3 3 2]"},
		{4, 4, 4, "[1 2 3 4]"},
		{8, 8, 8, "[1 2 3 4 5 6 7 8]"},
		{3, 256, 256, ""},
		{3, 8, 64, ""},
		{5, 2, 256, ""},
	} {
		var shards []base.ShardID
		for i := range x.shards {
			shards = append(shards, base.ShardID(i+1))
		}
		of := func(i int) base.ShardID { return shards[i%len(shards)] }
		now := []client.Fragment{{Range: shard.WholeRange, Subtree: 1, Shard: 1}}
		for _, n := range []int{x.first, x.then} {
			if err := canSplit("/d", now, n); err != nil {
				t.Fatal(err)
			}
			now = carriedOut(t, now, splitPlan(n, shards, of), n)
			if len(now) != n || now[0].Subtree != 1 {
				t.Fatalf("%+v: %d fragments, the first in subtree %v", x, len(now), now[0].Subtree)
			}
			count := map[base.ShardID]int{}
			for i, f := range now {
				count[f.Shard]++
				if f.Range != (shard.Range{Lo: shard.BorderEnd / uint32(n) * uint32(i), Hi: shard.BorderEnd / uint32(n) * uint32(i+1)}) {
					t.Fatalf("%+v: fragment %d has %v", x, i, f.Range)
				}
			}
			for _, id := range shards {
				if d := n/len(shards) - count[id]; d > 0 || d < -1 {
					t.Errorf("%+v: %d of %d fragments at shard %v", x, count[id], n, id)
				}
			}
		}
		if got := fmt.Sprint(shardsOf(now)); x.want != "" && got != x.want {
			t.Errorf("%+v: at %v", x, got)
		}
		if now = carriedOut(t, now, mergePlan, x.then); len(now) != 1 || now[0].Subtree != 1 {
			t.Errorf("%+v: merged to %v", x, now)
		}
	}
}

// TestSplitGoesOn: what an interrupted split has left is completed; what is none of N
// equal ranges, or more than N, is refused.
func TestSplitGoesOn(t *testing.T) {
	const eighth = shard.BorderEnd / 8
	part := []client.Fragment{
		{Range: shard.Range{Lo: 0, Hi: 6 * eighth}, Subtree: 1, Shard: 2},
		{Range: shard.Range{Lo: 6 * eighth, Hi: 7 * eighth}, Subtree: 5, Shard: 1},
		{Range: shard.Range{Lo: 7 * eighth, Hi: shard.BorderEnd}, Subtree: 6, Shard: 2},
	}
	if err := canSplit("/d", part, 8); err != nil {
		t.Error(err)
	}
	shards := []base.ShardID{1, 2}
	done := carriedOut(t, part, splitPlan(8, shards, func(i int) base.ShardID { return shards[i%2] }), 6)
	if len(done) != 8 || done[6].Subtree != 5 || done[7].Subtree != 6 {
		t.Errorf("%v", done)
	}
	for n, want := range map[int]string{2: "has 3 fragments already", 4: "names [e000000, 10000000), which is none of 4 equal ones"} {
		if err := canSplit("/d", part, n); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("into %d: %v", n, err)
		}
	}
}

func TestSplitWantsAPowerOfTwo(t *testing.T) {
	f := newFake(t)
	for args, want := range map[string]string{
		"split /d":                        "power of two",
		"split /d --fragments 1":          "power of two from 2 to 256",
		"split /d --fragments 6":          "power of two",
		"split /d --fragments 512":        "power of two",
		"split /d --fragments -4":         "power of two",
		"split --fragments 4":             "one PATH",
		"split /d --fragments 4 --to x":   "ids of shards",
		"split /d --fragments 4 --to 1,1": "each once",
		"split /d --fragments 4 --to 0":   "ids of shards",
		"merge":                           "one PATH",
		"fragments":                       "one PATH",
		"migrate /d --subtree 1 --to 2":   "not both",
		"migrate --subtree 9 --to 2":      "there is no subtree 9",
		"migrate --subtree 1 --to 7":      "there is no shard 7",
		"migrate --cancel --subtree 1":    "no move of subtree 1 runs",
		"migrate --subtree 1":             "--to SHARD",
	} {
		code, _, stderr := f.run(strings.Fields(args)...)
		if code != 1 || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %q", args, code, stderr)
		}
	}
}

func TestFragmentsOutput(t *testing.T) {
	rows := fragmentRows([]client.Fragment{
		{Range: shard.Range{Lo: 0, Hi: 1 << 26}, Subtree: 1, Shard: 1, Epoch: 1, Entries: 250, Subdirs: 3},
		{Range: shard.Range{Lo: 1 << 26, Hi: 1 << 27}, Subtree: 17592186044418, Shard: 2, Epoch: 4, Entries: 260},
		{Range: shard.Range{Lo: 1 << 27, Hi: 1 << 28}, Subtree: 1, Shard: 1, Epoch: 1, Entries: 250, Subdirs: 3},
	})
	for format, file := range map[string]string{"table": "fragments.txt", "json": "fragments.json"} {
		var out strings.Builder
		a := &app{env: Env{Stdout: &out}, output: format}
		if err := a.emit(fragmentsReport{Path: "/d", Ino: 9, Fragments: rows}, func(t *table) { writeFragments(t, rows) }); err != nil {
			t.Fatal(err)
		}
		golden(t, file, out.String())
	}
	status := &canopyv1.SubtreeStatus{Fragments: shard.FragmentMap{{Lo: 0, Subtree: 1}, {Lo: 1 << 26, Subtree: 7}, {Lo: 1 << 27, Subtree: 1}}.Proto()}
	for id, want := range map[uint64]string{1: "[0000000, 4000000),[8000000, 10000000)", 7: "[4000000, 8000000)", 8: "merged"} {
		r := subtreeRow{Subtree: id}
		r.split(status.GetFragments())
		if got := r.part(); got != want {
			t.Errorf("subtree %d has %s, want %s", id, got, want)
		}
	}
	if r := (subtreeRow{Subtree: 1}); r.part() != "" {
		t.Errorf("a whole directory has the part %q", r.part())
	}
}
