package client

import (
	"fmt"
	"sync"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// TestFragments: what subtrees say of others may be old, and leads on; what they say of
// themselves is asked for anew when it does not fit.
func TestFragments(t *testing.T) {
	const half, quarter = shard.BorderEnd / 2, shard.BorderEnd / 4
	type copies map[base.SubtreeID]shard.FragmentMap
	whole, halves := shard.Whole(1), shard.FragmentMap{{Lo: 0, Subtree: 1}, {Lo: half, Subtree: 5}}
	two := shard.FragmentMap{{Lo: 0, Subtree: 1}, {Lo: half, Subtree: 5}, {Lo: half + quarter, Subtree: 1}}
	three := shard.FragmentMap{{Lo: 0, Subtree: 1}, {Lo: half, Subtree: 5}, {Lo: half + quarter, Subtree: 6}}
	for _, x := range []struct {
		what string
		at   []copies // one after the other, as the first subtree is asked
		want string
	}{
		{"unsplit", []copies{{1: whole}}, "[[0000000, 10000000) 1: 3, 1]"},
		{"split", []copies{{1: halves, 5: halves}}, "[[0000000, 8000000) 1: 3, 1 [8000000, 10000000) 5: 15, 5]"},
		{"split again, of which home has not heard", []copies{{1: halves, 5: three, 6: three}},
			"[[0000000, 8000000) 1: 3, 1 [8000000, c000000) 5: 15, 5 [c000000, 10000000) 6: 18, 6]"},
		{"two ranges of one", []copies{{1: two, 5: two}},
			"[[0000000, 8000000) 1: 3, 1 [8000000, c000000) 5: 15, 5 [c000000, 10000000) 1: 3, 1]"},
		{"merged meanwhile", []copies{{1: halves}, {1: whole}}, "[[0000000, 10000000) 1: 3, 1]"},
		{"a range that two have, by answers of two moments", []copies{{1: halves, 5: three.With(shard.Range{Lo: quarter, Hi: half}, 5)}, {1: halves, 5: halves}},
			"[[0000000, 8000000) 1: 3, 1 [8000000, 10000000) 5: 15, 5]"},
	} {
		f := newFake(t, 1)
		f.publish(5, 1, 2)
		f.publish(6, 1, 3)
		c := f.connect(t, nil)
		var mu sync.Mutex
		looks := 0
		f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
			if op.GetGetAttr() == nil {
				return verdict{}
			}
			mu.Lock()
			defer mu.Unlock()
			if op.Subtree == 1 {
				looks++
			}
			now := x.at[min(looks-1, len(x.at)-1)]
			m := now[base.SubtreeID(op.Subtree)]
			if m == nil {
				return verdict{result: &canopyv1.Result{Error: uint32(fserr.Moved), Redirect: &canopyv1.Redirect{Subtree: 1}}}
			}
			a := &canopyv1.Attr{Ino: 1, Mode: modeDir | 0o755, Nlink: 2 + uint32(op.Subtree), Size: 3 * op.Subtree, Version: 1, Subtree: 1}
			if m.Split() {
				a.Fragments = m.Proto()
			}
			return verdict{result: &canopyv1.Result{Attr: a}}
		})
		all, err := c.Fragments(t.Context(), c.Root())
		var got []string
		for _, f := range all {
			got = append(got, fmt.Sprintf("%v %v: %d, %d", f.Range, f.Subtree, f.Entries, f.Subdirs))
			if f.Subtree > 1 && f.Epoch != base.Epoch(f.Subtree-3) || f.Shard != 1 {
				t.Errorf("%s: %v at shard %v, epoch %v", x.what, f.Subtree, f.Shard, f.Epoch)
			}
		}
		if fmt.Sprint(got) != x.want || err != nil {
			t.Errorf("%s: %v, %v\nwant %s", x.what, got, err, x.want)
		}
	}
}

// Kernels keep a listing as long as mtime is the same: a change at a fragment whose clock
// is behind another's shows, too. Times that somebody set are shown as they are.
func TestTellApart(t *testing.T) {
	var s sums
	for i, x := range []struct {
		version      uint64
		mtime, ctime int64
		want         int64
	}{
		{10, 500, 500, 500},
		{10, 500, 500, 500},
		{11, 500, 500, 501}, // a name, made at 480 by that shard's clock
		{11, 500, 500, 501},
		{12, 500, 500, 502},
		{13, 600, 600, 600},
		{14, 70, 700, 70}, // utimes
		{15, 70, 800, 70}, // and again
	} {
		a := &Attr{Version: x.version, MtimeNs: x.mtime, CtimeNs: x.ctime}
		if s.tellApart(a); a.MtimeNs != x.want {
			t.Errorf("%d: mtime %d, want %d", i, a.MtimeNs, x.want)
		}
	}
}
