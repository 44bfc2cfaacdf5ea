package namespace

import (
	"fmt"

	"strconv"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/memkv"
	"github.com/canopyfs/canopy/shard/schema"
)

// rig is a machine over a store in memory, with what a client remembers.
type rig struct {
	t        testing.TB
	m        *Machine
	kv       *memkv.Store
	hash     func([]byte) shard.Hash
	now      int64
	seq      map[uint64]uint64
	places   map[string]*canopyv1.Place
	marks    map[string][2]uint64 // of listings: cookie and mark
	log      []logEntry           // all that was applied
	counts   []*canopyv1.QuotaCountedCommand
	countNow int // of Config
	shard    base.ShardID
	carves   map[uint64]*carved // by the new subtree
	splits   bool               // there are fragments, too
}

type logEntry struct {
	time     int64
	commands [][]byte
}

const testShard = base.ShardID(1)

func newRig(t testing.TB, hash func([]byte) shard.Hash) *rig { return newRigOf(testShard, t, hash) }

// newRigOf returns a rig of another shard.
func newRigOf(id base.ShardID, t testing.TB, hash func([]byte) shard.Hash) *rig {
	r := &rig{t: t, shard: id, kv: memkv.New(), hash: hash, now: 1000, seq: map[uint64]uint64{},
		places: map[string]*canopyv1.Place{}, marks: map[string][2]uint64{}, carves: map[uint64]*carved{}}
	r.load()
	return r
}

// load starts the machine anew over the stored state.
func (r *rig) load() {
	r.m = New(Config{Shard: r.shard, Hash: r.hash, CountNow: r.countNow})
	if err := r.m.Load(r.kv); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) bootstrap() *canopyv1.Result {
	return r.own(&canopyv1.Command{Own: &canopyv1.Command_Bootstrap{Bootstrap: &canopyv1.BootstrapCommand{
		Cluster: "test", Shard: uint64(testShard), Subtree: 1, Epoch: 3, RootIno: 1, RootMode: 0o755,
		Layout: &canopyv1.Layout{Pool: 1, Components: []*canopyv1.LayoutComponent{
			{StripeBytes: 1 << 20, StripeCount: 1}, {Offset: 1 << 20, StripeBytes: 1 << 20, StripeCount: 3},
		}},
	}}})
}

// apply runs commands as one entry and returns the encoded results.
func (r *rig) apply(commands ...*canopyv1.Command) [][]byte {
	e := logEntry{time: r.now}
	for _, c := range commands {
		b, err := c.MarshalVT()
		if err != nil {
			r.t.Fatal(err)
		}
		e.commands = append(e.commands, b)
	}
	r.log = append(r.log, e)
	results, err := r.m.Apply(r.kv, e.time, e.commands)
	if err != nil {
		r.t.Fatalf("apply: %v", err)
	}
	return results
}

func (r *rig) own(c *canopyv1.Command) *canopyv1.Result { return r.decode(r.apply(c)[0]) }

func (r *rig) decode(b []byte) *canopyv1.Result {
	res := &canopyv1.Result{}
	if err := res.UnmarshalVT(b); err != nil {
		r.t.Fatal(err)
	}
	return res
}

// command wraps op for a client with its next sequence number.
func (r *rig) command(client uint64, op *canopyv1.Op) *canopyv1.Command {
	r.seq[client]++
	op.Seq = r.seq[client]
	return &canopyv1.Command{Client: client, Floor: op.Seq, Op: op}
}

// do runs one operation of a client, or asks.
func (r *rig) do(client uint64, op *canopyv1.Op) *canopyv1.Result {
	if IsRead(op) {
		return r.m.Query(r.kv, op)
	}
	return r.decode(r.apply(r.command(client, op))[0])
}

func (r *rig) openSession(client uint64) *canopyv1.Result {
	return r.do(client, &canopyv1.Op{Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{Host: "h", Pid: 1, Mount: "m"}}})
}

// walk returns the inode number of a directory path, asking as root.
func (r *rig) walk(path string) uint64 {
	ino, subtree := uint64(1), uint64(1)
	for _, name := range strings.Split(path, "/") {
		if name == "" {
			continue
		}
		res := r.find(subtree, ino, name)
		if res.Error != 0 {
			return 1 << 60
		}
		ino, subtree = res.Attr.Ino, res.Attr.Subtree
	}
	return ino
}

// split returns the directory's number and the last name of a path. "a{300}" is a
// name of 300 times "a".
func (r *rig) split(path string) (uint64, []byte) {
	i := strings.LastIndexByte(path, '/')
	dir, name := path[:max(i, 0)], path[i+1:]
	if j := strings.IndexByte(name, '{'); j > 0 {
		n, err := strconv.Atoi(strings.TrimSuffix(name[j+1:], "}"))
		if err != nil {
			r.t.Fatal(err)
		}
		name = strings.Repeat(name[:j], n)
	}
	if strings.HasPrefix(dir, "@") {
		return r.places[dir[1:]].Ino, []byte(name)
	}
	return r.walk(dir), []byte(name)
}

// place returns what a path or a held "@name" addresses.
func (r *rig) place(path string) *canopyv1.Place {
	if strings.HasPrefix(path, "@") && !strings.Contains(path, "/") {
		p := r.places[path[1:]]
		if p == nil {
			r.t.Fatalf("nothing is held as %s", path)
		}
		return p
	}
	if path == "/" {
		return &canopyv1.Place{Ino: 1}
	}
	dir, name := r.split(path)
	res := r.find(r.subtreeOf(dir), dir, string(name))
	switch {
	case res.Error != 0:
		return &canopyv1.Place{Dir: dir, Name: name}
	case res.Attr.Mode&schema.TypeMask == schema.TypeDir:
		return &canopyv1.Place{Ino: res.Attr.Ino}
	}
	return &canopyv1.Place{Ino: res.Attr.Ino, Dir: dir, Name: name}
}

