package placement

import (
	"fmt"
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// usable tells why a node can be given no replica now; "" if it can.
func usable(n *canopyv1.NodeInfo) string {
	switch {
	case !n.Alive:
		return "is not alive"
	case n.Drained:
		return "is drained"
	case n.DiskFull:
		return "has a full disk"
	}
	return ""
}

// CheckNode tells why a node cannot be given a replica of a shard that has
// replicas on the nodes taken, if it cannot.
func (m *Map) CheckNode(id base.NodeID, taken []base.NodeID) error {
	n := m.Node(id)
	switch {
	case n == nil:
		return fserr.New(fserr.NotFound, "", fmt.Errorf("there is no node %v (the cluster has %d)", id, len(m.Nodes())))
	case slices.Contains(taken, id):
		return fserr.New(fserr.Exist, "", fmt.Errorf("node %v has a replica of the shard", id))
	case usable(n) != "":
		return fserr.New(fserr.Invalid, "", fmt.Errorf("node %v %s", id, usable(n)))
	}
	return nil
}

// Choose returns count nodes for further replicas of a shard that has, or keeps,
// replicas on the nodes taken: each in other failure domains than the rest as far as
// there are any, by the labels zone, rack and host, then the one with the fewest
// replicas. Nodes of avoid are taken for nothing, but are no neighbours either.
func (m *Map) Choose(count int, taken, avoid []base.NodeID) ([]base.NodeID, error) {
	load := m.replicas()
	var chosen, candidates []stripe.Server
	reasons := ""
	for _, n := range m.Nodes() {
		id := base.NodeID(n.Node)
		switch {
		case slices.Contains(taken, id):
			chosen = append(chosen, server(n))
		case slices.Contains(avoid, id):
		case usable(n) != "":
			reasons += fmt.Sprintf(", node %v %s", id, usable(n))
		default:
			candidates = append(candidates, server(n))
		}
	}
	var out []base.NodeID
	for range count {
		best, ok := stripe.Choose(chosen, candidates, load)
		if !ok {
			return nil, fserr.New(fserr.Invalid, "", fmt.Errorf("too few nodes: %d more needed, %d can be used%s", count, len(out), reasons))
		}
		out, chosen = append(out, best.ID), append(chosen, best)
		candidates = slices.DeleteFunc(candidates, func(s stripe.Server) bool { return s.ID == best.ID })
		load[best.ID]++
	}
	return out, nil
}

// replicas counts the replicas that each node has, or is to have.
func (m *Map) replicas() map[base.NodeID]int {
	load := map[base.NodeID]int{}
	for _, s := range m.Shards() {
		for _, r := range s.Replicas {
			if !r.Leaving {
				load[base.NodeID(r.Node)]++
			}
		}
	}
	return load
}

func server(n *canopyv1.NodeInfo) stripe.Server {
	return stripe.Server{ID: base.NodeID(n.Node), Labels: stripe.WithHost(n.Labels, n.Host)}
}

// spread chooses the nodes of a new cluster's shards.
func spread(b Bootstrap, nodes []*canopyv1.NodeInfo) ([][]base.NodeID, error) {
	servers := make([]stripe.Server, len(nodes))
	for i, n := range nodes {
		servers[i] = server(n)
	}
	return stripe.Assign(b.Shards, b.Replicas, servers)
}
