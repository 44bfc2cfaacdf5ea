package layoutsvc

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

func up(labels ...string) serverState { return serverState{alive: true, labels: labels} }

// TestPlan walks one group through what happens to its servers.
func TestPlan(t *testing.T) {
	t.Parallel()
	dead := serverState{}
	gone := serverState{gone: true}
	drained := serverState{alive: true, draining: true}
	for _, c := range []struct {
		what    string
		servers map[base.NodeID]serverState
		pg      *canopyv1.PlacementGroup
		want    *canopyv1.PlacementGroup // nil: as it is
		stuck   bool
	}{
		{"nothing is wrong", map[base.NodeID]serverState{1: up(), 2: up(), 3: up()},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2}, InSync: []uint64{1, 2}}, nil, false},
		{"away for a moment", map[base.NodeID]serverState{1: up(), 2: dead, 3: up()},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2}, InSync: []uint64{1}}, nil, false},
		{"gone", map[base.NodeID]serverState{1: up(), 2: gone, 3: up()},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2}, InSync: []uint64{1}},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2, 3}, InSync: []uint64{1}, Leaving: []uint64{2}}, false},
		{"gone, in another rack", map[base.NodeID]serverState{1: up("rack=a"), 2: gone, 3: up("rack=a"), 4: up("rack=b")},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2}, InSync: []uint64{1}},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2, 4}, InSync: []uint64{1}, Leaving: []uint64{2}}, false},
		{"the new one is in sync", map[base.NodeID]serverState{1: gone, 2: up(), 3: up()},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2, 3}, InSync: []uint64{2, 3}, Leaving: []uint64{1}},
			&canopyv1.PlacementGroup{Members: []uint64{3, 2}, InSync: []uint64{3, 2}}, false},
		{"it came back before", map[base.NodeID]serverState{1: up(), 2: up(), 3: up()},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2, 3}, InSync: []uint64{1}, Leaving: []uint64{2}},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2}, InSync: []uint64{1}}, false},
		{"it came back after", map[base.NodeID]serverState{1: up(), 2: up(), 3: up()},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2, 3}, InSync: []uint64{1, 3}, Leaving: []uint64{2}},
			&canopyv1.PlacementGroup{Members: []uint64{1, 3}, InSync: []uint64{1, 3}}, false},
		{"no other server", map[base.NodeID]serverState{1: up(), 2: gone},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2}, InSync: []uint64{1}}, nil, true},
		{"the other one is full", map[base.NodeID]serverState{1: up(), 2: gone, 3: {alive: true, full: true}},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2}, InSync: []uint64{1}}, nil, true},
		{"the new one has become full", map[base.NodeID]serverState{1: up(), 2: gone, 3: {alive: true, full: true}, 4: up()},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2, 3}, InSync: []uint64{1}, Leaving: []uint64{2}},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2, 4}, InSync: []uint64{1}, Leaving: []uint64{2}}, false},
		{"the source is gone", map[base.NodeID]serverState{1: gone, 2: gone, 3: up()},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2}, InSync: []uint64{1}}, nil, true},
		{"drained", map[base.NodeID]serverState{1: drained, 2: up(), 3: up()},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2}, InSync: []uint64{1, 2}},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2, 3}, InSync: []uint64{1, 2}, Leaving: []uint64{1}}, false},
		{"drained, and still in sync", map[base.NodeID]serverState{1: drained, 2: up(), 3: up()},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2, 3}, InSync: []uint64{1, 2, 3}, Leaving: []uint64{1}}, nil, false},
		{"drained, nowhere to go", map[base.NodeID]serverState{1: drained, 2: up()},
			&canopyv1.PlacementGroup{Members: []uint64{1, 2}, InSync: []uint64{1, 2}}, nil, true},
	} {
		next, stuck := newPlan(2, c.servers, []*canopyv1.PlacementGroup{c.pg}).next(c.pg)
		if c.want != nil {
			c.want.Epoch = c.pg.Epoch + 1
		}
		if !proto.Equal(next, c.want) || (stuck != "") != c.stuck {
			t.Errorf("%s: %v (stuck: %q), want %v", c.what, next, stuck, c.want)
		}
	}
}

// TestPlanConverges plays random deaths, returns, drains and recoveries, and
// wants that no copy in sync is given up while there are too few, and that a
// group is whole on healthy servers in the end (PROTOCOLS J3).
func TestPlanConverges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		replicas := rapid.IntRange(1, 3).Draw(r, "replicas")
		n := rapid.IntRange(replicas, 6).Draw(r, "servers")
		servers := map[base.NodeID]serverState{}
		pg := &canopyv1.PlacementGroup{Epoch: 1}
		for i := 1; i <= n; i++ {
			servers[base.NodeID(i)] = up()
			if i <= replicas {
				pg.Members = append(pg.Members, uint64(i))
			}
		}
		pg.InSync = slices.Clone(pg.Members)
		step := func() {
			next, _ := newPlan(replicas, servers, []*canopyv1.PlacementGroup{pg}).next(pg)
			if next == nil {
				return
			}
			if next.Epoch != pg.Epoch+1 || len(next.InSync) != len(pg.InSync) {
				r.Fatalf("%v became %v: an in-sync set changes by reports alone", pg, next)
			}
			for _, m := range slices.Concat(next.InSync, next.Leaving) {
				if !slices.Contains(next.Members, m) {
					r.Fatalf("%v became %v: %d is no member", pg, next, m)
				}
			}
			if len(next.Members)-len(next.Leaving) > replicas {
				r.Fatalf("%v became %v: more than %d stay", pg, next, replicas)
			}
			pg = next
		}
		// What a primary and the expiry of leases do.
		settle := func() {
			for _, m := range slices.Clone(pg.InSync) {
				if !servers[base.NodeID(m)].alive {
					if next := without(pg, base.NodeID(m)); next != nil {
						pg = next
					}
				}
			}
			if !servers[base.NodeID(pg.InSync[0])].alive {
				return
			}
			for _, m := range pg.Members {
				if servers[base.NodeID(m)].alive && !slices.Contains(pg.Leaving, m) {
					if next := with(pg, base.NodeID(m)); next != nil {
						pg = next
						return
					}
				}
			}
			for _, m := range pg.Members {
				if !slices.Contains(pg.Leaving, m) && !slices.Contains(pg.InSync, m) {
					return
				}
			}
			for _, m := range pg.Leaving {
				if next := without(pg, base.NodeID(m)); next != nil {
					pg = next
					return
				}
			}
		}
		states := []serverState{up(), {}, {gone: true}, {alive: true, draining: true}, {alive: true, full: true}}
		for range rapid.IntRange(0, 40).Draw(r, "steps") {
			id := base.NodeID(rapid.IntRange(1, n).Draw(r, "server"))
			servers[id] = rapid.SampledFrom(states).Draw(r, "state")
			if rapid.Bool().Draw(r, "settle") {
				settle()
			}
			step()
		}
		for id := range servers {
			servers[id] = up()
		}
		for range 20 {
			settle()
			step()
		}
		if len(pg.Members) != replicas || len(pg.InSync) != replicas || len(pg.Leaving) != 0 {
			r.Fatalf("in the end %v, want %d members in sync", pg, replicas)
		}
	})
}
