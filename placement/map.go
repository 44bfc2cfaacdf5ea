package placement

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// Map is an immutable copy of what routing needs. Nobody changes what its
// methods return.
type Map struct {
	message *canopyv1.PlacementMap
	nodes   map[base.NodeID]*canopyv1.NodeInfo
	shards  map[base.ShardID]*canopyv1.ShardInfo
	routes  map[base.SubtreeID]*canopyv1.SubtreeRoute
}

// NewMap returns the map with the message's contents, which it keeps.
func NewMap(message *canopyv1.PlacementMap) *Map {
	m := &Map{
		message: message,
		nodes:   make(map[base.NodeID]*canopyv1.NodeInfo, len(message.Nodes)),
		shards:  make(map[base.ShardID]*canopyv1.ShardInfo, len(message.Shards)),
		routes:  make(map[base.SubtreeID]*canopyv1.SubtreeRoute, len(message.Subtrees)),
	}
	for _, n := range message.Nodes {
		m.nodes[base.NodeID(n.Node)] = n
	}
	for _, s := range message.Shards {
		m.shards[base.ShardID(s.Shard)] = s
	}
	for _, r := range message.Subtrees {
		m.routes[base.SubtreeID(r.Subtree)] = r
	}
	slices.SortFunc(message.Nodes, func(a, b *canopyv1.NodeInfo) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortFunc(message.Shards, func(a, b *canopyv1.ShardInfo) int { return cmp.Compare(a.Shard, b.Shard) })
	slices.SortFunc(message.Subtrees, func(a, b *canopyv1.SubtreeRoute) int { return cmp.Compare(a.Subtree, b.Subtree) })
	slices.SortFunc(message.Services, func(a, b *canopyv1.ServiceInfo) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Id, b.Id))
	})
	return m
}

// Message returns the map as clients get it.
func (m *Map) Message() *canopyv1.PlacementMap { return m.message }

// Cluster returns the cluster id, "" before the first read.
func (m *Map) Cluster() string { return m.message.Cluster }

// Revision grows with each change.
func (m *Map) Revision() uint64 { return m.message.Revision }

// Node returns a node, nil if it is unknown.
func (m *Map) Node(id base.NodeID) *canopyv1.NodeInfo { return m.nodes[id] }

// Nodes returns all nodes by ascending id.
func (m *Map) Nodes() []*canopyv1.NodeInfo { return m.message.Nodes }

// Shard returns a shard, nil if it is unknown. Its holder fields are a hint.
func (m *Map) Shard(id base.ShardID) *canopyv1.ShardInfo { return m.shards[id] }

// Shards returns all shards by ascending id.
func (m *Map) Shards() []*canopyv1.ShardInfo { return m.message.Shards }

// Route returns where a subtree is believed to be, nil if it is unknown.
func (m *Map) Route(id base.SubtreeID) *canopyv1.SubtreeRoute { return m.routes[id] }

// Services returns the live services of a kind.
func (m *Map) Services(kind string) []*canopyv1.ServiceInfo {
	var out []*canopyv1.ServiceInfo
	for _, s := range m.message.Services {
		if s.Kind == kind {
			out = append(out, s)
		}
	}
	return out
}

// DataMap is an immutable copy of the data path's records, each with the
// revision that its next change names.
type DataMap struct {
	Cluster  string
	Revision uint64 // grows with each change
	Pools    map[base.PoolID]Versioned[*canopyv1.Pool]
	PGs      map[PGKey]Versioned[*canopyv1.PlacementGroup]
	Servers  map[base.NodeID]Versioned[*canopyv1.DataServerInfo]
	Scrub    Versioned[*canopyv1.ScrubState] // Value nil: never asked for
	Scrubs   map[PGKey]*canopyv1.ScrubResult
}

// PoolMap returns the map as clients and data servers get it: pools by id with
// their placement groups in order, servers by id. The caller owns it.
func (m *DataMap) PoolMap() *canopyv1.PoolMap {
	out := &canopyv1.PoolMap{Cluster: m.Cluster, Revision: m.Revision, Scrub: proto.CloneOf(m.Scrub.Value)}
	byPool := make(map[base.PoolID]*canopyv1.Pool, len(m.Pools))
	for id, p := range m.Pools {
		pool := proto.CloneOf(p.Value)
		pool.Pgs = nil
		byPool[id] = pool
		out.Pools = append(out.Pools, pool)
	}
	for key, pg := range m.PGs {
		if pool := byPool[key.Pool]; pool != nil {
			pool.Pgs = append(pool.Pgs, proto.CloneOf(pg.Value))
		}
	}
	for _, pool := range out.Pools {
		slices.SortFunc(pool.Pgs, func(a, b *canopyv1.PlacementGroup) int { return cmp.Compare(a.Pg, b.Pg) })
		pool.Scrubbed = m.scrubbed(pool)
	}
	for _, s := range m.Servers {
		out.Servers = append(out.Servers, proto.CloneOf(s.Value))
	}
	slices.SortFunc(out.Pools, func(a, b *canopyv1.Pool) int { return cmp.Compare(a.Pool, b.Pool) })
	slices.SortFunc(out.Servers, func(a, b *canopyv1.DataServerInfo) int { return cmp.Compare(a.Server, b.Server) })
	return out
}

// scrubbed returns the last scrub that finished each of the pool's groups, nil if
// there was none.
func (m *DataMap) scrubbed(pool *canopyv1.Pool) []uint64 {
	if len(m.Scrubs) == 0 {
		return nil
	}
	out := make([]uint64, len(pool.Pgs))
	for i, pg := range pool.Pgs {
		out[i] = m.Scrubs[PGKey{base.PoolID(pool.Pool), base.PGID(pg.Pg)}].GetRun()
	}
	return out
}
