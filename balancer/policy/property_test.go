package policy

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/canopyfs/canopy/internal/base"
)

// drawView makes any view: consistent in what belongs to what, and free otherwise.
func drawView(t *rapid.T) *View {
	v := &View{Now: 3 * time.Hour}
	frac := rapid.Float64Range(0, 1)
	load := func(name string, most float64) Load {
		x := frac.Draw(t, name) * most
		low := x * frac.Draw(t, name+" floor")
		if rapid.Bool().Draw(t, name+" steady") {
			low = x
		}
		return Load{x, x, x, low, min(most, x*(1+frac.Draw(t, name+" peak")))}
	}
	past := func(name string) time.Duration {
		return v.Now - time.Duration(rapid.IntRange(0, 7200).Draw(t, name))*time.Second
	}
	nodes := rapid.IntRange(1, 12).Draw(t, "nodes")
	for i := range nodes {
		n := Node{ID: base.NodeID(i + 1), Domain: Domain{"z", fmt.Sprint("r", rapid.IntRange(1, 4).Draw(t, "rack")), fmt.Sprint("h", i)},
			Util: load("util", 1), Waiting: load("waiting", 80), Speed: rapid.SampledFrom([]float64{0, 1, 0.5, 2}).Draw(t, "speed")}
		if rapid.IntRange(0, 5).Draw(t, "hot") == 0 {
			n.Util = Steady(0.97)
		}
		if rapid.IntRange(0, 8).Draw(t, "unwell") == 0 {
			n.State, n.Since = rapid.SampledFrom([]State{Dead, Draining}).Draw(t, "state"), past("since")
		}
		n.DiskBytes, n.UsedBytes = 100<<30, int64(frac.Draw(t, "disk")*float64(100<<30))
		v.Nodes = append(v.Nodes, n)
	}
	ino, subtree := base.Ino(2), base.SubtreeID(1)
	for i := range rapid.IntRange(1, 10).Draw(t, "shards") {
		x := Shard{ID: base.ShardID(i + 1), Want: 1, Busy: load("shard", 1), Ops: 1000 * frac.Draw(t, "ops"), Bytes: 1 << 30}
		for _, n := range rapid.Permutation(v.Nodes).Draw(t, "replicas")[:min(nodes, rapid.SampledFrom([]int{1, 3}).Draw(t, "count"))] {
			x.Replicas = append(x.Replicas, n.ID)
		}
		x.Holder = x.Replicas[0]
		if rapid.Bool().Draw(t, "held") {
			x.HeldAt = past("held at")
		}
		v.Shards = append(v.Shards, x)
		for range rapid.IntRange(0, 3).Draw(t, "subtrees") {
			tr := Subtree{ID: subtree, Shard: x.ID, Path: fmt.Sprint("/s", subtree), Entries: int64(1e6 * frac.Draw(t, "entries")), Busy: load("subtree", 0.6),
				Pinned: rapid.IntRange(0, 4).Draw(t, "pinned") == 0, Ops: Rates{Lookup: 100}}
			if rapid.Bool().Draw(t, "moved") {
				tr.MovedAt, tr.From = past("moved at"), base.ShardID(rapid.IntRange(1, 10).Draw(t, "from"))
			}
			subtree++
			for range rapid.IntRange(0, 2).Draw(t, "dirs") {
				d := Dir{Ino: ino, Path: fmt.Sprint(tr.Path, "/d", ino), Subtree: tr.ID, Entries: rapid.SampledFrom([]int64{10, 1e5, 3e7}).Draw(t, "size"),
					Ops: Rates{Create: 500, Readdir: 1000 * frac.Draw(t, "readdir")}, Busy: load("dir", 0.6), Pinned: rapid.IntRange(0, 4).Draw(t, "pinned") == 0}
				ino++
				v.Dirs = append(v.Dirs, d)
			}
			v.Subtrees = append(v.Subtrees, tr)
		}
	}
	drawFragments(t, v, subtree)
	drawSteps(t, v, past)
	return v
}

// drawFragments splits some of the directories.
func drawFragments(t *rapid.T, v *View, next base.SubtreeID) {
	for i := range v.Dirs {
		d := &v.Dirs[i]
		if rapid.IntRange(0, 3).Draw(t, "split") != 0 {
			continue
		}
		k := rapid.SampledFrom([]int{2, 4}).Draw(t, "fragments")
		part := Load{d.Busy.Short / float64(k), 0, 0, d.Busy.Floor / float64(k), d.Busy.Peak / float64(k)}
		d.SplitAt = v.Now - time.Duration(rapid.IntRange(0, 7200).Draw(t, "split at"))*time.Second
		if rapid.Bool().Draw(t, "cold") {
			d.Busy, d.ColdSince, part = Steady(0.01), v.Now-time.Hour, Steady(0)
		}
		for j := range k {
			id := d.Subtree
			if j > 0 {
				id = next
				next++
				x := rapid.SampledFrom(v.Shards).Draw(t, "at")
				v.Subtrees = append(v.Subtrees, Subtree{ID: id, Shard: x.ID, Path: d.Path, Of: d.Ino, Entries: d.Entries / int64(k), Busy: part})
			}
			d.Fragments = append(d.Fragments, Fragment{id, d.Entries / int64(k), part})
		}
	}
}

