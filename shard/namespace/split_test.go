package namespace

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
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
	s := r.splitOf(r.place(dir).Ino, from, into, letterRange(arg("lo"), arg("hi")))
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

// splitRig has /d with names before and from "m", which are in subtree 7, and in 7 the
// directories /d/new and /d/new/sub.
func splitRig(t *testing.T) (r *rig, dir, made, sub uint64) {
	r = newRig(t, letterHash)
	r.bootstrap()
	r.openSession(0xa1)
	for _, line := range []string{"mkdir /d", "create /d/apple", "create /d/pear", "setx /d/pear user.a 1", "setx /d user.b 2"} {
		r.mustRun("%s", line)
	}
	dir = r.walk("/d")
	s := r.splitOf(dir, 1, 7, letterRange("m", ""))
	s.HandOff()
	s.Clean()
	r.load()
	r.splits = true
	r.places["d"] = &canopyv1.Place{Ino: dir}
	r.mustRun("mkdir @d/new subtree=7")
	made = r.walk("/d/new")
	r.places["new"] = &canopyv1.Place{Ino: made}
	r.mustRun("mkdir @new/sub subtree=7")
	return r, dir, made, r.find(7, made, "sub").Attr.Ino
}

// splitOf is a move of a range of names within the shard.
func (r *rig) splitOf(dir, from, into uint64, names shard.Range) *memkv.Split {
	return &memkv.Split{From: r.kv, To: r.kv, Shard: r.shard, Other: r.shard, Subtree: base.SubtreeID(from), Dir: base.Ino(dir),
		Names: names, Into: base.SubtreeID(into), Hash: r.hash}
}

// PROTOCOLS D6: a walk up that comes to a copy of a split directory's header, or to what
// is left of one, goes on at the directory's home: there alone is its parent known.
func TestWalkGoesOnAtHome(t *testing.T) {
	r, dir, made, sub := splitRig(t)
	walk := func(txn uint64) string {
		res := r.own(&canopyv1.Command{Own: &canopyv1.Command_TxnPrepare{TxnPrepare: &canopyv1.TxnPrepareCommand{
			Txn: schema.TxnID{Shard: testShard, Epoch: 1, Number: txn}.Proto(), Subtree: 7,
			Wants: []*canopyv1.TxnWant{{Kind: canopyv1.TxnWantKind_TXN_WANT_WALK, Dir: sub}}}}})
		if res.Error != 0 {
			t.Fatal(formatResult(res))
		}
		f := res.Facts[0]
		return fmt.Sprint(f.Path, f.NextSubtree, f.NextDir)
	}
	want := fmt.Sprint([]uint64{sub, made, dir}, 1, dir)
	if got := walk(1); got != want {
		t.Errorf("from a fragment: %s, want %s", got, want)
	}
	s := r.splitOf(dir, 7, 1, letterRange("m", ""))
	s.HandOff()
	s.Clean()
	r.load()
	if got := walk(2); got != want {
		t.Errorf("from what is left of it: %s, want %s", got, want)
	}
}

// What a check finds of fragments (invariants 2 and 5).
func TestCheckOfFragments(t *testing.T) {
	header := func(r *rig, subtree base.SubtreeID, dir uint64, change func(*schema.Header)) {
		key := schema.HeaderKey(testShard, subtree, base.Ino(dir))
		b, _, err := r.kv.Get(key)
		if err != nil {
			t.Fatal(err)
		}
		h, err := schema.DecodeHeader(b)
		if err != nil {
			t.Fatal(err)
		}
		change(h)
		r.put(key, h)
	}
	for name, x := range map[string]struct {
		change func(r *rig, dir uint64)
		want   string
	}{
		"nothing": {func(*rig, uint64) {}, ""},
		"a name in another fragment": {func(r *rig, dir uint64) {
			at := letterHash([]byte("zoo")).Cookie(0)
			n := &schema.Inode{Ino: 99, Mode: schema.TypeFIFO, Nlink: 1}
			r.put(schema.DentryKey(testShard, 1, base.Ino(dir), at), &schema.Dentry{Kind: schema.Embedded, Name: []byte("zoo"), Ino: 99, Type: schema.TypeFIFO, Appeared: 1, Inode: n})
			header(r, 1, dir, func(h *schema.Header) { h.Entries++ })
		}, `name "zoo" in directory`},
		"a mode": {func(r *rig, dir uint64) { header(r, 7, dir, func(h *schema.Header) { h.Mode ^= 0o7 }) }, "differ in attributes"},
		"an xattr": {func(r *rig, dir uint64) {
			if err := r.kv.Set(schema.XattrKey(schema.HeaderKey(testShard, 7, base.Ino(dir)), []byte("user.b")), []byte("3")); err != nil {
				t.Fatal(err)
			}
		}, "differ in attributes"},
		"two owners": {func(r *rig, dir uint64) {
			header(r, 1, dir, func(h *schema.Header) { h.Fragments = h.Fragments.With(letterRange("x", ""), 1) })
		}, "have two owners"},
		"a count": {func(r *rig, dir uint64) { header(r, 7, dir, func(h *schema.Header) { h.Entries++ }) }, "its count of names is 1 more than its names"},
	} {
		r, dir, _, _ := splitRig(t)
		x.change(r, dir)
		r.load()
		var found []string
		if _, err := r.m.Check(r.kv, func(f Finding) { found = append(found, f.Problem) }); err != nil {
			t.Fatal(err)
		}
		hit := false
		for _, f := range found {
			hit = hit || x.want != "" && strings.Contains(f, x.want)
		}
		if hit != (x.want != "") || x.want == "" && len(found) > 0 {
			t.Errorf("%s: %q, want %q", name, found, x.want)
		}
	}
}

