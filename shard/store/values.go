package store

import (
	"bytes"
	"hash/maphash"
	"sync"
	"sync/atomic"
)

const (
	defaultValueCacheBytes = 32 << 20
	maxCachedValueBytes    = 4 << 10 // larger ones would push out many small ones

	valueShards = 256
	valueSlots  = 64 // of a shard
	// entryOverheadBytes is about what an entry takes beside its key and value.
	entryOverheadBytes = 144
)

// valueCache holds values of single keys, absent ones too, in front of Pebble's
// Get: a Get in Pebble searches memtables and tables, and pins and unpins a block
// or two, for keys that every operation reads. nil caches nothing.
//
// It is exact: a reader gets what its own snapshot holds. The rules:
//
//	R1 seq counts changes that ended. A reader's bound is seq as read before its
//	   snapshot was taken (for a read of the present: before Pebble's Get).
//	R2 Before a change is given to Pebble, begin drops the entry of each key and
//	   counts the change as pending in the key's slot.
//	R3 After it is visible, end sets the slot's lastSeq to seq+1 or more and takes
//	   it out of pending. Only when that is done for all keys seq grows.
//	R4 A reader adds what it read from Pebble only if nothing is pending in the
//	   slot and lastSeq <= its bound, under the shard's lock. The entry's since is
//	   the slot's lastSeq.
//	R5 A reader uses an entry only if since <= its bound.
//
// Lemma: lastSeq <= bound implies that the snapshot holds every change of the
// slot that ended. Such a change C read seq = c after it was visible, and
// lastSeq > c (R3). So bound > c was read after seq was c, which was after C was
// visible, and the snapshot was taken later still (R1). Other commits that end at
// the same time do not matter: each compares with the seq it read itself. (If
// lastSeq were the number that C itself gets, a commit with a higher number could
// end first, a snapshot without C could have that bound, and its late add would
// be taken for newer than C.)
//
// An entry equals the key's newest value for as long as it stands. When it is
// added no change is pending and all that ended are in the snapshot it was read
// from: a change that began before the add is either, and one that begins later
// drops the entry before it is visible, and is pending until it ended.
//
// A reader that uses an entry sees its snapshot's value: all changes of the key
// that ended before the add are in its snapshot (R5 and the lemma, as since is the
// lastSeq of then), none began since, and its snapshot is older than now. So:
//   - an old snapshot does not see a later commit: since is above its bound;
//   - a late add of an old value is refused: lastSeq is above its bound, or the
//     commit is pending;
//   - a snapshot between a commit's visibility and the growth of seq holds the
//     commit with a bound that is too low: it misses, and adds nothing, which
//     costs time alone.
//
// A change of a range of keys (ranges of a batch, Install, Wipe) does the same
// with the marks in all, and drops every entry: all.pending grows before the
// sweep, and an add reads it under the lock of its shard, so that either the add
// sees it or the sweep sees the entry. add reads all.pending before all.lastSeq,
// and end writes them in the other order.
//
// Entries are found by a 64-bit hash and compared by key. Two keys of one hash
// push each other out, and a change of one drops the other's entry.
type valueCache struct {
	seed   maphash.Seed
	seq    atomic.Uint64
	all    rangeMark
	shards [valueShards]valueShard
}

// rangeMark is the slot of the changes that concern all keys.
type rangeMark struct {
	pending atomic.Int64
	lastSeq atomic.Uint64
}

type valueSlot struct {
	lastSeq uint64
	pending uint64
}

// valueShard is the part of the cache behind one lock. Which entry leaves is
// found by the clock algorithm (Corbató): those used since the hand came by stay.
type valueShard struct {
	mu           sync.Mutex
	entries      map[uint64]*valueEntry // by hash
	ring         []*valueEntry
	hand         int
	sizeBytes    int
	limitBytes   int
	hits, misses uint64
	slots        [valueSlots]valueSlot
}

// valueEntry does not change once it is in the cache, but for used and at.
type valueEntry struct {
	key   []byte
	value []byte
	hash  uint64
	since uint64
	at    int // in the ring
	found bool
	used  bool
}

func (e *valueEntry) sizeBytes() int { return len(e.key) + len(e.value) + entryOverheadBytes }

func newValueCache(sizeBytes int64) *valueCache {
	if sizeBytes < 0 {
		return nil
	}
	if sizeBytes == 0 {
		sizeBytes = defaultValueCacheBytes
	}
	c := &valueCache{seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].entries = map[uint64]*valueEntry{}
		c.shards[i].limitBytes = int(sizeBytes / valueShards)
	}
	return c
}

