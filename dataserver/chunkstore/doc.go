// Package chunkstore keeps columns as files with a CRC-32C per block, so that
// damaged bytes are never returned as good ones. It is the only place that
// touches the disk of a data server; it knows nothing of replication.
//
// A directory holds
//
//	LOCK                        flock of the process that has it open
//	FORMAT                      JSON: format version, cluster, server, incarnation, boot, clean
//	inflight                    memory-mapped: the block ranges being written now
//	tombstones                  log of deleted data ids
//	pgs/<pool>.<pg>/<xx>/<data id>.<component>.<column>   one column, hex; xx is the same for data ids in a row
//
// A column file begins with a page that has a header and the checksums of the
// first 256 blocks; then come those blocks; then groups of one page of checksums
// and the 512 blocks that they are of. A checksum entry has two CRCs: that of the
// block as it is (cur) and as it was before the last write (prev); 0 means hole.
//
// A write sets the entries, then the data. Killed between, the block still
// matches prev: the in-flight file names the ranges to look at, and Open sets
// those entries right. After a crash of the machine anything not synced may be
// there in part: Suspect is then true, checksums are taken from the data where
// they are compared with a replica's, and a block that matches only prev is
// taken as what it was before. A block that matches neither is an error of kind
// IO, never returned.
//
// A punch sets the entries to (0, old), syncs, and gives the data's space back; a
// write to a part of such a block makes the rest zeros first, since after a crash
// the old data may be there. A reservation makes the data zeros with space, then
// sets the entries to the checksum of zeros.
//
// All methods are safe for concurrent use. Writes to different blocks of one
// column run in parallel. Lock order: column range, then Store.mu.
package chunkstore
