// Package loadtest and the packages below it measure a file system's metadata
// and data paths, and what the parts that Canopy is made of can do by
// themselves on the same machine (the floor).
//
//	loadtest          results: what was measured, as text, JSON and a plot
//	loadtest/hist     latency histogram that can be merged and sent over a pipe
//	loadtest/target   what is measured: any directory
//	loadtest/library  the same by Canopy's client library
//	loadtest/meta     mdtest's phases, by threads or processes
//	loadtest/durable  the writer and the checker of kill tests
//	loadtest/history  what clients were answered, and whether it is linearizable
//	loadtest/floor    bare gRPC stream, bare disk
//	loadtest/memfs    a FUSE file system that answers from memory
//	loadtest/bulk     large files
//	loadtest/child    parts that run in processes of their own
//	loadtest/simulate the balancer's policy in a model of a cluster
//	loadtest/proc     CPU time and the machine
//
// Nothing but cmd/loadtest imports them.
package loadtest
