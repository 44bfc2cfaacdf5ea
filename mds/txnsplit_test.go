package mds_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/shard"
)

// splitIn4 makes a directory in the root whose quarters lie on two shards in turn, and
// returns it and its fragments' places, home first.
func (c *cluster) splitIn4(a *asker, name string) []place2 {
	c.t.Helper()
	d := a.mkdir(slash, name)
	parts := []place2{d}
	for i := shard.BorderEnd / quarter; i > 1; i-- {
		to := uint64(1 + (i-1)%2)
		moved := c.moveNames(1, &canopyv1.StartMoveRequest{Subtree: 1, Dir: d.ino, ToShard: to, Lo: (i - 1) * quarter, Hi: i * quarter})
		parts = append(parts, place2{d.ino, moved.Into, to})
	}
	return parts
}

// stat is what a fragment answers of its directory.
func (a *asker) stat(part place2) *canopyv1.Attr {
	a.t.Helper()
	return a.must(part, &canopyv1.Op{Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: part.ino}}}}).Attr
}

func chmod(ino uint64, mode uint32) *canopyv1.Op {
	return &canopyv1.Op{Call: &canopyv1.Op_SetAttr{SetAttr: &canopyv1.SetAttrCall{Place: &canopyv1.Place{Ino: ino},
		Mask: uint32(canopyv1.SetAttrMask_SET_ATTR_MODE), Mode: mode}}}
}

func setxattr(ino uint64, flags uint32) *canopyv1.Op {
	return &canopyv1.Op{Call: &canopyv1.Op_SetXattr{SetXattr: &canopyv1.SetXattrCall{Place: &canopyv1.Place{Ino: ino}, Name: []byte("user.a"), Value: []byte("v"), Flags: flags}}}
}

// nameAt returns a name that lies in a quarter.
func nameAt(i int) string {
	for n := 0; ; n++ {
		if name := fmt.Sprint("n", n); shard.NameHash([]byte(name)).Border()/quarter == uint32(i) {
			return name
		}
	}
}

// TestSplitDirectoryChanges: attributes of a split directory change in all fragments at
// once; names go from one to another; it is removed when all are empty.
func TestSplitDirectoryChanges(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 2, Replicas: 1, Shards: 2}, nil)
	a := c.asker(0xa1)
	parts := c.splitIn4(a, "split")
	home := parts[0]
	if r := a.must(home, chmod(home.ino, 0o711)); len(r.Attr.Fragments) != 4 || r.Attr.Mode&0o777 != 0o711 {
		t.Errorf("the answer is %v", r.Attr)
	}
	for _, p := range parts {
		if mode := a.stat(p).Mode; mode&0o777 != 0o711 {
			t.Errorf("mode %o in subtree %d", mode, p.subtree)
		}
	}
	if r := a.do(base.ShardID(parts[1].shard), a.write(&canopyv1.Op{Subtree: parts[1].subtree, Cred: root, Call: chmod(home.ino, 0o700).Call})); fserr.Kind(r.Error) != fserr.Moved || r.Redirect.GetSubtree() != home.subtree {
		t.Errorf("another fragment that is asked for a change answers %v", r)
	}
	for i, want := range []fserr.Kind{fserr.NoData, fserr.OK, fserr.Exist} {
		if r := a.run(home, setxattr(home.ino, []uint32{2, 0, 1}[i])); fserr.Kind(r.Error) != want {
			t.Errorf("setxattr %d: %v, want %v", i, fserr.Kind(r.Error), want)
		}
	}
	for _, p := range parts {
		r := a.must(p, &canopyv1.Op{Call: &canopyv1.Op_GetXattr{GetXattr: &canopyv1.GetXattrCall{Place: &canopyv1.Place{Ino: p.ino}, Name: []byte("user.a")}}})
		if string(r.Data) != "v" {
			t.Errorf("xattr %q in subtree %d", r.Data, p.subtree)
		}
	}

	at := func(quarterOf int) place2 { // the parts are in descending order of their names
		return parts[(4-quarterOf)%4]
	}
	f := a.create(at(1), nameAt(1))
	for from := 1; from < 9; from++ {
		src, dst := from%4, (from+1)%4
		// Also a client that believes that all is in the source's fragment.
		as := at(dst)
		if from%2 == 0 {
			as = at(src)
		}
		if r := a.rename(at(src), nameAt(src), as, nameAt(dst), 0); r.Error != 0 {
			t.Fatalf("from quarter %d to %d: %v", src, dst, fserr.Kind(r.Error))
		}
		a.is(at(src), nameAt(src), 0)
		a.is(at(dst), nameAt(dst), f)
	}
	rmdir := func() fserr.Kind {
		return fserr.Kind(a.run(slash, &canopyv1.Op{Call: &canopyv1.Op_Rmdir{Rmdir: &canopyv1.RmdirCall{Dir: 1, Name: []byte("split")}}}).Error)
	}
	if k := rmdir(); k != fserr.NotEmpty {
		t.Errorf("rmdir of a directory with a name: %v", k)
	}
	a.must(at(1), &canopyv1.Op{Call: &canopyv1.Op_Unlink{Unlink: &canopyv1.UnlinkCall{Dir: home.ino, Name: []byte(nameAt(1))}}})
	if k := rmdir(); k != fserr.OK {
		t.Errorf("rmdir of an empty directory: %v", k)
	}
	if n := a.stat(home).Nlink; n != 0 {
		t.Errorf("nlink %d of a removed directory", n)
	}
}

// TestSplitDirectoryChangesUnderLoad: while clients make and take names in all
// fragments, and one more fragment comes and goes, two change the mode in turn. Each
// sees its own change wherever it asks, and nobody sees an error.
func TestSplitDirectoryChangesUnderLoad(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 2, Replicas: 1, Shards: 2}, nil)
	a := c.asker(0xa1)
	parts := c.splitIn4(a, "split")
	home := parts[0]
	var stop atomic.Bool
	var all sync.WaitGroup
	for i := range 3 {
		f := c.follower(base.ClientID(0xb0+i), home.ino)
		all.Go(func() {
			for n := 0; !stop.Load(); n++ {
				name := fmt.Sprintf("f%d.%d", i, n)
				if r := f.create(name); r.Error != 0 {
					t.Errorf("create: %v", fserr.Kind(r.Error))
				}
				unlink := f.write(&canopyv1.Op{Cred: root, Call: &canopyv1.Op_Unlink{Unlink: &canopyv1.UnlinkCall{Dir: home.ino, Name: []byte(name)}}})
				if r := f.run(shard.NameHash([]byte(name)), unlink); r.Error != 0 {
					t.Errorf("unlink: %v", fserr.Kind(r.Error))
				}
			}
		})
	}
	all.Go(func() {
		for !stop.Load() {
			into := c.moveNames(1, &canopyv1.StartMoveRequest{Subtree: 1, Dir: home.ino, ToShard: 2, Lo: quarter / 2, Hi: quarter}).Into
			c.moveNames(2, &canopyv1.StartMoveRequest{Subtree: into, Dir: home.ino, ToShard: 1, Lo: quarter / 2, Hi: quarter, Into: 1})
		}
	})
	for round := range 40 {
		mode := uint32(0o700 + round)
		if r := a.must(home, chmod(home.ino, mode)); r.Attr.Mode&0o777 != mode {
			t.Errorf("the answer has mode %o", r.Attr.Mode)
		}
		for _, p := range parts {
			if got := a.stat(p).Mode; got&0o777 != mode {
				t.Errorf("mode %o in subtree %d after %o was set", got, p.subtree, mode)
			}
		}
	}
	stop.Store(true)
	all.Wait()
}
