package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/migrate"
	"github.com/canopyfs/canopy/shard/schema"
)

// txnSource and txnTarget are shards of a cluster as the ends of a move.
type txnSource struct {
	*shardRig
	t testing.TB
}

func (s txnSource) Move(_ context.Context, c *canopyv1.MoveCommand) (*canopyv1.Move, error) {
	r := s.own(s.t, &canopyv1.Command{Own: &canopyv1.Command_Move{Move: c}})
	if r.Error != 0 {
		return nil, &fserr.Error{Kind: fserr.Kind(r.Error), Path: r.Detail}
	}
	return r.Move, nil
}

func (s txnSource) Read(_ context.Context, fn func(shard.Reader) error) error { return fn(s.kv) }

func (s txnSource) Changed(subtree base.SubtreeID, attempt, round uint64) ([]string, bool) {
	return s.m.Changed(subtree, attempt, round)
}

func (s txnSource) Recorded(subtree base.SubtreeID, attempt uint64) int {
	return s.m.Recorded(subtree, attempt)
}

func (s txnSource) Policy(r shard.Reader, subtree base.SubtreeID, dir base.Ino) ([]byte, error) {
	return s.m.PolicyFor(r, subtree, dir)
}

func (s txnSource) Waits(r shard.Reader, subtree base.SubtreeID) (bool, error) {
	return HasIntents(r, s.id, subtree)
}

type txnTarget txnSource

func (x txnTarget) Import(_ context.Context, c *canopyv1.ImportCommand) (*canopyv1.ImportResponse, error) {
	r := x.own(x.t, &canopyv1.Command{Own: &canopyv1.Command_Import{Import: c}})
	return &canopyv1.ImportResponse{Error: r.Error, Detail: r.Detail, Batch: r.Move.GetBatches(), Counts: r.MoveCounts}, nil
}

// namesMove is a move of names over a cluster, which a test drives.
type namesMove struct {
	c    *cluster
	of   base.SubtreeID
	from base.ShardID
	to   base.ShardID
	into base.SubtreeID
	d    *migrate.Driver
	now  time.Duration
}

// beginNames begins to move names; nil: it is refused.
func (c *cluster) beginNames(dir where, names shard.Range, to base.ShardID, into base.SubtreeID) *namesMove {
	c.t.Helper()
	_, frags := c.fragments(dir.subtree, dir.ino)
	m := &namesMove{c: c, of: frags.Find(shard.HashOf(names.First())).Subtree, to: to}
	m.from = c.owner[m.of]
	if into != 0 {
		m.to = c.owner[into]
	}
	if m.phase() != 0 {
		return nil // it moves
	}
	r := c.nodes[m.from].own(c.t, &canopyv1.Command{Own: &canopyv1.Command_Move{Move: &canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_BEGIN,
		Subtree: uint64(m.of), Dir: dir.ino, ToShard: uint64(m.to), Lo: names.Lo, Hi: names.Hi, Into: uint64(into)}}})
	if r.Error != 0 {
		return nil
	}
	m.into = base.SubtreeID(r.Move.Into)
	m.begin()
	return m
}

// begin makes a driver, which goes on from the log.
func (m *namesMove) begin() {
	m.d = migrate.New(m.from, m.of, txnSource{m.c.nodes[m.from], m.c.t}, txnTarget{m.c.nodes[m.to], m.c.t}, func() time.Duration { m.now++; return m.now })
	m.d.Hash, m.d.Limits = m.c.hash, migrate.Limits{BatchBytes: 300, WalkNames: 3, CalmKeys: 1}
}

// phase is how far the move is; 0: it has ended.
func (m *namesMove) phase() schema.MovePhase {
	at := &schema.Move{}
	value, found, err := m.c.nodes[m.from].kv.Get(schema.MoveKey(m.from, m.of))
	if err == nil && found {
		at, err = schema.DecodeMove(value)
	}
	if err != nil {
		m.c.t.Fatal(err)
	}
	return at.Phase
}

// step does the next step, and those that operations wait for; done: it has ended.
func (m *namesMove) step() (done bool) {
	for {
		done, err := m.d.Step(m.c.t.Context())
		switch kind := fserr.KindOf(err); {
		case kind == fserr.Busy:
			m.now += migrate.JoinLimit / 4
		case err != nil && kind != fserr.OldEpoch && !errors.Is(err, migrate.ErrWaits):
			m.c.t.Fatalf("a step of the move: %v", err)
		}
		if done {
			return true
		}
		switch m.phase() {
		case schema.MoveFrozen:
			continue
		case schema.MoveHandedOff:
			m.c.owner[m.into] = m.to
			continue
		}
		return false
	}
}

