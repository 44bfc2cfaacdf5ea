package clientfuse

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"

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
}

// notOurs are go-fuse's tests that ask for what a mount does not promise.
var notOurs = map[string]string{
	"Fallocate":           "fallocate(2) answers EOPNOTSUPP: space is not reserved",
	"FallocateKeepSize":   "fallocate(2) answers EOPNOTSUPP: space is not reserved",
	"FcntlFlockLocksFile": "expects a process's own POSIX locks to conflict, which no local file system's do",
}

// TestGoFusePosix runs go-fuse's own suite.
func TestGoFusePosix(t *testing.T) {
	s := serve(t, 1, "consistency=strict")
	for name, run := range posixtest.All {
		t.Run(name, func(t *testing.T) {
			if why := notOurs[name]; why != "" {
				t.Skip(why)
			}
			dir := filepath.Join(s.dirs[0], name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			run(t, dir)
		})
	}
}