// drawSteps invents what runs, what was, and what was spent.
func drawSteps(t *rapid.T, v *View, past func(string) time.Duration) {
	s := Default()
	hourly := s.Hourly(len(v.Nodes))
	v.Spent = Budget{rapid.IntRange(0, hourly.Moves).Draw(t, "spent"), rapid.Int64Range(0, hourly.Bytes).Draw(t, "spent"), 0}
	if len(v.Subtrees) == 0 {
		return
	}
	any := func() Step {
		tr := rapid.SampledFrom(v.Subtrees).Draw(t, "step of")
		return Step{Kind: Migrate, Shard: tr.Shard, Subtree: tr.ID, To: []base.ShardID{rapid.SampledFrom(v.Shards).Draw(t, "step to").ID}}
	}
	if rapid.IntRange(0, 3).Draw(t, "running") == 0 {
		v.Running = append(v.Running, any())
	}
	for range rapid.IntRange(0, 3).Draw(t, "past") {
		v.History = append(v.History, Past{Step: any(), Ended: past("ended"), Failed: rapid.Bool().Draw(t, "failed")})
	}
}

func TestAnyView(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v, s := drawView(rt), Default()
		plan := Decide(v, &s)
		if again := Decide(v, &s); !reflect.DeepEqual(plan, again) {
			rt.Fatalf("two plans of one view: %v, %v", plan, again)
		}
		checkPlan(rt, v, &s, plan)
	})
}

// TestAnyMemory: whatever views come, a floor is at most what is seen, a peak at least,
// and what was low within Hold has no higher floor.
func TestAnyMemory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := Default()
		var m Memory
		v := &View{Now: time.Hour, Nodes: []Node{{ID: 1}}}
		type sample struct {
			at time.Duration
			v  float64
		}
		var seen []sample
		for range rapid.IntRange(1, 40).Draw(rt, "views") {
			v.Now += time.Duration(rapid.IntRange(1, 8000).Draw(rt, "step")) * time.Millisecond
			v.Nodes[0].Util.Short = rapid.Float64Range(0, 1).Draw(rt, "util")
			seen = append(seen, sample{v.Now, v.Nodes[0].Util.Short})
			m.Observe(v, &s)
			u := v.Nodes[0].Util
			for _, x := range seen {
				if recent := v.Now-x.at < s.Hold; recent && u.Floor > x.v {
					rt.Fatalf("floor %v above %v, %v ago", u.Floor, x.v, v.Now-x.at)
				}
			}
			if v.Now-seen[0].at < s.Hold && u.Floor != 0 {
				rt.Fatalf("floor %v after %v", u.Floor, v.Now-seen[0].at)
			}
			if u.Peak < u.Short || u.Floor > u.Short {
				rt.Fatalf("%+v", u)
			}
		}
	})
}

var number1 = regexp.MustCompile(`[0-9]`)

type failer interface {
	Fatalf(format string, args ...any)
	Helper()
}

// checkPlan asserts what every plan keeps to.
func checkPlan(t failer, v *View, s *Settings, p Plan) {
	t.Helper()
	spent := v.Spent
	things, nodes := map[string]bool{}, map[base.NodeID]bool{}
	m := newModel(v, s)
	for i := range p.Steps {
		x := &p.Steps[i]
		spent = spent.add(x.Spend)
		if !number1.MatchString(x.Reason) || x.Cost <= 0 || x.Spend.Moves < 1 || x.Gain < 0 {
			t.Fatalf("%v without a reason with numbers, gain or cost: %+v", x, *x)
		}
		checkStep(t, v, s, m, x, things)
		for _, n := range m.involved(x) {
			id := v.Nodes[n].ID
			if nodes[id] {
				t.Fatalf("two steps work at node %v: %v", id, p)
			}
			if m.quiet[n] != "" && x.Kind != MoveReplica {
				t.Fatalf("%v works at node %v, which %s", x, id, m.quiet[n])
			}
		}
		for _, n := range m.involved(x) {
			if x.Kind != MoveReplica {
				nodes[v.Nodes[n].ID] = true
			}
		}
	}
	if len(p.Steps) > 0 && !spent.within(s.Hourly(len(v.Nodes))) {
		t.Fatalf("%v of %v", spent, s.Hourly(len(v.Nodes)))
	}
	if len(p.Steps) > s.MaxSteps*(len(v.Nodes)/16+1) {
		t.Fatalf("%d steps", len(p.Steps))
	}
	relief(t, v, s, p)
}

