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

// Choose returns the candidate for one more member of a placement group: in
// other failure domains than the chosen ones as far as there are any, then with
// the least load, then with the lowest id. ok is false without candidates.
func Choose(chosen, candidates []Server, load map[base.NodeID]int) (best Server, ok bool) {
	bestShared := 0
	for _, s := range candidates {
		shared := sharedDomains(chosen, s)
		better := shared < bestShared || shared == bestShared &&
			(load[s.ID] < load[best.ID] || load[s.ID] == load[best.ID] && s.ID < best.ID)
		if !ok || better {
			best, bestShared, ok = s, shared, true
		}
	}
	return best, ok
}

// Shared returns the widest failure domain that two of the servers have in
// common, "zone", "rack" or "host"; "" if none.
func Shared(servers []Server) string {
	worst := 0
	for i, s := range servers {
		worst = max(worst, sharedDomains(servers[:i], s))
	}
	if worst == 0 {
		return ""
	}
	return domainKeys[len(domainKeys)-worst]
}

// Nearness says how near two places are by their labels: 3 the same host, 2 the
// same rack, 1 the same zone, 0 neither. A rack's name counts within its zone, if
// both have one, and a host's within its rack.
func Nearness(a, b []string) int {
	near := 0
	for i, key := range domainKeys {
		v, w := label(Server{Labels: a}, key), label(Server{Labels: b}, key)
		if v == "" || w == "" {
			continue
		}
		if v != w {
			return near
		}
		near = i + 1
	}
	return near
}

// WithHost returns labels with the host's name, unless they name one already or
// the name is not known.
func WithHost(labels []string, host string) []string {
	if host == "" || label(Server{Labels: labels}, "host") != "" {
		return labels
	}
	return append(append([]string(nil), labels...), "host="+host)
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
