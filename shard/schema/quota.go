package schema

import (
	"fmt"
	"strings"

	"github.com/canopyfs/canopy/internal/base"
)

// Usage is what an account holds. While the account is not counted it is the
// change since it began, and can be negative.
type Usage struct {
	Inodes int64 // files, directories, symlinks and special files
	Bytes  int64 // sizes of files and their reserved appends
	// Crossing are the inodes among them that have a name elsewhere, too.
	Crossing int64
}

// Quota is the account of what lies below a directory, however deep, and its
// bounds. A subtree keeps an account of its own for its part of a directory.
type Quota struct {
	ID        uint64 // never used again
	Counted   bool   // Usage is all that there is; else no bound holds yet
	Tally     bool   // no quota: counts a large directory that is to be moved
	MaxBytes  uint64 // 0: no bound
	MaxInodes uint64 // 0: no bound
	SinceNS   int64  // when it began or was counted
	Usage     Usage
}

const (
	quotaCounted = 1 << iota
	quotaTally
)

// Append appends the encoding to dst.
func (q *Quota) Append(dst []byte) []byte {
	var f byte
	if q.Counted {
		f |= quotaCounted
	}
	if q.Tally {
		f |= quotaTally
	}
	dst = putU64(append(dst, valueVersion, f), q.ID)
	dst = putI64(putU64(putU64(dst, q.MaxBytes), q.MaxInodes), q.SinceNS)
	return putI64(putI64(putI64(dst, q.Usage.Inodes), q.Usage.Bytes), q.Usage.Crossing)
}

// DecodeQuota reads what Quota.Append wrote.
func DecodeQuota(b []byte) (*Quota, error) {
	d := decode(b)
	f := d.byte()
	q := &Quota{Counted: f&quotaCounted != 0, Tally: f&quotaTally != 0, ID: d.u64(), MaxBytes: d.u64(), MaxInodes: d.u64(),
		SinceNS: d.i64(), Usage: Usage{Inodes: d.i64(), Bytes: d.i64(), Crossing: d.i64()}}
	return q, d.done("quota")
}

// Names are the directories in which a de-inlined inode has names, one for each
// name. Without them a quota could not tell what it holds.
type Names struct {
	Dirs []base.Ino
}

// Append appends the encoding to dst.
func (n *Names) Append(dst []byte) []byte {
	dst = putU64(append(dst, valueVersion), uint64(len(n.Dirs)))
	for _, d := range n.Dirs {
		dst = putU64(dst, uint64(d))
	}
	return dst
}

// DecodeNames reads what Names.Append wrote.
func DecodeNames(b []byte) (*Names, error) {
	d := decode(b)
	n := &Names{Dirs: make([]base.Ino, d.count())}
	for i := range n.Dirs {
		n.Dirs[i] = base.Ino(d.u64())
	}
	return n, d.done("names of an inode")
}

// QuotaKey is the key of the Quota of a directory.
func QuotaKey(shard base.ShardID, subtree base.SubtreeID, dir base.Ino) []byte {
	return key1(shard, subtree, KindQuota, uint64(dir))
}

// NamesKey is the key of the Names of a de-inlined inode.
func NamesKey(shard base.ShardID, subtree base.SubtreeID, ino base.Ino) []byte {
	return key1(shard, subtree, KindNames, uint64(ino))
}

// String returns the account in words.
func (q *Quota) String() string {
	s := fmt.Sprintf("id=%d inodes=%d/%d bytes=%d/%d since=%d", q.ID, q.Usage.Inodes, q.MaxInodes, q.Usage.Bytes, q.MaxBytes, q.SinceNS)
	if q.Usage.Crossing != 0 {
		s += fmt.Sprintf(" crossing=%d", q.Usage.Crossing)
	}
	if !q.Counted {
		s += " counting"
	}
	if q.Tally {
		s += " tally"
	}
	return s
}

// String returns the directories.
func (n *Names) String() string {
	var b strings.Builder
	for i, d := range n.Dirs {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "dir=%d", d)
	}
	return b.String()
}
