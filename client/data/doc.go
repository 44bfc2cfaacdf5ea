// Package data is the client's side of the data path: it keeps the pool map and
// connections to data servers, maps a file's bytes to columns, and moves them.
// The metadata service is not involved (DESIGN 8): a File is all that a call
// needs.
//
// What is retried inside, until the caller's context ends: a placement group's
// old epoch (after a new pool map), a server that is not ready, a connection
// that broke. A repeated write carries the same (client, incarnation, sequence),
// so that a delayed first copy of it can never overwrite a later write
// (PROTOCOLS J3). A capability that is refused (PROTOCOLS J4) is replaced by one that
// File.Access gets. What is not retried: a size epoch that ended (kind OldEpoch,
// PROTOCOLS J1), NoSpace, IO, Fenced.
//
// All methods are safe for concurrent use.
package data
