// Package mdsctl is the operator's command: it shows what a cluster is made
// of, where a file and its bytes live, and checks that all of it agrees.
//
// It asks the Cluster, Admin, Migration, LayoutService and Data services of the api by
// way of client/inspect, and the namespace by the client library. What changes something
// says so, and only begins it: the cluster goes on when the command ends. Every command prints a table, or
// with -o json one JSON value whose field names are stable: fields are added, never
// renamed.
// The package is for cmd/mdsctl (and for a binary that embeds the same
// commands); nothing else imports it.
package mdsctl