// bound is what R1 asks for.
func (c *valueCache) bound() uint64 {
	if c == nil {
		return 0
	}
	return c.seq.Load()
}

func (c *valueCache) hash(key []byte) uint64 { return maphash.Bytes(c.seed, key) }

func (c *valueCache) shard(hash uint64) *valueShard { return &c.shards[hash>>56] }

func (s *valueShard) slot(hash uint64) *valueSlot { return &s.slots[hash>>50%valueSlots] }

// get returns the key's value as a snapshot with that bound holds it; known is
// false if Pebble must be asked. The value stays as it is for ever.
func (c *valueCache) get(hash uint64, key []byte, bound uint64) (value []byte, found, known bool) {
	s := c.shard(hash)
	s.mu.Lock()
	e := s.entries[hash]
	if e == nil || e.since > bound || !bytes.Equal(e.key, key) {
		s.misses++
		s.mu.Unlock()
		return nil, false, false
	}
	s.hits++
	e.used = true
	s.mu.Unlock()
	return e.value, e.found, true
}

// add keeps a copy of what a reader with that bound read from Pebble (R4).
func (c *valueCache) add(hash uint64, key, value []byte, found bool, bound uint64) {
	if len(value) > maxCachedValueBytes {
		return
	}
	s := c.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := s.slot(hash)
	if slot.pending != 0 || slot.lastSeq > bound || c.all.pending.Load() != 0 {
		return
	}
	since := max(slot.lastSeq, c.all.lastSeq.Load())
	if since > bound {
		return
	}
	b := make([]byte, len(key)+len(value))
	copy(b[copy(b, key):], value)
	s.insert(&valueEntry{key: b[:len(key):len(key)], value: b[len(key):], hash: hash, since: since, found: found})
}

func (s *valueShard) insert(e *valueEntry) {
	if old := s.entries[e.hash]; old != nil {
		s.remove(old)
	}
	if e.sizeBytes() > s.limitBytes {
		return
	}
	for s.sizeBytes+e.sizeBytes() > s.limitBytes {
		if s.hand >= len(s.ring) {
			s.hand = 0
		}
		if victim := s.ring[s.hand]; !victim.used {
			s.remove(victim)
		} else {
			victim.used = false
			s.hand++
		}
	}
	e.at = len(s.ring)
	s.ring = append(s.ring, e)
	s.entries[e.hash] = e
	s.sizeBytes += e.sizeBytes()
}

func (s *valueShard) remove(e *valueEntry) {
	last := len(s.ring) - 1
	s.ring[e.at] = s.ring[last]
	s.ring[e.at].at = e.at
	s.ring[last] = nil
	s.ring = s.ring[:last]
	delete(s.entries, e.hash)
	s.sizeBytes -= e.sizeBytes()
}

// begin announces a change of the keys with these hashes (R2).
func (c *valueCache) begin(hashes []uint64) {
	for _, h := range hashes {
		s := c.shard(h)
		s.mu.Lock()
		if e := s.entries[h]; e != nil {
			s.remove(e)
		}
		s.slot(h).pending++
		s.mu.Unlock()
	}
}

// end says that the change is visible, or failed (R3).
func (c *valueCache) end(hashes []uint64) {
	lastSeq := c.seq.Load() + 1
	for _, h := range hashes {
		s := c.shard(h)
		s.mu.Lock()
		slot := s.slot(h)
		slot.pending--
		slot.lastSeq = max(slot.lastSeq, lastSeq)
		s.mu.Unlock()
	}
	c.seq.Add(1)
}

// changeAll runs a change that can concern any key, between begin and end.
func (c *valueCache) changeAll(change func() error) error {
	if c == nil {
		return change()
	}
	c.all.pending.Add(1)
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.entries, s.ring, s.hand, s.sizeBytes = map[uint64]*valueEntry{}, nil, 0, 0
		s.mu.Unlock()
	}
	err := change()
	lastSeq := c.seq.Load() + 1
	for was := c.all.lastSeq.Load(); was < lastSeq && !c.all.lastSeq.CompareAndSwap(was, lastSeq); {
		was = c.all.lastSeq.Load()
	}
	c.all.pending.Add(-1)
	c.seq.Add(1)
	return err
}

// counts returns how often an entry was used, how often none was, and the bytes
// of what is cached.
func (c *valueCache) counts() (hits, misses uint64, sizeBytes int) {
	if c == nil {
		return 0, 0, 0
	}
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		hits, misses, sizeBytes = hits+s.hits, misses+s.misses, sizeBytes+s.sizeBytes
		s.mu.Unlock()
	}
	return hits, misses, sizeBytes
}