// PROTOCOLS E7: whichever of its fragments is asked, a split directory is at home; also
// as the directory of a file that nobody has.
func TestLocateOfASplitDirectory(t *testing.T) {
	r, dir, _, _ := splitRig(t)
	v := &view{r: r.kv, id: testShard, hash: r.hash}
	for _, subtree := range []base.SubtreeID{1, 7} {
		in, err := v.viewIn(subtree)
		if err != nil {
			t.Fatal(err)
		}
		out := &canopyv1.Result{}
		if found, err := in.locateNumber(base.Ino(dir), out); err != nil || !found || out.Attr.Subtree != 1 || out.Attr.Epoch != 3*uint64(2-min(subtree, 2)) {
			t.Errorf("subtree %d answers %v %v", subtree, out.Attr, err)
		}
	}
	out, err := r.m.locate(r.kv, &canopyv1.LocateCall{Ino: 1 << 50, Dir: dir})
	if err != nil || out.Attr.Subtree != 1 {
		t.Errorf("a file's directory: %v %v", out, err)
	}
}

// PROTOCOLS F3: a mark shows all that may have been acknowledged: where a transaction is
// about to make a name it waits for that.
func TestMarkWaitsForTransactions(t *testing.T) {
	r, dir, _, _ := splitRig(t)
	mark := &canopyv1.Op{Subtree: 7, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_MarkNames{MarkNames: &canopyv1.MarkNamesCall{Dir: dir, Token: 1}}}
	if res := r.ask(mark); res.Error != 0 || res.Mark == 0 || len(res.DirAttr.Fragments) != 2 {
		t.Fatal(formatResult(res))
	}
	id := schema.TxnID{Shard: testShard, Epoch: 1, Number: 1}
	res := r.own(&canopyv1.Command{Own: &canopyv1.Command_TxnPrepare{TxnPrepare: &canopyv1.TxnPrepareCommand{Txn: id.Proto(), Subtree: 7,
		Wants: []*canopyv1.TxnWant{{Kind: canopyv1.TxnWantKind_TXN_WANT_NAME, Dir: dir, Name: []byte("zoo")}}}}})
	if res.Error != 0 {
		t.Fatal(formatResult(res))
	}
	if res := r.ask(mark); fserr.Kind(res.Error) != fserr.Locked || len(res.BlockedBy) != 1 {
		t.Error(formatResult(res))
	}
	if res := r.m.QueryPast(r.kv, mark, map[schema.TxnID]bool{id: true}); res.Error != 0 {
		t.Error(formatResult(res))
	}
}

// What memkv.Split writes by hand is what a move of names leaves.
func TestSplitByHand(t *testing.T) {
	s := newShards(t, 2)
	sampleTree(s)
	s.mustAll(s.rename("/a/b/f1", "/a/b/renamed"), s.rename("/a/b/f2", "/a/b/named"), s.unlink("/a/b/f3"))
	dir, home := s.dir("/a/b")
	x := &canopyv1.Op{Subtree: home, Call: &canopyv1.Op_SetXattr{SetXattr: &canopyv1.SetXattrCall{
		Place: &canopyv1.Place{Ino: dir}, Name: []byte("user.a"), Value: []byte("1")}}}
	s.mustAll(s.do(x))
	rows := func(kv *memkv.Store, id base.ShardID) string {
		var b strings.Builder
		lo, hi := schema.ShardRange(id)
		if err := kv.Scan(lo, hi, func(key, value []byte) (bool, error) {
			if id, _ := schema.SubtreeOf(key); id == base.ShardMeta {
				return true, nil
			}
			switch schema.KindOf(key) {
			case schema.KindHeader, schema.KindDentry, schema.KindRelocation, schema.KindCounters, schema.KindSplit, schema.KindInode, schema.KindOrphan:
				fmt.Fprintln(&b, schema.Format(key), schema.FormatValue(key, value))
			}
			return true, nil
		}); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for i, m := range []rangeMove{
		{lo: half, hi: shard.BorderEnd, to: 2}, {lo: half + quarter, hi: shard.BorderEnd, to: 1}, {lo: quarter, hi: half, to: 1},
		{lo: half + quarter, hi: shard.BorderEnd}, {lo: half, hi: shard.BorderEnd}, {lo: quarter, hi: shard.BorderEnd, into: 1},
	} {
		m.path = "/a/b"
		before := map[base.ShardID]*memkv.Store{1: s.of[1].kv.Clone(), 2: s.of[2].kv.Clone()}
		had := s.fragments(dir)
		from := had.Find(shard.Hash(m.lo) << shard.FullBits).Subtree
		if m.to == 0 && m.into == 0 {
			m.into = had.Find(shard.Hash(m.lo-1) << shard.FullBits).Subtree
		}
		source := s.owner(from)
		into := s.moveNames(m, nil).Into
		target := s.owner(into)
		hand := &memkv.Split{From: before[source], To: before[target], Shard: source, Other: target, Subtree: from, Dir: base.Ino(dir),
			Names: shard.Range{Lo: m.lo, Hi: m.hi}, Into: into}
		hand.HandOff()
		hand.Clean()
		for id, kv := range before {
			if got, want := rows(kv, id), rows(s.of[id].kv, id); got != want {
				t.Fatalf("move %d, shard %d: by hand\n%s\nby a move\n%s", i, id, got, want)
			}
		}
	}
}
