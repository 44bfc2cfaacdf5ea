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
// of the file, and visible to every handle of this client at once. It goes out
// when a block of 1 MiB is full, after a second, when memory runs short, and on
// Flush, Fsync and Close. When one of these has returned without error,
// everything written before it is visible to every other client. Fsync returns
// when it is also durable on all in-sync replicas; so are the file's name and
// attributes, since a metadata operation is durable when it returns. Close makes
// bytes visible, not durable.
//
// GetAttr of a file with unreported bytes shows size = the larger of the
// server's size and the end of this client's bytes, and as mtime and ctime the
// time of the last buffered write if that is later than the server's. A change
// of attributes comes behind the writes that were made before it: times that a
// program sets stay.
//
// Truncation by another client counts as having come before all writes of this
// client that were not yet visible: they go out again behind it, so that what
// fsync acknowledged is there (PROTOCOLS J1). Append takes a range that no
// other append gets (J2); it is atomic and visible when it returns.
//
// A failed background write is reported once to each handle that was open at
// that time, by its next Fsync, Flush or Close, as Linux does. The bytes are
// given up then; the metric canopy_client_lost_bytes_total counts them.
//
// # Split directories
//
// The names of a large directory can lie in several subtrees, by ranges of their hashes.
// The client learns the ranges from answers and asks for each name where it is. What it
// shows of such a directory is of all its fragments together: a GetAttr asks them all, in
// parallel. A listing goes from range to range, and shows each name once that is there
// throughout, whatever splits and merges meanwhile; unless Relaxed > 0 it begins with a
// mark of all fragments together, so that it shows no name without those that were
// acknowledged before that name was asked for (PROTOCOLS F3).
//
// # Retries
//
// The library follows holders of shards through failures and moves by itself
// and repeats what was not answered; a mutation is never executed twice
// (PROTOCOLS C1-C4). How long it tries is the context's business: with neither
// deadline nor cancellation it tries for ever. When a call ends by its context
// after it was sent, the outcome of a mutation is unknown; so it is with kind
// TimedOut, which also says that the client was away for so long that the
// servers ended its session in the middle of the request.
//
// Errors answer to errors.Is with the kinds of package fserr, with the errors
// of io/fs and with syscall.Errno; fserr.KindOf gives the kind.
//
// # Concurrency
//
// Everything is safe for concurrent use. Writers of disjoint ranges of one file
// never wait for each other's I/O.
package client
