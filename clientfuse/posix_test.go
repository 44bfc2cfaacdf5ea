package clientfuse

import (
	"testing"

	"github.com/canopyfs/canopy/clientfuse/posix"
)

func TestPosix(t *testing.T) {
	for _, options := range []string{"consistency=strict", "consistency=relaxed=1s"} {
		t.Run(options, func(t *testing.T) {
			s := serve(t, 1, options)
			posix.Run(t, s.dirs[0])
		})
	}
}

func TestPosixAcrossMounts(t *testing.T) {
	s := serve(t, 2, "consistency=strict")
	posix.RunCrossMount(t, s.dirs[0], s.dirs[1])
	posix.RunLocks(t, s.dirs[0], s.dirs[1], false, false)
}

// TestGoFusePosix runs go-fuse's own suite.
func TestGoFusePosix(t *testing.T) {
	s := serve(t, 1, "consistency=strict")
	posix.RunGoFuse(t, s.dirs[0])
}
