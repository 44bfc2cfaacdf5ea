package namespace

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/edge"
)

// mover drives one rename until it has an answer, one step at a time.
type mover struct {
	c      *cluster
	line   string
	d      *driven
	told   int // of the commits
	answer fserr.Kind
	done   bool
}

// step does the next thing that is to be done, whatever that is.
func (m *mover) step() {
	switch {
	case m.d == nil:
		at, op := m.c.operation(parseLine(m.c.t, nil, m.line))
		m.c.seq++
		op.Subtree, op.Seq = uint64(at), m.c.seq
		m.c.open[op.Seq] = true
		m.d = m.c.begin(op, m.c.request(op))
	case m.d.failed != 0: // the try met the other: all is given back, and it starts again
		m.d.finish()
		op, at, forwards := m.d.op, base.SubtreeID(m.d.op.Subtree), m.d.forwards
		if m.d.told != nil {
			op, at = redirected(m.d.told, op)
			forwards = TxnForwards{}
		}
		op.Subtree = uint64(at)
		m.d = m.c.beginWith(op, m.c.request(op), forwards)
	case m.d.verdict == nil:
		m.d.step()
	case m.d.decided == nil:
		m.answer = fserr.Kind(m.d.decide().Error)
		delete(m.c.open, m.d.op.Seq)
		if m.answer != fserr.OK {
			m.d.finish()
			m.done = true
		}
	case m.told < len(m.d.decided):
		if s := m.d.decided[m.told]; base.ShardID(s.Shard) != m.d.shard {
			m.c.nodes[base.ShardID(s.Shard)].own(m.c.t, &canopyv1.Command{Own: &canopyv1.Command_TxnCommit{TxnCommit: s.Commit}})
		}
		m.told++
	default:
		m.d.finish()
		m.done = true
	}
}

// TestCrossingMovesLeaveATree is PROTOCOLS D6: whatever the order of the steps of two
// moves that cross, one wins, the other is told EINVAL, and every directory can be
// reached.
func TestCrossingMovesLeaveATree(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := newTxnShards(t, rapid.IntRange(1, 3).Draw(r, "shards"))
		for _, line := range []string{
			"mkdir /top", "spread /top", "mkdir /top/a", "mkdir /top/b", "mkdir /top/a/p", "mkdir /top/b/q", "mkdir /top/a/p/p2", "mkdir /top/b/q/q2",
			"hold a /top/a", "hold b /top/b", "hold p /top/a/p", "hold q /top/b/q", "hold p2 /top/a/p/p2", "hold q2 /top/b/q/q2",
		} {
			if out := c.line(parseLine(t, nil, line)); !strings.HasPrefix(out, "ok") && !strings.HasPrefix(out, "held") {
				t.Fatalf("%s: %s", line, out)
			}
		}
		before := strings.Count(c.tree(), "\n")
		movers := []*mover{{c: c, line: "rename a/p q2/p"}, {c: c, line: "rename b/q p2/q"}}
		for i := 0; !movers[0].done || !movers[1].done; i++ {
			m := movers[rapid.IntRange(0, 1).Draw(r, "who")]
			if i > 300 { // fair from here on
				m = movers[i/40%2]
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
		for id, n := range c.nodes {
			if locks := n.dump([]string{"intent", "prepared", "home-lock", "no-moves", "move-lock", "decision"}); locks != "" {
				t.Errorf("left behind on shard %d:\n%s", id, locks)
			}
		}
	})
}

// check is fsck over all shards.
func (c *cluster) check() {
	var edges []edge.Edge
	for id, n := range c.nodes {
		found, _, err := n.m.CheckEdges(n.kv, nil, func(f Finding) { c.t.Errorf("shard %d: %s %s: %s", id, f.Invariant, f.Object, f.Problem) })
		if err != nil {
			c.t.Fatal(err)
		}
		edges = append(edges, found...)
	}
	for _, f := range edge.Join(edges).Findings {
		c.t.Errorf("%+v", f)
	}
}

var ownNumbers = regexp.MustCompile(`\d+#\d+|c=\d+|v=\d+|in \S+`)

// TestTransactionsAnswerAsOneShardDoes: a history over a spread tree on two shards has
// the answers and the tree that it has in one subtree, also when machines start anew
// in between.
func TestTransactionsAnswerAsOneShardDoes(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		spread, plain := newTxnShards(t, 2), newTxnShards(t, 1)
		both := func(line string) (string, string) {
			x := spread.line(parseLine(t, nil, line))
			y := plain.line(parseLine(t, nil, line))
			return ownNumbers.ReplaceAllString(x, ""), ownNumbers.ReplaceAllString(y, "")
		}
		spread.line(parseLine(t, nil, "spread /"))
		dirs := []string{"/a", "/b", "/c", "/a/d", "/b/e"}
		for _, d := range dirs {
			both("mkdir " + d + " mode=777")
		}
		path := func(what string) string {
			dir := rapid.SampledFrom(append([]string{""}, dirs...)).Draw(r, what+" dir")
			return dir + "/" + rapid.SampledFrom([]string{"a", "b", "d", "x", "y"}).Draw(r, what)
		}
		for i := range rapid.IntRange(1, 60).Draw(r, "n") {
			var line string
			switch rapid.IntRange(0, 11).Draw(r, "op") {
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
				line = fmt.Sprintf("setx %s user.x %d", path("old"), i)
			case 7:
				line = fmt.Sprintf("getx %s user.x", path("old"))
			default:
				line = fmt.Sprintf("rename %s %s flags=%d", path("old"), path("new"), rapid.SampledFrom([]int{0, 0, 0, 1, 2, 4}).Draw(r, "flags"))
			}
			if rapid.IntRange(0, 3).Draw(r, "user") == 0 {
				line += " uid=5"
			}
			if got, want := both(line); got != want {
				t.Fatalf("%s: %s, in one subtree %s", line, got, want)
			}
			if rapid.IntRange(0, 20).Draw(r, "restart") == 0 {
				for _, n := range spread.nodes {
					n.load(t)
				}
			}
		}
		spread.check()
		if got, want := ownNumbers.ReplaceAllString(spread.tree(), ""), ownNumbers.ReplaceAllString(plain.tree(), ""); got != want {
			t.Errorf("%s\nin one subtree\n%s", got, want)
		}
	})
}
