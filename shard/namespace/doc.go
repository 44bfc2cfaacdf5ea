// Package namespace is the state machine of one shard: what each operation of
// the namespace does to the shard's keys, and how each is answered. It is pure:
// no clock, no randomness, no I/O beyond the shard.Reader and shard.Writer that it
// is given, no goroutine. DESIGN.md beside it shows what each operation writes.
//
// raftgroup drives a Machine: Load, then Apply entry by entry. mds asks Query,
// concurrently, each call on a Reader of its own. A business failure is a Result
// with an fserr.Kind and changes nothing; an error from Apply or Load means that
// this replica is broken.
package namespace