// formatIno prints the shard's own numbers by their counter.
func formatIno(ino uint64) string {
	if base.Ino(ino).Shard() == testShard {
		return fmt.Sprintf("#%d", ino&(1<<base.InoCounterBits-1))
	}
	return fmt.Sprint(ino)
}

func formatAttr(a *canopyv1.Attr) string {
	if a.Version == 0 && a.Nlink == 0 {
		return fmt.Sprintf("%s %o in subtree %d", formatIno(a.Ino), a.Mode, a.Subtree)
	}
	s := fmt.Sprintf("%s %o n=%d u=%d g=%d s=%d a=%d m=%d c=%d v=%d",
		formatIno(a.Ino), a.Mode, a.Nlink, a.Uid, a.Gid, a.Size, a.AtimeNs, a.MtimeNs, a.CtimeNs, a.Version)
	if a.Rdev != 0 {
		s += fmt.Sprintf(" rdev=%d", a.Rdev)
	}
	if a.DataVersion > 1 {
		s += fmt.Sprintf(" dv=%d", a.DataVersion)
	}
	if a.SizeEpoch > 1 {
		s += fmt.Sprintf(" epoch=%d", a.SizeEpoch)
	}
	if a.Mode&schema.TypeMask == schema.TypeFile && a.Blocks != 0 {
		s += fmt.Sprintf(" blocks=%d", a.Blocks)
	}
	for _, c := range a.Cuts {
		s += fmt.Sprintf(" cut=%d@%d", c.Size, c.SizeEpoch)
	}
	return s + formatFragments(a.Fragments)
}

func formatResult(r *canopyv1.Result) string {
	var b strings.Builder
	if r.Error != 0 {
		fmt.Fprintf(&b, "%v", fserr.Kind(r.Error))
	} else {
		b.WriteString("ok")
	}
	for _, a := range []struct {
		name string
		attr *canopyv1.Attr
	}{{"", r.Attr}, {" dir", r.DirAttr}, {" dst", r.DstDirAttr}, {" replaced", r.Replaced}} {
		if a.attr != nil {
			fmt.Fprintf(&b, "%s {%s}", a.name, formatAttr(a.attr))
		}
	}
	if r.Existed {
		b.WriteString(" existed")
	}
	if r.Offset != 0 {
		fmt.Fprintf(&b, " offset=%d", r.Offset)
	}
	if r.Place != nil {
		fmt.Fprintf(&b, " place={%s dir=%s %q}", formatIno(r.Place.Ino), formatIno(r.Place.Dir), r.Place.Name)
	}
	if r.Data != nil {
		fmt.Fprintf(&b, " data=%q", r.Data)
	}
	if r.Redirect != nil {
		fmt.Fprintf(&b, " redirect={subtree=%d epoch=%d shard=%d}", r.Redirect.Subtree, r.Redirect.Epoch, r.Redirect.Shard)
		if r.Redirect.Dir != 0 {
			fmt.Fprintf(&b, " dir=%s%s", formatIno(r.Redirect.Dir), formatFragments(r.Redirect.Fragments))
		}
	}
	b.WriteString(formatLocks(r.Locks))
	b.WriteString(formatQuotas(r))
	b.WriteString(formatPolicies(r.Policies))
	if r.Detail != "" {
		fmt.Fprintf(&b, " (%s)", r.Detail)
	}
	return b.String()
}

// dump prints the state, or the keys whose kind is among the wanted.
func (r *rig) dump(kinds []string) string {
	var b strings.Builder
	lo, hi := schema.ShardRange(r.shard)
	if err := r.kv.Scan(lo, hi, func(key, value []byte) (bool, error) {
		k := schema.Format(key)
		kind, _, _ := strings.Cut(k[strings.LastIndexByte(k[:strings.IndexByte(k+" ", ' ')], '/')+1:], " ")
		if len(kinds) > 0 {
			wanted := false
			for _, w := range kinds {
				wanted = wanted || w == kind
			}
			if !wanted {
				return true, nil
			}
		}
		line := k + ": " + schema.FormatValue(key, value)
		fmt.Fprintln(&b, shortInos(line))
		return true, nil
	}); err != nil {
		r.t.Fatal(err)
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}

// shortInos shows the shard's own numbers by their counter.
func shortInos(s string) string {
	fields := strings.FieldsFunc(s, func(c rune) bool { return c < '0' || c > '9' })
	for _, f := range fields {
		if n, err := strconv.ParseUint(f, 10, 64); err == nil && n>>base.InoCounterBits == uint64(testShard) {
			s = strings.ReplaceAll(s, f, formatIno(n))
		}
	}
	return s
}

// check runs fsck.
func (r *rig) check() string {
	var b strings.Builder
	sum, err := r.m.Check(r.kv, func(f Finding) { fmt.Fprintf(&b, "invariant %s: %s: %s\n", f.Invariant, f.Object, f.Problem) })
	if err != nil {
		r.t.Fatal(err)
	}
	fmt.Fprintf(&b, "%+v\n", sum)
	return b.String()
}

// mustBeClean fails the test on any finding, and if the machine's caches are not
// what the stored state says.
func (r *rig) mustBeClean() {
	r.t.Helper()
	if _, err := r.m.Check(r.kv, func(f Finding) { r.t.Errorf("invariant %s: %s: %s", f.Invariant, f.Object, f.Problem) }); err != nil {
		r.t.Fatal(err)
	}
}
