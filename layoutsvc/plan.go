package layoutsvc

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// serverState is what planning needs to know of a data server.
type serverState struct {
	labels   []string // its host among them
	alive    bool     // it has a lease
	gone     bool     // for longer than the rebuild waits
	draining bool
	full     bool
}

// stays reports whether the server is one to build on.
func (s serverState) stays() bool { return !s.gone && !s.draining }

// plan decides who the members of placement groups should be. It is a function
// of its fields and the group alone.
type plan struct {
	replicas int
	servers  map[base.NodeID]serverState
	load     map[base.NodeID]int // placement groups by server, kept while planning
}

func newPlan(replicas int, servers map[base.NodeID]serverState, groups []*canopyv1.PlacementGroup) *plan {
	p := &plan{replicas: replicas, servers: servers, load: map[base.NodeID]int{}}
	for _, pg := range groups {
		for _, m := range pg.Members {
			if !slices.Contains(pg.Leaving, m) {
				p.load[base.NodeID(m)]++
			}
		}
	}
	return p
}

// next returns the group under the next epoch, nil if it stays as it is; stuck
// says what is wrong with it that nothing can be done about now.
//
// A group whose member is gone or drained first gets another one beside it: what
// the leaving one has is kept until the others have all, and if it comes back
// before, it is recovered and the new one goes. In-sync sets do not change here:
// who leaves one is reported by the primary, as ever (PROTOCOLS J3).
func (p *plan) next(pg *canopyv1.PlacementGroup) (next *canopyv1.PlacementGroup, stuck string) {
	next = proto.CloneOf(pg)
	next.Members, stuck = p.extended(pg)
	keep := p.keepers(next)
	next.Leaving = nil
	for _, m := range next.Members {
		if !slices.Contains(keep, m) {
			next.Leaving = append(next.Leaving, m)
		}
	}
	p.shrink(next, keep)
	if slices.Equal(next.Members, pg.Members) && slices.Equal(next.Leaving, pg.Leaving) {
		return nil, stuck
	}
	next.Epoch++
	return next, stuck
}

// extended returns the members, and new ones at the end if too few are there to
// build on.
func (p *plan) extended(pg *canopyv1.PlacementGroup) (members []uint64, stuck string) {
	members = slices.Clone(pg.Members)
	var staying []stripe.Server
	for i, m := range members {
		if p.usable(pg, i, m) {
			staying = append(staying, p.server(base.NodeID(m)))
		}
	}
	if len(staying) >= p.replicas {
		return members, ""
	}
	if !slices.ContainsFunc(pg.InSync, func(m uint64) bool { return p.servers[base.NodeID(m)].alive }) {
		return members, fmt.Sprintf("none of its members in sync, %v, is there to copy from", pg.InSync)
	}
	for len(staying) < p.replicas {
		best, ok := stripe.Choose(staying, p.candidates(members), p.load)
		if !ok {
			return members, fmt.Sprintf("%d of %d copies: no other data server has room for one", len(staying), p.replicas)
		}
		members = append(members, uint64(best.ID))
		staying = append(staying, best)
		p.load[best.ID]++
	}
	return members, ""
}

// usable reports whether member number i of the group is one to build on. One
// that was taken in and has no room for the group's bytes is not.
func (p *plan) usable(pg *canopyv1.PlacementGroup, i int, m uint64) bool {
	s, known := p.servers[base.NodeID(m)]
	return known && s.stays() && (!s.full || i < p.replicas || slices.Contains(pg.InSync, m))
}

func (p *plan) server(id base.NodeID) stripe.Server {
	return stripe.Server{ID: id, Labels: p.servers[id].labels}
}

// candidates are the servers that may get a group besides the members.
func (p *plan) candidates(members []uint64) []stripe.Server {
	var out []stripe.Server
	for id, s := range p.servers {
		if s.alive && s.stays() && !s.full && !slices.Contains(members, uint64(id)) {
			out = append(out, p.server(id))
		}
	}
	return out
}

// keepers returns the members that the group should have in the end: those to
// build on first, of those the ones in sync, of those the older.
func (p *plan) keepers(pg *canopyv1.PlacementGroup) []uint64 {
	rank := func(i int, m uint64) int {
		r := 0
		if !p.usable(pg, i, m) {
			r += 4
		}
		if !p.servers[base.NodeID(m)].alive {
			r += 2
		}
		if !slices.Contains(pg.InSync, m) {
			r++
		}
		return r
	}
	ranks := map[uint64]int{}
	for i, m := range pg.Members {
		ranks[m] = rank(i, m)
	}
	order := slices.Clone(pg.Members)
	slices.SortStableFunc(order, func(a, b uint64) int { return ranks[a] - ranks[b] })
	return order[:min(p.replicas, len(order))]
}

// shrink takes out who is leaving and out of sync: the old members when all that
// stay are in sync, new ones at once, since they have nothing that is needed. Who
// stays takes the place of who goes, so that primaries stay spread.
func (p *plan) shrink(pg *canopyv1.PlacementGroup, keep []uint64) {
	whole := len(keep) == p.replicas
	for _, m := range keep {
		whole = whole && slices.Contains(pg.InSync, m)
	}
	goes := map[uint64]bool{}
	for i, m := range pg.Members {
		if slices.Contains(pg.Leaving, m) && !slices.Contains(pg.InSync, m) && (whole || i >= p.replicas) {
			goes[m] = true
		}
	}
	if len(goes) == 0 {
		return
	}
	head, tail := slices.Clone(pg.Members), []uint64(nil)
	if len(head) > p.replicas {
		head, tail = head[:p.replicas:p.replicas], head[p.replicas:]
	}
	tail = slices.DeleteFunc(slices.Clone(tail), func(m uint64) bool { return goes[m] })
	var members []uint64
	for _, m := range head {
		if !goes[m] {
			members = append(members, m)
		} else if len(tail) > 0 {
			members, tail = append(members, tail[0]), tail[1:]
		}
	}
	pg.Members = append(members, tail...)
	pg.Leaving = slices.DeleteFunc(pg.Leaving, func(m uint64) bool { return goes[m] })
	if len(pg.Leaving) == 0 {
		pg.Leaving = nil
	}
	in := pg.InSync
	pg.InSync = nil
	for _, m := range pg.Members {
		if slices.Contains(in, m) {
			pg.InSync = append(pg.InSync, m)
		}
	}
}
