// Package store keeps the state of all shard replicas of one node in one Pebble
// database. It is the only user of Pebble on the metadata side; raftgroup uses
// it by an interface, and mds joins the two.
//
// Pebble's WAL is off: the Raft log is the log. What is committed is visible at
// once, and durable after a flush, in order: after a crash the store holds a
// prefix of what was committed, and each batch carries the applied index of its
// shard, so that the Raft log replays just the rest (PROTOCOLS A4).
//
// One flusher serves all shards (PROTOCOLS A5). A whole range is replaced only
// by an ingest after a flush (A4). The store carries the cluster and node that
// it belongs to, a format version, and an incarnation that grows with each open
// (A6).
package store
