package posix

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// notOurs are go-fuse's tests that ask for what a mount does not promise:
// Fallocate and FallocateKeepSize for space that is reserved (fallocate(2)
// answers EOPNOTSUPP), FcntlFlockLocksFile for a process's own POSIX locks to
// conflict with each other, which no local file system's do.
var notOurs = map[string]bool{"Fallocate": true, "FallocateKeepSize": true, "FcntlFlockLocksFile": true}

// RunGoFuse runs go-fuse's own suite below dir.
func RunGoFuse(t *testing.T, dir string) {
	for name, run := range posixtest.All {
		if notOurs[name] {
			continue
		}
		t.Run(name, func(t *testing.T) {
			sub := filepath.Join(dir, "gofuse-"+name)
			if err := os.Mkdir(sub, 0o755); err != nil {
				t.Fatal(err)
			}
			run(t, sub)
		})
	}
}
