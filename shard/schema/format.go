package schema

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/canopyfs/canopy/internal/base"
)

var kindNames = map[Kind]string{
	KindCounters: "counters", KindHeader: "header", KindDentry: "dentry", KindInode: "inode", KindOrphan: "orphan",
	KindRelocation: "relocation", KindResults: "results", KindAppend: "append", KindDeletion: "deletion", KindCut: "cut",
	KindLockClient: "lock-of", KindLocked: "locked", KindQuota: "quota", KindNames: "names",
	KindPolicy: "policy", KindForward: "forward", KindMove: "move", KindSplit: "split",
	KindSubtree:  "subtree",
	KindPrepared: "prepared", KindIntent: "intent", KindHomeLock: "home-lock", KindNoMoves: "no-moves", KindMoveLock: "move-lock",
}

var shardKindNames = map[Kind]string{
	KindShard: "shard", KindSession: "session", KindEnded: "ended", KindImport: "import", KindJoin: "join", KindGone: "gone", KindMended: "mended", KindDecision: "decision",
	Kind(kindApplied): "applied", Kind(kindLease): "lease",
}

// Format returns the key in words for people: shard, subtree, kind and what
// follows, e.g. "1/1/dentry dir=1 at=2f3b5c01a9400" or "1/-/session 00000000000000a1".
// Any bytes are accepted; what is no key of this package is shown as hex.
func Format(key []byte) string {
	if len(key) < prefixBytes {
		return fmt.Sprintf("?%x", key)
	}
	id, subtree, kind := binary.BigEndian.Uint64(key), binary.BigEndian.Uint64(key[8:]), Kind(key[16])
	rest := key[prefixBytes:]
	var b strings.Builder
	b.WriteString(strconv.FormatUint(id, 10))
	names := kindNames
	if subtree == uint64(base.ShardMeta) {
		b.WriteString("/-/")
		names = shardKindNames
	} else {
		fmt.Fprintf(&b, "/%d/", subtree)
	}
	name, known := names[kind]
	if id == 0 || !known {
		fmt.Fprintf(&b, "%02x %x", byte(kind), rest)
		return strings.TrimSuffix(b.String(), " ")
	}
	b.WriteString(name)
	b.WriteString(formatRest(subtree == uint64(base.ShardMeta), kind, rest))
	return b.String()
}

func formatRest(ofShard bool, kind Kind, rest []byte) string {
	if len(rest) == 0 {
		return ""
	}
	if len(rest) < 8 {
		return fmt.Sprintf(" ?%x", rest)
	}
	n := binary.BigEndian.Uint64(rest)
	tail := rest[8:]
	if t, ok := TxnIn(append(make([]byte, prefixBytes), rest...)); ok && (ofShard || kind == KindPrepared || kind == KindNoMoves) {
		return " " + t.String()
	}
	switch {
	case ofShard && (kind == KindImport || kind == KindJoin || kind == KindGone || kind == KindMended):
		return fmt.Sprintf(" %d%s", n, formatTail(tail))
	case kind == KindIntent && len(tail) >= 8:
		return fmt.Sprintf(" dir=%d at=%x %q", n, binary.BigEndian.Uint64(tail), tail[8:])
	case ofShard:
		return fmt.Sprintf(" %v%s", base.ClientID(n), formatTail(tail))
	case kind == KindLockClient && len(tail) == 8:
		return fmt.Sprintf(" %v ino=%d", base.ClientID(n), binary.BigEndian.Uint64(tail))
	case kind == KindResults && len(tail) == 8:
		return fmt.Sprintf(" %v seq=%d", base.ClientID(n), binary.BigEndian.Uint64(tail))
	case kind == KindDentry && len(tail) >= 9:
		return fmt.Sprintf(" dir=%d at=%x%s", n, binary.BigEndian.Uint64(tail), formatPart(tail[8:]))
	case kind == KindHeader || kind == KindInode || kind == KindOrphan:
		return fmt.Sprintf(" %d%s", n, formatPart(tail))
	}
	return fmt.Sprintf(" %d%s", n, formatTail(tail))
}

func formatPart(b []byte) string {
	switch {
	case len(b) == 1 && b[0] == PartSelf:
		return ""
	case len(b) > 1 && b[0] == PartXattr:
		return fmt.Sprintf(" xattr %q", b[1:])
	case len(b) == 1+lockSuffixBytes && b[0] == PartLock:
		o := lockOwner(b[1:])
		return fmt.Sprintf(" %v lock of %v owner=%x", o.Kind, o.Client, o.Owner)
	}
	return fmt.Sprintf(" ?%x", b)
}

