package schema

import (
	"bytes"
	"encoding/binary"

	"github.com/canopyfs/canopy/internal/base"
)

// Kind is the byte behind shard and subtree that says what a key holds. Append
// only. 0xe0 and above belong to replica.go.
type Kind byte

// Kinds under subtree 0.
const (
	KindShard   Kind = 0x01
	KindSession Kind = 0x10
	KindEnded   Kind = 0x11
)

// Kinds under a subtree.
const (
	KindSubtree    Kind = 0x01
	KindCounters   Kind = 0x02
	KindHeader     Kind = 0x10
	KindDentry     Kind = 0x20
	KindInode      Kind = 0x30
	KindOrphan     Kind = 0x40
	KindRelocation Kind = 0x50
	KindResults    Kind = 0x60
	KindAppend     Kind = 0x70
	KindDeletion   Kind = 0x80
	KindCut        Kind = 0x88
	KindLockClient Kind = 0x90
	KindLocked     Kind = 0x91
	KindQuota      Kind = 0x92
	KindNames      Kind = 0x93
	KindPolicy     Kind = 0x98
	KindForward    Kind = 0xa0
	KindSplit      Kind = 0xa2
)

// Parts of what a header, dentry, inode or orphan key addresses.
const (
	PartSelf  byte = 0
	PartXattr byte = 1 // followed by the attribute's name
	PartLock  byte = 2 // followed by the lock's owner
)

const prefixBytes = 17

func prefix(shard base.ShardID, subtree base.SubtreeID, kind Kind, extra int) []byte {
	k := make([]byte, 0, prefixBytes+extra)
	k = binary.BigEndian.AppendUint64(k, uint64(shard))
	k = binary.BigEndian.AppendUint64(k, uint64(subtree))
	return append(k, byte(kind))
}

// key1 and key2 leave room for a part.
func key1(shard base.ShardID, subtree base.SubtreeID, kind Kind, a uint64) []byte {
	return binary.BigEndian.AppendUint64(prefix(shard, subtree, kind, 9), a)
}

func key2(shard base.ShardID, subtree base.SubtreeID, kind Kind, a, b uint64) []byte {
	k := binary.BigEndian.AppendUint64(prefix(shard, subtree, kind, 17), a)
	return binary.BigEndian.AppendUint64(k, b)
}

// ShardRange returns the replicated range [lo, hi) of a shard.
func ShardRange(shard base.ShardID) (lo, hi []byte) {
	return binary.BigEndian.AppendUint64(nil, uint64(shard)), binary.BigEndian.AppendUint64(nil, uint64(shard)+1)
}

// SubtreeRange returns the range [lo, hi) of a subtree within its shard.
func SubtreeRange(shard base.ShardID, subtree base.SubtreeID) (lo, hi []byte) {
	lo, _ = ShardRange(shard)
	hi, _ = ShardRange(shard)
	return binary.BigEndian.AppendUint64(lo, uint64(subtree)), binary.BigEndian.AppendUint64(hi, uint64(subtree)+1)
}

// KindRange returns the range [lo, hi) of one kind of key under a subtree.
func KindRange(shard base.ShardID, subtree base.SubtreeID, kind Kind) (lo, hi []byte) {
	return prefix(shard, subtree, kind, 0), prefix(shard, subtree, kind+1, 0)
}

// ChecksumSkips reports whether the key is left out of a shard's checksum: the
// applied index differs between replicas that hold the same bytes.
func ChecksumSkips(key []byte) bool { return IsAppliedKey(key) }

// ShardKey is the key of the shard's ShardState.
func ShardKey(shard base.ShardID) []byte { return prefix(shard, base.ShardMeta, KindShard, 0) }

// SessionKey is the key of a client's Session at the shard (PROTOCOLS C3).
func SessionKey(shard base.ShardID, client base.ClientID) []byte {
	return key1(shard, base.ShardMeta, KindSession, uint64(client))
}

