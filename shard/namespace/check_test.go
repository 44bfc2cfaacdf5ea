package namespace

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/edge"
	"github.com/canopyfs/canopy/shard/schema"
)

// findings returns what a check of all shards finds, as text.
func (s *shards) findings() (all []string) {
	s.t.Helper()
	var edges []edge.Edge
	for _, x := range s.of {
		found, _, err := x.m.CheckEdges(x.kv, nil, func(f Finding) { all = append(all, f.Invariant+" "+f.Object+": "+f.Problem) })
		if err != nil {
			s.t.Fatal(err)
		}
		edges = append(edges, found...)
	}
	for _, f := range edge.Join(edges).Findings {
		all = append(all, f.Invariant+" inode "+f.Ino.String()+": "+f.Problem)
	}
	slices.Sort(all)
	return all
}

// eachRow calls change for the rows of a kind that a shard has; what it returns is
// put in the row's place, nil deletes it.
func (x *machineOf) eachRow(kind schema.Kind, change func(subtree base.SubtreeID, key, value []byte) []byte) {
	x.s.t.Helper()
	type row struct{ key, value []byte }
	var rows []row
	for id := range x.m.subtrees {
		lo, hi := schema.KindRange(x.id, id, kind)
		if err := x.kv.Scan(lo, hi, func(key, value []byte) (bool, error) {
			if next := change(id, key, value); !bytes.Equal(next, value) {
				rows = append(rows, row{bytes.Clone(key), next})
			}
			return true, nil
		}); err != nil {
			x.s.t.Fatal(err)
		}
	}
	for _, r := range rows {
		var err error
		if r.value == nil {
			err = x.kv.Delete(r.key)
		} else {
			err = x.kv.Set(r.key, r.value)
		}
		if err != nil {
			x.s.t.Fatal(err)
		}
	}
}

// A directory that was carved out and moved: what is damaged at the border, on one
// side or the other, is found when both are looked at (DESIGN section 10).
func TestCheckOverShards(t *testing.T) {
	header := func(change func(h *schema.Header)) func(base.SubtreeID, []byte, []byte) []byte {
		return func(id base.SubtreeID, _, value []byte) []byte {
			h, err := schema.DecodeHeader(value)
			if err != nil || id == base.RootSubtree || string(h.Name) != "b" {
				return value
			}
			change(h)
			return h.Append(nil)
		}
	}
	for _, x := range []struct {
		what, want string
		damage     func(s *shards)
	}{
		{"nothing", "", func(*shards) {}},
		{"the header says another parent", `its header says "b" in 7`, func(s *shards) {
			s.of[2].eachRow(schema.KindHeader, header(func(h *schema.Header) { h.Parent = 7 }))
		}},
		{"the header says a subtree that no forward leads from", "no forward leads there", func(s *shards) {
			s.of[2].eachRow(schema.KindHeader, header(func(h *schema.Header) { h.ParentSubtree = 77 }))
		}},
		{"the header is gone", "which has no header of it that says so", func(s *shards) {
			s.of[2].eachRow(schema.KindHeader, func(id base.SubtreeID, _, value []byte) []byte {
				if h, err := schema.DecodeHeader(value); err == nil && string(h.Name) == "b" {
					return nil
				}
				return value
			})
		}},
		{"the name is gone", "refers to it", func(s *shards) {
			s.of[1].eachRow(schema.KindDentry, func(_ base.SubtreeID, _, value []byte) []byte {
				if schema.DentryNameIs(value, []byte("b")) {
					return nil
				}
				return value
			})
		}},
		{"two shards own it", "is owned by shard", func(s *shards) {
			for id, tree := range s.of[2].m.subtrees {
				if err := s.of[3].kv.Set(schema.SubtreeKey(3, id), tree.Append(nil)); err != nil {
					s.t.Fatal(err)
				}
			}
		}},
		{"the owner forgot it", "which no shard owns", func(s *shards) {
			for id := range s.of[2].m.subtrees {
				if err := s.of[2].kv.Delete(schema.SubtreeKey(2, id)); err != nil {
					s.t.Fatal(err)
				}
			}
		}},
	} {
		s := newShards(t, 3)
		sampleTree(s)
		s.migrate("/a/b", 2, nil)
		x.damage(s)
		got := strings.Join(s.findings(), "\n")
		if (x.want == "") != (got == "") || !strings.Contains(got, x.want) {
			t.Errorf("%s:\n%s\nwant %q", x.what, got, x.want)
		}
	}
}

// At every step of a move each shard's own check finds nothing: what is on its way
// in or out, or left to be cleaned, does not count.
func TestCheckDuringAMove(t *testing.T) {
	s := newShards(t, 3)
	sampleTree(s)
	s.small = true
	steps := 0
	s.fault = func(what string, _ bool) error {
		steps++
		for _, x := range s.of {
			if _, _, err := x.m.CheckEdges(x.kv, nil, func(f Finding) {
				t.Errorf("at %s, shard %v: %s %s: %s", what, x.id, f.Invariant, f.Object, f.Problem)
			}); err != nil {
				t.Fatalf("at %s, shard %v: %v", what, x.id, err)
			}
		}
		return nil
	}
	s.migrate("/a/b", 2, func(step int) { busy(s, step) })
	s.migrate("/a/b", 3, nil)
	if steps < 20 {
		t.Errorf("only %d looks", steps)
	}
	s.check()
}

