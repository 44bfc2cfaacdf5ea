package mds_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/shard"
)

func markNames(dir, token uint64, free bool) *canopyv1.Op {
	return &canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_MarkNames{MarkNames: &canopyv1.MarkNamesCall{Dir: dir, Token: token, Free: free}}}
}

// whileMarked runs try, with a number of its own, until it has ended before marks that it
// takes can have run out: what it finds then is what they do.
func whileMarked(t *testing.T, try func(n uint64) (problems []string)) {
	t.Helper()
	for n := uint64(1); n < 50; n++ {
		began := time.Now()
		problems := try(n)
		if time.Since(began) >= time.Second {
			continue // the machine is slow: the deadline may have done it
		}
		for _, p := range problems {
			t.Error(p)
		}
		return
	}
	t.Fatal("nothing ends within a second here")
}

func waitAnswer(t *testing.T, answer chan *canopyv1.Result) fserr.Kind {
	t.Helper()
	select {
	case r := <-answer:
		return fserr.Kind(r.GetError())
	case <-time.After(patience):
		t.Fatal("no answer")
		return 0
	}
}

// PROTOCOLS F3: while a mark stands, what adds a name is done and not answered. The mark
// stands until it is freed, or a second has passed: who frees it learns which.
func TestMarksHoldAnswersBack(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 1}, nil)
	lister, maker := c.caller(1), c.caller(2).open(1)
	free := func(token uint64) fserr.Kind { return fserr.Kind(lister.do(1, markNames(1, token, true)).Error) }
	whileMarked(t, func(n uint64) (problems []string) {
		name := fmt.Sprintf("a%d", n)
		before := lister.must(1, markNames(1, n, false))
		held := maker.send(c.nodes[0], 1, maker.write(create(1, name)))[0]
		// It is there, and another mark shows it.
		eventually(t, "the name is there", func() bool { return lister.do(1, lookup(1, name)).Error == 0 })
		if now := lister.must(1, markNames(1, n+1000, false)); now.Mark <= before.Mark {
			problems = append(problems, "a later mark does not show what was made")
		}
		select {
		case <-held:
			problems = append(problems, "an answer came while the mark stood")
		default:
		}
		if kind := free(n); kind != fserr.OK {
			problems = append(problems, fmt.Sprint("free: ", kind))
		}
		if kind := waitAnswer(t, held); kind != fserr.OK {
			problems = append(problems, fmt.Sprint("create: ", kind))
		}
		if kind := free(n); kind != fserr.Again {
			problems = append(problems, fmt.Sprint("free twice: ", kind))
		}
		return problems
	})
	// Nobody frees this one.
	lister.must(1, markNames(1, 1, false))
	if kind := waitAnswer(t, maker.send(c.nodes[0], 1, maker.write(create(1, "b")))[0]); kind != fserr.OK {
		t.Error("create:", kind)
	}
	eventually(t, "the mark does not stand any more", func() bool { return free(1) == fserr.Again })
}

// A new holder knows no marks of the one before.
func TestMarksEndWithTheTerm(t *testing.T) {
	c := newCluster(t, triple, nil)
	lister := c.caller(1)
	lister.must(1, markNames(1, 1, false))
	c.drain(c.holder(1))
	if kind := fserr.Kind(lister.do(1, markNames(1, 1, true)).Error); kind != fserr.Again {
		t.Error("free at the next holder:", kind)
	}
}

