package schema

import (
	"github.com/canopyfs/canopy/internal/base"
)

// ShardState is what a shard keeps once.
type ShardState struct {
	Format      uint32
	Cluster     string
	Shard       base.ShardID
	NextIno     uint64 // counter of the next inode number
	NextSubtree base.SubtreeID
	TimeNS      int64 // of the last entry: never decreases (PROTOCOLS A3)
	// LostClientNS is when the last session of a client that was not heard of was
	// ended. A file that is younger has no bytes that nobody reported.
	LostClientNS int64
}

// Append appends the encoding to dst.
func (s *ShardState) Append(dst []byte) []byte {
	dst = append(dst, valueVersion)
	dst = putU64(dst, uint64(s.Format))
	dst = putString(dst, s.Cluster)
	dst = putU64(putU64(putU64(dst, uint64(s.Shard)), s.NextIno), uint64(s.NextSubtree))
	return putI64(putI64(dst, s.TimeNS), s.LostClientNS)
}

// DecodeShardState reads what ShardState.Append wrote.
func DecodeShardState(b []byte) (*ShardState, error) {
	d := decode(b)
	s := &ShardState{Format: d.u32(), Cluster: string(d.bytes()), Shard: base.ShardID(d.u64()), NextIno: d.u64(),
		NextSubtree: base.SubtreeID(d.u64()), TimeNS: d.i64(), LostClientNS: d.i64()}
	return s, d.done("shard state")
}

// OwnState is the state of a subtree at a shard.
type OwnState byte

// The states. Append only.
const (
	Active    OwnState = 1
	Frozen    OwnState = 2
	Importing OwnState = 3
	HandedOff OwnState = 4
	Removed   OwnState = 5 // its root was removed and nothing is left: the id stays taken (PROTOCOLS A7)
)

// String returns the state in words.
func (s OwnState) String() string {
	switch s {
	case Active:
		return "active"
	case Frozen:
		return "frozen"
	case Importing:
		return "importing"
	case HandedOff:
		return "handed-off"
	case Removed:
		return "removed"
	}
	return "unknown"
}

// Subtree is the ownership of a subtree as its shard knows it.
type Subtree struct {
	Epoch   base.Epoch
	State   OwnState
	Root    base.Ino
	ToShard base.ShardID // HandedOff: the new owner, under Epoch
	Quotas  uint64       // accounts in it
	Carve   Carve
	Intents uint64 // transactions that have prepared something in it (PROTOCOLS D2)
	// Hidden counts ranges of names that are stored here and do not count: they went
	// and are not cleaned yet, or they come and are not activated. While there are any,
	// nobody may read a name before it has looked at its directory's fragments.
	Hidden uint64
	Joins  uint64 // ranges of names that come (part of Hidden): it must not move meanwhile
}

// Carve is the part of a subtree that is being made a subtree of its own. Its
// directories are those that have a Forward to Into.
type Carve struct {
	Into base.SubtreeID // 0: there is none
	// Done: it was handed off. The forwards to Into count from then on, before what
	// is still stored here of their directories.
	Done bool
}

// Bits beside the state.
const (
	subtreeHasQuotas = 0x80
	subtreeHasCarve  = 0x40
	subtreeCarveDone = 0x20
	subtreeHasIntent = 0x10
	subtreeHides     = 0x08
	subtreeBits      = subtreeHasQuotas | subtreeHasCarve | subtreeCarveDone | subtreeHasIntent | subtreeHides
)

// Append appends the encoding to dst.
func (s *Subtree) Append(dst []byte) []byte {
	state := byte(s.State)
	if s.Quotas > 0 {
		state |= subtreeHasQuotas
	}
	if s.Carve.Into != 0 {
		state |= subtreeHasCarve
	}
	if s.Carve.Done {
		state |= subtreeCarveDone
	}
	if s.Intents > 0 {
		state |= subtreeHasIntent
	}
	if s.Hidden > 0 {
		state |= subtreeHides
	}
	dst = append(dst, valueVersion, state)
	dst = putU64(putU64(putU64(dst, uint64(s.Epoch)), uint64(s.Root)), uint64(s.ToShard))
	if s.Quotas > 0 {
		dst = putU64(dst, s.Quotas)
	}
	if s.Carve.Into != 0 {
		dst = putU64(dst, uint64(s.Carve.Into))
	}
	if s.Intents > 0 {
		dst = putU64(dst, s.Intents)
	}
	if s.Hidden > 0 {
		dst = putU64(putU64(dst, s.Hidden), s.Joins)
	}
	return dst
}

// DecodeSubtree reads what Subtree.Append wrote.
func DecodeSubtree(b []byte) (*Subtree, error) {
	d := decode(b)
	state := d.byte()
	s := &Subtree{State: OwnState(state &^ subtreeBits), Epoch: base.Epoch(d.u64()), Root: base.Ino(d.u64()), ToShard: base.ShardID(d.u64())}
	if state&subtreeHasQuotas != 0 {
		s.Quotas = d.u64()
	}
	if state&subtreeHasCarve != 0 {
		s.Carve.Into = base.SubtreeID(d.u64())
	}
	s.Carve.Done = state&subtreeCarveDone != 0
	if state&subtreeHasIntent != 0 {
		s.Intents = d.u64()
	}
	if state&subtreeHides != 0 {
		s.Hidden, s.Joins = d.u64(), d.u64()
	}
	return s, d.done("subtree state")
}

