package namespace

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/migrate"
	"github.com/canopyfs/canopy/shard/schema"
)

// countingSource counts the rows that one read of a driver looks at.
type countingSource struct {
	*machineOf
	most *int
}

type countingReader struct {
	shard.Reader
	rows int
}

func (r *countingReader) Scan(lo, hi []byte, fn func(key, value []byte) (bool, error)) error {
	return r.Reader.Scan(lo, hi, func(key, value []byte) (bool, error) {
		r.rows++
		return fn(key, value)
	})
}

func (s countingSource) Read(_ context.Context, fn func(shard.Reader) error) error {
	r := &countingReader{Reader: s.kv}
	err := fn(r)
	*s.most = max(*s.most, r.rows)
	return err
}

// PROTOCOLS E6: the walk of a carve reads a directory in parts, however many names it has,
// and so does the next driver what the one before has found.
func TestWalkReadsInParts(t *testing.T) {
	s := newShards(t, 2)
	s.mustAll(s.mkdir("/d"))
	for i := range 60 {
		s.mustAll(s.mkdir(fmt.Sprintf("/d/sub%d", i)), s.create(fmt.Sprintf("/d/f%d", i)), s.create(fmt.Sprintf("/d/sub%d/f", i)))
	}
	before := s.tree()
	from, subtree, r := s.begin("/d", 2)
	s.mustAll(r)
	most := 0
	fresh := func() *migrate.Driver {
		d := migrate.New(from, subtree, countingSource{s.of[from], &most}, target{s.of[2]}, func() time.Duration { return time.Duration(s.now) })
		d.Limits.WalkNames = 5
		return d
	}
	d := fresh()
	for step := 0; ; step++ {
		done, err := d.Step(t.Context())
		if err != nil || done {
			t.Fatalf("step %d: done %v, %v", step, done, err)
		}
		if d.Move().Phase != schema.MoveWalking {
			break
		}
		if step == 15 {
			d = fresh()
		}
	}
	if n := len(s.of[from].m.subtrees[subtree].members); n != 61 || most > 6 {
		t.Errorf("%d members; one read looked at %d rows", n, most)
	}
	for done := false; !done; {
		var err error
		if done, err = d.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if after := s.tree(); after != before {
		t.Errorf("after the move:\n%s\nwant\n%s", after, before)
	}
	s.verify()
}

// What changes during a copy is sent before it is too much to be remembered. If it is too
// much at once the copy begins again.
func TestChangesOfACopyAreBounded(t *testing.T) {
	for _, x := range []struct {
		at, many int // names that one step makes
		attempts uint64
	}{{at: 1, attempts: 1}, {at: 1, many: 300, attempts: 2}} {
		s := newShards(t, 2)
		s.small, s.recorded = true, 120
		for _, x := range s.of {
			x.load()
		}
		sampleTree(s)
		made, most, first, last := 0, 0, uint64(0), uint64(0)
		var m *subtree
		s.migrate("/a/b", 2, func(step int) {
			if m == nil {
				m = s.of[1].m.subtrees[1]
			}
			if m.move == nil || m.move.Phase != schema.MoveCopying {
				return
			}
			if first == 0 {
				first = m.move.Attempt
			}
			last = m.move.Attempt
			many := x.at
			if made > 20 {
				many = x.many
				x.many = 0
			}
			for range many {
				s.mustAll(s.create(fmt.Sprintf("/a/b/new%d", made)))
				made++
			}
			most = max(most, s.of[1].m.Recorded(1, m.move.Attempt))
		})
		if got := last - first + 1; got != x.attempts || most > 120 {
			t.Errorf("%d attempts, want %d; %d keys were remembered", got, x.attempts, most)
		}
		for i, all := 0, s.tree()+"\n"; i < made; i++ {
			if !strings.Contains(all, fmt.Sprintf("/a/b/new%d", i)) {
				t.Errorf("name %d of %d is not there", i, made)
			}
		}
		s.verify()
	}
}

// The hand-off of a carve rewrites what crosses its border, in one entry. Of more than it
// can take nothing is carved out.
func TestBorderOfACarveIsBounded(t *testing.T) {
	s := newShards(t, 2)
	sampleTree(s)
	for i := range 4 {
		s.mustAll(s.mkdir(fmt.Sprintf("/a/b/out%d", i)))
	}
	from, subtree, r := s.begin("/a/b", 2)
	s.mustAll(r)
	d := s.driver(from, subtree, 2)
	d.Limits.Border = 3
	moved := false
	for done := false; !done; {
		var err error
		if done, err = d.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d.Move().Phase == schema.MoveCopying && !moved {
			moved = true
			for i := range 4 {
				s.mustAll(s.rename(fmt.Sprintf("/a/b/out%d", i), fmt.Sprintf("/other/out%d", i)))
			}
		}
	}
	if d.Move().Phase != schema.MoveCancelling || d.Progress().Refused == "" {
		t.Errorf("it ended in phase %v, refused: %q", d.Move().Phase, d.Progress().Refused)
	}
	if _, in := s.dir("/a/b"); in != 1 || s.owner(base.SubtreeID(in)) != 1 {
		t.Errorf("the directory is in subtree %d", in)
	}
	s.verify()
}

// Of two fragments that join each other one gives way at once, and the other one's names
// come when it has.
func TestFragmentsThatJoinEachOther(t *testing.T) {
	const half, quarter = shard.BorderEnd / 2, shard.BorderEnd / 4
	s := newShards(t, 3)
	sampleTree(s)
	before := s.tree()
	for i, lo := range []uint32{half, quarter} {
		m := rangeMove{path: "/a/b", lo: lo, hi: 2 * lo, to: base.ShardID(2 + i)}
		s.mustAll(s.beginNames(&m))
		s.finish(m)
	}
	dir, _ := s.dir("/a/b")
	parts := s.fragments(dir)
	var moves []rangeMove
	var drivers []*migrate.Driver
	for i := range 2 {
		r := parts.Range(1 + i)
		m := rangeMove{path: "/a/b", lo: r.Lo, hi: r.Hi, into: parts[2-i].Subtree}
		s.mustAll(s.beginNames(&m))
		moves = append(moves, m)
		drivers = append(drivers, s.driver(m.from, m.of, m.to))
	}
	began := s.now
	ended := make([]bool, 2)
	for !ended[0] || !ended[1] {
		for i, d := range drivers {
			if ended[i] {
				continue
			}
			done, err := d.Step(t.Context())
			if err != nil && fserr.KindOf(err) != fserr.Busy {
				t.Fatalf("%+v: %v", moves[i], err)
			}
			ended[i] = done
		}
		if s.now-began > int64(migrate.JoinLimit) {
			t.Fatal("they wait for each other")
		}
	}
	for i, d := range drivers {
		if gaveWay := d.Move().Phase == schema.MoveCancelling; gaveWay != (moves[i].of > moves[i].into) {
			t.Errorf("%+v ended in phase %v", moves[i], d.Move().Phase)
		}
	}
	if after := s.tree(); after != before {
		t.Errorf("afterwards:\n%s\nwant\n%s", after, before)
	}
	s.verify()
}
