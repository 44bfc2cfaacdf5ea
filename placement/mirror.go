package placement

import (
	"log/slog"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// record is one decoded record and its modification revision.
type record struct {
	message  proto.Message
	revision int64
}

// mirror is the memory copy of all records below a prefix. Its user locks.
type mirror struct {
	prefix  string // with "/" at the end
	log     *slog.Logger
	records map[string]record // by key without prefix
	seen    int64             // the watch has brought everything up to this revision
	// The revisions of the last changes of either part.
	routingRevision int64
	dataRevision    int64
}

func newMirror(prefix string, log *slog.Logger) *mirror {
	return &mirror{prefix: prefix + "/", log: log, records: map[string]record{}}
}

// kindOf returns the first element of a key, and an empty message of its type;
// nil for keys that are not mirrored.
func kindOf(key string) (kind string, message proto.Message) {
	kind, rest, _ := strings.Cut(key, "/")
	switch kind {
	case "cluster":
		return kind, new(canopyv1.PlacementMap)
	case "nodes":
		return kind, new(canopyv1.NodeInfo)
	case "live":
		if strings.HasPrefix(rest, "nodes/") {
			return kind, new(canopyv1.NodeInfo)
		}
	case "shards", "holders":
		return kind, new(canopyv1.ShardInfo)
	case "routes":
		return kind, new(canopyv1.SubtreeRoute)
	case "services":
		return kind, new(canopyv1.ServiceInfo)
	case "pools":
		return kind, new(canopyv1.Pool)
	case "pgs":
		return kind, new(canopyv1.PlacementGroup)
	case "servers":
		return kind, new(canopyv1.DataServerInfo)
	case "scrub":
		return kind, new(canopyv1.ScrubState)
	case "scrubs":
		return kind, new(canopyv1.ScrubResult)
	case "secrets":
		if rest == "capability" {
			return kind, new(canopyv1.CapabilityRing)
		}
	}
	return kind, nil
}

// isData tells whether a kind belongs to the data path.
func isData(kind string) bool {
	switch kind {
	case "pools", "pgs", "servers", "scrub", "scrubs":
		return true
	}
	return false
}

func encode(m proto.Message) []byte {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		panic("placement: a record cannot be encoded: " + err.Error()) // only for invalid UTF-8
	}
	return b
}

