// Package raftgroup runs shards as Raft groups. It is the only user of
// Dragonboat: one Host per node, one Group per shard replica. It knows entries,
// the lease, snapshots and checksums; what commands mean is the Machine's.
//
// Invariants (DESIGN.md beside this file explains them):
//   - entries of a lease epoch are applied in the order of their numbers, each
//     once (PROTOCOLS A2), at times that never decrease (A3);
//   - each batch carries the applied index (A4);
//   - at any moment at most one replica of a shard answers reads, and it has
//     applied every acknowledged command (B1-B6).
//
// mds starts hosts and groups, gives them a Machine and a Store, and sends them
// commands and reads.
package raftgroup
