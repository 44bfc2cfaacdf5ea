package memkv

import (
	"bytes"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// Split gives a range of a directory's names to a subtree, by hand: what the entries of
// a move of a range leave behind, for tests of who reads that. If Into has a header of
// the directory they join its names. Machines over the stores have to be loaded anew
// after each step.
type Split struct {
	From, To     *Store // can be the same
	Shard, Other base.ShardID
	Subtree      base.SubtreeID // that has the names
	Dir          base.Ino
	Names        shard.Range
	Into         base.SubtreeID
	Hash         func([]byte) shard.Hash // nil: shard.NameHash
}

// counted is what a range of names counts.
type counted struct {
	schema.Counters
	schema.DirCounts
}

func (s *Split) key(old []byte) []byte {
	c := Carve{Other: s.Other, Into: s.Into}
	return c.key(old)
}

// HandOff copies what moves, and changes both headers. The rows stay where they were,
// hidden.
func (s *Split) HandOff() {
	if s.Hash == nil {
		s.Hash = shard.NameHash
	}
	header := schema.HeaderKey(s.Shard, s.Subtree, s.Dir)
	from := get(s.From, header, schema.DecodeHeader)
	n := s.copyNames()
	s.moveWorkersRows()
	to := get(s.To, schema.HeaderKey(s.Other, s.Into, s.Dir), schema.DecodeHeader)
	join := to != nil
	s.copyRelocations(join)
	if !join {
		to = s.begin(from)
	} else {
		to.Fragments = to.Fragments.Refer(s.Subtree, from.Fragments)
		to.Appeared = max(to.Appeared, from.Appeared)
		if n.Displaced > 0 {
			to.MaxProbe = max(to.MaxProbe, from.MaxProbe)
		}
		to.AtimeNS, to.MtimeNS, to.CtimeNS = max(to.AtimeNS, from.AtimeNS), max(to.MtimeNS, from.MtimeNS), max(to.CtimeNS, from.CtimeNS)
	}
	to.Fragments = to.Fragments.With(s.Names, s.Into)
	to.Entries, to.Subdirs, to.Displaced = to.Entries+n.Entries, to.Subdirs+n.Subdirs, to.Displaced+n.Displaced
	from.Fragments = from.Fragments.With(s.Names, s.Into)
	from.Entries, from.Subdirs, from.Displaced = from.Entries-n.Entries, from.Subdirs-n.Subdirs, from.Displaced-n.Displaced
	if len(from.Fragments.In(s.Subtree)) == 0 {
		to.Version, from.Version = to.Version+from.Version, 0
	}
	for _, h := range []*schema.Header{from, to} {
		if h.Displaced == 0 {
			h.MaxProbe = 0
		}
	}
	put(s.To, schema.HeaderKey(s.Other, s.Into, s.Dir), to)
	put(s.From, header, from)
	s.noteSplit(s.From, s.Shard, s.Subtree, from)
	if join {
		s.noteSplit(s.To, s.Other, s.Into, to)
	}
	s.count(s.From, schema.CountersKey(s.Shard, s.Subtree), n, -1)
	s.count(s.To, schema.CountersKey(s.Other, s.Into), n, 1)
	s.hide(1)
}

func (s *Split) count(at *Store, key []byte, n counted, sign int64) {
	c := get(at, key, schema.DecodeCounters)
	if c == nil {
		c = &schema.Counters{}
	}
	c.Files += uint64(sign * int64(n.Files))
	c.Bytes += uint64(sign * int64(n.Bytes))
	put(at, key, c)
}

func (s *Split) hide(by int) {
	key := schema.SubtreeKey(s.Shard, s.Subtree)
	x := get(s.From, key, schema.DecodeSubtree)
	x.Hidden += uint64(by)
	put(s.From, key, x)
}

// begin makes the new fragment's subtree with the header that the old one has.
func (s *Split) begin(from *schema.Header) *schema.Header {
	put(s.To, schema.SubtreeKey(s.Other, s.Into), &schema.Subtree{Epoch: 1, State: schema.Active, Root: s.Dir})
	lo, hi := schema.XattrRange(schema.HeaderKey(s.Shard, s.Subtree, s.Dir))
	for _, row := range s.From.rows(lo, hi) {
		must(s.To.Set(s.key(row[0]), row[1]))
	}
	if value, found, err := s.From.Get(schema.PolicyKey(s.Shard, s.Subtree, s.Dir)); found {
		must(err)
		must(s.To.Set(schema.PolicyKey(s.Other, s.Into, s.Dir), bytes.Clone(value)))
	}
	sessions := Carve{From: s.From, To: s.To, Shard: s.Shard, Other: s.Other, Subtree: s.Subtree, Into: s.Into}
	sessions.copySessions()
	to := *from
	to.Entries, to.Subdirs, to.Displaced, to.Version, to.Seen = 0, 0, 0, 0, schema.Seen{}
	return &to
}

// copyRelocations copies all relocations, or those that lead to the names.
func (s *Split) copyRelocations(join bool) {
	lo, hi := schema.KindRange(s.Shard, s.Subtree, schema.KindRelocation)
	for _, row := range s.From.rows(lo, hi) {
		r, err := schema.DecodeRelocation(row[1])
		must(err)
		leads := r.Subtree == s.Subtree && r.Dir == s.Dir && s.Names.Contains(s.Hash(r.Name).Border())
		if leads {
			r.Subtree = s.Into
		}
		if leads || !join {
			put(s.To, s.key(row[0]), r)
		}
	}
}

// noteSplit notes of a directory whether it is split.
func (s *Split) noteSplit(at *Store, id base.ShardID, subtree base.SubtreeID, h *schema.Header) {
	key := schema.SplitKey(id, subtree, s.Dir)
	if h.Fragments.Split() {
		put(at, key, schema.Empty{})
	} else {
		must(at.Delete(key))
	}
}

func (s *Split) span() (lo, hi []byte) {
	return schema.DentryRange(s.Shard, s.Subtree, s.Dir, s.Names.First(), s.Names.Last())
}

func (s *Split) copyNames() (n counted) {
	lo, hi := s.span()
	for _, row := range s.From.rows(lo, hi) {
		must(s.To.Set(s.key(row[0]), row[1]))
		if !schema.IsSelf(row[0]) {
			continue
		}
		e, err := schema.DecodeDentry(row[1])
		must(err)
		n.Entries++
		if _, at, _ := schema.InoOf(row[0]); s.Hash(e.Name).Cookie(0) != base.Cookie(at) {
			n.Displaced++
		}
		switch e.Kind {
		case schema.Directory:
			n.Subdirs++
		case schema.Embedded:
			n.Files++
			if e.Inode.IsFile() {
				n.Bytes += e.Inode.SizeBytes
			}
		}
	}
	return n
}

// moveWorkersRows moves locators and locks of files whose names go.
func (s *Split) moveWorkersRows() {
	locked := map[uint64]bool{}
	take := func(row [2][]byte) {
		must(s.To.Set(s.key(row[0]), row[1]))
		must(s.From.Delete(row[0]))
	}
	for _, kind := range []schema.Kind{schema.KindLocked, schema.KindCut, schema.KindAppend} {
		lo, hi := schema.KindRange(s.Shard, s.Subtree, kind)
		for _, row := range s.From.rows(lo, hi) {
			l, err := schema.DecodeLocator(row[1])
			must(err)
			if l.Dir != s.Dir || !s.Names.Contains(s.Hash(l.Name).Border()) {
				continue
			}
			ino, _, _ := schema.InoOf(row[0])
			locked[ino] = locked[ino] || kind == schema.KindLocked
			take(row)
		}
	}
	lo, hi := schema.KindRange(s.Shard, s.Subtree, schema.KindLockClient)
	for _, row := range s.From.rows(lo, hi) {
		if _, ino, _ := schema.InoOf(row[0]); locked[ino] {
			take(row)
		}
	}
}

// Clean deletes the rows that are hidden.
func (s *Split) Clean() {
	lo, hi := s.span()
	must(s.From.DeleteRange(lo, hi))
	s.hide(-1)
}
