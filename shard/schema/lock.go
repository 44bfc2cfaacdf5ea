package schema

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/canopyfs/canopy/internal/base"
)

// LockKind tells the two kinds of file locks apart, which do not know of each
// other.
type LockKind byte

// The kinds. Append only.
const (
	LockPOSIX LockKind = 1 // fcntl, also of open file descriptions
	LockFlock LockKind = 2
)

// String returns the kind as people know it.
func (k LockKind) String() string {
	switch k {
	case LockPOSIX:
		return "posix"
	case LockFlock:
		return "flock"
	}
	return "unknown"
}

// LockOwner is who holds locks: a process or an open file of one client.
type LockOwner struct {
	Kind   LockKind
	Client base.ClientID
	Owner  uint64
}

// LockEnd is the last byte of a lock that reaches to the end of every file.
const LockEnd uint64 = 1<<63 - 1

// LockRange is one locked range.
type LockRange struct {
	Start, Last uint64 // first and last byte
	Exclusive   bool
	PID         uint32
	Handle      uint64 // the open file that it was taken through
}

// meets reports whether the ranges have a byte in common.
func (r LockRange) meets(o LockRange) bool { return r.Start <= o.Last && o.Start <= r.Last }

// Locks are the ranges that one owner has locked in one file, ascending and
// apart. Of neighbours that say the same there is one.
type Locks struct {
	Ranges []LockRange
}

// Conflict returns the first range that keeps another owner from locking r.
func (l *Locks) Conflict(r LockRange) (LockRange, bool) {
	for i, o := range l.Ranges {
		if !o.meets(r) || !o.Exclusive && !r.Exclusive {
			continue
		}
		// What follows without a gap is one lock for who asks.
		for _, next := range l.Ranges[i+1:] {
			if next.Start != o.Last+1 || next.Exclusive != o.Exclusive {
				break
			}
			o.Last = next.Last
		}
		return o, true
	}
	return LockRange{}, false
}

// Clear gives back what lies from start to last.
func (l *Locks) Clear(start, last uint64) {
	var kept []LockRange
	for _, o := range l.Ranges {
		if !o.meets(LockRange{Start: start, Last: last}) {
			kept = append(kept, o)
			continue
		}
		if o.Start < start {
			left := o
			left.Last = start - 1
			kept = append(kept, left)
		}
		if o.Last > last {
			right := o
			right.Start = last + 1
			kept = append(kept, right)
		}
	}
	l.Ranges = kept
}

// Set locks r, whatever the owner had there before.
func (l *Locks) Set(r LockRange) {
	l.Clear(r.Start, r.Last)
	i, _ := slices.BinarySearchFunc(l.Ranges, r.Start, func(o LockRange, start uint64) int {
		if o.Start < start {
			return -1
		}
		return 1
	})
	l.Ranges = slices.Insert(l.Ranges, i, r)
	if i+1 < len(l.Ranges) && joins(r, l.Ranges[i+1]) {
		l.Ranges[i].Last = l.Ranges[i+1].Last
		l.Ranges = slices.Delete(l.Ranges, i+1, i+2)
	}
	if i > 0 && joins(l.Ranges[i-1], l.Ranges[i]) {
		l.Ranges[i-1].Last = l.Ranges[i].Last
		l.Ranges = slices.Delete(l.Ranges, i, i+1)
	}
}

// joins reports whether two neighbours say the same.
func joins(a, b LockRange) bool {
	return a.Last+1 == b.Start && a.Exclusive == b.Exclusive && a.PID == b.PID && a.Handle == b.Handle
}

// Drop gives back what was taken through an open file.
func (l *Locks) Drop(handle uint64) {
	l.Ranges = slices.DeleteFunc(l.Ranges, func(r LockRange) bool { return r.Handle == handle })
}

// Append appends the encoding to dst.
func (l *Locks) Append(dst []byte) []byte {
	dst = putU64(append(dst, valueVersion), uint64(len(l.Ranges)))
	for _, r := range l.Ranges {
		dst = append(putU64(putU64(dst, r.Start), r.Last-r.Start), boolByte(r.Exclusive))
		dst = putU64(putU64(dst, uint64(r.PID)), r.Handle)
	}
	return dst
}

