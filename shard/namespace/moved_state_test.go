package namespace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/memkv"
	"github.com/canopyfs/canopy/shard/schema"
)

// PROTOCOLS C5 and A8, as far as one subtree goes: nothing moves yet, but what
// will move is one range of keys, and the requests' results are in it.

const otherShard = base.ShardID(2)

// copyRange copies keys to another shard: what follows the shard's id stays (A8).
func copyRange(t *testing.T, from, to *memkv.Store, shard base.ShardID, lo, hi []byte) (keys int) {
	t.Helper()
	type pair struct{ key, value []byte }
	var all []pair
	if err := from.Scan(lo, hi, func(key, value []byte) (bool, error) {
		all = append(all, pair{bytes.Clone(key), bytes.Clone(value)})
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		binary.BigEndian.PutUint64(p.key, uint64(shard))
		if err := to.Set(p.key, p.value); err != nil {
			t.Fatal(err)
		}
	}
	return len(all)
}

// movedRig returns a rig over another shard's store that has got r's subtree, and
// the sessions of the clients that have results in it. Sessions are opened at a
// shard (C3) and so lie under it, beside what ended ones had used up: a move
// takes those along.
func movedRig(t *testing.T, r *rig) *rig {
	t.Helper()
	to := &rig{t: t, shard: otherShard, kv: memkv.New(), now: r.now, seq: r.seq, places: r.places, marks: map[string][2]uint64{}}
	to.m = New(Config{Shard: otherShard})
	if err := to.m.Load(to.kv); err != nil {
		t.Fatal(err)
	}
	if got := to.own(&canopyv1.Command{Own: &canopyv1.Command_Bootstrap{Bootstrap: &canopyv1.BootstrapCommand{
		Cluster: "test", Shard: uint64(otherShard)}}}); got.Error != 0 {
		t.Fatal(formatResult(got))
	}
	lo, hi := schema.SubtreeRange(testShard, 1)
	copyRange(t, r.kv, to.kv, otherShard, lo, hi)
	for _, kind := range []schema.Kind{schema.KindSession, schema.KindEnded} {
		lo, hi := schema.KindRange(testShard, base.ShardMeta, kind)
		copyRange(t, r.kv, to.kv, otherShard, lo, hi)
	}
	to.m = New(Config{Shard: otherShard})
	if err := to.m.Load(to.kv); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestResultsGoWithTheSubtree is rule C5: a request that was executed before its
// subtree moved gets its first answer from the new owner, one that the client has
// seen the answer of is refused, and neither runs a second time; nor does a late
// one of a session that ended.
func TestResultsGoWithTheSubtree(t *testing.T) {
	r := newRig(t, nil)
	r.bootstrap()
	for _, client := range []uint64{0xa1, 0xb2, 0xc3} {
		r.openSession(client)
	}
	var sent []*canopyv1.Command
	var answers [][]byte
	run := func(line string) {
		c := r.parsed(line)
		sent, answers = append(sent, c), append(answers, r.apply(c)[0])
	}
	run("create /old excl seq=10 floor=10")
	run("create /a excl seq=20 floor=20") // seq 10 is answered
	run("create /a excl seq=21 floor=20") // fails: a result, too
	run("mkdir /d client=b2 seq=7 floor=3")
	run("rename /a /d/b client=b2 seq=9 floor=3")
	run("unlink /d/b seq=22 floor=20")
	run("create /late excl client=c3 seq=5 floor=5")
	r.mustRun("unlink /late client=b2 seq=11 floor=3")
	r.mustRun("end-sessions c3")

	to := movedRig(t, r)
	for i, c := range sent {
		got := to.apply(c)[0]
		switch {
		case i == 0:
			if k := fserr.Kind(to.decode(got).Error); k != fserr.BelowFloor {
				t.Errorf("the answered request at the new owner: %v, want %v", k, fserr.BelowFloor)
			}
		case c.Client == 0xc3:
			if k := fserr.Kind(to.decode(got).Error); k != fserr.SessionExpired {
				t.Errorf("a request of the ended session at the new owner: %v, want %v", k, fserr.SessionExpired)
			}
		case !bytes.Equal(got, answers[i]):
			t.Errorf("request %d at the new owner: %s, first %s", i, formatResult(to.decode(got)), formatResult(to.decode(answers[i])))
		}
	}
	// The client of the ended session opens another: its old request stays refused.
	for _, c := range []*canopyv1.Command{
		{Client: 0xc3, Floor: 30, Op: &canopyv1.Op{Seq: 30, Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{}}}},
		sent[6],
	} {
		got := fserr.Kind(to.decode(to.apply(c)[0]).Error)
		if want := map[uint64]fserr.Kind{30: fserr.OK, 5: fserr.BelowFloor}[c.Op.Seq]; got != want {
			t.Errorf("request %d of the client that came back: %v, want %v", c.Op.Seq, got, want)
		}
	}
	// What is new runs there, and only there.
	fresh := r.parsed("create /fresh excl seq=23 floor=21")
	if got := to.decode(to.apply(fresh)[0]); got.Attr == nil || base.Ino(got.Attr.Ino).Shard() != otherShard {
		t.Errorf("a new request at the new owner: %s", formatResult(got))
	}
	owned(schema.HandedOff)(r, nil)
	before := r.kv.Clone()
	for _, c := range append(sent, fresh) {
		if got := r.decode(r.apply(c)[0]); fserr.Kind(got.Error) != fserr.Moved && c.Client != 0xc3 {
			t.Errorf("%v at the old owner: %s", c.Op.Call, formatResult(got))
		}
	}
	if diff := r.changes(before); diff != "" {
		t.Errorf("the old owner changed\n%s", diff)
	}
	if out := to.check(); strings.Contains(out, "invariant") {
		t.Error(out)
	}
}

// TestAllOfASubtreeIsOneRange is rule A8 for what moves: everything that any
// operation writes lies in the subtree's range, but for the shard's own id
// counters and time, and its sessions; and another shard that gets just that
// range answers the same.
func TestAllOfASubtreeIsOneRange(t *testing.T) {
	r := newRig(t, nil)
	r.bootstrap()
	r.openSession(0xa1)
	r.openSession(0xb2)
	for _, l := range []string{
		"mkdir /d", "create /d/f", "setx /d/f user.a 1", "setx /d user.d 2", "symlink /d/s to", "mknod /d/p mode=10644",
		"create /d/linked", "setx /d/linked user.l 3", "link /d/linked /second", "create /d/r", "rename /d/r /d/renamed",
		"create /d/cut", "setattr /d/cut size=100", "report /d/cut size=50 epoch=2 changed", "create /d/app", "reserve /d/app len=10",
		"create /orphan", "setx /orphan user.o 4", "hold o /orphan", "unlink /orphan", "mkdir /gone", "rmdir /gone",
		"create /queued", "report /queued size=5 changed", "hold q /queued", "unlink /queued", "purge @q", "end-sessions b2", "quota /d inodes=8",
	} {
		if out := r.run("%s", l); !strings.HasPrefix(out, "ok") && !strings.HasPrefix(out, "held") {
			t.Fatalf("%s: %s", l, out)
		}
	}
	kinds := map[schema.Kind]bool{}
	lo, hi := schema.SubtreeRange(testShard, 1)
	if err := r.kv.Scan(nil, nil, func(key, _ []byte) (bool, error) {
		name := schema.Format(key)
		if bytes.Compare(key, lo) >= 0 && bytes.Compare(key, hi) < 0 {
			kinds[schema.Kind(key[16])] = true
		} else if word, _, _ := strings.Cut(strings.TrimPrefix(name, "1/-/"), " "); word != "shard" && word != "session" && word != "ended" {
			t.Errorf("%s lies outside the subtree's range", name)
		}
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := 13; len(kinds) != want { // all that there are: the test writes each
		t.Errorf("%d kinds of keys in the subtree, want %d", len(kinds), want)
	}
	to := movedRig(t, r)
	for _, l := range []string{
		"ls / plus links", "ls /d plus links", "getx /d/f user.a", "getx /d user.d", "getx /second user.l", "readlink /d/s",
		"getattr /d/renamed", "getattr @o", "getx @o user.o", "lookup /d/none", "parent /d", "getquota /d/f", "statfs /d",
	} {
		if here, there := r.run("%s", l), to.run("%s", l); here != there {
			t.Errorf("%s: %s\nat the other shard: %s", l, here, there)
		}
	}
	to.mustRun("fill /d/app off=0 len=10")
	to.mustRun("setattr /d/cut size=20")
	to.mustRun("purge @o")
	to.mustRun("create /d/8") // the eighth
	if out := to.run("create /d/9"); out != "quota exceeded" {
		t.Errorf("the quota at the other shard: %s", out)
	}
	if out := to.check(); strings.Contains(out, "invariant") {
		t.Error(out)
	}
}

// TestFragmentIsOneRange is rule A8 for fragments: the names of a range of border
// hashes, with their inodes and xattrs, are one range of keys, nothing else lies in
// it, and a directory that has only this range has just these names, complete.
func TestFragmentIsOneRange(t *testing.T) {
	r := newRig(t, nil)
	r.bootstrap()
	r.openSession(0xa1)
	const names = 64
	for _, d := range []string{"d", "e"} { // e's names have the same hashes
		r.mustRun("mkdir /%s", d)
		for i := range names {
			r.mustRun("create /%s/n%d", d, i)
			r.mustRun("setx /%s/n%d user.a %d", d, i, i)
		}
	}
	dir := inoOf("/d", r)
	for k, cuts := 0, []uint32{0, 1 << 26, 1<<27 + 12345, 1 << 28}; k+1 < len(cuts); k++ {
		want := map[string]bool{}
		for i := range names {
			name := fmt.Sprintf("n%d", i)
			if b := r.m.cfg.Hash([]byte(name)).Border(); b >= cuts[k] && b < cuts[k+1] {
				want[name] = true
			}
		}
		if len(want) == 0 {
			t.Fatal("a fragment without names: the test shows nothing")
		}
		lo, hi := schema.DentryRange(testShard, 1, dir, fragmentStart(cuts[k]), fragmentStart(cuts[k+1])-1)
		to := newRig(t, nil)
		to.bootstrap()
		to.places = map[string]*canopyv1.Place{"d": {Ino: uint64(dir)}}
		if n := copyRange(t, r.kv, to.kv, testShard, lo, hi); n != 2*len(want) {
			t.Errorf("fragment %d has %d names with an xattr each, and %d keys", k, len(want), n)
		}
		to.put(schema.HeaderKey(testShard, 1, dir), r.header("/d"))
		for i := range names {
			name := fmt.Sprintf("n%d", i)
			found := strings.HasPrefix(to.run("lookup @d/%s", name), "ok")
			if found != want[name] {
				t.Errorf("fragment %d: %s found %v, want %v", k, name, found, want[name])
			}
			if !found {
				continue
			}
			to.places["f"] = &canopyv1.Place{Ino: uint64(inoOf("/d/"+name, r)), Dir: uint64(dir), Name: []byte(name)}
			if out := to.run("getx @f user.a"); out != fmt.Sprintf("ok data=\"%d\"", i) {
				t.Errorf("fragment %d: the xattr of %s: %s", k, name, out)
			}
		}
	}
}

// fragmentStart returns the first position of a fragment that starts at a border
// hash.
func fragmentStart(border uint32) base.Cookie { return base.Cookie(border) << 35 }
