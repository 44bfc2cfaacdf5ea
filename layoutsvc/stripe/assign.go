package stripe

import (
	"fmt"
	"sort"
	"strings"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Server is what the assignment needs to know of a data server.
type Server struct {
	ID     base.NodeID
	Labels []string // key=value; "rack" and "host" are failure domains
}

// domainKeys are the labels that name a failure domain, the widest first.
var domainKeys = [...]string{"zone", "rack", "host"}

// Assign chooses the members of each of pgs placement groups: round-robin over
// the servers, so that PG i and i+1 have different primaries, and members of
// one PG in different failure domains as far as there are enough. It is a
// function of its arguments alone (the order of servers does not matter).
func Assign(pgs, replicas int, servers []Server) ([][]base.NodeID, error) {
	if replicas < 1 || pgs < 1 {
		return nil, fserr.New(fserr.Invalid, "assign", fmt.Errorf("%d groups of %d replicas", pgs, replicas))
	}
	if len(servers) < replicas {
		return nil, fserr.New(fserr.NotReady, "assign", fmt.Errorf("%d replicas need as many servers, not %d", replicas, len(servers)))
	}
	ring := interleave(servers)
	load := map[base.NodeID]int{}
	groups := make([][]base.NodeID, pgs)
	for i := range groups {
		groups[i] = pick(ring, i%len(ring), replicas, load)
	}
	return groups, nil
}

// pick takes ring[at] as primary, then the least loaded server of a domain not
// used yet, in ring order.
func pick(ring []Server, at, replicas int, load map[base.NodeID]int) []base.NodeID {
	members := []base.NodeID{ring[at].ID}
	load[ring[at].ID]++
	chosen := []Server{ring[at]}
	for len(members) < replicas {
		best, bestShared := -1, 0
		for k := 1; k < len(ring); k++ {
			s := ring[(at+k)%len(ring)]
			if contains(members, s.ID) {
				continue
			}
			shared := sharedDomains(chosen, s)
			if best < 0 || shared < bestShared || shared == bestShared && load[s.ID] < load[ring[best].ID] {
				best, bestShared = (at+k)%len(ring), shared
			}
		}
		members = append(members, ring[best].ID)
		chosen = append(chosen, ring[best])
		load[ring[best].ID]++
	}
	return members
}

func contains(ids []base.NodeID, id base.NodeID) bool {
	for _, m := range ids {
		if m == id {
			return true
		}
	}
	return false
}

// sharedDomains weighs how much of s's domains the chosen ones share: the wider
// the domain, the more.
func sharedDomains(chosen []Server, s Server) int {
	worst := 0
	for _, c := range chosen {
		for i, key := range domainKeys {
			if v := label(s, key); v != "" && v == label(c, key) {
				worst = max(worst, len(domainKeys)-i)
			}
		}
	}
	return worst
}

func label(s Server, key string) string {
	for _, l := range s.Labels {
		if v, ok := strings.CutPrefix(l, key+"="); ok {
			return v
		}
	}
	return ""
}

// interleave orders servers so that neighbours lie in different domains.
func interleave(servers []Server) []Server {
	sorted := append([]Server(nil), servers...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].ID < sorted[j].ID })
	ring := make([]Server, 0, len(sorted))
	for len(sorted) > 0 {
		best, bestShared := 0, len(domainKeys)+1
		for i, s := range sorted {
			shared := 0
			if len(ring) > 0 {
				shared = sharedDomains(ring[len(ring)-1:], s)
			}
			if shared < bestShared {
				best, bestShared = i, shared
			}
		}
		ring = append(ring, sorted[best])
		sorted = append(sorted[:best], sorted[best+1:]...)
	}
	return ring
}
