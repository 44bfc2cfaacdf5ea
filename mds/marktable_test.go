package mds

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/memkv"
	"github.com/canopyfs/canopy/shard/namespace"
	"github.com/canopyfs/canopy/shard/schema"
)

func TestMarks(t *testing.T) {
	f, other := fragment{1, 10}, fragment{2, 10}
	a, b := markID{1, 5}, markID{2, 5}
	// holds reports whether an answer about f is held, and how it gets free.
	holds := func(m *markTable, f fragment) *atomic.Bool {
		given := new(atomic.Bool)
		if !m.hold(func() { given.Store(true) }, f) {
			given.Store(true)
		}
		return given
	}
	for name, run := range map[string]func(t *testing.T, m *markTable){
		"an answer waits for the marks that stand when it is ready": func(t *testing.T, m *markTable) {
			before := holds(m, f)
			m.take(f, a, 0, time.Second)
			first := holds(m, f)
			m.take(f, b, 0, time.Second)
			second := holds(m, f)
			elsewhere := holds(m, other)
			if !before.Load() || first.Load() || second.Load() || !elsewhere.Load() {
				t.Fatal("held:", !before.Load(), !first.Load(), !second.Load(), !elsewhere.Load())
			}
			if !m.free(f, a, 0) || !first.Load() || second.Load() {
				t.Error("freeing one of two marks")
			}
			if !m.free(f, b, 0) || !second.Load() {
				t.Error("freeing the other one")
			}
			if m.free(f, b, 0) || m.active.Load() != 0 || len(m.of) != 0 {
				t.Error("a mark is freed once")
			}
		},
		"the deadline frees": func(t *testing.T, m *markTable) {
			m.take(f, a, 0, time.Second)
			held := holds(m, f)
			m.take(f, b, 0, time.Hour) // which stands on
			time.Sleep(time.Second - time.Millisecond)
			synctest.Wait()
			if held.Load() {
				t.Error("before its time")
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if !held.Load() || m.free(f, a, 0) || !m.free(f, b, 0) {
				t.Error("after its time")
			}
		},
		"a mark that is taken again stands from the first time on": func(t *testing.T, m *markTable) {
			m.take(f, a, 0, time.Second)
			held := holds(m, f)
			time.Sleep(time.Second / 2)
			if !m.take(f, a, 1, time.Second) || held.Load() {
				t.Error("what waited for it was let go")
			}
			if !m.free(f, a, 0) || !held.Load() || m.active.Load() != 0 {
				t.Error("it does not stand as it did")
			}
		},
		"what has moved has other holders": func(t *testing.T, m *markTable) {
			m.take(f, a, 7, time.Second)
			held := holds(m, f)
			if m.free(f, a, 8) || !held.Load() {
				t.Error("it stands, though something moved")
			}
		},
		"the term ends": func(t *testing.T, m *markTable) {
			m.take(f, a, 0, time.Second)
			held := holds(m, f)
			m.close()
			if !held.Load() || m.free(f, a, 0) || m.take(f, a, 0, time.Second) {
				t.Error("a mark outlives its term")
			}
		},
		"there is a bound": func(t *testing.T, m *markTable) {
			for i := range uint64(maxMarks) {
				if !m.take(f, markID{1, i}, 0, time.Second) {
					t.Fatal(i)
				}
			}
			if m.take(f, markID{1, maxMarks}, 0, time.Second) {
				t.Error("no bound")
			}
			m.close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { run(t, newMarkTable(newMarkEvents())) })
		})
	}
}

// site is a shard with one fragment of a directory, and the marks of its holder.
type site struct {
	t       *testing.T
	m       *namespace.Machine
	kv      *memkv.Store
	subtree base.SubtreeID
	marks   *markTable
	seq     uint64
}

func (s *site) load(id base.ShardID) {
	s.m = namespace.New(namespace.Config{Shard: id})
	if err := s.m.Load(s.kv); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) apply(c *canopyv1.Command) *canopyv1.Result {
	s.t.Helper()
	encoded, err := c.MarshalVT()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := s.m.Apply(s.kv, 1000, [][]byte{encoded})
	if err != nil {
		s.t.Fatal(err)
	}
	r := new(canopyv1.Result)
	if err := r.UnmarshalVT(out[0]); err != nil || r.Error != 0 {
		s.t.Fatalf("%v: %v %v", c, fserr.Kind(r.Error), err)
	}
	return r
}

func (s *site) do(op *canopyv1.Op) *canopyv1.Result {
	s.t.Helper()
	op.Cred = &canopyv1.Credential{}
	if namespace.IsRead(op) {
		r := s.m.Query(s.kv, op)
		if r.Error != 0 {
			s.t.Fatalf("%v: %v", op, fserr.Kind(r.Error))
		}
		return r
	}
	s.seq++
	op.Seq = s.seq
	return s.apply(&canopyv1.Command{Client: 0xa1, Floor: s.seq, Op: op})
}

