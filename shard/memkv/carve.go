package memkv

import (
	"bytes"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// Carve makes what lies below a directory a subtree of its own, by hand: what the
// entries of a migration leave behind, for tests of who reads that. Machines over
// the stores have to be loaded anew after each step.
type Carve struct {
	From, To     *Store // can be the same
	Shard, Other base.ShardID
	Subtree      base.SubtreeID // that Root is in
	Root         base.Ino
	Into         base.SubtreeID
	Epoch        base.Epoch

	members map[base.Ino]bool
}

// Must run as panics: a broken fixture is no test's outcome.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func get[T any](s *Store, key []byte, decode func([]byte) (*T, error)) *T {
	b, found, err := s.Get(key)
	must(err)
	if !found {
		return nil
	}
	v, err := decode(b)
	must(err)
	return v
}

func put(s *Store, key []byte, v interface{ Append([]byte) []byte }) { must(s.Set(key, v.Append(nil))) }

// rows returns copies of the keys and values in a range.
func (s *Store) rows(lo, hi []byte) (all [][2][]byte) {
	must(s.Scan(lo, hi, func(k, v []byte) (bool, error) {
		all = append(all, [2][]byte{bytes.Clone(k), bytes.Clone(v)})
		return true, nil
	}))
	return all
}

func (c *Carve) subtree(change func(*schema.Subtree)) {
	key := schema.SubtreeKey(c.Shard, c.Subtree)
	s := get(c.From, key, schema.DecodeSubtree)
	change(s)
	put(c.From, key, s)
}

// Begin writes the member set: forwards that do not count yet.
func (c *Carve) Begin() {
	c.members = map[base.Ino]bool{}
	queue := []base.Ino{c.Root}
	for len(queue) > 0 {
		dir := queue[0]
		queue = queue[1:]
		c.members[dir] = true
		put(c.From, schema.ForwardKey(c.Shard, c.Subtree, dir), &schema.Forward{Into: c.Into, Shard: c.Other, Epoch: c.Epoch})
		lo, hi := schema.DentryRange(c.Shard, c.Subtree, dir, 0, schema.LastCookie)
		for _, row := range c.From.rows(lo, hi) {
			if !schema.IsSelf(row[0]) {
				continue
			}
			e, err := schema.DecodeDentry(row[1])
			must(err)
			if e.Kind == schema.Directory && e.Subtree == c.Subtree {
				queue = append(queue, e.Ino)
			}
		}
	}
	c.subtree(func(s *schema.Subtree) { s.Carve = schema.Carve{Into: c.Into} })
}

// HandOff copies what moves, makes the new subtree active and lets the forwards
// count. Old rows stay.
func (c *Carve) HandOff() {
	var counted schema.Counters
	for dir := range c.members {
		if h := get(c.From, schema.HeaderKey(c.Shard, c.Subtree, dir), schema.DecodeHeader); h != nil {
			c.copyDirectory(h, &counted)
		}
	}
	c.copyWorkersRows()
	c.copySessions()
	put(c.To, schema.SubtreeKey(c.Other, c.Into), &schema.Subtree{Epoch: c.Epoch, State: schema.Active, Root: c.Root})
	put(c.To, schema.CountersKey(c.Other, c.Into), &counted)
	key := schema.CountersKey(c.Shard, c.Subtree)
	left := get(c.From, key, schema.DecodeCounters)
	left.Files, left.Directories, left.Bytes = left.Files-counted.Files, left.Directories-counted.Directories, left.Bytes-counted.Bytes
	put(c.From, key, left)
	c.subtree(func(s *schema.Subtree) { s.Carve.Done = true })
}

// key is a key of the old subtree as one of the new.
func (c *Carve) key(old []byte) []byte {
	lo, _ := schema.KindRange(c.Other, c.Into, schema.KindHeader)
	return append(bytes.Clone(lo[:len(lo)-1]), old[len(lo)-1:]...)
}

func (c *Carve) copyDirectory(h *schema.Header, counted *schema.Counters) {
	dir := h.Ino
	counted.Directories++
	if c.members[h.Parent] {
		h.ParentSubtree = c.Into
	} else {
		c.pointDentry(h)
	}
	h.Fragments = shard.Whole(c.Into)
	put(c.To, schema.HeaderKey(c.Other, c.Into, dir), h)
	lo, hi := schema.XattrRange(schema.HeaderKey(c.Shard, c.Subtree, dir))
	for _, row := range c.From.rows(lo, hi) {
		must(c.To.Set(c.key(row[0]), row[1]))
	}
	lo, hi = schema.DentryRange(c.Shard, c.Subtree, dir, 0, schema.LastCookie)
	for _, row := range c.From.rows(lo, hi) {
		value := row[1]
		if schema.IsSelf(row[0]) {
			e, err := schema.DecodeDentry(value)
			must(err)
			if e.Kind == schema.Directory && c.members[e.Ino] {
				e.Subtree = c.Into
			}
			if e.Kind == schema.Embedded {
				counted.Files++
				if e.Inode.IsFile() {
					counted.Bytes += e.Inode.SizeBytes
				}
			}
			value = e.Append(nil)
		}
		must(c.To.Set(c.key(row[0]), value))
	}
}

