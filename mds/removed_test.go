package mds_test

import (
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
)

// TestARemovedSubtreeLeavesTheMap: a directory that a policy made a subtree of goes
// with rmdir, from the placement map, too; others stay.
func TestARemovedSubtreeLeavesTheMap(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 2}, quick(nil))
	a := c.asker(0xa1)
	dirs := a.spreadDirs(2)
	for _, d := range dirs {
		a.create(d, "f")
		eventually(t, "the map to have it", func() bool { return c.liveRoute(d.subtree) != nil })
	}
	gone, stays := dirs[1], dirs[0]
	a.must(gone, &canopyv1.Op{Call: &canopyv1.Op_Unlink{Unlink: &canopyv1.UnlinkCall{Dir: gone.ino, Name: []byte("f")}}})
	top := a.must(slash, lookup(1, "spread")).Attr
	var name []byte
	list := a.must(place2{top.Ino, 1, 1}, &canopyv1.Op{Call: &canopyv1.Op_ReadDir{ReadDir: &canopyv1.ReadDirCall{Dir: top.Ino}}})
	for _, e := range list.Entries {
		if e.Ino == gone.ino {
			name = e.Name
		}
	}
	a.must(place2{top.Ino, 1, 1}, &canopyv1.Op{Call: &canopyv1.Op_Rmdir{Rmdir: &canopyv1.RmdirCall{Dir: top.Ino, Name: name}}})
	for shard := range a.open {
		a.report(base.ShardID(shard), 1)
	}
	eventually(t, "the map to forget it", func() bool { return c.liveRoute(gone.subtree) == nil })
	if c.liveRoute(stays.subtree) == nil {
		t.Error("another one is gone, too")
	}
	if r := a.run(gone, lookup(gone.ino, "f")); fserr.Kind(r.Error) != fserr.Stale {
		t.Errorf("a name in it: %v, want %v", fserr.Kind(r.Error), fserr.Stale)
	}
	a.find(stays, "f")
}
