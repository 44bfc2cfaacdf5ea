package reshape

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// carriedOut does what a plan says until nothing is left, as if each subtree had the
// shard that it was made at, and returns the fragments.
func carriedOut(t *testing.T, now []client.Fragment, next Plan, most int) []client.Fragment {
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
			if err := CanSplit("/d", now, n); err != nil {
				t.Fatal(err)
			}
			now = carriedOut(t, now, Split(n, shards, of), n)
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
		if now = carriedOut(t, now, Merge, x.then); len(now) != 1 || now[0].Subtree != 1 {
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
	if err := CanSplit("/d", part, 8); err != nil {
		t.Error(err)
	}
	shards := []base.ShardID{1, 2}
	done := carriedOut(t, part, Split(8, shards, func(i int) base.ShardID { return shards[i%2] }), 6)
	if len(done) != 8 || done[6].Subtree != 5 || done[7].Subtree != 6 {
		t.Errorf("%v", done)
	}
	for n, want := range map[int]string{2: "has 3 fragments already", 4: "names [e000000, 10000000), which is none of 4 equal ones"} {
		if err := CanSplit("/d", part, n); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("into %d: %v", n, err)
		}
	}
}