// pointDentry rewrites a member's dentry in a directory that stays.
func (c *Carve) pointDentry(h *schema.Header) {
	lo, hi := schema.DentryRange(c.Shard, c.Subtree, h.Parent, 0, schema.LastCookie)
	for _, row := range c.From.rows(lo, hi) {
		if !schema.IsSelf(row[0]) {
			continue
		}
		e, err := schema.DecodeDentry(row[1])
		must(err)
		if e.Ino == h.Ino {
			e.Subtree = c.Into
			put(c.From, row[0], e)
		}
	}
}

// copyWorkersRows copies locators and locks of files in members.
func (c *Carve) copyWorkersRows() {
	locked := map[base.Ino]bool{}
	for _, kind := range []schema.Kind{schema.KindLocked, schema.KindCut, schema.KindAppend} {
		lo, hi := schema.KindRange(c.Shard, c.Subtree, kind)
		for _, row := range c.From.rows(lo, hi) {
			l, err := schema.DecodeLocator(row[1])
			must(err)
			if !c.members[l.Dir] {
				continue
			}
			must(c.To.Set(c.key(row[0]), row[1]))
			if kind == schema.KindLocked {
				ino, _, _ := schema.InoOf(row[0])
				locked[base.Ino(ino)] = true
			}
		}
	}
	lo, hi := schema.KindRange(c.Shard, c.Subtree, schema.KindLockClient)
	for _, row := range c.From.rows(lo, hi) {
		if _, ino, _ := schema.InoOf(row[0]); locked[base.Ino(ino)] {
			must(c.To.Set(c.key(row[0]), row[1]))
		}
	}
}

// copySessions copies sessions and results (PROTOCOLS C5).
func (c *Carve) copySessions() {
	lo, hi := schema.KindRange(c.Shard, c.Subtree, schema.KindResults)
	for _, row := range c.From.rows(lo, hi) {
		must(c.To.Set(c.key(row[0]), row[1]))
	}
	lo, hi = schema.KindRange(c.Shard, base.ShardMeta, schema.KindSession)
	for _, row := range c.From.rows(lo, hi) {
		client, _, _ := schema.InoOf(row[0])
		key := schema.SessionKey(c.Other, base.ClientID(client))
		if _, found, err := c.To.Get(key); !found {
			must(err)
			must(c.To.Set(key, row[1]))
		}
	}
}

// Clean removes what is left of the members but their forwards.
func (c *Carve) Clean() {
	for dir := range c.members {
		lo, hi := schema.DentryRange(c.Shard, c.Subtree, dir, 0, schema.LastCookie)
		must(c.From.DeleteRange(lo, hi))
		lo, hi = schema.XattrRange(schema.HeaderKey(c.Shard, c.Subtree, dir))
		must(c.From.DeleteRange(lo, hi))
		must(c.From.Delete(schema.HeaderKey(c.Shard, c.Subtree, dir)))
	}
	locked := map[uint64]bool{}
	for _, kind := range []schema.Kind{schema.KindLocked, schema.KindCut, schema.KindAppend} {
		lo, hi := schema.KindRange(c.Shard, c.Subtree, kind)
		for _, row := range c.From.rows(lo, hi) {
			l, err := schema.DecodeLocator(row[1])
			must(err)
			if c.members[l.Dir] {
				ino, _, _ := schema.InoOf(row[0])
				locked[ino] = locked[ino] || kind == schema.KindLocked
				must(c.From.Delete(row[0]))
			}
		}
	}
	lo, hi := schema.KindRange(c.Shard, c.Subtree, schema.KindLockClient)
	for _, row := range c.From.rows(lo, hi) {
		if _, ino, _ := schema.InoOf(row[0]); locked[ino] {
			must(c.From.Delete(row[0]))
		}
	}
	c.subtree(func(s *schema.Subtree) { s.Carve = schema.Carve{} })
}

// ForgetForwards ends the time of the forwards (PROTOCOLS E7).
func (c *Carve) ForgetForwards() {
	for dir := range c.members {
		must(c.From.Delete(schema.ForwardKey(c.Shard, c.Subtree, dir)))
	}
}
