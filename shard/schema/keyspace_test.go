package schema

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// PROTOCOLS A8: shard, subtree, then a kind; a fragment is one contiguous range
// with all that belongs to it; what follows the shard id is the same on every
// shard.

// keysOf returns one key of every kind that a shard's range can hold, made of
// the given numbers, and of each kind that has them the keys of its xattrs.
func keysOf(id base.ShardID, subtree base.SubtreeID, a, b uint64) [][]byte {
	ino, at := base.Ino(a), base.Cookie(b)
	owners := [][]byte{HeaderKey(id, subtree, ino), DentryKey(id, subtree, ino, at), InodeKey(id, subtree, ino), OrphanKey(id, subtree, ino)}
	keys := [][]byte{
		ShardKey(id), SessionKey(id, base.ClientID(a)), EndedKey(id, base.ClientID(a)), AppliedKey(id), LeaseKey(id),
		SubtreeKey(id, subtree), CountersKey(id, subtree), RelocationKey(id, subtree, ino),
		ResultsKey(id, subtree, base.ClientID(a), base.Seq(b)), AppendKey(id, subtree, ino),
		DeletionKey(id, subtree, base.DataID(a)), CutKey(id, subtree, ino),
		LockClientKey(id, subtree, base.ClientID(a), base.Ino(b)), LockedKey(id, subtree, ino),
	}
	for _, owner := range owners {
		keys = append(keys, owner, XattrKey(owner, []byte("user.a")), LockKey(owner, LockOwner{LockPOSIX, 0xa1, b}))
	}
	return keys
}

// TestKeySpace holds the bytes of every kind of key in sort order, on two shards:
// a change of testdata/a8_keys is a change of the format.
func TestKeySpace(t *testing.T) {
	datadriven.RunTest(t, "testdata/a8_keys", func(t *testing.T, d *datadriven.TestData) string {
		id, err := strconv.ParseUint(d.CmdArgs[0].Vals[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		keys := keysOf(base.ShardID(id), 3, 0x0a0b, 0x0c0d)
		slices.SortFunc(keys, bytes.Compare)
		var b strings.Builder
		for _, k := range keys {
			fmt.Fprintf(&b, "%x %x  %s\n", k[:8], k[8:], Format(k))
		}
		return b.String()
	})
}

// TestKeysAreTheSameOnEveryShard: moving a key to another shard replaces its
// first eight bytes, whatever is in it.
func TestKeysAreTheSameOnEveryShard(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		one := base.ShardID(rapid.Uint64Range(1, 1<<19).Draw(rt, "shard"))
		two := base.ShardID(rapid.Uint64Range(1, 1<<19).Draw(rt, "other shard"))
		subtree := base.SubtreeID(rapid.Uint64Min(1).Draw(rt, "subtree"))
		a, b := rapid.Uint64().Draw(rt, "a"), rapid.Uint64().Draw(rt, "b")
		here, there := keysOf(one, subtree, a, b), keysOf(two, subtree, a, b)
		for i := range here {
			if binary.BigEndian.Uint64(here[i]) != uint64(one) {
				rt.Fatalf("%x does not start with shard %d", here[i], one)
			}
			if !bytes.Equal(here[i][8:], there[i][8:]) {
				rt.Fatalf("%s and %s differ behind the shard", Format(here[i]), Format(there[i]))
			}
		}
	})
}

// TestFragmentsAreContiguous draws names of several directories in two subtrees and
// cuts one directory into fragments: in key order each fragment's dentries, each
// with its xattrs, stand together, and nothing else stands between them.
func TestFragmentsAreContiguous(t *testing.T) {
	type owned struct {
		subtree base.SubtreeID
		dir     base.Ino
		at      base.Cookie
	}
	rapid.Check(t, func(rt *rapid.T) {
		cut := rapid.Uint32Range(1, 1<<shard.BorderBits-1).Draw(rt, "border")
		var keys [][]byte
		of := map[string]owned{}
		add := func(o owned, k []byte) {
			keys = append(keys, k)
			of[string(k)] = o
		}
		for _, name := range rapid.SliceOfN(rapid.StringN(1, 12, 40), 1, 30).Draw(rt, "names") {
			h := shard.NameHash([]byte(name))
			for _, subtree := range []base.SubtreeID{1, 2} {
				for _, dir := range []base.Ino{1, 2, 1 << 44} {
					o := owned{subtree, dir, h.Cookie(rapid.IntRange(0, shard.Collisions-1).Draw(rt, "collision"))}
					k := DentryKey(7, subtree, dir, o.at)
					add(o, k)
					for _, x := range rapid.SliceOfN(rapid.StringN(1, 4, 16), 0, 3).Draw(rt, "xattrs") {
						add(o, XattrKey(k, []byte(x)))
					}
				}
			}
		}
		for _, at := range []base.Cookie{0, base.Cookie(cut)<<35 - 1, base.Cookie(cut) << 35, LastCookie} { // at the ends
			k := DentryKey(7, 1, 2, at)
			add(owned{1, 2, at}, k)
			add(owned{1, 2, at}, XattrKey(k, []byte("a")))
		}
		for _, other := range keysOf(7, 1, 2, uint64(cut)) { // of everything else, too
			if Kind(other[16]) != KindDentry {
				add(owned{}, other)
			}
		}
		for _, f := range []struct{ first, last base.Cookie }{
			{0, base.Cookie(cut)<<35 - 1}, {base.Cookie(cut) << 35, LastCookie},
		} {
			lo, hi := DentryRange(7, 1, 2, f.first, f.last)
			for _, k := range keys {
				o := of[string(k)]
				want := o.subtree == 1 && o.dir == 2 && o.at >= f.first && o.at <= f.last
				if got := bytes.Compare(k, lo) >= 0 && bytes.Compare(k, hi) < 0; got != want {
					rt.Fatalf("%s in the fragment from %x to %x: %v, want %v", Format(k), uint64(f.first), uint64(f.last), got, want)
				}
			}
		}
	})
}
