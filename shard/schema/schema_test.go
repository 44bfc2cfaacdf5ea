package schema

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

var sampleLayout = Layout{Pool: 1, Components: []Component{{0, 1 << 20, 1}, {1 << 20, 1 << 20, 3}}}

func sampleFile() *Inode {
	return &Inode{Ino: 1<<44 | 7, Mode: TypeFile | 0o644, Nlink: 1, UID: 1000, GID: 1000, SizeBytes: 5000, Version: 3,
		BtimeNS: 1_700_000_000_000_000_000, AtimeNS: 1_700_000_000_000_000_000, MtimeNS: 1_700_000_000_000_000_005,
		CtimeNS: 1_699_999_999_000_000_000, XattrNames: 12,
		File: File{DataID: 1<<44 | 7, DataVersion: 2, SizeEpoch: 4, HighBytes: 9000, AllocatedBytes: 8192, HasData: true,
			Cuts:         []Cut{{3, 10}, {4, 20}},
			Reservations: []Reservation{{5000, 10, 0xa1, false}, {5010, 5, 0xb2, true}}, Layout: sampleLayout}}
}

func sampleHeader() *Header {
	return &Header{Ino: 1<<44 | 2, Mode: TypeDir | 0o755, UID: 1, GID: 2, AtimeNS: 10, MtimeNS: 20, CtimeNS: 30, BtimeNS: 5,
		Version: 9, Parent: 1, ParentSubtree: 1, Name: []byte("dir"), Fragments: shard.Whole(1), Entries: 3, Subdirs: 1,
		Appeared: 8, Displaced: 2, MaxProbe: 1, XattrNames: 7, Layout: sampleLayout}
}

type sample struct {
	name   string
	key    []byte
	value  interface{ Append([]byte) []byte }
	decode func([]byte) (any, error)
}

func decoderOf[T any](f func([]byte) (T, error)) func([]byte) (any, error) {
	return func(b []byte) (any, error) { return f(b) }
}

