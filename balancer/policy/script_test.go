package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/canopyfs/canopy/internal/base"
)

// TestScripts runs testdata/*. The directives:
//
//	view [now=T]        a new view, of the lines
//	change [now=T]      the lines change what is there, or add to it
//	plan [SETTING=V]    the whole plan: steps with reason, gain, cost, budget; notes
//	observe [every=T] [times=N]  views in a row with a Memory, the last one stays; N 1 is one more
//
// A line is a kind, an id and options:
//
//	node ID [zone= rack= host= state=STATE,SINCE speed= util=LOAD waiting=LOAD disk=USED/SIZE]
//	shard ID replicas=N,N [want= holder= held=T busy=LOAD ops= mb=]
//	subtree ID shard= path= [entries= mb= busy=LOAD ops= moved=T from= of=INO pinned]
//	dir INO subtree= path= [root entries= busy=LOAD creates= lookups= readdirs= hash=V,V.. below= tree=LOAD split=T cold=T pinned]
//	fragment INO subtree= [entries= busy=LOAD]
//	spent moves= [mb= pause=T]
//	running|past migrate|carve|split|merge|lease|replica [shard= subtree= dir= to=N,N fromnode= tonode= ended=T failed]
//
// LOAD is V, or SHORT:FLOOR:PEAK. Loads of which only V is given have always been that.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var v *View
		var mem Memory
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "view":
				v = &View{Now: time.Hour}
				mem = Memory{}
				fallthrough
			case "change":
				for line := range strings.Lines(d.Input) {
					read(t, v, line)
				}
				now(t, d, v)
				return ""
			case "plan":
				s := Default()
				settings(t, d, &s)
				plan := Decide(v, &s)
				checkPlan(t, v, &s, plan)
				return format(plan)
			case "observe":
				return observe(t, d, v, &mem)
			}
			d.Fatalf(t, "unknown directive %s", d.Cmd)
			return ""
		})
	})
}

func now(t *testing.T, d *datadriven.TestData, v *View) {
	if d.HasArg("now") {
		var s string
		d.ScanArgs(t, "now", &s)
		v.Now = duration(t, s)
	}
}

func settings(t *testing.T, d *datadriven.TestData, s *Settings) {
	for _, a := range d.CmdArgs {
		val := a.Vals[0]
		switch a.Key {
		case "felt":
			s.Felt = number(t, val)
		case "node-moves":
			s.NodeMoves = int(number(t, val))
		case "node-bytes":
			s.NodeBytes = int64(number(t, val))
		case "max-steps":
			s.MaxSteps = int(number(t, val))
		case "residence":
			s.Residence = duration(t, val)
		case "split-entries":
			s.SplitEntries = int64(number(t, val))
		default:
			t.Fatalf("unknown setting %s", a.Key)
		}
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
}

func format(p Plan) string {
	var b strings.Builder
	for i := range p.Steps {
		s := &p.Steps[i]
		fmt.Fprintf(&b, "%v\n  because %s\n  gain %.2f cost %.1f took %v spends %v\n", s, s.Reason, s.Gain, s.Cost, s.Took.Round(time.Millisecond), s.Spend)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "left: %s\n", n)
	}
	if b.Len() == 0 {
		return "nothing to do\n"
	}
	return b.String()
}

// observe shows what a Memory makes of views that repeat.
func observe(t *testing.T, d *datadriven.TestData, v *View, mem *Memory) string {
	s := Default()
	every, times := "5s", 1
	if d.HasArg("every") {
		d.ScanArgs(t, "every", &every)
	}
	if d.HasArg("times") {
		d.ScanArgs(t, "times", &times)
	}
	for range times {
		v.Now += duration(t, every)
		mem.Observe(v, &s)
	}
	var b strings.Builder
	for _, n := range v.Nodes {
		fmt.Fprintf(&b, "node %v util %.2f floor %.2f peak %.2f\n", n.ID, n.Util.Short, n.Util.Floor, n.Util.Peak)
	}
	for _, d := range v.Dirs {
		fmt.Fprintf(&b, "dir %v busy %.2f floor %.2f peak %.2f cold since %v\n", d.Ino, d.Busy.Short, d.Busy.Floor, d.Busy.Peak, d.ColdSince)
	}
	return b.String()
}

// options are those of a line.
type options struct {
	t    *testing.T
	vals map[string]string
}

func (o options) has(k string) bool          { _, ok := o.vals[k]; return ok }
func (o options) num(k string) float64       { return number(o.t, o.vals[k]) }
func (o options) dur(k string) time.Duration { return duration(o.t, o.vals[k]) }
func (o options) list(k string) (all []int64) {
	for x := range strings.SplitSeq(o.vals[k], ",") {
		if x != "" {
			all = append(all, int64(number(o.t, x)))
		}
	}
	return all
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	if s == "" {
		return 0
	}
	factor := 1.0
	switch s[len(s)-1] {
	case 'k':
		factor = 1e3
	case 'M':
		factor = 1e6
	}
	v, err := strconv.ParseFloat(strings.TrimRight(s, "kM"), 64)
	if err != nil {
		t.Fatal(err)
	}
	return v * factor
}

