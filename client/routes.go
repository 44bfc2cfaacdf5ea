package client

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// routes is the client's copy of the placement map, and what redirects taught
// it since. Wrong or late entries cost a redirect, never correctness.
type routes struct {
	mu      sync.RWMutex
	current *canopyv1.PlacementMap
	subtree map[base.SubtreeID]route
	address map[base.NodeID]string
	shards  map[base.ShardID]*canopyv1.ShardInfo
	changed chan struct{}           // closed and replaced at each change
	hints   map[base.ShardID]target // holders that redirects named, of shards that the map does not know yet
	split   atomic.Bool             // there is more than one subtree
}

type route struct {
	shard base.ShardID
	epoch base.Epoch
}

func newRoutes() *routes {
	return &routes{
		subtree: map[base.SubtreeID]route{},
		address: map[base.NodeID]string{},
		shards:  map[base.ShardID]*canopyv1.ShardInfo{},
		hints:   map[base.ShardID]target{},
		changed: make(chan struct{}),
	}
}

// install takes a map. It refuses one of another cluster and one that is older,
// which a node without etcd may still serve. moved are the subtrees that another shard
// owns than was known.
func (r *routes) install(m *canopyv1.PlacementMap) (installed, foreign bool, moved []base.SubtreeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil {
		if m.Cluster != r.current.Cluster {
			return false, true, nil
		}
		if m.Revision < r.current.Revision {
			return false, false, nil
		}
	}
	r.current = m
	for _, s := range m.Subtrees {
		id, epoch := base.SubtreeID(s.Subtree), base.Epoch(s.Epoch)
		if known, ok := r.subtree[id]; !ok || epoch >= known.epoch {
			if ok && known.shard != base.ShardID(s.Shard) {
				moved = append(moved, id)
			}
			r.subtree[id] = route{base.ShardID(s.Shard), epoch}
		}
	}
	for _, n := range m.Nodes {
		if n.Address != "" {
			r.address[base.NodeID(n.Node)] = n.Address
		}
	}
	clear(r.shards)
	for _, s := range m.Shards {
		r.shards[base.ShardID(s.Shard)] = s
		delete(r.hints, base.ShardID(s.Shard))
	}
	r.notifyLocked()
	return true, false, moved
}

func (r *routes) notifyLocked() {
	r.split.Store(len(r.subtree) > 1)
	close(r.changed)
	r.changed = make(chan struct{})
}

// learn takes what a MOVED answer says. It reports whether that was news.
func (r *routes) learn(red *canopyv1.Redirect) bool {
	if red == nil || red.Subtree == 0 || red.Shard == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	id := base.SubtreeID(red.Subtree)
	to := route{base.ShardID(red.Shard), base.Epoch(red.Epoch)}
	known, ok := r.subtree[id]
	if ok && (to.epoch < known.epoch || to == known) {
		return false
	}
	r.subtree[id] = to
	if red.Node != 0 && red.Address != "" {
		r.address[base.NodeID(red.Node)] = red.Address
		if r.shards[to.shard] == nil {
			r.hints[to.shard] = target{base.NodeID(red.Node), red.Address}
		}
	}
	r.notifyLocked()
	return true
}

// subtrees returns the known subtrees, in order.
func (r *routes) subtrees() []base.SubtreeID {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Sorted(maps.Keys(r.subtree))
}

// oneSubtreeEach returns a subtree of each shard that owns one.
func (r *routes) oneSubtreeEach() map[base.ShardID]base.SubtreeID {
	r.mu.RLock()
	defer r.mu.RUnlock()
	one := map[base.ShardID]base.SubtreeID{}
	for id, to := range r.subtree {
		one[to.shard] = id
	}
	return one
}

// allShards returns the shards of the map, and those that redirects named.
func (r *routes) allShards() []base.ShardID {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := slices.Collect(maps.Keys(r.shards))
	return slices.AppendSeq(all, maps.Keys(r.hints))
}

// find returns where a subtree lives, and a channel that is closed at the next
// change of the map.
func (r *routes) find(id base.SubtreeID) (to route, ok bool, changed <-chan struct{}) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	to, ok = r.subtree[id]
	return to, ok, r.changed
}

// holderHint returns who the map says holds the shard.
func (r *routes) holderHint(shard base.ShardID) (node base.NodeID, address string, epoch base.LeaseEpoch) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := r.shards[shard]
	if s == nil {
		hint := r.hints[shard]
		return hint.node, hint.address, 0
	}
	if s.HolderNode == 0 {
		return 0, "", 0
	}
	node = base.NodeID(s.HolderNode)
	return node, r.address[node], base.LeaseEpoch(s.LeaseEpoch)
}

// replicas returns the nodes that host the shard, those believed alive first.
func (r *routes) replicas(shard base.ShardID) []target {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := r.shards[shard]
	if s == nil {
		return nil
	}
	dead := map[base.NodeID]bool{}
	for _, n := range r.current.GetNodes() {
		if !n.Alive {
			dead[base.NodeID(n.Node)] = true
		}
	}
	var live, rest []target
	for _, rep := range s.Replicas {
		id := base.NodeID(rep.Node)
		t := target{id, r.address[id]}
		switch {
		case t.address == "":
		case dead[id]:
			rest = append(rest, t)
		default:
			live = append(live, t)
		}
	}
	return append(live, rest...)
}

// addresses returns the addresses of all known nodes.
func (r *routes) addresses() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var all []string
	for _, a := range r.address {
		all = append(all, a)
	}
	return all
}

func (r *routes) addressOf(node base.NodeID) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.address[node]
}

func (r *routes) placement() *canopyv1.PlacementMap {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.current
}

// layoutServices returns the addresses of layout services, the leader first.
func (r *routes) layoutServices() []string {
	var leaders, rest []string
	for _, s := range r.placement().GetServices() {
		switch {
		case s.Kind != "layoutsvc" || s.Address == "":
		case s.Leader:
			leaders = append(leaders, s.Address)
		default:
			rest = append(rest, s.Address)
		}
	}
	return append(leaders, rest...)
}
