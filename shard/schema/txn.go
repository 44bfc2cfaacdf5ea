package schema

import (
	"bytes"
	"encoding/binary"
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// Kinds of transactions over subtrees (PROTOCOLS D).
const (
	KindPrepared Kind = 0xa8 // under a subtree
	KindIntent   Kind = 0xa9
	KindHomeLock Kind = 0xaa
	KindNoMoves  Kind = 0xab
	KindMoveLock Kind = 0xac
	KindDecision Kind = 0x28 // under subtree 0
)

// TxnID names a transaction: its coordinator, the lease epoch in which it began
// and in which alone it can be decided (PROTOCOLS D1), and a number in that.
type TxnID struct {
	Shard  base.ShardID
	Epoch  base.LeaseEpoch
	Number uint64
}

// String returns the id's three numbers.
func (t TxnID) String() string { return fmt.Sprintf("%d.%d.%d", t.Shard, t.Epoch, t.Number) }

// Proto returns the id as a message.
func (t TxnID) Proto() *canopyv1.TxnId {
	return &canopyv1.TxnId{Shard: uint64(t.Shard), Epoch: uint64(t.Epoch), Number: t.Number}
}

// TxnOf returns what m says.
func TxnOf(m *canopyv1.TxnId) TxnID {
	return TxnID{base.ShardID(m.GetShard()), base.LeaseEpoch(m.GetEpoch()), m.GetNumber()}
}

func (t TxnID) appendKey(k []byte) []byte {
	k = binary.BigEndian.AppendUint64(k, uint64(t.Shard))
	k = binary.BigEndian.AppendUint64(k, uint64(t.Epoch))
	return binary.BigEndian.AppendUint64(k, t.Number)
}

func (t TxnID) append(dst []byte) []byte {
	return putU64(putU64(putU64(dst, uint64(t.Shard)), uint64(t.Epoch)), t.Number)
}

func (d *decoder) txn() TxnID {
	return TxnID{base.ShardID(d.u64()), base.LeaseEpoch(d.u64()), d.u64()}
}

// TxnIn returns the transaction in a key of KindPrepared, KindNoMoves or
// KindDecision.
func TxnIn(key []byte) (TxnID, bool) {
	if len(key) != prefixBytes+24 {
		return TxnID{}, false
	}
	k := key[prefixBytes:]
	return TxnID{base.ShardID(binary.BigEndian.Uint64(k)), base.LeaseEpoch(binary.BigEndian.Uint64(k[8:])), binary.BigEndian.Uint64(k[16:])}, true
}

// PreparedKey is the key of what a transaction has prepared in a subtree.
func PreparedKey(shard base.ShardID, subtree base.SubtreeID, t TxnID) []byte {
	return t.appendKey(prefix(shard, subtree, KindPrepared, 24))
}

// IntentKey is the key of the Intent on a name; at is the first position that the
// name can have.
func IntentKey(shard base.ShardID, subtree base.SubtreeID, dir base.Ino, at base.Cookie, name []byte) []byte {
	k := prefix(shard, subtree, KindIntent, 16+len(name))
	k = binary.BigEndian.AppendUint64(k, uint64(dir))
	return append(binary.BigEndian.AppendUint64(k, uint64(at)), name...)
}

// IntentRange returns the range [lo, hi) of the intents on names of dir.
func IntentRange(shard base.ShardID, subtree base.SubtreeID, dir base.Ino) (lo, hi []byte) {
	lo = key1(shard, subtree, KindIntent, uint64(dir))
	return lo, after(lo)
}

// HomeLockKey is the key of the Intent on a directory's header or on a file's record.
func HomeLockKey(shard base.ShardID, subtree base.SubtreeID, ino base.Ino) []byte {
	return key1(shard, subtree, KindHomeLock, uint64(ino))
}

// NoMovesKey is the key of the Intent that keeps directories of the subtree from
// moving within it (PROTOCOLS D6); any number of transactions can have one.
func NoMovesKey(shard base.ShardID, subtree base.SubtreeID, t TxnID) []byte {
	return t.appendKey(prefix(shard, subtree, KindNoMoves, 24))
}

// MoveLockKey is the key of the cluster's one lock of directory moves over subtrees
// (PROTOCOLS D6); it is used in subtree 1 alone.
func MoveLockKey(shard base.ShardID, subtree base.SubtreeID) []byte {
	return prefix(shard, subtree, KindMoveLock, 0)
}

// DecisionKey is the key of a shard's Decision.
func DecisionKey(shard base.ShardID, t TxnID) []byte {
	return t.appendKey(prefix(shard, base.ShardMeta, KindDecision, 24))
}

// Intent is a lock of a transaction (PROTOCOLS D2).
type Intent struct {
	Txn     TxnID
	Closing bool // of a directory: nothing may be made in it (PROTOCOLS D5)
	// Attributes: of a fragment of a split directory: they are about to change, so that
	// nothing may use them here (PROTOCOLS F1).
	Attributes bool
}

// Bits of an intent.
const (
	intentCloses     = 1
	intentAttributes = 2
)

// Append appends the encoding to dst.
func (i *Intent) Append(dst []byte) []byte {
	var bits byte
	if i.Closing {
		bits |= intentCloses
	}
	if i.Attributes {
		bits |= intentAttributes
	}
	return append(i.Txn.append(append(dst, valueVersion)), bits)
}

// DecodeIntent reads what Intent.Append wrote.
func DecodeIntent(b []byte) (*Intent, error) {
	d := decode(b)
	i := &Intent{Txn: d.txn()}
	bits := d.byte()
	i.Closing, i.Attributes = bits&intentCloses != 0, bits&intentAttributes != 0
	return i, d.done("intent")
}

// Prepared lists what a transaction has locked in one subtree.
type Prepared struct {
	SinceNS int64
	Locks   [][]byte // keys, without the shard
}

// Append appends the encoding to dst.
func (p *Prepared) Append(dst []byte) []byte {
	dst = putI64(append(dst, valueVersion), p.SinceNS)
	dst = putU64(dst, uint64(len(p.Locks)))
	for _, k := range p.Locks {
		dst = putBytes(dst, k)
	}
	return dst
}

// DecodePrepared reads what Prepared.Append wrote.
func DecodePrepared(b []byte) (*Prepared, error) {
	d := decode(b)
	p := &Prepared{SinceNS: d.i64()}
	for n := d.count(); n > 0; n-- {
		p.Locks = append(p.Locks, d.bytes())
	}
	return p, d.done("prepared transaction")
}

// Add adds a lock's key, of any shard.
func (p *Prepared) Add(key []byte) { p.Locks = append(p.Locks, bytes.Clone(key[8:])) }

// Has reports whether the key of a lock is listed.
func (p *Prepared) Has(key []byte) bool {
	for _, k := range p.Locks {
		if bytes.Equal(k, key[8:]) {
			return true
		}
	}
	return false
}

// Keys returns the locks' keys in a shard.
func (p *Prepared) Keys(shard base.ShardID) [][]byte {
	keys := make([][]byte, len(p.Locks))
	for i, k := range p.Locks {
		keys[i] = append(binary.BigEndian.AppendUint64(nil, uint64(shard)), k...)
	}
	return keys
}

// Decision is a transaction that is to be committed in other shards (PROTOCOLS D4).
type Decision struct {
	TimeNS int64
	Shares []Share
}

// Share is what one participant has to do: an encoded TxnCommitCommand.
type Share struct {
	Shard   base.ShardID
	Subtree base.SubtreeID
	Commit  []byte
}

// Append appends the encoding to dst.
func (x *Decision) Append(dst []byte) []byte {
	dst = putI64(append(dst, valueVersion), x.TimeNS)
	dst = putU64(dst, uint64(len(x.Shares)))
	for _, s := range x.Shares {
		dst = putBytes(putU64(putU64(dst, uint64(s.Shard)), uint64(s.Subtree)), s.Commit)
	}
	return dst
}

// DecodeDecision reads what Decision.Append wrote.
func DecodeDecision(b []byte) (*Decision, error) {
	d := decode(b)
	x := &Decision{TimeNS: d.i64()}
	for n := d.count(); n > 0; n-- {
		x.Shares = append(x.Shares, Share{base.ShardID(d.u64()), base.SubtreeID(d.u64()), d.bytes()})
	}
	return x, d.done("decision")
}

// String names the participants.
func (x *Decision) String() string {
	s := fmt.Sprintf("time=%d", x.TimeNS)
	for _, p := range x.Shares {
		s += fmt.Sprintf(" %d/%d:%dB", p.Shard, p.Subtree, len(p.Commit))
	}
	return s
}

// String names the locks.
func (p *Prepared) String() string {
	s := fmt.Sprintf("since=%d", p.SinceNS)
	for _, k := range p.Keys(1) {
		s += " " + Format(k)[2:]
	}
	return s
}

// String returns whose it is.
func (i *Intent) String() string {
	switch {
	case i.Closing:
		return i.Txn.String() + " closing"
	case i.Attributes:
		return i.Txn.String() + " attributes"
	}
	return i.Txn.String()
}

// PartSuffix returns what follows the owner in the key of a part; owner is a key
// of PartSelf.
func PartSuffix(owner, key []byte) []byte { return key[len(owner)-1:] }

// KeyOfPart returns the key of the part with this suffix behind another owner.
func KeyOfPart(owner, suffix []byte) []byte {
	return append(bytes.Clone(owner[:len(owner)-1]), suffix...)
}