const fragmented = base.Ino(base.RootIno)

// create makes a name, whose answer is given at once or when the marks are free.
func (s *site) create(name string, answer func()) {
	s.t.Helper()
	s.do(&canopyv1.Op{Subtree: uint64(s.subtree), Call: &canopyv1.Op_Create{Create: &canopyv1.CreateCall{Dir: uint64(fragmented), Name: []byte(name), Exclusive: true}}})
	if s.marks == nil || !s.marks.hold(answer, fragment{s.subtree, fragmented}) {
		answer()
	}
}

// mark takes a listing's mark.
func (s *site) mark() uint64 {
	if s.marks != nil {
		s.marks.take(fragment{s.subtree, fragmented}, markID{1, 1}, 0, markDeadline)
	}
	return s.do(&canopyv1.Op{Subtree: uint64(s.subtree), Call: &canopyv1.Op_MarkNames{MarkNames: &canopyv1.MarkNamesCall{Dir: uint64(fragmented), Token: 1}}}).Mark
}

func (s *site) free() {
	if s.marks != nil && !s.marks.free(fragment{s.subtree, fragmented}, markID{1, 1}, 0) {
		s.t.Error("the mark does not stand")
	}
}

// list returns the names of the fragment that a listing with the mark shows.
func (s *site) list(cookie, mark uint64) (names []string, through uint64) {
	r := s.do(&canopyv1.Op{Subtree: uint64(s.subtree), Call: &canopyv1.Op_ReadDir{ReadDir: &canopyv1.ReadDirCall{Dir: uint64(fragmented), Cookie: cookie, Mark: mark}}})
	for _, e := range r.Entries {
		names = append(names, string(e.Name))
	}
	return names, r.Through
}

// twoSites splits "/" into two fragments, on two shards, and returns a name of each.
func twoSites(t *testing.T, withhold bool) (sites [2]*site, names [2]string) {
	cut := shard.Range{Lo: shard.BorderEnd / 2, Hi: shard.BorderEnd}
	for i := range sites {
		sites[i] = &site{t: t, kv: memkv.New(), subtree: base.SubtreeID(1 + 6*i)}
		if withhold {
			sites[i].marks = newMarkTable(newMarkEvents())
		}
		id := base.ShardID(1 + i)
		sites[i].load(id)
		boot := &canopyv1.BootstrapCommand{Cluster: "test", Shard: uint64(id), RootMode: 0o777}
		if i == 0 {
			boot.Subtree, boot.Epoch, boot.RootIno = 1, 1, uint64(fragmented)
		}
		sites[i].apply(&canopyv1.Command{Own: &canopyv1.Command_Bootstrap{Bootstrap: boot}})
		sites[i].do(&canopyv1.Op{Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{}}})
	}
	move := &memkv.Split{From: sites[0].kv, To: sites[1].kv, Shard: 1, Other: 2, Subtree: 1, Dir: fragmented, Names: cut, Into: 7}
	move.HandOff()
	move.Clean()
	sites[0].load(1)
	sites[1].load(2)
	for i := 0; names[0] == "" || names[1] == ""; i++ {
		name := fmt.Sprintf("f%d", i)
		at := 0
		if cut.Contains(shard.NameHash([]byte(name)).Border()) {
			at = 1
		}
		names[at] = name
	}
	return sites, names
}

// PROTOCOLS F3: if create(f1) returned before create(f2) was called, no listing shows f2
// without f1, in whichever fragments they are. Without the marks that hold answers back
// a listing that takes the mark of f1's fragment early and that of f2's late does.
func TestListingKeepsOrderOverFragments(t *testing.T) {
	run := func(withhold bool, first int) []string {
		sites, names := twoSites(t, withhold)
		var marks [2]uint64
		marks[first] = sites[first].mark()
		// A client makes f1, and f2 when it has the answer.
		sites[first].create(names[first], func() { sites[1-first].create(names[1-first], func() {}) })
		marks[1-first] = sites[1-first].mark()
		sites[first].free()
		sites[1-first].free()
		shown, through := sites[0].list(0, marks[0])
		rest, end := sites[1].list(through, marks[1])
		if end != uint64(schema.LastCookie) {
			t.Errorf("the listing ends at %x", end)
		}
		shown = append(shown, rest...)
		for i, s := range sites {
			s.do(&canopyv1.Op{Subtree: uint64(s.subtree), Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: uint64(fragmented), Name: []byte(names[i])}}})
		}
		return shown
	}
	for first := range 2 {
		_, names := twoSites(t, false)
		if got := run(true, first); slices.Contains(got, names[1-first]) && !slices.Contains(got, names[first]) {
			t.Errorf("a listing shows %v, and not what was made before", got)
		}
		if got := run(false, first); !slices.Contains(got, names[1-first]) || slices.Contains(got, names[first]) {
			t.Errorf("the interleaving shows nothing: %v", got)
		}
	}
}
