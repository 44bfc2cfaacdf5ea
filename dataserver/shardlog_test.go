package dataserver

import (
	"errors"
	"hash/crc32"
	"slices"
	"testing"

	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/dataserver/erasure"
	"github.com/canopyfs/canopy/internal/fserr"
)

func always() bool { return true }

// TestLateRows is PROTOCOLS J3: of what a primary sent to a member of an erasure coded
// group a copy may come late. What was numbered before something of the same rows that
// was executed, is of an older term, or below the floor, is refused.
func TestLateRows(t *testing.T) {
	key := chunkstore.Key{Pool: 2, Data: 7}
	rows := func(first, end uint64) rowsTaken { return rowsTaken{key, first, end} }
	l := newChangeLog(1)
	take := func(term, seq, floor uint64, r rowsTaken) bool {
		x, mine, ok := l.takeRows(term, seq, floor, r, always)
		if mine {
			l.took(seq, x, 0, nil)
		}
		return ok && mine
	}
	for i, step := range []struct {
		what             string
		term, seq, floor uint64
		rows             rowsTaken
		taken            bool
	}{
		{"a change", 5, 20, 10, rows(0, 4), true},
		{"a later one of the same rows", 5, 22, 10, rows(2, 6), true},
		{"one between them, of the same rows", 5, 21, 10, rows(3, 4), false},
		{"one between them, of other rows", 5, 19, 10, rows(8, 9), true},
		{"the same again", 5, 20, 10, rows(0, 4), false},
		{"one of another column", 5, 18, 10, rowsTaken{chunkstore.Key{Pool: 2, Data: 8}, 0, 4}, true},
		{"one below the floor", 5, 9, 10, rows(100, 101), false},
		{"a later one, by which the primary has done with all before", 5, 30, 30, rows(50, 51), true},
		{"one before that", 5, 23, 10, rows(200, 201), false},
		{"one of the next term", 6, 40, 31, rows(0, 4), true},
		{"one of the term before, with a higher number", 5, 41, 31, rows(300, 301), false},
	} {
		if got := take(step.term, step.seq, step.floor, step.rows); got != step.taken {
			t.Errorf("step %d, %s: taken %v", i, step.what, got)
		}
	}
	l.raise(9)
	if take(8, 50, 0, rows(0, 1)) {
		t.Error("a change is taken of a term before the one that asked for the log")
	}
	if _, err := l.visit(l.ofTerm(8, always)); err == nil {
		t.Error("so is another request")
	}
	l.settleTo(9, 60)
	if take(9, 59, 0, rows(0, 1)) {
		t.Error("a change is taken that had ended when the member's recovery began")
	}
	if !take(9, 60, 0, rows(0, 1)) {
		t.Error("one that began later is refused")
	}
	// A repair that is under way holds the floor, so that it is not late.
	_, done := l.number()
	seq, _ := l.number()
	if low := l.low(); low >= seq {
		t.Errorf("the floor is %d, with a repair of number %d under way", low, seq-1)
	}
	done()
	if low := l.low(); low != seq {
		t.Errorf("the floor is %d, with a repair of number %d under way", low, seq)
	}
}

// TestLateCopies: a new activation of the same primary, in the same epoch, asks for the
// logs; then copies come of a change and of an undo that the activation before had under
// way. They change nothing: what a member's log told stays true (PROTOCOLS J3).
func TestLateCopies(t *testing.T) {
	t.Parallel() // most of it is waiting
	c := newCluster(t, clusterOptions{servers: 3, replicas: 1, data: 2, parity: 1, pgs: 1})
	d := c.client(1)
	f := shardFile(100)
	want := randomBytes(1, 8192)
	mustWrite(t, d, f, want, 0)
	key := chunkstore.Key{Pool: 2, Data: f.ID}
	pg := shardPool(mapOf(t, d)).Pgs[0]
	byID := map[uint64]*server{}
	for _, s := range c.servers {
		byID[s.id] = s.server
	}
	member := byID[pg.InSync[1]]
	g := member.group(key)
	term, _, _, _ := g.undo.State()
	send := func(r *canopyv1.DataRequest, payload []byte) error {
		r.Column, r.PgEpoch, r.FromPrimary = columnOf(key), pg.Epoch, true
		response, err := member.execute(testContext(t), &link.Request{DataRequest: r, Payload: mem.BufferSlice{mem.SliceBuffer(payload)}})
		response.Free()
		return err
	}
	block := randomBytes(2, erasure.BlockBytes)
	change := func(seq uint64) *canopyv1.DataRequest {
		return &canopyv1.DataRequest{
			LogTerm: term, LogSeq: seq, Shard: &canopyv1.ShardCall{FirstRow: 0, States: []byte{blockBytes}},
			Call: &canopyv1.DataRequest_Write{Write: &canopyv1.WriteCall{Crc32C: crc32.Checksum(block, castagnoli)}},
		}
	}
	const seq = 1 << 50
	if err := send(change(seq), block); err != nil {
		t.Fatal(err)
	}
	if err := send(&canopyv1.DataRequest{LogTerm: term + 1, Call: &canopyv1.DataRequest_InFlight{InFlight: &canopyv1.InFlightCall{}}}, nil); err != nil {
		t.Fatal(err)
	}
	sums := func() []uint32 {
		got, err := g.readShard(key, shardOf(pg, uint64(member.member.id())), 0, 1, false, false)
		if err != nil {
			t.Fatal(err)
		}
		return got.sums
	}
	told := sums()
	for what, late := range map[string]func() error{
		"a change": func() error { return send(change(seq+1), block) },
		"an undo": func() error {
			return send(&canopyv1.DataRequest{LogTerm: term, LogSeq: seq, Call: &canopyv1.DataRequest_ShardUndo{ShardUndo: &canopyv1.ShardUndoCall{}}}, nil)
		},
		"a repair": func() error {
			r := change(seq + 2)
			r.Shard.Repair = true
			return send(r, block)
		},
	} {
		if err := late(); fserr.KindOf(err) != fserr.NotReady {
			t.Errorf("%s that comes late: %v", what, err)
		}
		if !slices.Equal(sums(), told) {
			t.Fatalf("%s that comes late is executed", what)
		}
	}
	// At the primary, what was read in one term is not written in the next.
	primary := byID[pg.InSync[0]].group(key)
	before, err := primary.activeTerm()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := primary.replicateShards(testContext(t), before-1, key, nil, &link.Request{DataRequest: &canopyv1.DataRequest{}}, true); !errors.Is(err, errDeposed) {
		t.Errorf("a change of what was read in another term: %v", err)
	}
	if err := primary.during(func() error { primary.deactivate(); return nil }); !errors.Is(err, errDeposed) {
		t.Errorf("a read amid an activation: %v", err)
	}
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after the next activation")
	c.requireWholeRows(d)
}
