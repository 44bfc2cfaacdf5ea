// Command loadtest measures file systems: Canopy through a mount or by its
// library, or any other one that is mounted, and what Canopy's parts do by
// themselves on the same machine (the floor).
//
//	loadtest meta      mdtest's phases: mkdir, create, stat, open+close, readdir, rename, unlink, rmdir
//	loadtest list      one large directory: names, and with attributes as ls -l does
//	loadtest data      large files: write with fsync, read back and compare
//	loadtest floor     the floor alone: FUSE file system in memory, bare gRPC stream, bare log, disk
//	loadtest simulate  what a balancer does, in a model of a cluster of thousands of nodes
//	loadtest verify    compare the namespace with the journal of `meta --durable-check`
//	loadtest history   record what clients are answered and check that it is linearizable
//	loadtest check     check such a record again, and what is there now against it
//
// The target is --path DIR, a directory of any file system, or the client
// library: --cluster HOST:PORT[,HOST:PORT...] with --root PATH in the namespace
// (`--library` finds a cluster by CANOPY_CLUSTER or the `canopy up` that runs on
// this machine). A run works in a directory of its own and removes it.
//
// Every report has operations per second, latency quantiles, and CPU seconds
// per 1,000 operations of the load itself, of the mount and of the servers that
// run on this machine. Processes are found through the cluster; --server-pids
// and --mount-pids name them for other file systems.
//
// When the target is Canopy (or with --with-floor), the same run measures the
// floor and prints the ratio: the same calls on a FUSE file system that answers
// from memory for a mount; bare group commit and a bare stream for the library.
//
// For tests that kill servers, `loadtest meta --durable-check --journal FILE`
// makes unique names and writes down what was acknowledged; `loadtest verify
// --journal FILE` then says whether any of it is missing or there twice.
//
// `loadtest history` is for the same: its clients share a few names, and whatever they
// are answered has to be what a linearizable file system can answer.
//
// Exit code 0: all operations succeeded (ratios may miss their aim: they are
// reported). 1: something failed, or verify, history or check
// found a difference.
package main
