// Package client is Canopy's client library: what mounts, tools and programs
// use to reach a cluster.
//
// # Two levels
//
// [Client] has the operations of a file system by inode: Lookup, GetAttr,
// Create, Rename and so on, with *[Inode] references, the way a kernel asks.
// [Client.FS] gives the same by path, close to package os, for programs.
// Both share open files, buffers and caches.
//
// # What another client sees
//
// Names and attributes: with Config.Relaxed = 0 ("strict") every call asks the
// server, so what a call returns was true at some moment between its start and
// its return. With Relaxed > 0 attributes and positive lookups may be up to
// that old; the client's own changes are seen at once.
//
// Bytes: a write is buffered in this client's memory, shared by all its handles
// of the file, and visible to every handle of this client at once. When Flush,
// Fsync or Close has returned without error, everything written before it is
// visible to every other client. Fsync returns when it is also durable on all
// in-sync replicas, and so are the file's name and attributes: a metadata
// operation is durable when it returns. Close makes bytes visible, not durable.
//
// GetAttr of a file with unreported bytes shows size = the larger of the
// server's size and the end of this client's buffered bytes, and as mtime and
// ctime the time of the last buffered write if that is later than the server's.
//
// A failed background write is reported once to each handle that was open at
// that time, by its next Fsync, Flush or Close, as Linux does.
//
// # Retries
//
// The library follows holders of shards through failures and moves by itself
// and repeats what was not answered; a mutation is never executed twice
// (PROTOCOLS C1-C4). How long it tries is the context's business: with neither
// deadline nor cancellation it tries for ever. When a call ends by its context
// after it was sent, the outcome of a mutation is unknown.
//
// Errors answer to errors.Is with the kinds of package fserr, with the errors
// of io/fs and with syscall.Errno; fserr.KindOf gives the kind.
//
// # Concurrency
//
// Everything is safe for concurrent use. Writers of disjoint ranges of one file
// never wait for each other's I/O.
package client
