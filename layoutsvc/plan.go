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
	need     int // shards that have all bytes of a group; 1 of copies
	servers  map[base.NodeID]serverState
	load     map[base.NodeID]int // placement groups by server, kept while planning
	beside   []stripe.Server     // members of the group's other shards
}

func newPlan(replicas, need int, servers map[base.NodeID]serverState, groups []*canopyv1.PlacementGroup) *plan {
	p := &plan{replicas: replicas, need: need, servers: servers, load: map[base.NodeID]int{}}
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
	var alive []uint64
	for _, m := range pg.InSync {
		if p.servers[base.NodeID(m)].alive {
			alive = append(alive, m)
		}
	}
	there := enough(pg, p.need, alive)
	if len(pg.Shards) > 0 {
		return p.nextShards(pg, there)
	}
	next = proto.CloneOf(pg)
	next.Members, stuck = p.extended(pg, there)
	keep := p.keepers(next)
	next.Leaving = nil
	for _, m := range next.Members {
		if !slices.Contains(keep, m) {
			next.Leaving = append(next.Leaving, m)
		}
	}
	p.shrink(next, keep)
	return changed(pg, next), stuck
}

// changed returns the group under the next epoch; nil if its members stay.
func changed(pg, next *canopyv1.PlacementGroup) *canopyv1.PlacementGroup {
	if slices.Equal(next.Members, pg.Members) && slices.Equal(next.Leaving, pg.Leaving) {
		return nil
	}
	next.Epoch++
	return next
}

// nextShards is next of an erasure coded group. Each shard is planned by itself, as a
// group of one copy: who comes for a member has the same shard as that one.
func (p *plan) nextShards(pg *canopyv1.PlacementGroup, there bool) (next *canopyv1.PlacementGroup, stuck string) {
	next = proto.CloneOf(pg)
	next.Members, next.Shards, next.Leaving = nil, nil, nil
	shards := slices.Compact(slices.Sorted(slices.Values(pg.Shards)))
	members := slices.Clone(pg.Members) // those that come too
	for _, shard := range shards {
		slot := &canopyv1.PlacementGroup{}
		one := &plan{replicas: 1, need: 1, servers: p.servers, load: p.load}
		for i, m := range pg.Members {
			if pg.Shards[i] != shard {
				continue
			}
			slot.Members = append(slot.Members, m)
			if slices.Contains(pg.InSync, m) {
				slot.InSync = append(slot.InSync, m)
			}
			if slices.Contains(pg.Leaving, m) {
				slot.Leaving = append(slot.Leaving, m)
			}
		}
		for _, m := range members {
			if !slices.Contains(slot.Members, m) {
				one.beside = append(one.beside, p.server(base.NodeID(m)))
			}
		}
		had := len(slot.Members)
		var why string
		slot.Members, why = one.extended(slot, there)
		members = append(members, slot.Members[had:]...)
		keep := one.keepers(slot)
		slot.Leaving = slices.DeleteFunc(slices.Clone(slot.Members), func(m uint64) bool { return slices.Contains(keep, m) })
		one.shrink(slot, keep)
		next.Members = append(next.Members, slot.Members...)
		next.Leaving = append(next.Leaving, slot.Leaving...)
		next.Shards = append(next.Shards, slices.Repeat([]uint32{shard}, len(slot.Members))...)
		if why != "" {
			stuck = fmt.Sprintf("shard %d: %s", shard, why)
		}
	}
	if !there {
		stuck = fmt.Sprintf("fewer than %d of its shards in sync, %v, are there", p.need, pg.InSync)
	}
	next.InSync = slices.DeleteFunc(slices.Clone(next.Members), func(m uint64) bool { return !slices.Contains(pg.InSync, m) })
	return changed(pg, next), stuck
}

// extended returns the members, and new ones at the end if too few are there to
// build on.
func (p *plan) extended(pg *canopyv1.PlacementGroup, there bool) (members []uint64, stuck string) {
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
	if !there {
		return members, fmt.Sprintf("none of its members in sync, %v, is there to copy from", pg.InSync)
	}
	for len(staying) < p.replicas {
		best, ok := stripe.Choose(append(slices.Clone(p.beside), staying...), p.candidates(members), p.load)
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
		besides := slices.ContainsFunc(p.beside, func(o stripe.Server) bool { return o.ID == id })
		if s.alive && s.stays() && !s.full && !besides && !slices.Contains(members, uint64(id)) {
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