func formatTail(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	return fmt.Sprintf(" ?%x", b)
}

// FormatValue returns the value of key in words for people: the fields that are
// not zero. Times are printed in nanoseconds, as they are.
func FormatValue(key, value []byte) string {
	if len(key) < prefixBytes {
		return fmt.Sprintf("%x", value)
	}
	subtree, kind := binary.BigEndian.Uint64(key[8:]), Kind(key[16])
	v, err := decodeAny(subtree == uint64(base.ShardMeta), kind, key[prefixBytes:], value)
	if err != nil {
		return fmt.Sprintf("damaged %x", value)
	}
	switch v := v.(type) {
	case nil:
		return fmt.Sprintf("%q", value)
	case *Inode:
		return v.String()
	case *Dentry:
		return v.String()
	case *Header:
		return v.String()
	case *Orphan:
		if v.Inode == nil {
			return fmt.Sprintf("since=%d directory", v.SinceNS)
		}
		return fmt.Sprintf("since=%d %v", v.SinceNS, v.Inode)
	case *Results:
		s := fmt.Sprintf("floor=%d", v.Floor)
		for _, i := range v.Items {
			s += fmt.Sprintf(" %d:%dB", i.Seq, len(i.Bytes))
		}
		return s
	case *Locks:
		return v.String()
	case *Quota:
		return v.String()
	case *Names:
		return v.String()
	case fmt.Stringer:
		return v.String()
	case *Locator:
		return fmt.Sprintf("dir=%d name=%q", v.Dir, v.Name)
	case *Relocation:
		return fmt.Sprintf("since=%d subtree=%d dir=%d name=%q", v.SinceNS, v.Subtree, v.Dir, v.Name)
	}
	return strings.TrimPrefix(fmt.Sprintf("%+v", v), "&")
}

func decodeAny(ofShard bool, kind Kind, rest, value []byte) (any, error) {
	if ofShard {
		return decodeOfShard(kind, value)
	}
	switch kind {
	case KindHeader, KindDentry, KindInode, KindOrphan:
		at := 8
		if kind == KindDentry {
			at = 16
		}
		switch {
		case len(rest) == at+1+lockSuffixBytes && rest[at] == PartLock:
			return DecodeLocks(value)
		case len(rest) <= at || rest[at] != PartSelf:
			return nil, nil // an extended attribute
		}
	}
	switch kind {
	case KindSubtree:
		return DecodeSubtree(value)
	case KindCounters:
		return DecodeCounters(value)
	case KindHeader:
		return DecodeHeader(value)
	case KindDentry:
		return DecodeDentry(value)
	case KindInode:
		return DecodeInode(value)
	case KindOrphan:
		return DecodeOrphan(value)
	case KindRelocation:
		return DecodeRelocation(value)
	case KindResults:
		return DecodeResults(value)
	case KindLockClient, KindSplit:
		return DecodeEmpty(value)
	case KindAppend, KindCut, KindLocked:
		return DecodeLocator(value)
	case KindDeletion:
		return DecodeDeletion(value)
	case KindQuota:
		return DecodeQuota(value)
	case KindNames:
		return DecodeNames(value)
	case KindPolicy:
		return DecodePolicy(value)
	case KindForward:
		return DecodeForward(value)
	case KindMove:
		return DecodeMove(value)
	case KindPrepared:
		return DecodePrepared(value)
	case KindIntent, KindHomeLock, KindNoMoves, KindMoveLock:
		return DecodeIntent(value)
	}
	return nil, nil
}

func decodeOfShard(kind Kind, value []byte) (any, error) {
	switch kind {
	case KindShard:
		return DecodeShardState(value)
	case KindSession:
		return DecodeSession(value)
	case KindEnded:
		return DecodeEnded(value)
	case KindGone:
		return DecodeEmpty(value)
	case KindMended:
		return DecodeMended(value)
	case KindImport, KindJoin:
		return DecodeImport(value)
	case KindDecision:
		return DecodeDecision(value)
	}
	return nil, nil
}