func samples() []sample {
	file := sampleFile()
	link := &Inode{Ino: 9, Mode: TypeLink | 0o777, Nlink: 1, SizeBytes: 2, Version: 1, Target: []byte("to")}
	device := &Inode{Ino: 10, Mode: TypeChar | 0o600, Nlink: 1, Version: 1, Rdev: 259}
	other := sampleFile()
	listed, shared := *device, sampleHeader()
	listed.ACL = ACL{{ACLUserObj, 6, 0}, {ACLUser, 4, 1000}, {ACLGroupObj, 0, 0}, {ACLGroup, 1, 70000}, {ACLMask, 5, 0}, {ACLOther, 0, 0}}
	shared.ACL, shared.DefaultACL, shared.Removed = listed.ACL, listed.ACL[:3], true
	other.DataID, other.Linkable, other.Cuts, other.Reservations, other.XattrNames = 5, true, nil, nil, 0
	seen := sampleHeader()
	seen.Seen = Seen{Level: 2, Files: 5, Bytes: 1 << 30}
	direct := true
	set := &Policy{Class: "scratch", Stripes: sampleLayout.Components, Copies: 3, Pool: 2, ClassPool: 3, Sync: 2, Direct: &direct}
	wide := sampleFile()
	wide.Layout.Flags = 1
	locked := sampleFile()
	locked.Locked = true
	return []sample{
		{"shard", ShardKey(1), &ShardState{1, "cluster", 1, 8, 2, 5000, 4000}, decoderOf(DecodeShardState)},
		{"session", SessionKey(1, 0xa1), &Session{"host", 7, "/mnt", 1000, 2, 3}, decoderOf(DecodeSession)},
		{"ended", EndedKey(1, 0xa1), &Ended{1000, 77}, decoderOf(DecodeEnded)},
		{"import", ImportKey(1, 1), &Import{ImportRunning, true, 2, 5, 3, 1<<44 | 2, 77, Counters{1, 2, 3}, shard.Range{}, false, 0, DirCounts{}, nil}, decoderOf(DecodeImport)},
		{"join", JoinKey(1, 2), &Import{ImportRunning, false, 2, 5, 3, 1<<44 | 2, 77, Counters{1, 2, 3}, shard.Range{Lo: 1 << 27, Hi: 1 << 28}, true, 1, DirCounts{4, 5, 6}, []byte{7}}, decoderOf(DecodeImport)},
		{"gone", GoneKey(1, 7), &Empty{}, decoderOf(DecodeEmpty)},
		{"mended", MendedKey(1, 7), &Mended{2}, decoderOf(DecodeMended)},
		{"decision", DecisionKey(1, TxnID{1, 5, 7}), &Decision{99, []Share{{2, 1, []byte("c")}}}, decoderOf(DecodeDecision)},
		{"subtree", SubtreeKey(1, 1), &Subtree{3, HandedOff, 1, 2, 0, Carve{}, 0, 0, 0}, decoderOf(DecodeSubtree)},
		{"subtree with quotas", SubtreeKey(1, 1), &Subtree{3, Active, 1, 0, 2, Carve{}, 0, 0, 0}, decoderOf(DecodeSubtree)},
		{"subtree under a carve", SubtreeKey(1, 1), &Subtree{3, Frozen, 1, 0, 2, Carve{1<<44 | 7, false}, 0, 0, 0}, decoderOf(DecodeSubtree)},
		{"carved subtree", SubtreeKey(1, 1), &Subtree{3, Active, 1, 0, 0, Carve{1<<44 | 7, true}, 3, 2, 1}, decoderOf(DecodeSubtree)},
		{"forward", ForwardKey(1, 1, 2), &Forward{1<<44 | 7, 2, 1}, decoderOf(DecodeForward)},
		{"counters", CountersKey(1, 1), &Counters{1, 2, 3}, decoderOf(DecodeCounters)},
		{"header", HeaderKey(1, 1, 1<<44|2), sampleHeader(), decoderOf(DecodeHeader)},
		{"dentry of a file", DentryKey(1, 1, 2, 0x1234567800), &Dentry{Embedded, []byte("f"), 4, file.Ino, TypeFile, 0, file}, decoderOf(DecodeDentry)},
		{"dentry of a directory", DentryKey(1, 1, 2, 0x80), &Dentry{Directory, []byte("d"), 5, 3, TypeDir, 1, nil}, decoderOf(DecodeDentry)},
		{"dentry of a link", DentryKey(1, 1, 2, 0x100), &Dentry{Link, []byte("l"), 6, 4, TypeFile, 1, nil}, decoderOf(DecodeDentry)},
		{"inode", InodeKey(1, 1, file.Ino), file, decoderOf(DecodeInode)},
		{"inode of a symlink", InodeKey(1, 1, 9), link, decoderOf(DecodeInode)},
		{"inode of a device", InodeKey(1, 1, 10), device, decoderOf(DecodeInode)},
		{"inode with an ACL", InodeKey(1, 1, 10), &listed, decoderOf(DecodeInode)},
		{"header with ACLs", HeaderKey(1, 1, 1<<44|2), shared, decoderOf(DecodeHeader)},
		{"inode with another's data", InodeKey(1, 1, 11), other, decoderOf(DecodeInode)},
		{"orphan", OrphanKey(1, 1, file.Ino), &Orphan{99, file}, decoderOf(DecodeOrphan)},
		{"orphan directory", OrphanKey(1, 1, 2), &Orphan{99, nil}, decoderOf(DecodeOrphan)},
		{"relocation", RelocationKey(1, 1, 7), &Relocation{99, 1, 2, []byte("n")}, decoderOf(DecodeRelocation)},
		{"results", ResultsKey(1, 1, 0xa1, 10), &Results{9, []StoredResult{{10, []byte{8, 2}}, {12, nil}}}, decoderOf(DecodeResults)},
		{"append", AppendKey(1, 1, 7), &Locator{2, []byte("n")}, decoderOf(DecodeLocator)},
		{"deletion", DeletionKey(1, 1, 7), &Deletion{99, 5000, sampleLayout}, decoderOf(DecodeDeletion)},
		{"cut", CutKey(1, 1, 7), &Locator{0, nil}, decoderOf(DecodeLocator)},
		{"locked inode", InodeKey(1, 1, 12), locked, decoderOf(DecodeInode)},
		{"locks", LockKey(InodeKey(1, 1, 12), LockOwner{LockPOSIX, 0xa1, 0xbeef}),
			&Locks{[]LockRange{{0, 9, true, 7, 1}, {100, LockEnd, false, 7, 2}}}, decoderOf(DecodeLocks)},
		{"split", SplitKey(1, 1, 12), &Empty{}, decoderOf(DecodeEmpty)},
		{"lock of a client", LockClientKey(1, 1, 0xa1, 12), &Empty{}, decoderOf(DecodeEmpty)},
		{"policy", PolicyKey(1, 1, 2), set, decoderOf(DecodePolicy)},
		{"policy of a class", PolicyKey(1, 1, 3), &Policy{Class: "checkpoint"}, decoderOf(DecodePolicy)},
		{"header under auto", HeaderKey(1, 1, 1<<44|2), seen, decoderOf(DecodeHeader)},
		{"inode with flags in its layout", InodeKey(1, 1, 13), wide, decoderOf(DecodeInode)},
		{"locked", LockedKey(1, 1, 12), &Locator{2, []byte("n")}, decoderOf(DecodeLocator)},
		{"quota", QuotaKey(1, 1, 2), &Quota{5, true, false, 1 << 30, 1000, 99, Usage{7, 5000, 1}}, decoderOf(DecodeQuota)},
		{"tally", QuotaKey(1, 1, 2), &Quota{5, false, true, 0, 0, 99, Usage{-7, -5000, 0}}, decoderOf(DecodeQuota)},
		{"move", MoveKey(1, 1), &Move{MoveHandedOff, 5, 1<<44 | 7, 1, 1<<44 | 2, 3, 77, 4, 99, shard.Range{}, false}, decoderOf(DecodeMove)},
		{"move of names", MoveKey(1, 1), &Move{MoveCopying, 5, 1<<44 | 7, 1, 1<<44 | 2, 3, 0, 0, 99, shard.Range{Lo: 1 << 26, Hi: 1 << 27}, true}, decoderOf(DecodeMove)},
		{"policy of placement", PolicyKey(1, 1, 4), &Policy{Spread: "children", Pin: 3}, decoderOf(DecodePolicy)},
		{"prepared", PreparedKey(1, 1, TxnID{2, 5, 7}), &Prepared{99, [][]byte{IntentKey(1, 1, 2, 0x80, []byte("n"))[8:]}}, decoderOf(DecodePrepared)},
		{"intent", IntentKey(1, 1, 2, 0x80, []byte("n")), &Intent{Txn: TxnID{2, 5, 7}}, decoderOf(DecodeIntent)},
		{"home lock", HomeLockKey(1, 1, 2), &Intent{Txn: TxnID{2, 5, 7}, Closing: true}, decoderOf(DecodeIntent)},
		{"home lock of attributes", HomeLockKey(1, 1, 3), &Intent{Txn: TxnID{2, 5, 7}, Attributes: true}, decoderOf(DecodeIntent)},
		{"no moves", NoMovesKey(1, 1, TxnID{2, 5, 7}), &Intent{Txn: TxnID{2, 5, 7}}, decoderOf(DecodeIntent)},
		{"move lock", MoveLockKey(1, 1), &Intent{Txn: TxnID{2, 5, 7}}, decoderOf(DecodeIntent)},
		{"names", NamesKey(1, 1, 12), &Names{[]base.Ino{2, 2, 3}}, decoderOf(DecodeNames)},
	}
}

