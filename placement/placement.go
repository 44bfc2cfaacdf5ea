// Package placement is the placement map: which nodes there are, which shards
// with which replicas, which shard owns which subtree, where layout services
// are, and the pools and placement groups of the data servers. It is stored in
// etcd, of which this package is the only user (placement/embedded runs one
// inside the process).
//
// For subtrees the truth is in the shards' logs: an entry here that is late or
// wrong costs a redirect, never correctness, and is written only under a larger
// epoch (PROTOCOLS E8). For placement groups etcd is the authority: their
// records change by compare-and-set (PROTOCOLS J3).
//
// A Store mirrors all records in memory by one watch. While etcd is away the last
// known map is served; leases and registrations are made anew when it is back.
// Records are protobuf messages as JSON, so that `etcdctl get --prefix /canopy`
// shows them:
//
//	<prefix>/cluster                  the cluster's id and format; created once
//	<prefix>/ids/<kind>               the last id given out of a kind
//	<prefix>/nodes/<node>             NodeInfo: addresses, incarnation (PROTOCOLS A6)
//	<prefix>/live/nodes/<node>        its incarnation, under a lease
//	<prefix>/removed/<node>           NodeInfo of a node that is never to come back (PROTOCOLS A7)
//	<prefix>/bootstrap                who made the shard table, and when
//	<prefix>/shards/<shard>           ShardInfo: replicas, next replica id
//	<prefix>/replica-guard            written with every change of a shard's replicas
//	<prefix>/holders/<shard>          hint: node and lease epoch
//	<prefix>/routes/<subtree>         SubtreeRoute
//	<prefix>/services/<kind>/<id>     ServiceInfo, under a lease
//	<prefix>/election/<kind>/...      leader elections, under leases
//	<prefix>/pools/<pool>             Pool without its placement groups
//	<prefix>/pgs/<pool>/<pg>          PlacementGroup
//	<prefix>/servers/<server>         DataServerInfo
//	<prefix>/secrets/capability       CapabilityRing: who can read it can read and write every file
package placement

import (
	"errors"
	"log/slog"
	"time"

	"github.com/canopyfs/canopy/internal/base"
)

// Format is the version of the records' format. A binary refuses a cluster of a
// newer one.
const Format = 1

// Default settings.
const (
	DefaultPrefix      = "/canopy"
	DefaultLeaseTTL    = 5 * time.Second
	DefaultDialTimeout = 10 * time.Second
)

// Config says which etcd, and how.
type Config struct {
	Endpoints []string
	Prefix    string        // "": DefaultPrefix; clusters that share an etcd need one each
	LeaseTTL  time.Duration // of registrations; whole seconds; 0: DefaultLeaseTTL
	// DialTimeout bounds Open's wait for etcd, and each single request. 0:
	// DefaultDialTimeout.
	DialTimeout time.Duration
	Logger      *slog.Logger
}

// Revision is the modification revision of one record: 0 means that it does not
// exist. Writers pass back what they read (compare-and-set).
type Revision int64

// Versioned is a record with its revision.
type Versioned[T any] struct {
	Value    T
	Revision Revision
}

// ErrConflict is returned by compare-and-set when the record is not at the
// revision that the caller read, or a guard no longer holds: read again.
var ErrConflict = errors.New("placement: the record was changed by somebody else")

// Service kinds.
const LayoutService = "layoutsvc"

// PGKey names one placement group.
type PGKey struct {
	Pool base.PoolID
	PG   base.PGID
}
