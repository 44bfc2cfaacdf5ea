package edge

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/canopyfs/canopy/internal/base"
)

// RouteOf is what the placement map says of a subtree.
type RouteOf struct {
	Shard base.ShardID
	Epoch base.Epoch
}

// JoinRoutes compares the owned subtrees among edges with the routes that clients are
// given. A route of before costs them a redirect; one with an epoch that no owner has
// had makes them wait for ever (PROTOCOLS E8).
func JoinRoutes(edges []Edge, routes map[base.SubtreeID]RouteOf) []Finding {
	var found []Finding
	owned := map[base.SubtreeID]bool{}
	gone := map[base.SubtreeID]Edge{}
	for _, e := range edges {
		if e.Kind == Gone {
			gone[e.Subtree] = e
		}
		if e.Kind != Subtree {
			continue
		}
		owned[e.Subtree] = true
		say := ""
		switch route, there := routes[e.Subtree]; {
		case !there:
			say = "the placement map has no route of it"
		case route.Epoch > e.Epoch:
			say = fmt.Sprintf("the placement map says shard %v at epoch %v, which no owner has had", route.Shard, route.Epoch)
		case route.Epoch < e.Epoch || route.Shard != e.Shard:
			say = fmt.Sprintf("the placement map says shard %v at epoch %v", route.Shard, route.Epoch)
		}
		if say != "" {
			found = append(found, Finding{Invariant: "1", Shard: e.Shard, Ino: e.Ino, Subtrees: []base.SubtreeID{e.Subtree},
				Problem: fmt.Sprintf("subtree %v is owned by shard %v at epoch %v, %s", e.Subtree, e.Shard, e.Epoch, say), Mend: mendOf(Route, e)})
		}
	}
	for id, route := range routes {
		if !owned[id] && gone[id].Kind != Gone {
			found = append(found, Finding{Invariant: "1", Shard: route.Shard, Subtrees: []base.SubtreeID{id},
				Problem: fmt.Sprintf("the placement map says that subtree %v is at shard %v at epoch %v; no shard owns it", id, route.Shard, route.Epoch)})
		}
	}
	slices.SortFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Subtrees[0], b.Subtrees[0]), cmp.Compare(a.Problem, b.Problem))
	})
	return found
}
