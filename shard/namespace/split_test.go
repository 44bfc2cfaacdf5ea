package namespace

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/memkv"
	"github.com/canopyfs/canopy/shard/schema"
)

// letterBits is how far up the first letter stands in a border hash of letterHash.
const letterBits = shard.BorderBits - 8

// letterHash is a hash whose border bits are a name's first letter, and the others its
// length.
func letterHash(name []byte) shard.Hash {
	return shard.Hash(uint64(name[0])<<letterBits<<shard.FullBits | uint64(len(name)))
}

// testHash returns the hash that a script asks for.
func testHash(t *testing.T, d *datadriven.TestData) func([]byte) shard.Hash {
	var kind string
	d.ScanArgs(t, "hash", &kind)
	if kind == "letter" {
		return letterHash
	}
	return func(name []byte) shard.Hash { return shard.Hash(len(name)) }
}

// letterRange returns the names from those that begin with lo to before those that
// begin with hi; empty: no bound.
func letterRange(lo, hi string) shard.Range {
	r := shard.WholeRange
	if lo != "" {
		r.Lo = uint32(lo[0]) << letterBits
	}
	if hi != "" {
		r.Hi = uint32(hi[0]) << letterBits
	}
	return r
}

// splitDir does one step, or both, of a move of a range of names.
func (r *rig) splitDir(d *datadriven.TestData) string {
	arg := func(name string) (v string) {
		if d.HasArg(name) {
			d.ScanArgs(r.t, name, &v)
		}
		return v
	}
	into, from := uint64(0), uint64(1)
	d.ScanArgs(r.t, "into", &into)
	if d.HasArg("from") {
		d.ScanArgs(r.t, "from", &from)
	}
	r.splits = true
	dir := d.CmdArgs[0].Key
	s := &memkv.Split{From: r.kv, To: r.kv, Shard: r.shard, Other: r.shard, Subtree: base.SubtreeID(from), Dir: base.Ino(r.place(dir).Ino),
		Names: letterRange(arg("lo"), arg("hi")), Into: base.SubtreeID(into), Hash: r.hash}
	if step := arg("step"); step != "clean" {
		s.HandOff()
		if step == "" {
			s.Clean()
		}
	} else {
		s.Clean()
	}
	r.load()
	return ""
}

// formatFragments prints a split directory's map.
func formatFragments(all []*canopyv1.Fragment) string {
	var out []string
	for _, f := range all {
		at := ""
		if f.Lo > 0 {
			at = fmt.Sprintf("%x:", f.Lo)
			if f.Lo&(1<<letterBits-1) == 0 {
				at = fmt.Sprintf("%c:", f.Lo>>letterBits)
			}
		}
		out = append(out, fmt.Sprintf("%s%d", at, f.Subtree))
	}
	if out == nil {
		return ""
	}
	return " [" + strings.Join(out, " ") + "]"
}

// through prints how far a listing's last page of a fragment goes, if that is not to
// the end of the directory.
func through(at uint64) string {
	if at == uint64(schema.LastCookie) {
		return ""
	}
	border := shard.HashOf(base.Cookie(at)).Border()
	if at&1 == 1 && uint64(shard.Range{Hi: border + 1}.Last()) == at {
		return fmt.Sprintf(" before %s", strings.Trim(formatFragments([]*canopyv1.Fragment{{Lo: border + 1}}), " [0]:"))
	}
	return fmt.Sprintf(" through %x", at)
}