func duration(t *testing.T, s string) time.Duration {
	t.Helper()
	if s == "" {
		return 0
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// load sets l if the option is there.
func (o options) load(k string, l *Load) {
	if !o.has(k) {
		return
	}
	parts := strings.Split(o.vals[k], ":")
	*l = Steady(number(o.t, parts[0]))
	if len(parts) == 3 {
		l.Floor, l.Peak = number(o.t, parts[1]), number(o.t, parts[2])
	}
}

// set sets x if the option is there.
func set[T ~int | ~int64 | ~uint64 | ~float64](o options, k string, x *T) {
	if o.has(k) {
		*x = T(o.num(k))
	}
}

func setTime(o options, k string, x *time.Duration) {
	if o.has(k) {
		*x = o.dur(k)
	}
}

// find returns the element with the id, a new one in order if there is none.
func find[E any, I cmp.Ordered](all *[]E, id I, of func(*E) *I) *E {
	i, ok := slices.BinarySearchFunc(*all, id, func(e E, id I) int { return cmp.Compare(*of(&e), id) })
	if !ok {
		var e E
		*of(&e) = id
		*all = slices.Insert(*all, i, e)
	}
	return &(*all)[i]
}

func read(t *testing.T, v *View, line string) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return
	}
	o := options{t, map[string]string{}}
	for _, w := range words[1:] {
		k, val, _ := strings.Cut(w, "=")
		o.vals[k] = val
	}
	id := func() uint64 { return uint64(number(t, words[1])) }
	switch words[0] {
	case "node":
		readNode(o, find(&v.Nodes, base.NodeID(id()), func(n *Node) *base.NodeID { return &n.ID }))
	case "shard":
		readShard(o, find(&v.Shards, base.ShardID(id()), func(n *Shard) *base.ShardID { return &n.ID }))
	case "subtree":
		readSubtree(o, find(&v.Subtrees, base.SubtreeID(id()), func(n *Subtree) *base.SubtreeID { return &n.ID }))
	case "dir":
		readDir(o, find(&v.Dirs, base.Ino(id()), func(n *Dir) *base.Ino { return &n.Ino }))
	case "fragment":
		d := find(&v.Dirs, base.Ino(id()), func(n *Dir) *base.Ino { return &n.Ino })
		f := Fragment{Subtree: base.SubtreeID(o.num("subtree")), Entries: int64(o.num("entries"))}
		o.load("busy", &f.Busy)
		d.Fragments = append(d.Fragments, f)
	case "spent":
		v.Spent = Budget{int(o.num("moves")), int64(o.num("mb")) << 20, o.dur("pause")}
	case "running":
		v.Running = append(v.Running, readStep(o, words[1]))
	case "past":
		v.History = append(v.History, Past{Step: readStep(o, words[1]), Began: o.dur("ended"), Ended: o.dur("ended"), Failed: o.has("failed")})
	default:
		t.Fatalf("unknown line %q", line)
	}
}

func readNode(o options, n *Node) {
	for i, k := range []string{"zone", "rack", "host"} {
		if o.has(k) {
			n.Domain[i] = o.vals[k]
		}
	}
	if o.has("state") {
		name, since, _ := strings.Cut(o.vals["state"], ",")
		n.State = map[string]State{"live": Live, "draining": Draining, "dead": Dead}[name]
		n.Since = duration(o.t, since)
	}
	set(o, "speed", &n.Speed)
	o.load("util", &n.Util)
	o.load("waiting", &n.Waiting)
	if used, size, ok := strings.Cut(o.vals["disk"], "/"); ok {
		n.UsedBytes, n.DiskBytes = int64(number(o.t, used)), int64(number(o.t, size))
	}
}

func readShard(o options, x *Shard) {
	if o.has("replicas") {
		x.Replicas = nil
		for _, id := range o.list("replicas") {
			x.Replicas = append(x.Replicas, base.NodeID(id))
		}
		if x.Holder == 0 && len(x.Replicas) > 0 {
			x.Holder = x.Replicas[0]
		}
	}
	set(o, "want", &x.Want)
	set(o, "holder", &x.Holder)
	setTime(o, "held", &x.HeldAt)
	o.load("busy", &x.Busy)
	set(o, "ops", &x.Ops)
	if o.has("mb") {
		x.Bytes = int64(o.num("mb")) << 20
	}
}

func readSubtree(o options, x *Subtree) {
	set(o, "shard", &x.Shard)
	if o.has("path") {
		x.Path = o.vals["path"]
	}
	set(o, "of", &x.Of)
	set(o, "entries", &x.Entries)
	if o.has("mb") {
		x.Bytes = int64(o.num("mb")) << 20
	}
	set(o, "ops", &x.Ops.Lookup)
	o.load("busy", &x.Busy)
	setTime(o, "moved", &x.MovedAt)
	set(o, "from", &x.From)
	x.Pinned = x.Pinned || o.has("pinned")
}

func readDir(o options, d *Dir) {
	set(o, "subtree", &d.Subtree)
	if o.has("path") {
		d.Path = o.vals["path"]
	}
	d.Root = d.Root || o.has("root")
	set(o, "entries", &d.Entries)
	o.load("busy", &d.Busy)
	set(o, "creates", &d.Ops.Create)
	set(o, "lookups", &d.Ops.Lookup)
	set(o, "readdirs", &d.Ops.Readdir)
	for i, x := range o.list("hash") {
		d.Creates[i] = float64(x)
	}
	set(o, "below", &d.Below)
	o.load("tree", &d.TreeBusy)
	setTime(o, "split", &d.SplitAt)
	setTime(o, "cold", &d.ColdSince)
	d.Pinned = d.Pinned || o.has("pinned")
}

func readStep(o options, kind string) Step {
	s := Step{Kind: map[string]Kind{"migrate": Migrate, "carve": Carve, "split": Split, "merge": Merge, "lease": TransferLease, "replica": MoveReplica}[kind],
		Shard: base.ShardID(o.num("shard")), Subtree: base.SubtreeID(o.num("subtree")), Dir: base.Ino(o.num("dir")),
		FromNode: base.NodeID(o.num("fromnode")), ToNode: base.NodeID(o.num("tonode"))}
	for _, id := range o.list("to") {
		s.To = append(s.To, base.ShardID(id))
	}
	return s
}