func checkStep(t failer, v *View, s *Settings, m *model, x *Step, things map[string]bool) {
	t.Helper()
	once := func(key string) {
		if things[key] {
			t.Fatalf("two steps about %s", key)
		}
		things[key] = true
	}
	sh := &v.Shards[m.shards[x.Shard]]
	switch x.Kind {
	case TransferLease:
		once(fmt.Sprint("shard ", x.Shard))
		if !slices.Contains(sh.Replicas, x.ToNode) || sh.Holder != x.FromNode || v.Nodes[m.nodes[x.ToNode]].State != Live {
			t.Fatalf("%v of %+v", x, sh)
		}
		return
	case MoveReplica:
		once(fmt.Sprint("shard ", x.Shard))
		checkReplica(t, v, m, sh, x)
		return
	}
	tr := &v.Subtrees[m.subtrees[x.Subtree]]
	once(fmt.Sprint("subtree ", x.Subtree))
	if tr.Pinned || x.Kind == Migrate && x.Subtree == base.RootSubtree || m.moving[x.Subtree] {
		t.Fatalf("%v of %+v", x, tr)
	}
	if x.Kind == Migrate && tr.From == x.To[0] && v.Now-tr.MovedAt < s.Residence {
		t.Fatalf("%v goes back: %+v", x, tr)
	}
	if x.Dir != 0 {
		d := m.dir(x.Dir)
		if d.Pinned || d.Ino == base.RootIno || x.Kind == Split && x.Fragments&(x.Fragments-1) != 0 || x.Kind == Split && len(x.To) != x.Fragments-d.parts() {
			t.Fatalf("%v of %+v", x, d)
		}
		if x.Kind == Merge && v.Now-d.ColdSince < s.MergeAfter {
			t.Fatalf("%v: cold since %v", x, d.ColdSince)
		}
	}
	for _, to := range x.To {
		n := &v.Nodes[m.nodes[v.Shards[m.shards[to]].Holder]]
		if n.State != Live || n.Util.Peak > s.Ceiling {
			t.Fatalf("%v goes to %+v", x, n)
		}
	}
}

// checkReplica: a replica goes where it is alone, and away from a live node only to where
// it shares no failure domain more closely.
func checkReplica(t failer, v *View, m *model, sh *Shard, x *Step) {
	t.Helper()
	if slices.Contains(sh.Replicas, x.ToNode) || v.Nodes[m.nodes[x.ToNode]].State != Live {
		t.Fatalf("%v of %+v", x, sh)
	}
	sharing := func(id base.NodeID) (racks int) {
		for _, r := range sh.Replicas {
			if r != x.FromNode && v.Nodes[m.nodes[r]].Domain[1] == v.Nodes[m.nodes[id]].Domain[1] {
				racks++
			}
		}
		return racks
	}
	if x.FromNode != 0 && v.Nodes[m.nodes[x.FromNode]].State == Live && m.names[1] > 1 && sharing(x.ToNode) > sharing(x.FromNode) {
		t.Fatalf("%v: %d replicas in the rack, %d before", x, sharing(x.ToNode), sharing(x.FromNode))
	}
}

// relief applies the steps for relief to the nodes' demand, as it last was, and asserts
// that fewer operations wait afterwards, by M/M/1's formula alone.
func relief(t failer, v *View, s *Settings, p Plan) {
	t.Helper()
	m := newModel(v, s)
	for i := range p.Steps {
		x := &p.Steps[i]
		var l loads
		add := func(from, to int, b Load, part float64) {
			low, _ := m.share(from, b)
			l.add(from, -low*part, 0)
			l.add(to, low*part*m.on(from, to), 0)
		}
		holder := func(id base.ShardID) int { return m.nodes[v.Shards[m.shards[id]].Holder] }
		switch x.Kind {
		case TransferLease:
			add(m.nodes[x.FromNode], m.nodes[x.ToNode], v.Shards[m.shards[x.Shard]].Busy, 1)
		case Migrate:
			add(holder(x.Shard), holder(x.To[0]), v.Subtrees[m.subtrees[x.Subtree]].Busy, 1)
		case Carve:
			add(holder(x.Shard), holder(x.To[0]), m.dir(x.Dir).Busy, 1)
		case Split:
			d := m.dir(x.Dir)
			if d.Entries/int64(d.parts()) > s.SplitEntries {
				continue // for its size
			}
			for j, to := range x.To {
				at, b := m.part(d, j/(len(x.To)/d.parts()))
				add(at, holder(to), b, float64(d.parts())/float64(x.Fragments))
			}
		default:
			continue
		}
		var before, after float64
		for _, c := range l {
			root := m.root[c.node]
			before += m.weight(root) * strain(m.give[c.node])
			if x.Kind == TransferLease && m.rootOf(&v.Shards[m.shards[x.Shard]]) {
				root = v.Nodes[c.node].ID == x.ToNode
			}
			after += m.weight(root) * strain(m.give[c.node]+c.low)
		}
		if after >= before {
			t.Fatalf("%v: %.3f operations wait before, %.3f after", x, before, after)
		}
	}
}
