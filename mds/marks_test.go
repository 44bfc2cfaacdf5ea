package mds_test

import (
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
)

func markNames(token uint64, free bool) *canopyv1.Op {
	return &canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_MarkNames{MarkNames: &canopyv1.MarkNamesCall{Dir: 1, Token: token, Free: free}}}
}

// PROTOCOLS F3: while a mark stands, what adds a name is done and not answered. The mark
// stands until it is freed, a second has passed, or the shard has another holder: who
// frees it learns which.
func TestMarksHoldAnswersBack(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 1}, nil)
	lister, maker := c.caller(1), c.caller(2).open(1)
	wait := func(answer chan *canopyv1.Result) *canopyv1.Result {
		select {
		case r := <-answer:
			return r
		case <-time.After(patience):
			t.Fatal("no answer")
		}
		return nil
	}
	free := func(token uint64) fserr.Kind { return fserr.Kind(lister.do(1, markNames(token, true)).Error) }
	make := func(name string) chan *canopyv1.Result {
		return maker.send(c.nodes[0], 1, maker.write(create(1, name)))[0]
	}

	before := lister.must(1, markNames(1, false))
	held := make("a")
	// It is there, and another mark shows it.
	eventually(t, "the name is there", func() bool { return lister.do(1, lookup(1, "a")).Error == 0 })
	if now := lister.must(1, markNames(2, false)); now.Mark <= before.Mark {
		t.Errorf("mark %d after a name was added, %d before", now.Mark, before.Mark)
	}
	other := make("b")
	select {
	case <-held:
		t.Error("an answer came while the mark stood")
	case <-other:
		t.Error("an answer came while marks stood")
	default:
	}
	if kind := free(1); kind != fserr.OK {
		t.Error("free:", kind)
	}
	if r := wait(held); r.Error != 0 {
		t.Error(fserr.Kind(r.Error))
	}
	// What got ready while the second stood waits for it, to its deadline.
	if r := wait(other); r.Error != 0 {
		t.Error(fserr.Kind(r.Error))
	}
	if kind := free(2); kind != fserr.Again {
		t.Error("free after the deadline:", kind)
	}
	if kind := free(1); kind != fserr.Again {
		t.Error("free twice:", kind)
	}
}

// A new holder knows no marks of the one before.
func TestMarksEndWithTheTerm(t *testing.T) {
	c := newCluster(t, triple, nil)
	lister := c.caller(1)
	lister.must(1, markNames(1, false))
	c.drain(c.holder(1))
	if kind := fserr.Kind(lister.do(1, markNames(1, true)).Error); kind != fserr.Again {
		t.Error("free at the next holder:", kind)
	}
}
