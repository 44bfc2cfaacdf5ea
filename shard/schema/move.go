package schema

import (
	"fmt"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// Keys of moves of subtrees between shards (PROTOCOLS E). The source keeps a Move
// under the subtree; the target an Import under subtree 0, since all that lies
// under the subtree is thrown away when an import begins anew.
const (
	KindMove   Kind = 0xa1
	KindImport Kind = 0x20
	KindJoin   Kind = 0x21
	KindGone   Kind = 0x22
	KindMended Kind = 0x40
)

// MovePhase is how far a move is. The numbers are those of the API.
type MovePhase byte

// The phases. Append only.
const (
	MoveWalking    MovePhase = 1
	MoveCopying    MovePhase = 2
	MoveFrozen     MovePhase = 3
	MoveHandedOff  MovePhase = 4
	MoveCleaning   MovePhase = 5
	MoveCancelling MovePhase = 6
)

// String returns the phase in words.
func (p MovePhase) String() string {
	switch p {
	case MoveWalking:
		return "walking"
	case MoveCopying:
		return "copying"
	case MoveFrozen:
		return "frozen"
	case MoveHandedOff:
		return "handed-off"
	case MoveCleaning:
		return "cleaning"
	case MoveCancelling:
		return "cancelling"
	}
	return "unknown"
}

// Move is a move as its source has it.
type Move struct {
	Phase   MovePhase
	Attempt uint64         // of the copy; from the shard's counter of subtrees, so it only grows
	Into    base.SubtreeID // the subtree's id at the target: another one for a carve
	Epoch   base.Epoch     // that it has at the target
	Root    base.Ino
	To      base.ShardID
	Batches uint64   // the last batch of the attempt, from the hand-off on
	Cleaned base.Ino // a carve's directories up to here are cleaned
	StartNS int64
	Names   shard.Range // of Root, that move; empty: whatever else says
	Join    bool        // Into has a fragment of Root already
}

// OfNames reports whether a range of names moves.
func (m *Move) OfNames() bool { return m.Names.Hi > 0 }

// ofNames in the first byte of a Move or an Import says that it has what format 5
// adds, at its end.
const ofNames = 0x80

// Append appends the encoding to dst.
func (m *Move) Append(dst []byte) []byte {
	phase := byte(m.Phase)
	if m.OfNames() {
		phase |= ofNames
	}
	dst = append(dst, valueVersion, phase)
	for _, v := range [...]uint64{m.Attempt, uint64(m.Into), uint64(m.Epoch), uint64(m.Root), uint64(m.To), m.Batches, uint64(m.Cleaned)} {
		dst = putU64(dst, v)
	}
	dst = putI64(dst, m.StartNS)
	if m.OfNames() {
		dst = putU64(putU64(append(dst, boolByte(m.Join)), uint64(m.Names.Lo)), uint64(m.Names.Hi))
	}
	return dst
}

// DecodeMove reads what Move.Append wrote.
func DecodeMove(b []byte) (*Move, error) {
	d := decode(b)
	phase := d.byte()
	m := &Move{Phase: MovePhase(phase &^ ofNames), Attempt: d.u64(), Into: base.SubtreeID(d.u64()), Epoch: base.Epoch(d.u64()),
		Root: base.Ino(d.u64()), To: base.ShardID(d.u64()), Batches: d.u64(), Cleaned: base.Ino(d.u64()), StartNS: d.i64()}
	if phase&ofNames != 0 {
		m.Join, m.Names = d.byte() != 0, shard.Range{Lo: d.u32(), Hi: d.u32()}
	}
	return m, d.done("move")
}

// ImportState is what became of an import.
type ImportState byte

// The states. Append only.
const (
	ImportRunning   ImportState = 1
	ImportActive    ImportState = 2
	ImportCancelled ImportState = 3
)

// String returns the state in words.
func (s ImportState) String() string {
	switch s {
	case ImportRunning:
		return "running"
	case ImportActive:
		return "active"
	case ImportCancelled:
		return "cancelled"
	}
	return "unknown"
}

// Import is a move as its target has it (PROTOCOLS E1). It stays when the import
// has ended: what comes late is refused.
type Import struct {
	State   ImportState
	Carve   bool // what comes is counted
	Epoch   base.Epoch
	Attempt uint64
	From    base.ShardID
	Root    base.Ino
	Batch   uint64 // that was applied last
	Counts  Counters
	Names   shard.Range // of Root; empty: a subtree, or directories carved out of one
	Join    bool        // Into has a fragment of Root already
	Into    base.SubtreeID
	Dir     DirCounts
	Header  []byte // of a range that came whole: Root's at the source, encoded
}

// OfNames reports whether a range of names comes.
func (i *Import) OfNames() bool { return i.Names.Hi > 0 }

// DirCounts are what a directory's header counts of a range of its names.
type DirCounts struct{ Entries, Subdirs, Displaced uint64 }

// Append appends the encoding to dst.
func (i *Import) Append(dst []byte) []byte {
	state := byte(i.State)
	if i.OfNames() {
		state |= ofNames
	}
	dst = append(dst, valueVersion, state, boolByte(i.Carve))
	for _, v := range [...]uint64{uint64(i.Epoch), i.Attempt, uint64(i.From), uint64(i.Root), i.Batch, i.Counts.Files, i.Counts.Directories, i.Counts.Bytes} {
		dst = putU64(dst, v)
	}
	if !i.OfNames() {
		return dst
	}
	dst = append(dst, boolByte(i.Join))
	for _, v := range [...]uint64{uint64(i.Names.Lo), uint64(i.Names.Hi), uint64(i.Into), i.Dir.Entries, i.Dir.Subdirs, i.Dir.Displaced} {
		dst = putU64(dst, v)
	}
	return putBytes(dst, i.Header)
}

// DecodeImport reads what Import.Append wrote.
func DecodeImport(b []byte) (*Import, error) {
	d := decode(b)
	state := d.byte()
	i := &Import{State: ImportState(state &^ ofNames), Carve: d.byte() != 0, Epoch: base.Epoch(d.u64()), Attempt: d.u64(),
		From: base.ShardID(d.u64()), Root: base.Ino(d.u64()), Batch: d.u64(), Counts: Counters{d.u64(), d.u64(), d.u64()}}
	if state&ofNames != 0 {
		i.Join, i.Names, i.Into = d.byte() != 0, shard.Range{Lo: d.u32(), Hi: d.u32()}, base.SubtreeID(d.u64())
		i.Dir, i.Header = DirCounts{d.u64(), d.u64(), d.u64()}, d.bytes()
	}
	return i, d.done("import")
}

// String returns the import's fields.
func (i *Import) String() string {
	s := fmt.Sprintf("{%v epoch=%d attempt=%d from=%d root=%d batch=%d carve=%v counts=%+v", i.State, i.Epoch, i.Attempt, i.From, i.Root, i.Batch, i.Carve, i.Counts)
	if i.OfNames() {
		s += fmt.Sprintf(" names=%v into=%d join=%v dir=%+v header=%x", i.Names, i.Into, i.Join, i.Dir, i.Header)
	}
	return s + "}"
}

// MoveKey is the key of the Move of a subtree.
func MoveKey(shard base.ShardID, subtree base.SubtreeID) []byte {
	return prefix(shard, subtree, KindMove, 0)
}

// ImportKey is the key of the Import of a subtree.
func ImportKey(shard base.ShardID, subtree base.SubtreeID) []byte {
	return key1(shard, base.ShardMeta, KindImport, uint64(subtree))
}

// JoinKey is the key of the Import of a range of names that leaves the subtree from
// and joins a fragment which the shard has.
func JoinKey(shard base.ShardID, from base.SubtreeID) []byte {
	return key1(shard, base.ShardMeta, KindJoin, uint64(from))
}

// GoneKey is the key that says that a subtree was at the shard and is no more: its id
// stays taken (PROTOCOLS A7).
func GoneKey(shard base.ShardID, subtree base.SubtreeID) []byte {
	return key1(shard, base.ShardMeta, KindGone, uint64(subtree))
}

// Mended counts the repairs of a subtree's counters, so that none is made twice.
type Mended struct{ Times uint64 }

// Append appends the encoding to dst.
func (m *Mended) Append(dst []byte) []byte { return putU64(append(dst, valueVersion), m.Times) }

// DecodeMended reads what Mended.Append wrote.
func DecodeMended(b []byte) (*Mended, error) {
	d := decode(b)
	m := &Mended{d.u64()}
	return m, d.done("count of repairs")
}

// MendedKey is the key of a subtree's Mended. It stays at the shard.
func MendedKey(shard base.ShardID, subtree base.SubtreeID) []byte {
	return key1(shard, base.ShardMeta, KindMended, uint64(subtree))
}

// KindOf returns the kind of key, 0 if it is too short to have one.
func KindOf(key []byte) Kind {
	if len(key) < prefixBytes {
		return 0
	}
	return Kind(key[prefixBytes-1])
}

// Travels reports whether rows of the kind move with a subtree: all but what says
// how the shard itself stands to it.
func Travels(k Kind) bool { return k > KindSubtree && k != KindMove }

// Suffix is key from its kind on: it is the same on every shard, and under the id
// that a carve gives (PROTOCOLS A8).
func Suffix(key []byte) []byte { return key[prefixBytes-1:] }

// KeyOf is the inverse of Suffix; nil if there is no such key.
func KeyOf(shard base.ShardID, subtree base.SubtreeID, suffix []byte) []byte {
	if len(suffix) == 0 {
		return nil
	}
	return append(prefix(shard, subtree, Kind(suffix[0]), len(suffix)-1), suffix[1:]...)
}

// HeaderRange returns the range [lo, hi) of the header of dir with its xattrs.
func HeaderRange(shard base.ShardID, subtree base.SubtreeID, dir base.Ino) (lo, hi []byte) {
	lo = key1(shard, subtree, KindHeader, uint64(dir))
	return lo, after(lo)
}

// NamesRange returns the range [lo, hi) of all entries of dir.
func NamesRange(shard base.ShardID, subtree base.SubtreeID, dir base.Ino) (lo, hi []byte) {
	lo = key1(shard, subtree, KindDentry, uint64(dir))
	return lo, after(lo)
}
