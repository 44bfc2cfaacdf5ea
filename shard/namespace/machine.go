package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// Config says which shard a Machine is of.
type Config struct {
	Shard base.ShardID
	// Hash is the hash of names, nil for shard.NameHash. Another one is for tests
	// of collisions: it changes the format.
	Hash func(name []byte) shard.Hash
}

// Machine is the state machine of one shard. Load and Apply are called by one
// goroutine at a time; Query by any number, also during Apply.
type Machine struct {
	cfg Config
}

// New returns a Machine. Load comes before anything else.
func New(cfg Config) *Machine {
	if cfg.Hash == nil {
		cfg.Hash = shard.NameHash
	}
	return &Machine{cfg: cfg}
}

// Load builds the caches from r: after a start and after a snapshot. An error
// means that the replica is broken.
func (m *Machine) Load(r shard.Reader) error { return fserr.Internal }

// Apply runs encoded Command messages in order at the entry's time and returns
// one encoded Result for each. An error means that the replica is broken. The
// returned slices are the caller's.
func (m *Machine) Apply(w shard.Writer, timeNS int64, commands [][]byte) ([][]byte, error) {
	return nil, fserr.Internal
}

// Query answers a read on r. It is a pure function of r and op.
func (m *Machine) Query(r shard.Reader, op *canopyv1.Op) *canopyv1.Result {
	return &canopyv1.Result{Error: uint32(fserr.Internal)}
}

// IsRead reports whether op is answered by Query; all others go through Apply.
func IsRead(op *canopyv1.Op) bool {
	switch op.GetCall().(type) {
	case *canopyv1.Op_Lookup, *canopyv1.Op_GetAttr, *canopyv1.Op_Readlink, *canopyv1.Op_ReadDir,
		*canopyv1.Op_GetXattr, *canopyv1.Op_ListXattr, *canopyv1.Op_StatFs, *canopyv1.Op_Access, *canopyv1.Op_Parent:
		return true
	}
	return false
}
