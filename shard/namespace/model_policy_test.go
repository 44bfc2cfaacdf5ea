package namespace

import (
	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/policy"
	"github.com/canopyfs/canopy/shard/schema"
)

// drawPolicy sets one of the classes that say all that a layout has, or takes it
// back.
func (m *model) drawPolicy() step {
	dir := m.dir("dir")
	c := &canopyv1.SetPolicyCall{Dir: dir.ino, Clear: []string{"class"}}
	class := []string{"", policy.Checkpoint, policy.Dataset, policy.Standard}[m.pick("class", 4)]
	if class != "" {
		c.Set = &canopyv1.LayoutPolicy{Class: class}
	}
	return step{&canopyv1.Op{Call: &canopyv1.Op_SetPolicy{SetPolicy: c}}, func(res *canopyv1.Result) {
		kind := fserr.OK
		switch {
		case dir.purged:
			kind = fserr.Stale
		case dir.removed:
			kind = fserr.NotFound
		}
		if m.expect(res, kind, "policy "+class) {
			dir.policy = class
			m.policies = true
		}
	}}
}

// laidOut checks the layout of a file that was just made in dir: the nearest
// directory above that has a class decides.
func (m *model) laidOut(res *canopyv1.Result, dir *node) {
	if res.Existed || !m.policies {
		return
	}
	class := ""
	for d := dir; class == ""; d = d.parent {
		class = d.policy
		if d.parent == d {
			break
		}
	}
	standard := m.standard()
	want := policy.Effective{}.Below(1, &canopyv1.LayoutPolicy{Class: class}, 0).Layout(standard)
	if got := res.Attr.GetLayout(); !proto.Equal(got, want) {
		m.rt.Fatalf("a file below class %q has the layout %v, want %v", class, got, want)
	}
}

// standard is the root's layout.
func (m *model) standard() *canopyv1.Layout {
	b, _, err := m.kv.Get(schema.HeaderKey(m.shard, 1, 1))
	if err != nil {
		m.rt.Fatal(err)
	}
	h, err := schema.DecodeHeader(b)
	if err != nil {
		m.rt.Fatal(err)
	}
	return h.Layout.Proto()
}
