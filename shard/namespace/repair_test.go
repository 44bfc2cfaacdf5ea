package namespace

import (
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/edge"
	"github.com/canopyfs/canopy/shard/memkv"
	"github.com/canopyfs/canopy/shard/schema"
)

// ordered is a repair and where it goes.
type ordered struct {
	shard  base.ShardID
	repair *canopyv1.Repair
}

// plan checks all shards and returns what is found, and what mends it.
func (s *shards) plan() (found []string, plan []ordered) {
	s.t.Helper()
	var edges []edge.Edge
	for id := base.ShardID(1); int(id) <= len(s.of); id++ {
		x := s.of[id]
		some, _, err := x.m.CheckEdges(x.kv, nil, func(f Finding) {
			found = append(found, f.Invariant+" "+f.Object+": "+f.Problem)
			if f.Repair != nil {
				plan = append(plan, ordered{id, f.Repair})
			}
		})
		if err != nil {
			s.t.Fatal(err)
		}
		edges = append(edges, some...)
	}
	for _, f := range edge.Join(edges).Findings {
		found = append(found, f.Invariant+" inode "+f.Ino.String()+": "+f.Problem)
		if f.Mend != nil {
			plan = append(plan, ordered{f.Mend.Shard, f.Mend.Repair()})
		}
	}
	return found, plan
}

// mend makes repairs and returns how many were.
func (s *shards) mend(plan []ordered) (made int) {
	s.t.Helper()
	for _, p := range plan {
		if s.of[p.shard].must(&canopyv1.Command{Own: &canopyv1.Command_Repair{Repair: p.repair}}).Repaired {
			made++
		}
	}
	return made
}

// row changes the one row of a kind that which accepts; nil deletes it.
func (x *machineOf) row(kind schema.Kind, which func(value []byte) bool, change func(value []byte) []byte) {
	x.s.t.Helper()
	n := 0
	x.eachRow(kind, func(_ base.SubtreeID, key, value []byte) []byte {
		if !schema.IsSelf(key) && schema.OwnerOf(key) != nil || !which(value) {
			return value
		}
		n++
		return change(value)
	})
	if n != 1 {
		x.s.t.Fatalf("%d rows", n)
	}
}

func headerNamed(name string) func([]byte) bool {
	return func(value []byte) bool {
		h, err := schema.DecodeHeader(value)
		return err == nil && string(h.Name) == name
	}
}

func changedHeader(change func(h *schema.Header)) func([]byte) []byte {
	return func(value []byte) []byte {
		h, err := schema.DecodeHeader(value)
		if err != nil {
			return value
		}
		change(h)
		return h.Append(nil)
	}
}

func always([]byte) bool { return true }

func deleted([]byte) []byte { return nil }

// put writes a row.
func (x *machineOf) put(key []byte, v value) {
	x.s.t.Helper()
	if err := x.kv.Set(key, v.Append(nil)); err != nil {
		x.s.t.Fatal(err)
	}
}

// linked gives /a/f a second name, /g, and returns its number.
func (s *shards) linked() base.Ino {
	s.t.Helper()
	s.create("/lf")
	dir, subtree := s.dir("/")
	file := s.do(&canopyv1.Op{Subtree: subtree, Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: dir, Name: []byte("lf")}}}).Attr.Ino
	s.mustAll(s.do(&canopyv1.Op{Subtree: subtree, Call: &canopyv1.Op_Link{Link: &canopyv1.LinkCall{
		Place: &canopyv1.Place{Ino: file, Dir: dir, Name: []byte("lf")}, Dir: dir, Name: []byte("lg")}}}))
	return base.Ino(file)
}

// planted is damage, and what a check says of it.
type planted struct {
	what, want string
	damage     func(s *shards)
}

