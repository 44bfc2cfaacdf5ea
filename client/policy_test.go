package client

import (
	"slices"
	"sync"
	"syscall"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// TestPolicyWithoutSync: where the policy says so, fsync and O_DSYNC bring bytes to
// the data servers and report them, and do not wait for disks; what a crash
// takes afterwards is no error. Files that were there keep what they have.
func TestPolicyWithoutSync(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	var mu sync.Mutex
	var events []string
	d.log = func(e string) { mu.Lock(); events = append(events, e); mu.Unlock() }
	old := create(t, c, "old")
	if err := c.SetPolicy(t.Context(), Cred{}, c.Root(), &canopyv1.LayoutPolicy{Class: "scratch", ClassPool: 1}, nil); err != nil {
		t.Fatal(err)
	}
	w := create(t, c, "x")
	write(t, w, "hello", 0)
	if err := w.Fsync(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, open(t, c, "x", syscall.O_WRONLY|syscall.O_DSYNC), "HELLO", 0)
	if !slices.Equal(events, []string{"write", "write"}) {
		t.Errorf("under sync=none: %v", events)
	}
	d.crash()
	if err := w.Fsync(t.Context()); err != nil {
		t.Errorf("fsync after a crash that took what was fsynced without a sync: %v", err)
	}
	events = nil
	write(t, old, "hello", 0)
	if err := old.Fsync(t.Context()); err != nil || !slices.Equal(events, []string{"write", "sync"}) {
		t.Errorf("a file from before: %v, %v", events, err)
	}
}

// TestPolicyDirect: a file tells whether its policy wants it opened past caches
// (FUSE K9), one that was there does not change.
func TestPolicyDirect(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	create(t, c, "old")
	if err := c.SetPolicy(t.Context(), Cred{}, c.Root(), &canopyv1.LayoutPolicy{Class: "checkpoint"}, nil); err != nil {
		t.Fatal(err)
	}
	if made := create(t, c, "new"); !made.Direct() {
		t.Error("a new file is not direct")
	}
	if !open(t, c, "new", syscall.O_RDONLY).Direct() || open(t, c, "old", syscall.O_RDONLY).Direct() {
		t.Error("a file that is opened says something else than when it was made")
	}
	up, err := c.Policies(t.Context(), c.Root())
	if err != nil || len(up) != 1 || up[0].GetPolicy().GetClass() != "checkpoint" {
		t.Errorf("policies of the root: %v, %v", up, err)
	}
	if err := c.SetPolicy(t.Context(), Cred{UID: 5}, c.Root(), nil, []string{"class"}); err == nil {
		t.Error("user 5 changes a policy")
	}
}
