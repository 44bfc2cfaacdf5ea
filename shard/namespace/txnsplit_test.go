package namespace

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// mustRun runs lines that have to succeed.
func (c *cluster) mustRun(lines ...string) {
	c.t.Helper()
	for _, line := range lines {
		if out := c.line(parseLine(c.t, nil, line)); !strings.HasPrefix(out, "ok") && !strings.HasPrefix(out, "held") {
			c.t.Fatalf("%s: %s", line, out)
		}
	}
}

// nothingLeft checks that no transaction left anything behind.
func (c *cluster) nothingLeft() {
	c.t.Helper()
	for id, n := range c.nodes {
		if locks := n.dump([]string{"intent", "prepared", "home-lock", "no-moves", "move-lock", "decision"}); locks != "" {
			c.t.Errorf("left behind on shard %d:\n%s", id, locks)
		}
	}
}

// splitSome splits or merges a directory a little, by the letters of names.
func (c *cluster) splitSome(r *rapid.T, path string) {
	d := c.dir(path)
	if n := c.nodes[c.owner[d.subtree]]; n == nil {
		return
	} else if _, found, _ := n.kv.Get(schema.HeaderKey(n.id, d.subtree, base.Ino(d.ino))); !found {
		return // by now it is a file, or gone
	}
	_, m := c.fragments(d.subtree, d.ino)
	lo := letterRange(rapid.SampledFrom([]string{"b", "c", "d", "e", "x", "y"}).Draw(r, "border"), "").Lo
	of := m.At(lo)
	hi := of.Hi
	if rapid.Bool().Draw(r, "short") {
		hi = min(hi, lo+1<<letterBits)
	}
	var into base.SubtreeID
	if others := slices.DeleteFunc(slices.Clone(m), func(f shard.Fragment) bool { return f.Subtree == m.Find(shard.HashOf(of.First())).Subtree }); len(others) > 0 && rapid.Bool().Draw(r, "join") {
		into = others[rapid.IntRange(0, len(others)-1).Draw(r, "into")].Subtree
	}
	c.splitDir(d.subtree, d.ino, shard.Range{Lo: lo, Hi: hi}, base.ShardID(rapid.IntRange(1, len(c.nodes)).Draw(r, "shard")), into)
}

// TestSplitDirectoriesAnswerAsOneDoes: a history over directories that are split and
// merged meanwhile, over three shards, has the answers and the tree that it has when
// nothing is split.
func TestSplitDirectoriesAnswerAsOneDoes(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		split, plain := newHashedShards(t, 3, letterHash), newHashedShards(t, 1, letterHash)
		both := func(line string) (string, string) {
			x := split.line(parseLine(t, nil, line))
			y := plain.line(parseLine(t, nil, line))
			return ownNumbers.ReplaceAllString(x, ""), ownNumbers.ReplaceAllString(y, "")
		}
		if rapid.Bool().Draw(r, "spread") {
			split.line(parseLine(t, nil, "spread /"))
		}
		dirs := []string{"/a", "/b", "/c", "/a/d", "/b/e"}
		for _, d := range dirs {
			both("mkdir " + d + " mode=777")
		}
		dir := func() string { return rapid.SampledFrom(append([]string{"/"}, dirs...)).Draw(r, "dir") }
		path := func(what string) string {
			return strings.TrimSuffix(dir(), "/") + "/" + rapid.SampledFrom([]string{"a", "b", "bb", "d", "x", "y"}).Draw(r, what)
		}
		for i := range rapid.IntRange(1, 60).Draw(r, "n") {
			var line string
			switch rapid.IntRange(0, 16).Draw(r, "op") {
			case 0, 1:
				line = "create " + path("new")
			case 2:
				line = "mkdir " + path("new") + " mode=777"
			case 3:
				line = "unlink " + path("old")
			case 4:
				line = "rmdir " + path("old")
			case 5:
				line = fmt.Sprintf("link %s %s", path("old"), path("new"))
			case 6:
				line = fmt.Sprintf("setx %s user.x %d flags=%d", dir(), i, rapid.IntRange(0, 2).Draw(r, "flags"))
			case 7:
				line = fmt.Sprintf("getx %s user.x", path("old"))
			case 8:
				line = fmt.Sprintf("rmx %s user.x", dir())
			case 9:
				line = fmt.Sprintf("setattr %s mode=%o", dir(), rapid.SampledFrom([]int{0o777, 0o755, 0o1777}).Draw(r, "mode"))
			case 10:
				line = fmt.Sprintf("acl %s group=%d", dir(), rapid.IntRange(4, 7).Draw(r, "group"))
			case 11:
				line = "stat " + dir()
			case 12:
				line = "ls " + dir()
			default:
				line = fmt.Sprintf("rename %s %s flags=%d", path("old"), path("new"), rapid.SampledFrom([]int{0, 0, 0, 1, 2, 4}).Draw(r, "flags"))
			}
			if rapid.IntRange(0, 3).Draw(r, "user") == 0 {
				line += " uid=5"
			}
			if got, want := both(line); got != want {
				t.Fatalf("%s: %s, in one subtree %s", line, got, want)
			}
			switch rapid.IntRange(0, 8).Draw(r, "between") {
			case 0, 1:
				split.splitSome(r, dir())
			case 2:
				for _, n := range split.nodes {
					n.load(t)
				}
			}
		}
		split.check()
		split.nothingLeft()
		if got, want := ownNumbers.ReplaceAllString(split.tree(), ""), ownNumbers.ReplaceAllString(plain.tree(), ""); got != want {
			t.Errorf("%s\nin one subtree\n%s", got, want)
		}
	})
}

