package store

import (
	"bytes"
	"slices"
	"strings"
	"unsafe"
)

// overlay holds what a batch changed, in front of the store: a map for Get and
// a sorted index, brought up to date when a Scan needs it. A key that is written
// many times in a batch reaches the store once.
//
// A hash map in front of a plain batch was measured against Pebble's indexed
// batch (BenchmarkBatch): the map is faster, since most reads of apply are single
// keys and most of what it writes is read again or written again.
type overlay struct {
	entries map[string]int32 // index into changes: a key of a map is never assigned twice
	changes []change
	sorted  []string // keys in order
	fresh   []string // keys since the last Scan, not in sorted
	ranges  []keyRange
	arena   arena
	hashes  []uint64 // Commit's own, kept for the next
}

type change struct {
	value   []byte
	deleted bool
}

type keyRange struct{ lo, hi []byte }

func (r keyRange) holds(key []byte) bool {
	return bytes.Compare(r.lo, key) <= 0 && bytes.Compare(key, r.hi) < 0
}

func newOverlay() *overlay { return &overlay{entries: make(map[string]int32)} }

func (o *overlay) reset() {
	clear(o.entries)
	clear(o.changes)
	clear(o.sorted)
	clear(o.fresh)
	o.changes, o.sorted, o.fresh, o.ranges = o.changes[:0], o.sorted[:0], o.fresh[:0], o.ranges[:0]
	o.arena.reset()
}

// get says what the overlay knows of key: known is false if the store must be
// asked.
func (o *overlay) get(key []byte) (value []byte, found, known bool) {
	if i, ok := o.entries[string(key)]; ok {
		c := o.changes[i]
		return c.value, !c.deleted, true
	}
	return nil, false, o.covered(key)
}

// at returns the change of a key of the index; ok is false if it went since.
func (o *overlay) at(key string) (c change, ok bool) {
	i, ok := o.entries[key]
	if ok {
		c = o.changes[i]
	}
	return c, ok
}

func (o *overlay) covered(key []byte) bool {
	for _, r := range o.ranges {
		if r.holds(key) {
			return true
		}
	}
	return false
}

func (o *overlay) put(key, value []byte, deleted bool) {
	if i, ok := o.entries[string(key)]; ok {
		c := &o.changes[i]
		switch {
		case deleted:
			c.value = nil
		case len(c.value) == len(value) && !c.deleted:
			copy(c.value, value)
		default:
			c.value = o.arena.copy(value)
		}
		c.deleted = deleted
		return
	}
	next := change{deleted: deleted}
	if !deleted {
		next.value = o.arena.copy(value)
	}
	k := o.arena.copyString(key)
	o.entries[k] = int32(len(o.changes))
	o.changes = append(o.changes, next)
	o.fresh = append(o.fresh, k)
}

func (o *overlay) deleteRange(lo, hi []byte) {
	r := keyRange{o.arena.copy(lo), o.arena.copy(hi)}
	o.ranges = append(o.ranges, r)
	gone := func(k string) bool {
		if !r.holds(unsafe.Slice(unsafe.StringData(k), len(k))) {
			return false
		}
		delete(o.entries, k)
		return true
	}
	o.index()
	// A copy: a Scan may be walking the slice.
	o.sorted = slices.DeleteFunc(slices.Clone(o.sorted), gone)
}

// index brings sorted up to date and returns it. The slice is not changed by
// later writes.
func (o *overlay) index() []string {
	if len(o.fresh) == 0 {
		return o.sorted
	}
	slices.Sort(o.fresh)
	merged := make([]string, 0, len(o.sorted)+len(o.fresh)+64)
	a, b := o.sorted, o.fresh
	for len(a) > 0 && len(b) > 0 {
		if a[0] < b[0] {
			merged, a = append(merged, a[0]), a[1:]
		} else {
			merged, b = append(merged, b[0]), b[1:]
		}
	}
	merged = append(append(merged, a...), b...)
	o.sorted, o.fresh = merged, o.fresh[:0]
	return merged
}

// within returns the keys in [lo, hi), in order; nil bounds are open.
func (o *overlay) within(lo, hi []byte) []string {
	if len(o.entries) == 0 {
		return nil
	}
	keys := o.index()
	i, _ := slices.BinarySearchFunc(keys, lo, func(k string, b []byte) int { return strings.Compare(k, string(b)) })
	keys = keys[i:]
	if hi == nil {
		return keys
	}
	j, _ := slices.BinarySearchFunc(keys, hi, func(k string, b []byte) int { return strings.Compare(k, string(b)) })
	return keys[:j]
}

// arena keeps copies of keys and values until reset.
type arena struct {
	chunk []byte
}

const arenaChunkBytes = 64 << 10

func (a *arena) alloc(n int) []byte {
	if cap(a.chunk)-len(a.chunk) < n {
		a.chunk = make([]byte, 0, max(arenaChunkBytes, n))
	}
	at := len(a.chunk)
	a.chunk = a.chunk[:at+n]
	return a.chunk[at : at+n : at+n]
}

func (a *arena) copy(b []byte) []byte {
	c := a.alloc(len(b))
	copy(c, b)
	return c
}

func (a *arena) copyString(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	c := a.copy(b)
	return unsafe.String(&c[0], len(c))
}

// reset keeps the last chunk for what comes.
func (a *arena) reset() { a.chunk = a.chunk[:0] }
