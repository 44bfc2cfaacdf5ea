package mds_test

import (
	"fmt"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
)

// place2 is a directory for these tests: its number, subtree and shard.
type place2 struct{ ino, subtree, shard uint64 }

var slash = place2{1, 1, 1}

// asker runs operations over several shards, with a session at each.
type asker struct {
	*caller
	t    testing.TB
	open map[uint64]bool
}

func (c *cluster) asker(id base.ClientID) *asker {
	return &asker{c.caller(id), c.t, map[uint64]bool{}}
}

func (a *asker) run(d place2, op *canopyv1.Op) *canopyv1.Result {
	a.t.Helper()
	if !a.open[d.shard] {
		a.caller.open(base.ShardID(d.shard))
		a.open[d.shard] = true
	}
	op.Subtree, op.Cred = d.subtree, root
	switch op.Call.(type) {
	case *canopyv1.Op_Lookup, *canopyv1.Op_GetAttr, *canopyv1.Op_ReadDir, *canopyv1.Op_GetXattr:
	default:
		if op.Seq == 0 {
			a.write(op)
		}
	}
	for {
		r := a.do(base.ShardID(d.shard), op)
		switch fserr.Kind(r.Error) {
		case fserr.Locked, fserr.Moved, fserr.Frozen:
			continue
		}
		return r
	}
}

func (a *asker) must(d place2, op *canopyv1.Op) *canopyv1.Result {
	a.t.Helper()
	r := a.run(d, op)
	if r.Error != 0 {
		a.t.Fatalf("%v: %v %s", op, fserr.Kind(r.Error), r.Detail)
	}
	return r
}

func (a *asker) mkdir(d place2, name string) place2 {
	a.t.Helper()
	r := a.must(d, &canopyv1.Op{Call: &canopyv1.Op_Mkdir{Mkdir: &canopyv1.MkdirCall{Dir: d.ino, Name: []byte(name), Mode: 0o755}}})
	out := place2{r.Attr.Ino, r.Attr.Subtree, d.shard}
	if r.Redirect != nil {
		out.shard = r.Redirect.Shard
	}
	return out
}

func (a *asker) create(d place2, name string) uint64 {
	a.t.Helper()
	return a.must(d, create(d.ino, name)).Attr.Ino
}

func (a *asker) rename(from place2, name string, to place2, as string, flags uint32) *canopyv1.Result {
	a.t.Helper()
	return a.run(from, &canopyv1.Op{Call: &canopyv1.Op_Rename{Rename: &canopyv1.RenameCall{
		SrcDir: from.ino, SrcName: []byte(name), DstDir: to.ino, DstName: []byte(as), DstSubtree: to.subtree, Flags: flags}}})
}

func (a *asker) find(d place2, name string) *canopyv1.Result {
	a.t.Helper()
	return a.run(d, lookup(d.ino, name))
}

func (a *asker) is(d place2, name string, ino uint64) {
	a.t.Helper()
	r := a.find(d, name)
	if ino == 0 && fserr.Kind(r.Error) != fserr.NotFound || ino != 0 && (r.Error != 0 || r.Attr.Ino != ino) {
		a.t.Errorf("%s in %d: %v %v, want inode %d", name, d.ino, fserr.Kind(r.Error), r.Attr, ino)
	}
}

func (a *asker) spread(d place2) {
	a.t.Helper()
	a.must(d, &canopyv1.Op{Call: &canopyv1.Op_SetPolicy{SetPolicy: &canopyv1.SetPolicyCall{Dir: d.ino, Set: &canopyv1.LayoutPolicy{Spread: "children"}}}})
}

// spreadDirs makes directories below a spread one until there are some on each of
// two shards at least.
func (a *asker) spreadDirs(n int) []place2 {
	a.t.Helper()
	top := a.mkdir(slash, "spread")
	a.spread(top)
	var dirs []place2
	shards, subtrees := map[uint64]bool{}, map[uint64]bool{}
	i := 0
	// A shard takes none before the map knows who holds it.
	await.Until(a.t, time.Minute, "directories on two shards", func() bool {
		d := a.mkdir(top, fmt.Sprintf("d%d", i))
		i++
		if len(dirs) != 1 || d.shard != dirs[0].shard {
			dirs = append(dirs, d)
			shards[d.shard], subtrees[d.subtree] = true, true
		}
		return len(dirs) == n
	})
	if len(shards) < 2 || len(subtrees) != n {
		a.t.Fatalf("%d directories are in %d subtrees on %d shards", n, len(subtrees), len(shards))
	}
	return dirs
}

// TestRenameOverShards: files and directories go from one shard to another and
// back, and are there and nowhere else.
func TestRenameOverShards(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 2, Replicas: 1, Shards: 3}, nil)
	a := c.asker(0xa1)
	dirs := a.spreadDirs(2)
	x, y := dirs[0], dirs[1]
	f := a.create(x, "f")
	for i := range 4 {
		if r := a.rename(x, "f", y, "g", 0); r.Error != 0 || r.Attr.Ino != f || r.Attr.Subtree != y.subtree {
			t.Fatalf("there, round %d: %v %v", i, fserr.Kind(r.Error), r)
		}
		a.is(x, "f", 0)
		a.is(y, "g", f)
		if r := a.rename(y, "g", x, "f", 0); r.Error != 0 {
			t.Fatalf("back: %v %v", fserr.Kind(r.Error), r)
		}
		a.is(y, "g", 0)
		a.is(x, "f", f)
	}
	sub := a.mkdir(x, "sub")
	in := a.create(sub, "in")
	if r := a.rename(x, "sub", y, "sub", 0); r.Error != 0 {
		t.Fatalf("a directory: %v", fserr.Kind(r.Error))
	}
	a.is(y, "sub", sub.ino)
	a.is(sub, "in", in)
	if r := a.rename(y, "sub", sub, "cycle", 0); fserr.Kind(r.Error) != fserr.Invalid {
		t.Errorf("a directory below itself: %v", fserr.Kind(r.Error))
	}
	g := a.create(y, "g")
	if r := a.rename(x, "f", y, "g", 2); r.Error != 0 {
		t.Fatalf("exchange: %v", fserr.Kind(r.Error))
	}
	a.is(x, "f", g)
	a.is(y, "g", f)
	if r := a.rename(x, "f", y, "g", 1); fserr.Kind(r.Error) != fserr.Exist {
		t.Errorf("over an existing name with NOREPLACE: %v", fserr.Kind(r.Error))
	}
	if r := a.rename(x, "f", y, "g", 0); r.Error != 0 || r.Replaced.GetNlink() != 0 || r.Replaced.GetIno() != f {
		t.Errorf("over an existing name: %v %v", fserr.Kind(r.Error), r)
	}
	a.is(y, "g", g)
}
