package schema

import (
	"encoding/binary"
	"fmt"

	"github.com/canopyfs/canopy/internal/base"
)

// The keys of this file are the replica's own: where it stands in the Raft log,
// the lease, and the node-local keys under shard 0. Their kinds are 0xe0 and
// above, so that they never meet the kinds of the namespace.
const (
	kindApplied byte = 0xf0
	kindLease   byte = 0xf1

	kindNodeFormat      byte = 0xe0
	kindNodeIdentity    byte = 0xe1
	kindNodeIncarnation byte = 0xe2
	kindNodeReplica     byte = 0xe3
)

func replicaKey(shard base.ShardID, kind byte) []byte {
	k := make([]byte, 0, 25) // room for NodeReplicaKey
	k = binary.BigEndian.AppendUint64(k, uint64(shard))
	k = binary.BigEndian.AppendUint64(k, uint64(base.ShardMeta))
	return append(k, kind)
}

// AppliedKey is the key of the shard's applied index. It lies in the shard's
// range, so that it moves with snapshots, and in no checksum (PROTOCOLS A4).
func AppliedKey(shard base.ShardID) []byte { return replicaKey(shard, kindApplied) }

// LeaseKey is the key of the shard's lease record (PROTOCOLS B1).
func LeaseKey(shard base.ShardID) []byte { return replicaKey(shard, kindLease) }

// IsAppliedKey says whether key is some shard's AppliedKey.
func IsAppliedKey(key []byte) bool { return isReplicaKey(key, kindApplied) }

// IsLeaseKey says whether key is some shard's LeaseKey.
func IsLeaseKey(key []byte) bool { return isReplicaKey(key, kindLease) }

func isReplicaKey(key []byte, kind byte) bool {
	return len(key) == 17 && key[16] == kind && binary.BigEndian.Uint64(key[8:]) == uint64(base.ShardMeta) &&
		binary.BigEndian.Uint64(key) != 0
}

// NodeRange is the range of the node-local keys: all of shard 0.
func NodeRange() (lo, hi []byte) {
	return make([]byte, 8), binary.BigEndian.AppendUint64(nil, 1)
}

// NodeFormatKey is the node-local key of the store's format version.
func NodeFormatKey() []byte { return replicaKey(0, kindNodeFormat) }

// NodeIdentityKey is the node-local key of the cluster and node that the store
// belongs to.
func NodeIdentityKey() []byte { return replicaKey(0, kindNodeIdentity) }

// NodeIncarnationKey is the node-local key of the incarnation, which grows with
// each start (PROTOCOLS A6).
func NodeIncarnationKey() []byte { return replicaKey(0, kindNodeIncarnation) }

// NodeReplicaKey is the node-local key that says which replica of the shard the
// shard's range in this store belongs to (PROTOCOLS A6).
func NodeReplicaKey(shard base.ShardID) []byte {
	return binary.BigEndian.AppendUint64(replicaKey(0, kindNodeReplica), uint64(shard))
}

// EncodeUint64 is the value of the applied index and of the node-local numbers.
func EncodeUint64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// DecodeUint64 reads what EncodeUint64 wrote.
func DecodeUint64(b []byte) (uint64, error) {
	if len(b) != 8 {
		return 0, fmt.Errorf("schema: a number of %d bytes, want 8", len(b))
	}
	return binary.BigEndian.Uint64(b), nil
}

// Lease is the replicated lease record of a shard (PROTOCOLS B1, A2, A3).
type Lease struct {
	Epoch      base.LeaseEpoch // 0: never acquired
	Node       base.NodeID     // the holder
	Replica    base.ReplicaID
	Instance   uint64 // the holder's process start: random
	Renewal    uint64 // grows with each accepted entry, over all epochs
	DurationMS uint64
	Released   bool
	Number     uint64 // of the last accepted entry in the epoch
	TimeNS     int64  // of the last accepted entry: never decreases
}

const leaseBytes = 8*8 + 1

// EncodeLease appends the record's encoding to dst.
func EncodeLease(dst []byte, l Lease) []byte {
	for _, v := range [...]uint64{
		uint64(l.Epoch), uint64(l.Node), uint64(l.Replica), l.Instance, l.Renewal, l.DurationMS, l.Number, uint64(l.TimeNS),
	} {
		dst = binary.BigEndian.AppendUint64(dst, v)
	}
	if l.Released {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// DecodeLease reads what EncodeLease wrote.
func DecodeLease(b []byte) (Lease, error) {
	if len(b) != leaseBytes || b[leaseBytes-1] > 1 {
		return Lease{}, fmt.Errorf("schema: a lease record of %d bytes, want %d", len(b), leaseBytes)
	}
	f := func(i int) uint64 { return binary.BigEndian.Uint64(b[8*i:]) }
	return Lease{
		Epoch: base.LeaseEpoch(f(0)), Node: base.NodeID(f(1)), Replica: base.ReplicaID(f(2)), Instance: f(3),
		Renewal: f(4), DurationMS: f(5), Number: f(6), TimeNS: int64(f(7)), Released: b[leaseBytes-1] == 1,
	}, nil
}
