package namespace

import (
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// Finding is a violated invariant of DESIGN section 10.
type Finding struct {
	Invariant string // number in DESIGN section 10
	Object    string // what it is about, e.g. "inode 17592186044417"
	Problem   string
}

// Summary is what Check looked at.
type Summary struct {
	Files, Directories, Orphans, Bytes uint64
	Problems                           uint64
}

// Check verifies invariants 2, 3 and 6 (the shard's part) over the whole shard
// and calls report for each violation. Its memory grows with directories, hard
// links and orphans, not with files. An error means that the state cannot be read.
func (m *Machine) Check(r shard.Reader, report func(Finding)) (Summary, error) {
	return Summary{}, fserr.Internal
}
