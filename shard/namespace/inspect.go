package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// The functions below are for the shard's holder. Each scans r in key order and
// calls fn until it returns false; all return an error only when the state cannot
// be read. What fn is given is its own.

// SubtreeInfo is the state of one subtree and its counters.
type SubtreeInfo struct {
	Subtree     base.SubtreeID
	Epoch       base.Epoch
	State       string // "active", "frozen", "importing", "handed-off"
	Root        base.Ino
	Files       uint64 // names that are no directories are counted by inode: links once
	Directories uint64
	Bytes       uint64 // sizes of the files
}

// Subtrees lists the subtrees that the shard knows.
func Subtrees(r shard.Reader, id base.ShardID, fn func(SubtreeInfo) bool) error {
	return fserr.Internal
}

// OrphanInfo is an inode without a name.
type OrphanInfo struct {
	Subtree   base.SubtreeID
	Ino       base.Ino
	SinceNS   int64 // when it lost its last name
	Directory bool
}

// Orphans lists the orphans of a subtree above ino after (PROTOCOLS H2).
func Orphans(r shard.Reader, id base.ShardID, subtree base.SubtreeID, after base.Ino, fn func(OrphanInfo) bool) error {
	return fserr.Internal
}

// RelocationInfo says where an inode went.
type RelocationInfo struct {
	Subtree   base.SubtreeID
	Ino       base.Ino
	SinceNS   int64 // when it last moved
	To        *canopyv1.Place
	ToSubtree base.SubtreeID
}

// Relocations lists the relocations of a subtree above ino after (PROTOCOLS H1).
func Relocations(r shard.Reader, id base.ShardID, subtree base.SubtreeID, after base.Ino, fn func(RelocationInfo) bool) error {
	return fserr.Internal
}

// DeletionInfo is data that is to be deleted.
type DeletionInfo struct {
	Subtree base.SubtreeID
	DataID  base.DataID
	Layout  *canopyv1.Layout
	// SizeBytes bounds where bytes can be; MaxFileSize when a client may have
	// written bytes that it never reported.
	SizeBytes uint64
	SinceNS   int64
}

// Deletions lists the deletion queue of a subtree above data id after (PROTOCOLS H3).
func Deletions(r shard.Reader, id base.ShardID, subtree base.SubtreeID, after base.DataID, fn func(DeletionInfo) bool) error {
	return fserr.Internal
}

// CutInfo is a file with cuts that the data servers may not all know. When they
// do, a CutDoneCommand with Place, DataID and SizeEpoch drops them.
type CutInfo struct {
	Subtree   base.SubtreeID
	Place     *canopyv1.Place
	DataID    base.DataID
	Layout    *canopyv1.Layout
	SizeEpoch uint64
	Cuts      []*canopyv1.Cut
	// OldSizeBytes bounds where bytes can be, as DeletionInfo.SizeBytes does.
	OldSizeBytes uint64
}

// Cuts lists the files of a subtree with cuts, above ino after (PROTOCOLS J1).
func (m *Machine) Cuts(r shard.Reader, subtree base.SubtreeID, after base.Ino, fn func(CutInfo) bool) error {
	return fserr.Internal
}

// SessionInfo is one client's session at the shard.
type SessionInfo struct {
	Client   base.ClientID
	Host     string
	PID      uint32
	Mount    string
	OpenedNS int64
	Floor    base.Seq // lowest sequence number that may be unanswered
}

// Sessions lists the open sessions (PROTOCOLS C3).
func Sessions(r shard.Reader, id base.ShardID, fn func(SessionInfo) bool) error { return fserr.Internal }

// Locate resolves a place in a subtree as operations do: along relocations,
// to orphans and de-inlined inodes. It returns the inode's present place, or an
// error of kind Stale or NotFound.
func (m *Machine) Locate(r shard.Reader, subtree base.SubtreeID, place *canopyv1.Place) (*canopyv1.Place, error) {
	return nil, fserr.Internal
}