// TestCrossingMovesOverSplitDirectories is TestCrossingMovesLeaveATree with directories
// in the path that are split, so that walks come to copies and husks.
func TestCrossingMovesOverSplitDirectories(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := newHashedShards(t, 3, letterHash)
		c.mustRun("mkdir /top", "mkdir /top/a", "mkdir /top/b", "mkdir /top/a/p", "mkdir /top/b/q", "mkdir /top/a/p/p2", "mkdir /top/b/q/q2")
		if rapid.Bool().Draw(r, "spread") {
			c.mustRun("spread /top", "mkdir /top/c", "rename /top/b /top/c/b", "rename /top/c/b /top/b")
		}
		paths := []string{"/", "/top", "/top/a", "/top/b", "/top/a/p", "/top/b/q", "/top/a/p/p2", "/top/b/q/q2"}
		for range rapid.IntRange(1, 8).Draw(r, "splits") {
			d := c.dir(rapid.SampledFrom(paths).Draw(r, "split"))
			_, m := c.fragments(d.subtree, d.ino)
			i := rapid.IntRange(0, len(m)-1).Draw(r, "range")
			of := m.Range(i)
			if i == 0 {
				of.Lo = letterRange(rapid.SampledFrom([]string{"a", "b", "p", "q"}).Draw(r, "from"), "").Lo
			}
			if of.Lo >= of.Hi || i > 0 && m[i].Subtree == m.Home() {
				continue
			}
			var into base.SubtreeID // a join, with home if there is but one fragment more: a husk stays
			if i > 0 && rapid.Bool().Draw(r, "join") {
				into = m.Home()
			}
			c.splitDir(d.subtree, d.ino, of, base.ShardID(rapid.IntRange(1, 3).Draw(r, "shard")), into)
		}
		c.mustRun("hold a /top/a", "hold b /top/b", "hold p2 /top/a/p/p2", "hold q2 /top/b/q/q2")
		before := strings.Count(c.tree(), "\n")
		movers := []*mover{{c: c, line: "rename a/p q2/p"}, {c: c, line: "rename b/q p2/q"}}
		for i := 0; !movers[0].done || !movers[1].done; i++ {
			m := movers[rapid.IntRange(0, 1).Draw(r, "who")]
			if i > 300 { // fair from here on
				m = movers[i/60%2]
			}
			if !m.done {
				m.step()
			}
		}
		x, y := movers[0].answer, movers[1].answer
		if !(x == fserr.OK && y == fserr.Invalid || x == fserr.Invalid && y == fserr.OK) {
			t.Errorf("answers: %v and %v", x, y)
		}
		if tree := c.tree(); strings.Count(tree, "\n") != before {
			t.Errorf("some directories cannot be reached:\n%s", tree)
		}
		c.check()
		c.nothingLeft()
	})
}

// readDecided is how a holder reads what may be locked (PROTOCOLS D3): it passes by
// what is not decided, and waits (nil) for what is.
func (c *cluster) readDecided(at base.SubtreeID, op *canopyv1.Op) *canopyv1.Result {
	op.Subtree, op.Cred = uint64(at), &canopyv1.Credential{}
	n := c.nodes[c.owner[at]]
	past := map[schema.TxnID]bool{}
	for {
		r := n.m.QueryPast(n.kv, op, past)
		if fserr.Kind(r.Error) != fserr.Locked {
			return r
		}
		for _, b := range r.BlockedBy {
			id := schema.TxnOf(b)
			d, err := DecisionOf(c.nodes[id.Shard].kv, id.Shard, id)
			if err != nil {
				c.t.Fatal(err)
			}
			if d != nil {
				return nil
			}
			past[id] = true
		}
	}
}

