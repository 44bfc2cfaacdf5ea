package namespace

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/datadriven"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/memkv"
	"github.com/canopyfs/canopy/shard/schema"
)

// carved is a subtree that was made by hand, and who has it.
type carved struct {
	memkv.Carve
	owner *rig
}

// carve does one step of a carve.
func (r *rig) carve(d *datadriven.TestData) string {
	var into uint64
	var step string
	d.ScanArgs(r.t, "into", &into)
	d.ScanArgs(r.t, "step", &step)
	c := r.carves[into]
	if c == nil {
		root := r.walk(d.CmdArgs[0].Key)
		c = &carved{owner: r, Carve: memkv.Carve{From: r.kv, To: r.kv, Shard: testShard, Other: testShard,
			Subtree: base.SubtreeID(r.subtreeOf(root)), Root: base.Ino(root), Into: base.SubtreeID(into), Epoch: 1}}
		if !d.HasArg("same") {
			c.owner = r.shard2()
			c.To, c.Other = c.owner.kv, otherShard
		}
		r.carves[into] = c
	}
	switch step {
	case "begin":
		c.Begin()
	case "handoff":
		c.HandOff()
	case "clean":
		c.Clean()
	case "forget":
		c.ForgetForwards()
	default:
		r.t.Fatalf("unknown step %s", step)
	}
	r.load()
	c.owner.load()
	return ""
}

// shard2 is a second shard, which owns a subtree of its own.
func (r *rig) shard2() *rig {
	for _, c := range r.carves {
		if c.owner != r {
			return c.owner
		}
	}
	o := newRig(r.t, r.hash)
	o.shard, o.now, o.seq = otherShard, r.now, r.seq
	o.load()
	o.own(&canopyv1.Command{Own: &canopyv1.Command_Bootstrap{Bootstrap: &canopyv1.BootstrapCommand{
		Cluster: "test", Shard: uint64(otherShard), Subtree: 2, Epoch: 1, RootMode: 0o755}}})
	return o
}

// owner returns the rig that a subtree is asked at.
func (r *rig) owner(subtree uint64) *rig {
	if c := r.carves[subtree]; c != nil {
		return c.owner
	}
	return r
}

func (r *rig) ask(op *canopyv1.Op) *canopyv1.Result {
	o := r.owner(op.Subtree)
	return o.m.Query(o.kv, op)
}

// find looks a name up, and goes where the answer says that the rest is.
func (r *rig) find(subtree, dir uint64, name string) *canopyv1.Result {
	for range 8 {
		res := r.ask(&canopyv1.Op{Subtree: subtree, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_Lookup{
			Lookup: &canopyv1.LookupCall{Dir: dir, Name: []byte(name)}}})
		if len(res.GetRedirect().GetFragments()) == 0 {
			return res
		}
		subtree = res.Redirect.Subtree
	}
	r.t.Fatalf("lookup of %q: redirects without end", name)
	return nil
}

// subtreeOf returns the subtree that has a directory, 1 if none does.
func (r *rig) subtreeOf(dir uint64) uint64 {
	if len(r.carves) == 0 && !r.splits {
		return 1
	}
	for _, o := range []*rig{r, r.owner(r.farthest())} {
		res := o.m.Query(o.kv, &canopyv1.Op{Call: &canopyv1.Op_Locate{Locate: &canopyv1.LocateCall{Ino: dir}}})
		if res.Error == 0 {
			return res.Attr.Subtree
		}
	}
	return 1
}

// farthest returns a subtree of the other shard, if there is one.
func (r *rig) farthest() uint64 {
	for id, c := range r.carves {
		if c.owner != r {
			return id
		}
	}
	return 1
}

// whereIs asks a shard which of its subtrees has something.
func (r *rig) whereIs(l *words) string {
	c := &canopyv1.LocateCall{Ino: r.place(l.arg(0)).Ino}
	if len(l.args) > 1 {
		c.Dir = r.place(l.arg(1)).Ino
	}
	in := r
	if l.num("shard", 1) == uint64(otherShard) {
		in = r.shard2()
	}
	return formatResult(in.m.Query(in.kv, &canopyv1.Op{Call: &canopyv1.Op_Locate{Locate: c}}))
}

// PROTOCOLS E7: whether a locate may say that nothing is there hangs on whether an
// entry of a migration came between its two passes.
func TestLocateTellsMoves(t *testing.T) {
	r := newRig(t, nil)
	r.bootstrap()
	r.openSession(0xa1)
	r.mustRun("mkdir /d")
	locate := func() string {
		res := r.m.Query(r.kv, &canopyv1.Op{Call: &canopyv1.Op_Locate{Locate: &canopyv1.LocateCall{Ino: 1 << 50}}})
		return fmt.Sprint(res.Moves)
	}
	before := locate()
	r.mustRun("mkdir /d/e")
	if locate() != before {
		t.Error("an entry that moves nothing counts as one")
	}
	c := memkv.Carve{From: r.kv, To: r.kv, Shard: testShard, Other: testShard, Subtree: 1, Root: base.Ino(r.walk("/d")), Into: 7, Epoch: 1}
	for _, step := range []func(){c.Begin, c.HandOff, c.Clean} {
		step()
		if now := locate(); now == before {
			t.Error("a step of a carve does not count")
		} else {
			before = now
		}
	}
}

// PROTOCOLS E7: a dentry's word of its directory's subtree is a hint. Where that has
// been carved out of the subtree that it names, of which old rows are still there,
// the answer comes from the subtree that has it.
func TestCarvedOutOfTheNeighbour(t *testing.T) {
	r := newRig(t, nil)
	r.bootstrap()
	r.openSession(0xa1)
	r.mustRun("mkdir /d")
	r.mustRun("mkdir /d/sub")
	d, sub := base.Ino(r.walk("/d")), base.Ino(r.walk("/d/sub"))
	for i, root := range []base.Ino{d, sub} {
		c := memkv.Carve{From: r.kv, To: r.kv, Shard: testShard, Other: testShard, Subtree: []base.SubtreeID{1, 7}[i], Root: root,
			Into: base.SubtreeID(7 + i), Epoch: 1}
		c.Begin()
		c.HandOff()
	}
	at := shard.NameHash([]byte("old")).Cookie(0)
	late := &schema.Dentry{Kind: schema.Directory, Name: []byte("old"), Ino: sub, Type: schema.TypeDir, Subtree: 7, Appeared: 1}
	if err := r.kv.Set(schema.DentryKey(testShard, 1, base.RootIno, at), late.Append(nil)); err != nil {
		t.Fatal(err)
	}
	r.load()
	changed := r.decode(r.apply(r.command(0xa1, &canopyv1.Op{Subtree: 8, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_SetAttr{
		SetAttr: &canopyv1.SetAttrCall{Place: &canopyv1.Place{Ino: uint64(sub)}, Mask: maskMode, Mode: 0o711}}}))[0])
	if changed.Error != 0 {
		t.Fatal(formatResult(changed))
	}
	got := r.find(1, 1, "old")
	if got.Attr.GetMode()&0o777 != 0o711 || got.Attr.GetSubtree() != 8 {
		t.Errorf("looked up through an old dentry: %s", formatResult(got))
	}
	page := r.m.Query(r.kv, &canopyv1.Op{Subtree: 1, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_ReadDir{
		ReadDir: &canopyv1.ReadDirCall{Dir: 1, Plus: true}}})
	for _, e := range page.Entries {
		if string(e.Name) == "old" && (e.Subtree != 8 || e.Attr != nil && e.Attr.Mode&0o777 != 0o711) {
			t.Errorf("listed through an old dentry: %v", e)
		}
	}
}
