// Package mdsctl is the operator's command: it shows what a cluster is made
// of, where a file and its bytes live, and checks that all of it agrees.
//
// It talks to the Cluster, Admin, LayoutService and Data services of the api
// and, for paths, through the client library. It changes nothing but by
// `node drain`. Every command prints a table, or with -o json one JSON value
// with stable field names. The package is for cmd/mdsctl (and for a binary
// that embeds the same commands); nothing else imports it.
package mdsctl
