// Package daemon has the commands of the daemons: flags and wiring. Each binary
// of its own (cmd/mds, ...) runs one, and `canopy` has all of them as
// subcommands, so that the code paths are the same.
package daemon