// EndedKey is the key of what is remembered of a client's ended session.
func EndedKey(shard base.ShardID, client base.ClientID) []byte {
	return key1(shard, base.ShardMeta, KindEnded, uint64(client))
}

// SubtreeKey is the key of a subtree's state.
func SubtreeKey(shard base.ShardID, subtree base.SubtreeID) []byte {
	return prefix(shard, subtree, KindSubtree, 0)
}

// CountersKey is the key of a subtree's Counters.
func CountersKey(shard base.ShardID, subtree base.SubtreeID) []byte {
	return prefix(shard, subtree, KindCounters, 0)
}

// HeaderKey is the key of a directory's Header.
func HeaderKey(shard base.ShardID, subtree base.SubtreeID, dir base.Ino) []byte {
	return append(key1(shard, subtree, KindHeader, uint64(dir)), PartSelf)
}

// DentryKey is the key of the Dentry at a position of a directory.
func DentryKey(shard base.ShardID, subtree base.SubtreeID, dir base.Ino, at base.Cookie) []byte {
	return append(key2(shard, subtree, KindDentry, uint64(dir), uint64(at)), PartSelf)
}

// DentryRange returns the range [lo, hi) of the entries of dir, with all that
// belongs to them, at positions from first to last, both included.
func DentryRange(shard base.ShardID, subtree base.SubtreeID, dir base.Ino, first, last base.Cookie) (lo, hi []byte) {
	return key2(shard, subtree, KindDentry, uint64(dir), uint64(first)),
		key2(shard, subtree, KindDentry, uint64(dir), uint64(last)+1)
}

// LastCookie is the largest position of a listing.
const LastCookie base.Cookie = 1<<63 - 1

// InodeKey is the key of a de-inlined Inode (PROTOCOLS A9).
func InodeKey(shard base.ShardID, subtree base.SubtreeID, ino base.Ino) []byte {
	return append(key1(shard, subtree, KindInode, uint64(ino)), PartSelf)
}

// OrphanKey is the key of an Orphan (PROTOCOLS H2).
func OrphanKey(shard base.ShardID, subtree base.SubtreeID, ino base.Ino) []byte {
	return append(key1(shard, subtree, KindOrphan, uint64(ino)), PartSelf)
}

// RelocationKey is the key of the Relocation of an inode (PROTOCOLS H1).
func RelocationKey(shard base.ShardID, subtree base.SubtreeID, ino base.Ino) []byte {
	return key1(shard, subtree, KindRelocation, uint64(ino))
}

// ResultsKey is the key of the Results of one client that one entry of the log
// made; first is the lowest sequence number in it (PROTOCOLS C2).
func ResultsKey(shard base.ShardID, subtree base.SubtreeID, client base.ClientID, first base.Seq) []byte {
	return key2(shard, subtree, KindResults, uint64(client), uint64(first))
}

// ResultsRange returns the range [lo, hi) of all Results of a client.
func ResultsRange(shard base.ShardID, subtree base.SubtreeID, client base.ClientID) (lo, hi []byte) {
	lo = key1(shard, subtree, KindResults, uint64(client))
	return lo, after(lo)
}

// AppendKey is the key of the Locator of a file with append reservations.
func AppendKey(shard base.ShardID, subtree base.SubtreeID, ino base.Ino) []byte {
	return key1(shard, subtree, KindAppend, uint64(ino))
}

// ForwardKey is the key of the Forward of a directory that was carved out of the
// subtree (PROTOCOLS E7).
func ForwardKey(shard base.ShardID, subtree base.SubtreeID, dir base.Ino) []byte {
	return key1(shard, subtree, KindForward, uint64(dir))
}

// SplitKey is the key that says that a directory of the subtree has been split. It may
// have been merged or removed since: its header tells.
func SplitKey(shard base.ShardID, subtree base.SubtreeID, dir base.Ino) []byte {
	return key1(shard, subtree, KindSplit, uint64(dir))
}

