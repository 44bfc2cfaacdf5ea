package main

import (
	"os"

	"github.com/canopyfs/canopy/loadtest/proc"
)

// dropIfRoot returns what drops the kernel's caches, nil if this process may
// not.
func dropIfRoot() func() error {
	if os.Geteuid() != 0 {
		return nil
	}
	return proc.DropCaches
}
