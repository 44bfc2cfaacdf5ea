// Package base holds the typed identifiers that every part of Canopy shares.
//
// Ids are distinct types so that a shard id cannot be passed where a subtree
// id is meant. Zero is never a valid id. For every id, String and the matching
// Parse function agree. Ids are never re-used (PROTOCOLS A7).
package base

import (
	"fmt"
	"strconv"
)

// Ino is an inode number: unique in the cluster for ever. The upper 20 bits
// name the shard that allocated it (only as a name; the inode may since live
// elsewhere), the lower 44 are that shard's counter.
type Ino uint64

// RootIno is the inode number of "/". It belongs to no shard's counter.
const RootIno Ino = 1

// InoCounterBits is the width of the per-shard counter in an Ino.
const InoCounterBits = 44

// MaxShard is the largest shard id: below 2^19, so that inode numbers stay
// positive as signed 64-bit integers (FUSE K16).
const MaxShard ShardID = 1<<19 - 1

// NewIno returns the inode number with the given counter, allocated by shard.
func NewIno(shard ShardID, counter uint64) Ino {
	return Ino(uint64(shard)<<InoCounterBits | counter&(1<<InoCounterBits-1))
}

// Shard returns the shard that allocated the number, zero for the root.
func (i Ino) Shard() ShardID { return ShardID(i >> InoCounterBits) }

// String returns the decimal form that stat(1) shows.
func (i Ino) String() string { return strconv.FormatUint(uint64(i), 10) }

// ShardID names one Raft group. Dense, from 1.
type ShardID uint64

// SubtreeID names one subtree. Subtree 1 is rooted at "/".
type SubtreeID uint64

// RootSubtree is the subtree rooted at "/".
const RootSubtree SubtreeID = 1

// ShardMeta is the pseudo subtree under which a shard keeps what belongs to
// the shard itself: counters, lease, sessions. It sorts before all subtrees.
const ShardMeta SubtreeID = 0

// NodeID names one metadata node, data server or layout service instance
// within its own kind. From 1.
type NodeID uint64

// ReplicaID names one replica of one shard. Never re-used within a shard.
type ReplicaID uint64

// ClientID names one client process start. Random.
type ClientID uint64

// Epoch is a version of ownership (of a subtree or a PG). It only grows.
type Epoch uint64

// LeaseEpoch numbers the terms of a shard's lease. It only grows.
type LeaseEpoch uint64

// DataID names a file's bytes on the data servers. Normally the Ino of the
// file that they were written for.
type DataID uint64

// PoolID names a pool of placement groups.
type PoolID uint64

// PGID names one placement group within a pool, from 0.
type PGID uint32

// Seq is a client's request sequence number, over all shards. From 1.
type Seq uint64

// Cookie is a position in a directory listing: the 63-bit hash of PROTOCOLS F2
// or one of the three fixed positions below.
type Cookie uint64

// The fixed listing positions. A cookie names the entry that was delivered
// last; listing continues behind it.
const (
	CookieStart  Cookie = 0
	CookieDot    Cookie = 1
	CookieDotDot Cookie = 2
)

func parse(kind, s string) (uint64, error) {
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil || v == 0 {
		return 0, fmt.Errorf("%q is not a valid %s: want a positive decimal number", s, kind)
	}
	return v, nil
}

// ParseIno parses what Ino.String printed.
func ParseIno(s string) (Ino, error) { v, err := parse("inode number", s); return Ino(v), err }

// ParseShardID parses what ShardID.String printed.
func ParseShardID(s string) (ShardID, error) {
	v, err := parse("shard id", s)
	if err == nil && ShardID(v) > MaxShard {
		return 0, fmt.Errorf("%q is not a valid shard id: the largest is %d", s, uint64(MaxShard))
	}
	return ShardID(v), err
}

// ParseSubtreeID parses what SubtreeID.String printed.
func ParseSubtreeID(s string) (SubtreeID, error) {
	v, err := parse("subtree id", s)
	return SubtreeID(v), err
}

// ParseNodeID parses what NodeID.String printed.
func ParseNodeID(s string) (NodeID, error) { v, err := parse("node id", s); return NodeID(v), err }

// ParseClientID parses what ClientID.String printed.
func ParseClientID(s string) (ClientID, error) {
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil || v == 0 {
		return 0, fmt.Errorf("%q is not a valid client id: want up to 16 hexadecimal digits", s)
	}
	return ClientID(v), nil
}

func (i ShardID) String() string    { return strconv.FormatUint(uint64(i), 10) }
func (i SubtreeID) String() string  { return strconv.FormatUint(uint64(i), 10) }
func (i NodeID) String() string     { return strconv.FormatUint(uint64(i), 10) }
func (i ReplicaID) String() string  { return strconv.FormatUint(uint64(i), 10) }
func (i ClientID) String() string   { return fmt.Sprintf("%016x", uint64(i)) }
func (i Epoch) String() string      { return strconv.FormatUint(uint64(i), 10) }
func (i LeaseEpoch) String() string { return strconv.FormatUint(uint64(i), 10) }
func (i DataID) String() string     { return strconv.FormatUint(uint64(i), 10) }
func (i PoolID) String() string     { return strconv.FormatUint(uint64(i), 10) }