// TestMovesOfNamesAndTransactions: operations over directories, with transactions among
// them, have the answers and leave the tree that they have in one subtree, while names
// of the directories move between three shards, two ranges at a time, and drivers and
// machines are lost.
func TestMovesOfNamesAndTransactions(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		split, plain := newHashedShards(t, 3, letterHash), newHashedShards(t, 1, letterHash)
		both := func(line string) (string, string) {
			x := split.line(parseLine(t, nil, line))
			y := plain.line(parseLine(t, nil, line))
			return ownNumbers.ReplaceAllString(x, ""), ownNumbers.ReplaceAllString(y, "")
		}
		dirs := []string{"/a", "/b", "/c", "/a/d", "/b/e"}
		for _, d := range dirs {
			both("mkdir " + d + " mode=777")
			for _, f := range []string{"f", "h", "r", "t"} {
				both("create " + d + "/" + f)
			}
		}
		var moves []*namesMove
		for i := range rapid.IntRange(1, 80).Draw(r, "n") {
			if n := rapid.IntRange(0, 5).Draw(r, "moves"); n == 0 && len(moves) < 2 {
				if m := split.beginSome(r, dirs); m != nil {
					moves = append(moves, m)
				}
			} else if n < 5 && len(moves) > 0 {
				k := rapid.IntRange(0, len(moves)-1).Draw(r, "which")
				for range rapid.IntRange(1, 6).Draw(r, "steps") {
					if moves[k].step() {
						moves = slices.Delete(moves, k, k+1)
						break
					}
				}
			}
			switch rapid.IntRange(0, 15).Draw(r, "crash") {
			case 0:
				split.nodes[base.ShardID(rapid.IntRange(1, 3).Draw(r, "machine"))].load(t)
			case 1:
				for _, m := range moves {
					m.begin()
				}
			}
			line := historyLine(r, dirs, i)
			if got, want := both(line); got != want {
				t.Fatalf("%s: %s, in one subtree %s", line, got, want)
			}
		}
		for _, m := range moves {
			for i := 0; !m.step(); i++ {
				if i > 10000 {
					t.Fatalf("a move never ends: %v", m.phase())
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

// beginSome begins to move some names of a directory, by their letters.
func (c *cluster) beginSome(r *rapid.T, dirs []string) *namesMove {
	d := c.dir(rapid.SampledFrom(append([]string{"/"}, dirs...)).Draw(r, "of"))
	n := c.nodes[c.owner[d.subtree]]
	if n == nil {
		return nil
	}
	if _, found, _ := n.kv.Get(schema.HeaderKey(n.id, d.subtree, base.Ino(d.ino))); !found {
		return nil // it is a file by now, or gone
	}
	_, m := c.fragments(d.subtree, d.ino)
	lo := letterRange(rapid.SampledFrom([]string{"b", "c", "d", "e", "g", "s", "x", "y"}).Draw(r, "border"), "").Lo
	of, owner := m.At(lo), m.Find(shard.Hash(lo)<<shard.FullBits).Subtree
	if of.Lo > 0 && rapid.Bool().Draw(r, "all of it") {
		lo = of.Lo
	}
	var into base.SubtreeID
	others := slices.DeleteFunc(slices.Clone(m), func(f shard.Fragment) bool { return f.Subtree == owner })
	if len(others) > 0 && rapid.Bool().Draw(r, "join") {
		into = others[rapid.IntRange(0, len(others)-1).Draw(r, "into")].Subtree
	}
	return c.beginNames(d, shard.Range{Lo: lo, Hi: of.Hi}, base.ShardID(rapid.IntRange(1, len(c.nodes)).Draw(r, "shard")), into)
}

// historyLine is an operation of a history.
func historyLine(r *rapid.T, dirs []string, i int) string {
	dir := func() string { return rapid.SampledFrom(append([]string{"/"}, dirs...)).Draw(r, "dir") }
	path := func(what string) string {
		return strings.TrimSuffix(dir(), "/") + "/" + rapid.SampledFrom([]string{"a", "b", "bb", "d", "e", "f", "h", "r", "t", "x", "y"}).Draw(r, what)
	}
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
		line = fmt.Sprintf("setx %s user.x %d", path("old"), i)
	case 8:
		line = fmt.Sprintf("getx %s user.x", path("old"))
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
	return line
}

// What a transaction decided is carried out, though all positions for its name were taken
// after it had prepared (PROTOCOLS F2): a commit that fails would stop the replica.
func TestDecidedNameFindsRoom(t *testing.T) {
	const first = shard.Hash(1<<shard.FullBits | 5)
	c := newHashedShards(t, 2, func([]byte) shard.Hash { return first })
	for _, line := range []string{"mkdir /d", "spread /d", "mkdir /d/a", "mkdir /d/b", "create /d/a/f"} {
		c.line(parseLine(t, nil, line))
	}
	to := c.dir("/d/b")
	n := c.nodes[c.owner[to.subtree]]
	taken := (&schema.Dentry{Kind: schema.Link, Name: []byte("taken"), Ino: 77, Subtree: to.subtree}).Append(nil)
	var last []byte
	h := first
	for range maxProbe {
		for i := range shard.Collisions {
			last = schema.DentryKey(n.id, to.subtree, base.Ino(to.ino), h.Cookie(i))
			if err := n.kv.Set(last, taken); err != nil {
				t.Fatal(err)
			}
		}
		h = h.Next()
	}
	begin := func() *driven {
		at, op := c.operation(parseLine(t, nil, "rename /d/a/f /d/b/f"))
		c.seq++
		op.Subtree, op.Seq = uint64(at), c.seq
		return c.begin(op, c.request(op)).prepare()
	}
	if x := begin(); x.failed != 0 || x.verdict.Kind != fserr.NoSpace {
		t.Errorf("prepare without room: %v, %v", x.failed, x.verdict)
	} else {
		x.decide()
		x.finish()
	}
	if err := n.kv.Delete(last); err != nil {
		t.Fatal(err)
	}
	x := begin()
	if x.failed != 0 || x.verdict.Kind != fserr.OK {
		t.Fatalf("prepare: %v, %v", x.failed, x.verdict)
	}
	if err := n.kv.Set(last, taken); err != nil { // somebody else comes
		t.Fatal(err)
	}
	if r := x.decide(); r.Error != 0 {
		t.Errorf("decide: %v", fserr.Kind(r.Error))
	}
	x.finish()
	if r := c.lookup(c.dir("/d/b"), "f"); r.Error != 0 {
		t.Errorf("it is not there: %v", fserr.Kind(r.Error))
	}
}