// DecodeLocks reads what Locks.Append wrote.
func DecodeLocks(b []byte) (*Locks, error) {
	d := decode(b)
	l := &Locks{}
	if n := d.count(); n > 0 {
		l.Ranges = make([]LockRange, n)
		for i := range l.Ranges {
			r := &l.Ranges[i]
			r.Start = d.u64()
			r.Last = r.Start + d.u64()
			r.Exclusive, r.PID, r.Handle = d.byte() != 0, d.u32(), d.u64()
			if r.Last < r.Start || r.Last > LockEnd || i > 0 && r.Start <= l.Ranges[i-1].Last {
				d.fail()
			}
		}
	}
	return l, d.done("lock record")
}

// Empty is the value of a key that says all.
type Empty struct{}

// Append appends the encoding to dst.
func (Empty) Append(dst []byte) []byte { return append(dst, valueVersion) }

// DecodeEmpty reads what Empty.Append wrote.
func DecodeEmpty(b []byte) (*Empty, error) { return &Empty{}, decode(b).done("mark") }

const lockSuffixBytes = 17

// LockKey is the key of the Locks that an owner has in the file whose key of
// PartSelf is file.
func LockKey(file []byte, o LockOwner) []byte {
	k := make([]byte, 0, len(file)+lockSuffixBytes)
	k = append(k, file...)
	k[len(k)-1] = PartLock
	k = append(k, byte(o.Kind))
	k = binary.BigEndian.AppendUint64(k, uint64(o.Client))
	return binary.BigEndian.AppendUint64(k, o.Owner)
}

// LockRangeOf returns the key range [lo, hi) of all Locks in the file whose key
// of PartSelf is file.
func LockRangeOf(file []byte) (lo, hi []byte) { return partRange(file, PartLock, PartLock+1) }

// PartsRange returns the key range [lo, hi) of all that belongs to the object
// whose key of PartSelf is owner, but for that key: it moves with it.
func PartsRange(owner []byte) (lo, hi []byte) { return partRange(owner, PartXattr, PartLock+1) }

func partRange(owner []byte, from, to byte) (lo, hi []byte) {
	lo, hi = bytes.Clone(owner), bytes.Clone(owner)
	lo[len(lo)-1], hi[len(hi)-1] = from, to
	return lo, hi
}

// PartKey is key, of PartsRange(from), behind the owner to instead.
func PartKey(from, to, key []byte) []byte {
	return append(append(make([]byte, 0, len(to)+len(key)-len(from)), to[:len(to)-1]...), key[len(from)-1:]...)
}

// LockOf returns who holds the Locks at key, if it is of a lock of the file.
func LockOf(file, key []byte) (o LockOwner, ok bool) {
	n := len(file)
	if n == 0 || len(key) != n+lockSuffixBytes || key[n-1] != PartLock || !bytes.Equal(key[:n-1], file[:n-1]) {
		return o, false
	}
	return lockOwner(key[n:]), true
}

func lockOwner(suffix []byte) LockOwner {
	return LockOwner{LockKind(suffix[0]), base.ClientID(binary.BigEndian.Uint64(suffix[1:])), binary.BigEndian.Uint64(suffix[9:])}
}

// LockClientKey says that a client has locks in an inode.
func LockClientKey(shard base.ShardID, subtree base.SubtreeID, client base.ClientID, ino base.Ino) []byte {
	return key2(shard, subtree, KindLockClient, uint64(client), uint64(ino))
}

// LockClientRange returns the range [lo, hi) of a client's LockClientKeys.
func LockClientRange(shard base.ShardID, subtree base.SubtreeID, client base.ClientID) (lo, hi []byte) {
	lo = key1(shard, subtree, KindLockClient, uint64(client))
	return lo, after(lo)
}

// LockedKey is the key of the Locator of a file with locks.
func LockedKey(shard base.ShardID, subtree base.SubtreeID, ino base.Ino) []byte {
	return key1(shard, subtree, KindLocked, uint64(ino))
}
