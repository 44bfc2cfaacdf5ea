package reshape

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// RangeMove is a move of a range of a directory's names.
type RangeMove struct {
	label string
	names shard.Range
	from  client.Fragment // which has them
	into  base.SubtreeID  // which they join; 0: they start one
	to    base.ShardID
}

// Plan says which names move next; nil: none, it is as it should be.
type Plan func(now []client.Fragment) *RangeMove

// Split brings the borders of n equal fragments about, the highest first, so that
// each new fragment is cut from what one owner has. The new ones go to the shards that
// have the fewest, in turn.
func Split(n int, shards []base.ShardID, of func(i int) base.ShardID) Plan {
	width := shard.BorderEnd / uint32(n)
	return func(now []client.Fragment) *RangeMove {
		for i := n - 1; i > 0; i-- {
			lo := width * uint32(i)
			at := now[slices.IndexFunc(now, func(f client.Fragment) bool { return f.Contains(lo) })]
			if at.Lo == lo {
				continue
			}
			return &RangeMove{
				label: fmt.Sprintf("fragment %d of %d", i+1, n), names: shard.Range{Lo: lo, Hi: at.Hi}, from: at, to: fewest(now, shards, of(i)),
			}
		}
		return nil
	}
}

// fewest returns the shard, of those that are listed, with the fewest fragments: the
// preferred one if it is among them.
func fewest(now []client.Fragment, shards []base.ShardID, preferred base.ShardID) base.ShardID {
	count := map[base.ShardID]int{}
	for _, f := range now {
		count[f.Shard]++
	}
	return slices.MinFunc(shards, func(a, b base.ShardID) int {
		return cmp.Or(cmp.Compare(count[a], count[b]), cmp.Compare(boolInt(a != preferred), boolInt(b != preferred)))
	})
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Merge joins the second fragment with the first, until one is left: so each name
// moves once.
func Merge(now []client.Fragment) *RangeMove {
	if len(now) == 1 {
		return nil
	}
	next, into := now[1], now[0]
	return &RangeMove{label: fmt.Sprintf("fragment 2 of %d joins the first", len(now)), names: next.Range, from: next, into: into.Subtree, to: into.Shard}
}

// CanSplit says why a directory cannot get n equal fragments.
func CanSplit(path string, now []client.Fragment, n int) error {
	if len(now) > n {
		return fmt.Errorf("%s has %d fragments already: mdsctl merge joins them", path, len(now))
	}
	for _, f := range now {
		if f.Lo%(shard.BorderEnd/uint32(n)) != 0 {
			return fmt.Errorf("%s has a fragment of the names %v, which is none of %d equal ones: take more, or merge it first (mdsctl fragments %s)", path, f.Range, n, path)
		}
	}
	return nil
}
