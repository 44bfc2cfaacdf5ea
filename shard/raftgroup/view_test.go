package raftgroup

import (
	"bytes"
	"testing"

	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// A view shows the state of one moment, whatever becomes of the lease and of the state;
// once a snapshot was installed under it, it says that it cannot be trusted.
func TestAViewStaysWhatItWas(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	g := c.holder(patience).group()
	if !c.propose(name(1), patience) {
		t.Fatal("not acknowledged")
	}
	v, err := g.TakeView(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	applied := func() []byte {
		b, found, err := v.Get(schema.AppliedKey(g.Shard()))
		if err != nil || !found {
			t.Fatalf("applied: %v, %v", found, err)
		}
		return bytes.Clone(b)
	}
	before := applied()
	g.mu.Lock()
	g.view.until = 0 // the lease runs out
	g.publishLocked()
	g.mu.Unlock()
	if !c.propose(name(2), patience) {
		t.Fatal("not acknowledged")
	}
	if !bytes.Equal(before, applied()) || v.Whole() != nil {
		t.Errorf("the view changed: %x, then %x; %v", before, applied(), v.Whole())
	}
	g.sm.installs.Add(1)
	if err := v.Whole(); fserr.KindOf(err) != fserr.NotHolder {
		t.Errorf("after an install: %v", err)
	}
}
