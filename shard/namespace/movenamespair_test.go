package namespace

import (
	"errors"
	"fmt"
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// active returns the subtrees that a shard owns.
func (x *machineOf) active() (ids []base.SubtreeID) {
	x.s.t.Helper()
	if err := eachSubtree(x.kv, x.id, func(id base.SubtreeID, t schema.Subtree) {
		if t.State == schema.Active || t.State == schema.Frozen {
			ids = append(ids, id)
		}
	}); err != nil {
		x.s.t.Fatal(err)
	}
	return ids
}

// headers returns the copies of a directory's header in subtrees that are active.
func (s *shards) headers(dir uint64) map[base.SubtreeID]*schema.Header {
	s.t.Helper()
	all := map[base.SubtreeID]*schema.Header{}
	for _, x := range s.of {
		for _, id := range x.active() {
			value, found, err := x.kv.Get(schema.HeaderKey(x.id, id, base.Ino(dir)))
			if err != nil {
				s.t.Fatal(err)
			}
			if !found {
				continue
			}
			h, err := schema.DecodeHeader(value)
			if err != nil {
				s.t.Fatal(err)
			}
			all[id] = h
		}
	}
	return all
}

// fragments returns who owns which names of a directory, by what each copy says of
// itself: together they are all names, each once.
func (s *shards) fragments(dir uint64) shard.FragmentMap {
	s.t.Helper()
	var m shard.FragmentMap
	covered := uint64(0)
	for id, h := range s.headers(dir) {
		for _, r := range h.Fragments.In(id) {
			m = append(m, shard.Fragment{Lo: r.Lo, Subtree: id})
			covered += uint64(r.Hi - r.Lo)
		}
	}
	slices.SortFunc(m, func(a, b shard.Fragment) int { return int(int64(a.Lo) - int64(b.Lo)) })
	if err := m.Check(); err != nil || covered != uint64(shard.BorderEnd) {
		s.t.Fatalf("directory %d: the fragments %v cover %d: %v", dir, m, covered, err)
	}
	return m
}

// list returns all names of a directory, fragment after fragment.
func (s *shards) list(dir, subtree uint64) (all []*canopyv1.DirEntry) {
	s.t.Helper()
	for cookie := uint64(0); ; {
		r := s.do(&canopyv1.Op{Subtree: subtree, Call: &canopyv1.Op_ReadDir{ReadDir: &canopyv1.ReadDirCall{Dir: dir, Cookie: cookie, Plus: true}}})
		if r.Error != 0 {
			s.t.Fatalf("list %d in %d at %x: %v", dir, subtree, cookie, fserr.Kind(r.Error))
		}
		all = append(all, r.Entries...)
		switch {
		case r.Eof && r.Through == uint64(schema.LastCookie):
			return all
		case r.Eof:
			cookie = r.Through
		default:
			cookie = r.Entries[len(r.Entries)-1].Cookie
		}
	}
}

// stat merges what the fragments of a directory say (PROTOCOLS F1).
func (s *shards) stat(dir, subtree uint64) *canopyv1.Attr {
	s.t.Helper()
	ask := func(subtree uint64) *canopyv1.Attr {
		r := s.do(&canopyv1.Op{Subtree: subtree, Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: dir}}}})
		if r.Error != 0 {
			s.t.Fatalf("stat %d in %d: %v", dir, subtree, fserr.Kind(r.Error))
		}
		return r.Attr
	}
	a := ask(subtree)
	if len(a.Fragments) == 0 {
		return a
	}
	a = nil
	asked := map[base.SubtreeID]bool{}
	for _, f := range s.fragments(dir) {
		if asked[f.Subtree] {
			continue
		}
		asked[f.Subtree] = true
		part := ask(uint64(f.Subtree))
		if a == nil {
			a = part
			continue
		}
		a.Size, a.Nlink, a.Version = a.Size+part.Size, a.Nlink+part.Nlink-2, a.Version+part.Version
		a.AtimeNs, a.MtimeNs, a.CtimeNs = max(a.AtimeNs, part.AtimeNs), max(a.MtimeNs, part.MtimeNs), max(a.CtimeNs, part.CtimeNs)
		if a.Mode != part.Mode || a.Uid != part.Uid {
			s.t.Errorf("directory %d: the fragment in %d has other attributes: %v, %v", dir, f.Subtree, part, a)
		}
	}
	return a
}

// rangeMove is a move of a range of names, as a test makes it.
type rangeMove struct {
	path   string
	lo, hi uint32
	to     base.ShardID // of a new fragment
	into   base.SubtreeID
	from   base.ShardID
	of     base.SubtreeID
}

// beginNames begins to move names: to a new fragment at a shard, or into one that
// there is.
func (s *shards) beginNames(m *rangeMove) *canopyv1.Result {
	s.t.Helper()
	dir, _ := s.dir(m.path)
	m.of = s.fragments(dir).Find(shard.Hash(m.lo) << shard.FullBits).Subtree
	delete(s.where, m.of)
	m.from = s.owner(m.of)
	if m.into != 0 {
		delete(s.where, m.into)
		m.to = s.owner(m.into)
	}
	return s.of[m.from].apply(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: &canopyv1.MoveCommand{
		Step: canopyv1.MoveStep_MOVE_BEGIN, Subtree: uint64(m.of), Dir: dir, ToShard: uint64(m.to), Lo: m.lo, Hi: m.hi, Into: uint64(m.into)}}})[0]
}

// moveNames moves names; between is called after each step before the freeze. It
// returns how the move ended.
func (s *shards) moveNames(m rangeMove, between func(step int)) *schema.Move {
	s.t.Helper()
	if r := s.beginNames(&m); r.Error != 0 {
		s.t.Fatalf("move %+v: %v %s", m, fserr.Kind(r.Error), r.Detail)
	}
	d := s.driver(m.from, m.of, m.to)
	for step := 0; ; step++ {
		done, err := d.Step(s.t.Context())
		if errors.Is(err, errCrash) {
			d = s.driver(m.from, m.of, m.to)
			err = nil
		}
		if err != nil && fserr.KindOf(err) != fserr.OldEpoch {
			s.t.Fatalf("step %d: %v", step, err)
		}
		if done {
			return d.Move()
		}
		if step > 10000 {
			s.t.Fatalf("it never ends: %v", s.steps[len(s.steps)-20:])
		}
		if at := d.Move(); between != nil && at != nil && at.Phase <= schema.MoveCopying {
			between(step)
		}
	}
}

// split cuts a new fragment out of a directory and puts it on a shard.
func (s *shards) split(path string, lo, hi uint32, to base.ShardID) base.SubtreeID {
	s.t.Helper()
	return s.moveNames(rangeMove{path: path, lo: lo, hi: hi, to: to}, nil).Into
}

// merge brings the last fragment of a directory that is not home's back to the one
// before, until there is none.
func (s *shards) merge(path string) {
	s.t.Helper()
	dir, _ := s.dir(path)
	for {
		m := s.fragments(dir)
		last := len(m) - 1
		if last == 0 {
			return
		}
		s.moveNames(rangeMove{path: path, lo: m[last].Lo, hi: m.Range(last).Hi, into: m[last-1].Subtree}, nil)
	}
}

// describe returns who owns what.
func (s *shards) describe(path string) string {
	dir, _ := s.dir(path)
	out := ""
	m := s.fragments(dir)
	for i, f := range m {
		out += fmt.Sprintf("%v:%d@%v ", m.Range(i), f.Subtree, s.owner(f.Subtree))
	}
	return out
}