// TestGolden holds the bytes of this format version. A change of testdata/golden is a
// change of the format.
func TestGolden(t *testing.T) {
	datadriven.RunTest(t, "testdata/golden", func(t *testing.T, d *datadriven.TestData) string {
		var b strings.Builder
		fmt.Fprintf(&b, "format %d\n", FormatVersion)
		for _, s := range samples() {
			v := s.value.Append(nil)
			fmt.Fprintf(&b, "%s\n  key   %x\n  value %x\n  %s\n  %s\n", s.name, s.key, v, Format(s.key), FormatValue(s.key, v))
		}
		owner := DentryKey(1, 1, 2, 0x100)
		for _, k := range [][]byte{XattrKey(owner, []byte("user.a")), XattrKey(HeaderKey(1, 1, 2), []byte("user.b")), AppliedKey(1), LeaseKey(1), NodeFormatKey()} {
			fmt.Fprintf(&b, "key   %x\n  %s\n", k, Format(k))
		}
		return b.String()
	})
}

func TestRoundTrip(t *testing.T) {
	for _, s := range samples() {
		b := s.value.Append(nil)
		got, err := s.decode(b)
		if err != nil || !reflect.DeepEqual(got, s.value) {
			t.Errorf("%s: decoded %+v, %v; want %+v", s.name, got, err, s.value)
		}
		for i := range b {
			if _, err := s.decode(b[:i]); err == nil {
				t.Errorf("%s: %d of %d bytes were accepted", s.name, i, len(b))
			}
		}
		if _, err := s.decode(append(b, 0)); err == nil {
			t.Errorf("%s: a byte too many was accepted", s.name)
		}
	}
}