// TestNobodySeesOldAttributesAfterNewOnes is PROTOCOLS F1: while a change of a split
// directory goes through, in whatever order its steps are, whoever has seen the new
// attributes at one fragment does not see the old ones at another.
func TestNobodySeesOldAttributesAfterNewOnes(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := newHashedShards(t, 3, letterHash)
		c.mustRun("mkdir /d mode=755")
		d := c.dir("/d")
		for i, letter := range []string{"w", "s", "m", "f"}[:rapid.IntRange(1, 4).Draw(r, "fragments")] {
			c.splitDir(d.subtree, d.ino, letterRange(letter, [...]string{"", "w", "s", "m"}[i]), base.ShardID(rapid.IntRange(1, 3).Draw(r, "shard")), 0)
		}
		all, _ := c.fragments(d.subtree, d.ino)
		at, op := c.operation(parseLine(t, nil, "setattr /d mode=700"))
		c.seq++
		op.Subtree, op.Seq = uint64(at), c.seq
		x := c.begin(op, c.request(op))
		var left []*canopyv1.TxnShare
		crash := map[base.ShardID]bool{}
		seen := false
		for i := 0; ; i++ {
			if id := base.ShardID(rapid.IntRange(1, 6).Draw(r, "restart")); c.nodes[id] != nil && !crash[id] && i > 0 {
				crash[id] = true
				c.nodes[id].load(t)
			}
			from := all[rapid.IntRange(0, len(all)-1).Draw(r, "reader")]
			got := c.readDecided(from, &canopyv1.Op{Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: d.ino}}}})
			switch {
			case got == nil:
			case got.Error != 0:
				t.Fatalf("%v", fserr.Kind(got.Error))
			case got.Attr.Mode&0o777 == 0o700:
				seen = true
			case seen:
				t.Fatalf("subtree %d shows the old mode after the new one was seen", from)
			}
			switch {
			case x.verdict == nil:
				if !x.step() && x.failed != 0 {
					t.Fatal(x.failed)
				}
				continue
			case x.decided == nil:
				if a := x.decide(); a.Error != 0 {
					t.Fatal(fserr.Kind(a.Error))
				}
				left = rapid.Permutation(x.decided).Draw(r, "commits")
				continue
			case len(left) > 0:
				s := left[0]
				left = left[1:]
				c.nodes[base.ShardID(s.Shard)].own(t, &canopyv1.Command{Own: &canopyv1.Command_TxnCommit{TxnCommit: s.Commit}})
				continue
			}
			break
		}
		x.finish()
		c.nothingLeft()
		c.check()
	})
}

// TestChangesOfASplitDirectoryTogether: whatever the order of the steps of changes,
// renames within it and its removal, all copies of the header agree in the end, and
// counts are right.
func TestChangesOfASplitDirectoryTogether(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := newHashedShards(t, 2, letterHash)
		c.mustRun("mkdir /d mode=755", "create /d/a", "create /d/n", "mkdir /d/z", "mkdir /e", "hold d /d")
		d := c.dir("/d")
		c.splitDir(d.subtree, d.ino, letterRange("t", ""), 1, 0)
		c.splitDir(d.subtree, d.ino, letterRange("m", "t"), 2, 0)
		lines := []string{"setattr d mode=700", "setx d user.x 1", "rename d/a d/o", "rename d/z d/b", "rename d/n /m", "rename /e d/p", "setattr d owner=7", "rename d/n d/y", "rmdir /d"}
		var movers []*mover
		for _, line := range rapid.Permutation(lines).Draw(r, "lines")[:rapid.IntRange(2, 4).Draw(r, "n")] {
			movers = append(movers, &mover{c: c, line: line})
		}
		for i := 0; slices.ContainsFunc(movers, func(m *mover) bool { return !m.done }); i++ {
			m := movers[rapid.IntRange(0, len(movers)-1).Draw(r, "who")]
			if i > 200 {
				m = movers[i/60%len(movers)]
			}
			if !m.done {
				m.step()
			}
		}
		answers := map[string]fserr.Kind{}
		for _, m := range movers {
			answers[m.line] = m.answer
		}
		if k, ok := answers["rmdir /d"]; ok && k != fserr.NotEmpty {
			t.Errorf("%v", answers)
		}
		for _, line := range slices.Sorted(maps.Keys(answers)) {
			if strings.HasPrefix(line, "set") && answers[line] != fserr.OK {
				t.Errorf("%s: %v", line, answers[line])
			}
		}
		c.list(d)
		if r := c.whole(c.query(d.subtree, &canopyv1.Op{Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: d.ino}}}})); int(r.Attr.GetSize()) != len(c.list(d).Entries) {
			t.Errorf("%d names, counted %v", len(c.list(d).Entries), r.Attr)
		}
		c.nothingLeft()
		c.check()
	})
}