// DeletionKey is the key of a Deletion: data that is to be deleted (PROTOCOLS H3).
func DeletionKey(shard base.ShardID, subtree base.SubtreeID, data base.DataID) []byte {
	return key1(shard, subtree, KindDeletion, uint64(data))
}

// CutKey is the key of the Locator of a file with cuts that data servers may
// not know (PROTOCOLS J1).
func CutKey(shard base.ShardID, subtree base.SubtreeID, ino base.Ino) []byte {
	return key1(shard, subtree, KindCut, uint64(ino))
}

// XattrKey is the key of one extended attribute of the object whose key of
// PartSelf is owner.
func XattrKey(owner []byte, name []byte) []byte {
	k := make([]byte, 0, len(owner)+len(name))
	k = append(k, owner...)
	k[len(k)-1] = PartXattr
	return append(k, name...)
}

// XattrRange returns the range [lo, hi) of all extended attributes of the
// object whose key of PartSelf is owner.
func XattrRange(owner []byte) (lo, hi []byte) {
	lo = append([]byte(nil), owner...)
	lo[len(lo)-1] = PartXattr
	hi = append([]byte(nil), owner...)
	hi[len(hi)-1] = PartXattr + 1
	return lo, hi
}

// XattrName returns the attribute's name in a key of XattrRange(owner).
func XattrName(owner, key []byte) []byte { return key[len(owner):] }

// InoOf returns the inode number (or directory, client, data id) behind the
// prefix of key, and the position behind that where the kind has one.
func InoOf(key []byte) (first, second uint64, ok bool) {
	if len(key) < prefixBytes+8 {
		return 0, 0, false
	}
	first = binary.BigEndian.Uint64(key[prefixBytes:])
	if len(key) >= prefixBytes+16 {
		second = binary.BigEndian.Uint64(key[prefixBytes+8:])
	}
	return first, second, true
}

// SubtreeOf returns the subtree that key belongs to.
func SubtreeOf(key []byte) (base.SubtreeID, bool) {
	if len(key) < prefixBytes-1 {
		return 0, false
	}
	return base.SubtreeID(binary.BigEndian.Uint64(key[8:])), true
}

// after returns the smallest key above all that start with k.
func after(k []byte) []byte {
	h := append([]byte(nil), k...)
	for i := len(h) - 1; i >= 0; i-- {
		if h[i]++; h[i] != 0 {
			return h[:i+1]
		}
	}
	return nil
}

// IsSubtreeKey reports whether key is some SubtreeKey.
func IsSubtreeKey(key []byte) bool {
	return len(key) == prefixBytes && Kind(key[16]) == KindSubtree && binary.BigEndian.Uint64(key[8:]) != 0
}

// IsSelf reports whether a header, dentry, inode or orphan key is of PartSelf.
func IsSelf(key []byte) bool {
	n := prefixBytes + 9
	if len(key) > 16 && Kind(key[16]) == KindDentry {
		n += 8
	}
	return len(key) == n && key[n-1] == PartSelf
}

// XattrOf returns the attribute's name if key is of an xattr of the owner.
func XattrOf(owner, key []byte) (name []byte, ok bool) {
	n := len(owner)
	if n == 0 || len(key) <= n || key[n-1] != PartXattr || !bytes.Equal(key[:n-1], owner[:n-1]) {
		return nil, false
	}
	return key[n:], true
}

// OwnerOf returns the key of PartSelf of what key is a part of, nil if it is no part.
func OwnerOf(key []byte) []byte {
	n := prefixBytes + 9
	switch KindOf(key) {
	case KindDentry:
		n += 8
	case KindHeader, KindInode, KindOrphan:
	default:
		return nil
	}
	if len(key) < n || key[n-1] == PartSelf {
		return nil
	}
	owner := bytes.Clone(key[:n])
	owner[n-1] = PartSelf
	return owner
}