func repairable() []planted {
	return []planted{
		{"a directory's counts", "its count of names is 2 more", func(s *shards) {
			s.of[1].row(schema.KindHeader, headerNamed("a"), changedHeader(func(h *schema.Header) { h.Entries += 2; h.Subdirs-- }))
		}},
		{"a moved directory's counts", "its count of subdirectories is 3 more", func(s *shards) {
			s.of[2].row(schema.KindHeader, headerNamed("b"), changedHeader(func(h *schema.Header) { h.Subdirs += 3 }))
		}},
		{"counters of a subtree", "counters of subtree 1 say", func(s *shards) {
			s.of[1].put(schema.CountersKey(1, 1), &schema.Counters{Files: 100, Directories: 1, Bytes: 7})
		}},
		{"a link count that is too high", "counts 3 names in other subtrees, there are 0", func(s *shards) {
			s.linked()
			s.of[1].row(schema.KindInode, always, func(v []byte) []byte { n, _ := schema.DecodeInode(v); n.Nlink = 5; return n.Append(nil) })
		}},
		{"a link count that is too low", "counts -1 names in other subtrees, there are 0", func(s *shards) {
			s.linked()
			s.of[1].row(schema.KindInode, always, func(v []byte) []byte { n, _ := schema.DecodeInode(v); n.Nlink = 1; return n.Append(nil) })
		}},
		{"a list of names", "they are listed in", func(s *shards) {
			s.of[1].put(schema.NamesKey(1, 1, s.linked()), &schema.Names{Dirs: []base.Ino{1, 77}})
		}},
		{"a list of names without a file", "its names are listed, but it has no record", func(s *shards) {
			s.of[1].put(schema.NamesKey(1, 1, 99), &schema.Names{Dirs: []base.Ino{1}})
		}},
		{"a parent within a subtree", "but its header says a name in", func(s *shards) {
			s.of[1].row(schema.KindHeader, headerNamed("a"), changedHeader(func(h *schema.Header) { h.Name = []byte("z") }))
		}},
		{"a parent over a border", `its header says "b" in 7`, func(s *shards) {
			s.of[2].row(schema.KindHeader, headerNamed("b"), changedHeader(func(h *schema.Header) { h.Parent = 7 }))
		}},
		{"an xattr of nothing", "it belongs to nothing", func(s *shards) {
			if err := s.of[1].kv.Set(schema.XattrKey(schema.DentryKey(1, 1, 1, 0x7f00), []byte("user.x")), []byte("v")); err != nil {
				s.t.Fatal(err)
			}
		}},
		{"an xattr of no directory", "it belongs to nothing", func(s *shards) {
			if err := s.of[1].kv.Set(schema.XattrKey(schema.HeaderKey(1, 1, 1<<50), []byte("user.x")), []byte("v")); err != nil {
				s.t.Fatal(err)
			}
		}},
		{"a policy of nothing", "has a layout policy and is no directory", func(s *shards) {
			s.of[1].put(schema.PolicyKey(1, 1, 1<<50), &schema.Policy{Class: "scratch"})
		}},
		{"results of a client without a session", "keeps results of client", func(s *shards) {
			var subtree base.SubtreeID
			for subtree = range s.of[2].m.subtrees {
			}
			s.of[2].put(schema.ResultsKey(2, subtree, 0xdead, 5), &schema.Results{Floor: 5, Items: []schema.StoredResult{{Seq: 5}}})
		}},
		{"a listed lock that is none", "which has no locks there", func(s *shards) {
			s.of[1].put(schema.LockClientKey(1, 1, 0xa1, s.linked()), schema.Empty{})
		}},
		{"locks that are none, of a client without a session", "which has no session", func(s *shards) {
			s.of[1].put(schema.LockClientKey(1, 1, 0xdead, s.linked()), schema.Empty{})
		}},
		{"a directory without a name", "no name in directory", func(s *shards) {
			s.of[1].row(schema.KindDentry, func(v []byte) bool { return schema.DentryNameIs(v, []byte("a")) }, deleted)
		}},
		{"a moved directory without a name", "no name in directory", func(s *shards) {
			s.of[1].row(schema.KindDentry, func(v []byte) bool { return schema.DentryNameIs(v, []byte("b")) }, deleted)
		}},
	}
}

// maxMendRounds bounds the rounds of a test: what a lost name costs are counts, too.
const maxMendRounds = 5

// Everything that can be repaired is planted, found, repaired through the log, and then
// the check finds nothing; making the same repairs again changes nothing.
func TestRepairs(t *testing.T) {
	for _, x := range repairable() {
		t.Run(x.what, func(t *testing.T) {
			s := newShards(t, 3)
			sampleTree(s)
			s.migrate("/a/b", 2, nil)
			x.damage(s)
			for _, m := range s.of {
				m.load() // what apply keeps in memory follows from what is stored
			}
			found, plan := s.plan()
			if !strings.Contains(strings.Join(found, "\n"), x.want) || len(plan) == 0 {
				t.Fatalf("found:\n%s\nwant %q; repairs %v", strings.Join(found, "\n"), x.want, plan)
			}
			var all []ordered
			for range maxMendRounds {
				if len(plan) == 0 {
					break
				}
				if s.mend(plan) == 0 {
					t.Fatalf("nothing was repaired of %v", plan)
				}
				all = append(all, plan...)
				found, plan = s.plan()
			}
			if len(found) > 0 {
				t.Errorf("after the repairs:\n%s", strings.Join(found, "\n"))
			}
			if made := s.mend(all); made != 0 {
				t.Errorf("%d repairs were made twice", made)
			}
			if found, _ := s.plan(); len(found) > 0 {
				t.Errorf("after the same repairs again:\n%s", strings.Join(found, "\n"))
			}
			for _, m := range s.of { // a replica that starts anew has the same in memory
				m.load()
			}
			s.create("/after")
		})
	}
}