// A name that a transaction brings into a fragment of another shard is not acknowledged,
// by the shard that coordinates it, while the mark of that fragment stands. Marks know
// nothing of what a move brought or took.
func TestMarksOverShards(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 2, Shards: 2, Replicas: 1}, nil)
	k, lister := c.caller(0xa1).open(1), c.caller(2)
	k.open(2)
	dir := k.must(1, k.write(mkdir(1, "d"))).Attr.Ino
	lister.must(1, markNames(dir, 1, false))
	into := c.moveNames(1, &canopyv1.StartMoveRequest{Subtree: 1, Dir: dir, ToShard: 2, Lo: half, Hi: shard.BorderEnd}).Into
	if kind := fserr.Kind(lister.do(1, markNames(dir, 1, true)).Error); kind != fserr.Again {
		t.Error("free after names have moved:", kind)
	}
	i := 0
	nameIn := func(r shard.Range) string {
		for ; ; i++ {
			if name := fmt.Sprintf("n%d", i); r.Contains(shard.NameHash([]byte(name)).Border()) {
				i++
				return name
			}
		}
	}
	whileMarked(t, func(n uint64) (problems []string) {
		from, to := nameIn(shard.Range{Hi: half}), nameIn(shard.Range{Lo: half, Hi: shard.BorderEnd})
		k.must(1, k.write(create(dir, from)))
		for s, subtree := range []uint64{1, into} {
			m := lister.must([]base.ShardID{1, 2}[s], in(subtree, markNames(dir, n, false)))
			if len(shard.FragmentsOf(m.DirAttr.Fragments)) != 2 || m.Mark == 0 {
				problems = append(problems, fmt.Sprintf("mark %d, fragments %v", m.Mark, m.DirAttr.Fragments))
			}
		}
		free := func(at base.ShardID, subtree uint64) {
			if kind := fserr.Kind(lister.do(at, in(subtree, markNames(dir, n, true))).Error); kind != fserr.OK {
				problems = append(problems, fmt.Sprint("free: ", kind))
			}
		}
		free(1, 1) // which held back what the coordinator answers
		held := k.send(c.nodes[c.holding(1)], 1, k.write(&canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_Rename{Rename: &canopyv1.RenameCall{
			SrcDir: dir, SrcName: []byte(from), DstDir: dir, DstName: []byte(to), DstSubtree: into}}}))[0]
		eventually(t, "the name is there", func() bool { return lister.do(2, in(into, lookup(dir, to))).Error == 0 })
		select {
		case r := <-held:
			problems = append(problems, fmt.Sprintf("an answer came while the mark stood: %v", fserr.Kind(r.GetError())))
		case <-time.After(250 * time.Millisecond): // longer than other transactions' answers wait
		}
		free(2, into)
		if kind := waitAnswer(t, held); kind != fserr.OK {
			problems = append(problems, fmt.Sprint("rename: ", kind))
		}
		return problems
	})
}

// What a coordinator decided before it was drained is not acknowledged while a mark of
// the fragment stands into which it brought a name: neither by the holder that goes,
// nor by the next one, to which the client sends its request again.
func TestMarksOutlastACoordinator(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 3, Shards: 3, Replicas: 3}, nil)
	k, lister := c.caller(0xa1).open(1), c.caller(2)
	dir := k.must(1, k.write(mkdir(1, "d"))).Attr.Ino
	at := c.holding(1)
	other := base.ShardID(2)
	if c.holding(2) == at {
		other = 3
	}
	if c.holding(other) == at {
		t.Skip("one node holds all shards")
	}
	k.open(other)
	into := c.moveNames(1, &canopyv1.StartMoveRequest{Subtree: 1, Dir: dir, ToShard: uint64(other), Lo: half, Hi: shard.BorderEnd}).Into
	from, to := "", ""
	for i := 0; from == "" || to == ""; i++ {
		if name := fmt.Sprintf("n%d", i); shard.NameHash([]byte(name)).Border() < half {
			from = name
		} else {
			to = name
		}
	}
	k.must(1, k.write(create(dir, from)))
	began := time.Now()
	lister.must(other, in(into, markNames(dir, 1, false)))
	op := k.write(&canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_Rename{Rename: &canopyv1.RenameCall{
		SrcDir: dir, SrcName: []byte(from), DstDir: dir, DstName: []byte(to), DstSubtree: into}}})
	held := k.send(c.nodes[at], 1, op)[0]
	eventually(t, "the name is there", func() bool { return lister.do(other, in(into, lookup(dir, to))).Error == 0 })
	c.drain(at)
	stands := func() bool { return time.Since(began) < 900*time.Millisecond }
	if r, ok := <-held; ok && r.Error == 0 && stands() {
		t.Error("the holder that went told the client while the mark stood")
	}
	again := proto.CloneOf(op)
	again.Again = true
	if k.must(1, again); stands() {
		t.Error("the next holder told the client while the mark stood")
	}
	t.Logf("answered after %v", time.Since(began))
	if kind := fserr.Kind(lister.do(other, in(into, markNames(dir, 1, true))).Error); kind != fserr.Again {
		t.Error("free: ", kind)
	}
}
