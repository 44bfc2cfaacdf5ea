package raftgroup

import (
	"testing"
	"time"
)

func TestSingleReplica(t *testing.T) {
	c := newCluster(t, 1, nil)
	for i := range 100 {
		if !c.propose(name(i), 5*time.Second) {
			t.Fatal("not acknowledged")
		}
	}
	nd := c.holder(time.Second)
	if n := nd.runs(name(5)); n != 1 {
		t.Fatalf("ran %d times", n)
	}
	t.Logf("%+v", nd.group().Status())
}