// What no operation leaves: each is planted in a shard's rows, and found.
func TestCheckFindsWhatIsLeft(t *testing.T) {
	txn := schema.TxnID{Shard: 2, Epoch: 1, Number: 9}
	lockKey := schema.HomeLockKey(1, 1, 1)
	for _, x := range []struct {
		what, want string
		damage     func(s *shards)
	}{
		{"a lock that nobody has prepared", "which has prepared nothing", func(s *shards) { s.of[1].put(lockKey, &schema.Intent{Txn: txn}) }},
		{"a transaction without its locks", "which is not locked for it", func(s *shards) {
			p := &schema.Prepared{SinceNS: s.now}
			p.Add(lockKey)
			s.of[1].put(schema.PreparedKey(1, 1, txn), p)
		}},
		{"a transaction that nobody decides", "and nobody decides it", func(s *shards) {
			s.now += int64(2 * overdue)
			s.create("/late") // the shard's time
			p := &schema.Prepared{SinceNS: 1000}
			p.Add(lockKey)
			s.of[1].put(schema.PreparedKey(1, 1, txn), p)
			s.of[1].put(lockKey, &schema.Intent{Txn: txn})
		}},
		{"a wrong count of transactions", "says that 3 transactions have prepared something in it, 0 have", func(s *shards) {
			tree := *s.of[1].m.subtrees[1]
			tree.Intents = 3
			s.of[1].put(schema.SubtreeKey(1, 1), &tree.Subtree)
		}},
		{"a decision that is not confirmed", "not every shard has confirmed it", func(s *shards) {
			s.now += int64(2 * overdue)
			s.create("/late")
			s.of[1].put(schema.DecisionKey(1, txn), &schema.Decision{TimeNS: 1000})
		}},
		{"an import that nobody drives", "takes in subtree 77 from shard 3, which does not move it", func(s *shards) {
			s.of[2].put(schema.ImportKey(2, 77), &schema.Import{State: schema.ImportRunning, Epoch: 2, From: 3})
		}},
		{"a subtree that nobody has", "no shard owns subtree", func(s *shards) {
			for id, tree := range s.of[2].m.subtrees {
				gone := tree.Subtree
				gone.State, gone.ToShard = schema.HandedOff, 3
				s.of[2].put(schema.SubtreeKey(2, id), &gone)
			}
		}},
		{"relocations to nowhere", "2 relocations of subtree 1 lead to subtree 66, which no shard owns", func(s *shards) {
			for ino := base.Ino(500); ino < 502; ino++ {
				s.of[1].put(schema.RelocationKey(1, 1, ino), &schema.Relocation{Subtree: 66, Dir: 1, Name: []byte("n")})
			}
		}},
		{"a lock that is not listed", "they would outlive its session", func(s *shards) {
			ino := s.linked()
			s.of[1].row(schema.KindInode, always, func(v []byte) []byte { n, _ := schema.DecodeInode(v); n.Locked = true; return n.Append(nil) })
			s.of[1].put(schema.LockKey(schema.InodeKey(1, 1, ino), schema.LockOwner{Kind: schema.LockFlock, Client: 0xa1}), &schema.Locks{})
		}},
	} {
		s := newShards(t, 3)
		sampleTree(s)
		s.migrate("/a/b", 2, nil)
		x.damage(s)
		if got := strings.Join(s.findings(), "\n"); !strings.Contains(got, x.want) {
			t.Errorf("%s:\n%s\nwant %q", x.what, got, x.want)
		}
	}
}

// Links that are more than are kept at once are checked part by part: each inode in one
// of them, with all its names.
func TestLinkNamesInParts(t *testing.T) {
	const inodes, each, bound = 1000, 3, 200
	var l linkNames
	gather := func() {
		for n := range inodes * each {
			l.addBounded(base.Ino(n%inodes+1), base.Ino(n), bound)
		}
	}
	gather()
	seen := map[base.Ino]bool{}
	for {
		names := map[base.Ino]int{}
		for _, n := range l.all {
			names[n.ino]++
		}
		for ino, n := range names {
			if n != each || seen[ino] {
				t.Fatalf("inode %v has %d names in part %d; seen before: %v", ino, n, l.part, seen[ino])
			}
			seen[ino] = true
		}
		if len(l.all) > 2*bound {
			t.Errorf("%d names are kept in part %d", len(l.all), l.part)
		}
		if l.part++; l.part >= l.parts {
			break
		}
		l.all = l.all[:0]
		gather()
	}
	if len(seen) != inodes || l.parts < inodes*each/bound {
		t.Errorf("%d inodes in %d parts", len(seen), l.parts)
	}
}