// What changed since the check is not repaired by what was seen then.
func TestRepairsComeTooLate(t *testing.T) {
	for _, x := range []struct {
		planted
		since func(s *shards)
	}{
		{planted{what: "a name since", damage: func(s *shards) {
			s.of[1].row(schema.KindHeader, headerNamed("a"), changedHeader(func(h *schema.Header) { h.Entries += 2 }))
		}}, func(s *shards) { s.create("/a/since") }},
		{planted{what: "a link since", damage: func(s *shards) {
			s.linked()
			s.of[1].row(schema.KindInode, always, func(v []byte) []byte { n, _ := schema.DecodeInode(v); n.Nlink = 5; return n.Append(nil) })
		}}, func(s *shards) { s.unlink("/lg") }},
		{planted{what: "a rename since", damage: func(s *shards) {
			s.of[1].row(schema.KindHeader, headerNamed("a"), changedHeader(func(h *schema.Header) { h.Name = []byte("z") }))
		}}, func(s *shards) { s.rename("/a", "/elsewhere") }},
		{planted{what: "the owner since", damage: func(s *shards) {
			s.of[1].put(schema.PolicyKey(1, 1, 1<<50), &schema.Policy{Class: "scratch"})
		}}, func(s *shards) {
			s.of[1].put(schema.HeaderKey(1, 1, 1<<50), &schema.Header{Ino: 1 << 50, Fragments: shard.Whole(1)})
		}},
	} {
		t.Run(x.what, func(t *testing.T) {
			s := newShards(t, 3)
			sampleTree(s)
			x.damage(s)
			for _, m := range s.of {
				m.load()
			}
			_, plan := s.plan()
			if len(plan) == 0 {
				t.Fatal("nothing to repair")
			}
			x.since(s)
			before := s.of[1].kv.Clone()
			if made := s.mend(plan); made != 0 {
				t.Errorf("%d repairs were made of what is not what it was", made)
			}
			for _, kv := range []*memkv.Store{before, s.of[1].kv} { // each entry has its time
				if err := kv.Delete(schema.ShardKey(1)); err != nil {
					t.Fatal(err)
				}
			}
			if d := s.of[1].kv.Diff(before, schema.Format); d != "" {
				t.Errorf("they changed:\n%s", d)
			}
		})
	}
}

// An account gets what it lacks, once, and goes on from there.
func TestAnAccountIsRepaired(t *testing.T) {
	s := newShards(t, 1)
	sampleTree(s)
	if r := s.setQuota("/a"); r.Error != 0 {
		t.Fatal(r)
	}
	s.of[1].row(schema.KindQuota, always, func(v []byte) []byte {
		q, _ := schema.DecodeQuota(v)
		q.Usage.Inodes += 5
		q.Usage.Bytes -= 3
		return q.Append(nil)
	})
	s.of[1].load()
	found, plan := s.plan()
	if !strings.Contains(strings.Join(found, "\n"), "quota says") {
		t.Fatal(found)
	}
	s.create("/a/since")
	if first, again := s.mend(plan), s.mend(plan); first != 1 || again != 0 {
		t.Errorf("%d repairs, then %d", first, again)
	}
	if found, _ := s.plan(); len(found) > 0 {
		t.Error(found)
	}
}

// The counters of a subtree are repaired while it is in use: what they are wrong by is
// added once.
func TestCountersAreRepairedInUse(t *testing.T) {
	s := newShards(t, 3)
	sampleTree(s)
	s.of[1].put(schema.CountersKey(1, 1), &schema.Counters{Files: 1, Directories: 1})
	s.of[1].load()
	_, plan := s.plan()
	s.create("/since")
	s.mkdir("/since2")
	if made := s.mend(plan); made != 1 {
		t.Fatalf("%d repairs", made)
	}
	s.create("/and")
	if made := s.mend(plan); made != 0 {
		t.Error("it was made twice")
	}
	if found, _ := s.plan(); len(found) > 0 {
		t.Error(found)
	}
}