// Counters counts what has a name in a subtree.
type Counters struct {
	Files       uint64 // inodes that are no directories
	Directories uint64
	Bytes       uint64 // sizes of regular files
}

// Append appends the encoding to dst.
func (c *Counters) Append(dst []byte) []byte {
	return putU64(putU64(putU64(append(dst, valueVersion), c.Files), c.Directories), c.Bytes)
}

// DecodeCounters reads what Counters.Append wrote.
func DecodeCounters(b []byte) (*Counters, error) {
	d := decode(b)
	c := &Counters{d.u64(), d.u64(), d.u64()}
	return c, d.done("counters record")
}

// Orphan is an inode without a name. A removed directory's header stays where it
// is; its orphan has no Inode.
type Orphan struct {
	SinceNS int64 // when it lost its last name
	Inode   *Inode
}

// Append appends the encoding to dst.
func (o *Orphan) Append(dst []byte) []byte {
	dst = append(dst, valueVersion, boolByte(o.Inode != nil))
	dst = putI64(dst, o.SinceNS)
	if o.Inode != nil {
		dst = o.Inode.append(dst)
	}
	return dst
}

// DecodeOrphan reads what Orphan.Append wrote.
func DecodeOrphan(b []byte) (*Orphan, error) {
	d := decode(b)
	has := d.byte() != 0
	o := &Orphan{SinceNS: d.i64()}
	if has {
		o.Inode = new(Inode)
		d.inode(o.Inode)
	}
	return o, d.done("orphan")
}

// Relocation says where an inode went (PROTOCOLS H1).
type Relocation struct {
	SinceNS int64
	Subtree base.SubtreeID
	Dir     base.Ino // 0: de-inlined in Subtree
	Name    []byte
}

// Append appends the encoding to dst.
func (r *Relocation) Append(dst []byte) []byte {
	dst = putI64(append(dst, valueVersion), r.SinceNS)
	return putBytes(putU64(putU64(dst, uint64(r.Subtree)), uint64(r.Dir)), r.Name)
}

// DecodeRelocation reads what Relocation.Append wrote.
func DecodeRelocation(b []byte) (*Relocation, error) {
	d := decode(b)
	r := &Relocation{SinceNS: d.i64(), Subtree: base.SubtreeID(d.u64()), Dir: base.Ino(d.u64()), Name: d.bytes()}
	return r, d.done("relocation")
}

// Locator says where the inode of a file lives that a worker must come back to.
// It follows every rename, so that it needs no relocation.
type Locator struct {
	Dir  base.Ino // 0: de-inlined or an orphan
	Name []byte
}

// Append appends the encoding to dst.
func (l *Locator) Append(dst []byte) []byte {
	return putBytes(putU64(append(dst, valueVersion), uint64(l.Dir)), l.Name)
}

// DecodeLocator reads what Locator.Append wrote.
func DecodeLocator(b []byte) (*Locator, error) {
	d := decode(b)
	l := &Locator{Dir: base.Ino(d.u64()), Name: d.bytes()}
	return l, d.done("locator")
}

// Deletion is data that no inode names any more (PROTOCOLS H3).
type Deletion struct {
	SinceNS   int64
	SizeBytes uint64 // bytes lie below
	Layout    Layout
}

// Append appends the encoding to dst.
func (x *Deletion) Append(dst []byte) []byte {
	return x.Layout.append(putU64(putI64(append(dst, valueVersion), x.SinceNS), x.SizeBytes))
}

// DecodeDeletion reads what Deletion.Append wrote.
func DecodeDeletion(b []byte) (*Deletion, error) {
	d := decode(b)
	x := &Deletion{SinceNS: d.i64(), SizeBytes: d.u64(), Layout: d.layout()}
	return x, d.done("deletion")
}

// Forward says which subtree a directory was carved into (PROTOCOLS E7), or is
// about to be: see Carve.
type Forward struct {
	Into  base.SubtreeID
	Shard base.ShardID // that took it in, a hint: Into can have moved on
	Epoch base.Epoch   // of Into there
}

// Append appends the encoding to dst.
func (f *Forward) Append(dst []byte) []byte {
	return putU64(putU64(putU64(append(dst, valueVersion), uint64(f.Into)), uint64(f.Shard)), uint64(f.Epoch))
}

// DecodeForward reads what Forward.Append wrote.
func DecodeForward(b []byte) (*Forward, error) {
	d := decode(b)
	f := &Forward{Into: base.SubtreeID(d.u64()), Shard: base.ShardID(d.u64()), Epoch: base.Epoch(d.u64())}
	return f, d.done("forward")
}
