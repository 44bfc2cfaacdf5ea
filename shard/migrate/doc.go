// Package migrate drives the move of a subtree, or of a part of one, from the shard
// that owns it to another (PROTOCOLS E): what is the next step, which rows travel,
// and in which form. It is pure: the source's log and reads, and the target, are
// behind interfaces, and time is given. The holder of the source runs a Driver; a
// script runs one over two machines in memory.
//
// All that counts is in the source's log, as a schema.Move, and in the target's, as
// a schema.Import. A Driver is memory: it can be thrown away after any step, and the
// next one goes on from the log. What it cannot go on with is a copy, since which
// keys changed under it was in memory, too: it begins a new attempt, and the target
// throws away what the earlier one left (E1). docs/design/0009-migration.md says
// what a crash does in each phase.
//
// Used by mds, and by tests.
package migrate