// String returns the inode's fields that are not zero.
func (n *Inode) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ino=%d mode=%o nlink=%d uid=%d gid=%d size=%d a=%d m=%d c=%d b=%d v=%d",
		n.Ino, n.Mode, n.Nlink, n.UID, n.GID, n.SizeBytes, n.AtimeNS, n.MtimeNS, n.CtimeNS, n.BtimeNS, n.Version)
	for _, f := range []struct {
		name  string
		value uint64
	}{
		{"rdev", n.Rdev}, {"xattrs", uint64(n.XattrNames)}, {"dv", n.DataVersion}, {"epoch", n.SizeEpoch},
		{"high", n.HighBytes}, {"alloc", n.AllocatedBytes},
	} {
		if f.value != 0 {
			fmt.Fprintf(&b, " %s=%d", f.name, f.value)
		}
	}
	if len(n.Target) > 0 {
		fmt.Fprintf(&b, " target=%q", n.Target)
	}
	if len(n.ACL) > 0 {
		fmt.Fprintf(&b, " acl=%v", n.ACL)
	}
	if n.HasData {
		b.WriteString(" data")
	}
	if n.Locked {
		b.WriteString(" locked")
	}
	if n.Linkable {
		b.WriteString(" linkable")
	}
	for _, c := range n.Cuts {
		fmt.Fprintf(&b, " cut=%d@%d", c.SizeBytes, c.SizeEpoch)
	}
	for _, r := range n.Reservations {
		fmt.Fprintf(&b, " reserved=%d+%d:%x:%v", r.Offset, r.Length, uint64(r.Client), r.Filled)
	}
	return b.String()
}

// String returns the locked ranges: shared r, exclusive w.
func (l *Locks) String() string {
	var b strings.Builder
	for i, r := range l.Ranges {
		if i > 0 {
			b.WriteByte(' ')
		}
		kind := 'r'
		if r.Exclusive {
			kind = 'w'
		}
		fmt.Fprintf(&b, "%c[%d,%d] pid=%d handle=%d", kind, r.Start, r.Last, r.PID, r.Handle)
	}
	return b.String()
}

// String returns the subtree's fields, and its carve if there is one.
func (s *Subtree) String() string {
	t := fmt.Sprintf("{Epoch:%d State:%v Root:%d ToShard:%d Quotas:%d", s.Epoch, s.State, s.Root, s.ToShard, s.Quotas)
	if s.Carve.Into != 0 {
		t += fmt.Sprintf(" Carve:%+v", s.Carve)
	}
	if s.Intents > 0 {
		t += fmt.Sprintf(" Intents:%d", s.Intents)
	}
	return t + "}"
}

// String returns the dentry's name and what it refers to.
func (e *Dentry) String() string {
	switch e.Kind {
	case Directory:
		return fmt.Sprintf("%q appeared=%d directory %d in %d", e.Name, e.Appeared, e.Ino, e.Subtree)
	case Link:
		return fmt.Sprintf("%q appeared=%d link %d type=%o in %d", e.Name, e.Appeared, e.Ino, e.Type, e.Subtree)
	}
	return fmt.Sprintf("%q appeared=%d %v", e.Name, e.Appeared, e.Inode)
}

// String returns the header's fields.
func (h *Header) String() string {
	s := fmt.Sprintf("mode=%o uid=%d gid=%d parent=%d name=%q entries=%d subdirs=%d appeared=%d a=%d m=%d c=%d b=%d v=%d",
		h.Mode, h.UID, h.GID, h.Parent, h.Name, h.Entries, h.Subdirs, h.Appeared,
		h.AtimeNS, h.MtimeNS, h.CtimeNS, h.BtimeNS, h.Version)
	if h.Displaced != 0 {
		s += fmt.Sprintf(" displaced=%d probe=%d", h.Displaced, h.MaxProbe)
	}
	if h.XattrNames != 0 {
		s += fmt.Sprintf(" xattrs=%d", h.XattrNames)
	}
	if len(h.ACL) > 0 {
		s += fmt.Sprintf(" acl=%v", h.ACL)
	}
	if len(h.DefaultACL) > 0 {
		s += fmt.Sprintf(" default=%v", h.DefaultACL)
	}
	if h.Seen != (Seen{}) {
		s += fmt.Sprintf(" seen=%d/%d level=%d", h.Seen.Bytes, h.Seen.Files, h.Seen.Level)
	}
	if h.Removed {
		s += " removed"
	}
	return s
}
