// Package poolmap keeps a process's copy of the pool map: which data servers
// there are, and which placement group has which members under which epoch. It
// is streamed from any layout service and stays usable while none answers.
package poolmap

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// Map is one immutable pool map.
type Map struct {
	message *canopyv1.PoolMap
	pools   map[base.PoolID]*canopyv1.Pool
	servers map[base.NodeID]*canopyv1.DataServerInfo
}

// New indexes a message, which must not change any more. Pools whose placement
// groups are not complete are left out.
func New(message *canopyv1.PoolMap) *Map {
	m := &Map{
		message: message,
		pools:   make(map[base.PoolID]*canopyv1.Pool, len(message.Pools)),
		servers: make(map[base.NodeID]*canopyv1.DataServerInfo, len(message.Servers)),
	}
	for _, p := range message.Pools {
		if complete(p) {
			m.pools[base.PoolID(p.Pool)] = p
		}
	}
	for _, s := range message.Servers {
		m.servers[base.NodeID(s.Server)] = s
	}
	return m
}

func complete(p *canopyv1.Pool) bool {
	for i, pg := range p.Pgs {
		if pg.Pg != uint32(i) || len(pg.Members) == 0 || len(pg.InSync) == 0 {
			return false
		}
	}
	return p.Pool != 0 && len(p.Pgs) > 0
}

// Message returns what the map was made of. Do not change it.
func (m *Map) Message() *canopyv1.PoolMap { return m.message }

// Revision grows with each change.
func (m *Map) Revision() uint64 { return m.message.Revision }

// Cluster returns the cluster's id.
func (m *Map) Cluster() string { return m.message.Cluster }

// Pool returns a pool with its placement groups, nil if it is unknown.
func (m *Map) Pool(id base.PoolID) *canopyv1.Pool { return m.pools[id] }

// PG returns a placement group, nil if it is unknown.
func (m *Map) PG(pool base.PoolID, pg base.PGID) *canopyv1.PlacementGroup {
	p := m.pools[pool]
	if p == nil || int(pg) >= len(p.Pgs) {
		return nil
	}
	return p.Pgs[pg]
}

// Server returns a data server, nil if it is unknown.
func (m *Map) Server(id base.NodeID) *canopyv1.DataServerInfo { return m.servers[id] }

// Primary returns the placement group's primary, 0 for nil.
func Primary(pg *canopyv1.PlacementGroup) base.NodeID {
	if pg == nil || len(pg.InSync) == 0 {
		return 0
	}
	return base.NodeID(pg.InSync[0])
}