// TestKeyOrder holds the map of the package comment: each key lies in its ranges,
// and what belongs to a name stands right behind it.
func TestKeyOrder(t *testing.T) {
	lo, hi := ShardRange(1)
	for _, s := range samples() {
		if bytes.Compare(s.key, lo) < 0 || bytes.Compare(s.key, hi) >= 0 {
			t.Errorf("%s lies outside its shard", s.name)
		}
	}
	lo, hi = SubtreeRange(1, 1)
	for _, s := range samples()[8:] {
		if bytes.Compare(s.key, lo) < 0 || bytes.Compare(s.key, hi) >= 0 {
			t.Errorf("%s lies outside its subtree", s.name)
		}
	}
	name := DentryKey(1, 1, 2, 0x100)
	order := [][]byte{
		AppliedKey(1), SubtreeKey(1, 1), CountersKey(1, 1), HeaderKey(1, 1, 2), XattrKey(HeaderKey(1, 1, 2), []byte("a")),
		HeaderKey(1, 1, 3), DentryKey(1, 1, 2, 0x80), name, XattrKey(name, []byte("a")), XattrKey(name, []byte("b")),
		LockKey(name, LockOwner{LockPOSIX, 1, 2}), LockKey(name, LockOwner{LockFlock, 0, 1}),
		DentryKey(1, 1, 2, 0x101), DentryKey(1, 1, 3, 0), InodeKey(1, 1, 2), OrphanKey(1, 1, 1), RelocationKey(1, 1, 1),
		ResultsKey(1, 1, 1, 1), ResultsKey(1, 1, 1, 2), AppendKey(1, 1, 1), DeletionKey(1, 1, 1), CutKey(1, 1, 1),
		LockClientKey(1, 1, 1, 1), LockedKey(1, 1, 1), PolicyKey(1, 1, 1),
		SubtreeKey(1, 2), AppliedKey(2),
	}
	for i := 1; i < len(order); i++ {
		if bytes.Compare(order[i-1], order[i]) >= 0 {
			t.Errorf("%s does not sort before %s", Format(order[i-1]), Format(order[i]))
		}
	}
	from, to := DentryRange(1, 1, 2, 0x100, 0x100)
	if k := XattrKey(name, []byte("zzz")); bytes.Compare(name, from) < 0 || bytes.Compare(k, to) >= 0 {
		t.Error("a name's xattrs lie outside its range")
	}
	if got := string(XattrName(name, XattrKey(name, []byte("user.a")))); got != "user.a" {
		t.Errorf("xattr name %q", got)
	}
	if !ChecksumSkips(AppliedKey(1)) || ChecksumSkips(LeaseKey(1)) || ChecksumSkips(name) {
		t.Error("only the applied index is left out of a checksum")
	}
	if got := after([]byte{1, 0xff}); !bytes.Equal(got, []byte{2}) {
		t.Errorf("after: %x", got)
	}
}

// FuzzDecode gives any bytes to every decoder: it fails or the value survives its
// own encoding; it never panics.
func FuzzDecode(f *testing.F) {
	for i, s := range samples() {
		f.Add(i, s.value.Append(nil))
	}
	all := samples()
	f.Fuzz(func(t *testing.T, which int, b []byte) {
		s := all[uint(which)%uint(len(all))]
		v, err := s.decode(b)
		if err != nil {
			return
		}
		again, err := s.decode(v.(interface{ Append([]byte) []byte }).Append(nil))
		if err != nil || !reflect.DeepEqual(v, again) {
			t.Fatalf("%s: %+v became %+v, %v", s.name, v, again, err)
		}
	})
}

// FuzzFormat prints any key and value.
func FuzzFormat(f *testing.F) {
	for _, s := range samples() {
		f.Add(s.key, s.value.Append(nil))
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if Format(key) == "" {
			t.Fatal("nothing printed")
		}
		FormatValue(key, value)
		InoOf(key)
		SubtreeOf(key)
		IsSelf(key)
		IsSubtreeKey(key)
		XattrOf(key, value)
		LockOf(key, value)
		DentryNameIs(value, key)
	})
}