// set stores one record; it tells which part it changed.
func (m *mirror) set(key string, value []byte, revision int64) (routing, data bool) {
	kind, message := kindOf(key)
	if message == nil || m.records[key].revision >= revision {
		return false, false
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(value, message); err != nil {
		m.log.Error("a record of the placement map cannot be decoded; it is ignored", "key", key, "error", err)
		return false, false
	}
	m.records[key] = record{message, revision}
	return m.changed(kind, revision)
}

func (m *mirror) changed(kind string, revision int64) (routing, data bool) {
	data = isData(kind) || kind == "cluster"
	if kind == "secrets" {
		return false, false // a part of its own: see Store.Capabilities
	}
	routing = !isData(kind)
	if routing {
		m.routingRevision = max(m.routingRevision, revision)
	}
	if data {
		m.dataRevision = max(m.dataRevision, revision)
	}
	return routing, data
}

// replace makes the mirror what a read at revision brought; own writes newer
// than that stay.
func (m *mirror) replace(kvs []*mvccpb.KeyValue, revision int64) (routing, data bool) {
	if revision < m.seen {
		return false, false
	}
	found := make(map[string]bool, len(kvs))
	note := func(r, d bool) { routing, data = routing || r, data || d }
	for _, kv := range kvs {
		key := strings.TrimPrefix(string(kv.Key), m.prefix)
		found[key] = true
		note(m.set(key, kv.Value, kv.ModRevision))
	}
	for key, r := range m.records {
		if !found[key] && r.revision <= revision {
			delete(m.records, key)
			kind, _ := kindOf(key)
			note(m.changed(kind, revision))
		}
	}
	m.seen = revision
	return routing, data
}

// apply follows the events of one watch response.
func (m *mirror) apply(events []*clientv3.Event, revision int64) (routing, data bool) {
	for _, e := range events {
		if e.Kv.ModRevision <= m.seen {
			continue
		}
		key := strings.TrimPrefix(string(e.Kv.Key), m.prefix)
		var r, d bool
		if e.Type == clientv3.EventTypePut {
			r, d = m.set(key, e.Kv.Value, e.Kv.ModRevision)
		} else if old, ok := m.records[key]; ok && old.revision < e.Kv.ModRevision {
			delete(m.records, key)
			kind, _ := kindOf(key)
			r, d = m.changed(kind, e.Kv.ModRevision)
		}
		routing, data = routing || r, data || d
	}
	if len(events) > 0 {
		m.seen = max(m.seen, events[len(events)-1].Kv.ModRevision)
	}
	return routing, data
}

// wrote shows an own write that the watch has not brought yet.
func (m *mirror) wrote(key string, value []byte, revision int64) (routing, data bool) {
	if revision <= m.seen {
		return false, false
	}
	return m.set(strings.TrimPrefix(key, m.prefix), value, revision)
}

// routing builds the routing map.
func (m *mirror) routing() *Map {
	out := &canopyv1.PlacementMap{Revision: uint64(m.routingRevision)}
	live := map[uint64]*canopyv1.NodeInfo{}
	holders := map[uint64]*canopyv1.ShardInfo{}
	for key, r := range m.records {
		switch message := r.message.(type) {
		case *canopyv1.PlacementMap:
			out.Cluster, out.Format = message.Cluster, message.Format
		case *canopyv1.NodeInfo:
			if strings.HasPrefix(key, "live/") {
				live[message.Node] = message
			} else {
				out.Nodes = append(out.Nodes, proto.CloneOf(message))
			}
		case *canopyv1.ShardInfo:
			if strings.HasPrefix(key, "holders/") {
				holders[message.Shard] = message
			} else {
				out.Shards = append(out.Shards, proto.CloneOf(message))
			}
		case *canopyv1.SubtreeRoute:
			out.Subtrees = append(out.Subtrees, message)
		case *canopyv1.ServiceInfo:
			out.Services = append(out.Services, message)
		}
	}
	for _, n := range out.Nodes {
		now := live[n.Node]
		n.Alive = now != nil && now.Incarnation == n.Incarnation
		n.DiskFull, n.Drained = n.Alive && now.DiskFull, n.Alive && now.Drained
	}
	for _, s := range out.Shards {
		if h := holders[s.Shard]; h != nil {
			s.HolderNode, s.LeaseEpoch = h.HolderNode, h.LeaseEpoch
		}
	}
	return NewMap(out)
}

// dataMap builds the data path's map.
func (m *mirror) dataMap() *DataMap {
	out := &DataMap{
		Revision: uint64(m.dataRevision),
		Pools:    map[base.PoolID]Versioned[*canopyv1.Pool]{},
		PGs:      map[PGKey]Versioned[*canopyv1.PlacementGroup]{},
		Servers:  map[base.NodeID]Versioned[*canopyv1.DataServerInfo]{},
		Scrubs:   map[PGKey]*canopyv1.ScrubResult{},
	}
	for key, r := range m.records {
		at := Revision(r.revision)
		switch message := r.message.(type) {
		case *canopyv1.PlacementMap:
			out.Cluster = message.Cluster
		case *canopyv1.Pool:
			out.Pools[base.PoolID(message.Pool)] = Versioned[*canopyv1.Pool]{message, at}
		case *canopyv1.PlacementGroup:
			if pool, ok := poolOf(key); ok {
				out.PGs[PGKey{pool, base.PGID(message.Pg)}] = Versioned[*canopyv1.PlacementGroup]{message, at}
			}
		case *canopyv1.DataServerInfo:
			out.Servers[base.NodeID(message.Server)] = Versioned[*canopyv1.DataServerInfo]{message, at}
		case *canopyv1.ScrubState:
			out.Scrub = Versioned[*canopyv1.ScrubState]{message, at}
		case *canopyv1.ScrubResult:
			out.Scrubs[PGKey{base.PoolID(message.Pool), base.PGID(message.Pg)}] = message
		}
	}
	return out
}

// poolOf returns the pool in a key pgs/<pool>/<pg>.
func poolOf(key string) (base.PoolID, bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 3 {
		return 0, false
	}
	id, err := strconv.ParseUint(parts[1], 10, 64)
	return base.PoolID(id), err == nil && id != 0
}
