package namespace

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// recording is what a machine remembers of the keys that change under a subtree
// while it is copied. It is memory: a machine that starts anew has none, and the
// copy begins again (docs/design/0009-migration.md).
type recording struct {
	attempt uint64
	subtree base.SubtreeID
	members map[base.Ino]struct{} // of a carve, the subtree's own; nil: all that travels
	names   *schema.Move          // of a range of names; else nil
	most    int                   // keys in a round
	now     map[string]struct{}   // Apply's alone; nil: there were more than that
	count   atomic.Int64          // of them

	mu    sync.Mutex
	round uint64              // the last rotation
	keys  map[string]struct{} // that had changed before it and after the one before; nil: lost
}

// MaxRecorded is how many keys that change a machine remembers in a round of copying a
// subtree. If more do, the copy begins again.
const MaxRecorded = 1 << 18

// note takes in a key that is written.
func (c *recording) note(key []byte) {
	if c.concerns(key) {
		c.add(key)
	}
}

func (c *recording) add(key []byte) {
	if c.now == nil {
		return
	}
	if c.now[string(key)] = struct{}{}; len(c.now) > c.most {
		c.now = nil // until the next attempt
	}
	c.count.Store(int64(len(c.now)))
}

// concerns reports whether the key's row goes along. Of a carve the rows of the
// directories' files that stand elsewhere go with the last batch.
func (c *recording) concerns(key []byte) bool {
	kind := schema.KindOf(key)
	if c.names != nil {
		return namesKey(c.names, key)
	}
	if c.members == nil {
		return schema.Travels(kind)
	}
	switch kind {
	case schema.KindHeader, schema.KindDentry:
		dir, _, ok := schema.InoOf(key)
		_, member := c.members[base.Ino(dir)]
		return ok && member
	case schema.KindResults, schema.KindRelocation:
		return true
	}
	return false
}

// rotate begins round, unless it has begun.
func (c *recording) rotate(round uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if round != c.round+1 {
		return
	}
	c.round, c.keys = round, c.now
	if c.now != nil {
		c.now = map[string]struct{}{}
	}
	c.count.Store(0)
}

// recorder notes what is written under the subtrees that are copied.
type recorder struct {
	shard.Writer
	running []*recording
}

func (w *recorder) note(key []byte) {
	id, _ := schema.SubtreeOf(key)
	for _, c := range w.running {
		if c.subtree == id {
			c.note(key)
		}
	}
}

// Set implements shard.Writer.
func (w *recorder) Set(key, value []byte) error {
	w.note(key)
	return w.Writer.Set(key, value)
}

// Delete implements shard.Writer.
func (w *recorder) Delete(key []byte) error {
	w.note(key)
	return w.Writer.Delete(key)
}

// recordings are a machine's, by subtree.
type recordings struct {
	mu sync.Mutex
	of map[base.SubtreeID]*recording
}

func (r *recordings) set(id base.SubtreeID, c *recording) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c == nil {
		delete(r.of, id)
		return
	}
	if r.of == nil {
		r.of = map[base.SubtreeID]*recording{}
	}
	r.of[id] = c
}

func (r *recordings) get(id base.SubtreeID) *recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[id]
}

func (r *recordings) all() []*recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.of))
}

// record makes the batch note what it writes from here on, as the machine's
// recordings are now.
func (b *batch) record() {
	if w, ok := b.w.(*recorder); ok {
		b.w = w.Writer
	}
	if all := b.m.recordings.all(); len(all) > 0 {
		b.w = &recorder{b.w, all}
	}
}

// Changed returns the keys that changed in a round of an attempt to copy a
// subtree, in order; false: this machine has not recorded it. A snapshot that is
// taken after the round was ended by an entry has what they are.
func (m *Machine) Changed(subtree base.SubtreeID, attempt, round uint64) (keys []string, ok bool) {
	c := m.recordings.get(subtree)
	if c == nil || c.attempt != attempt {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.round != round || c.keys == nil {
		return nil, false
	}
	return slices.Sorted(maps.Keys(c.keys)), true
}

// Recorded returns how many keys have changed in the round that runs of an attempt.
func (m *Machine) Recorded(subtree base.SubtreeID, attempt uint64) int {
	if c := m.recordings.get(subtree); c != nil && c.attempt == attempt {
		return int(c.count.Load())
	}
	return 0
}

func (r *recordings) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.of)
}
