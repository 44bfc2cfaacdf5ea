// Package clustertest tests what users run: it builds the binaries, starts
// `canopy up` or single daemons as processes on loopback with temporary data
// directories, mounts, kills, and looks at the result from outside. Whatever a
// test starts, it ends by process id; mounts and folders are removed also when
// the test fails.
package clustertest
