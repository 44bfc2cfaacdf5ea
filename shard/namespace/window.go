package namespace

import (
	"slices"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// maxOutstanding is how many requests a client may have from its floor on
// (PROTOCOLS C1).
const maxOutstanding = 4096

// window is what Apply knows of one client's requests in one subtree: the floor,
// which requests at or above it have a result, and where the results stand. The
// results themselves are in the store, or in pending until the batch ends.
//
// A window changes only together with a stored result, and the newest group is
// kept whatever the floor: so a replica that loads the state knows the same.
type window struct {
	floor   base.Seq
	have    [maxOutstanding / 64]uint64 // bit seq % maxOutstanding, for floor <= seq < floor + maxOutstanding
	groups  []group                     // in the order written; after Load in key order, newest still last
	pending []schema.StoredResult
}

// group is one stored Results value. first names its key.
type group struct{ first, last base.Seq }

func (w *window) has(seq base.Seq) bool {
	i := seq % maxOutstanding
	return w.have[i/64]&(1<<(i%64)) != 0
}

func (w *window) mark(seq base.Seq) {
	i := seq % maxOutstanding
	w.have[i/64] |= 1 << (i % 64)
}

// raise moves the floor up.
func (w *window) raise(floor base.Seq) {
	if floor <= w.floor {
		return
	}
	if floor-w.floor >= maxOutstanding {
		w.have = [maxOutstanding / 64]uint64{}
	} else {
		for s := w.floor; s < floor; s++ {
			i := s % maxOutstanding
			w.have[i/64] &^= 1 << (i % 64)
		}
	}
	w.floor = floor
}

// admit decides on a request (PROTOCOLS C2): below the floor it is refused; fresh
// means that it is to run now; otherwise its result is stored.
func (w *window) admit(seq, floor base.Seq) (fresh bool, err error) {
	if seq < w.floor {
		return false, fserr.BelowFloor
	}
	if seq-w.floor < maxOutstanding && w.has(seq) {
		return false, nil
	}
	if seq < floor {
		return false, fserr.BelowFloor
	}
	if seq-max(w.floor, floor) >= maxOutstanding {
		return false, fserr.Busy
	}
	return true, nil
}

// result returns the stored result of a request that admit said has one.
func (w *window) result(r shard.Reader, key func(first base.Seq) []byte, seq base.Seq) ([]byte, error) {
	for _, p := range w.pending {
		if p.Seq == seq {
			return p.Bytes, nil
		}
	}
	for _, g := range w.groups {
		if seq < g.first || seq > g.last {
			continue
		}
		b, found, err := r.Get(key(g.first))
		if err != nil {
			return nil, err
		}
		if !found {
			continue
		}
		results, err := schema.DecodeResults(b)
		if err != nil {
			return nil, err
		}
		for _, i := range results.Items {
			if i.Seq == seq {
				return i.Bytes, nil
			}
		}
	}
	return nil, errLostResult
}

// store remembers a result, and with it the floor.
func (w *window) store(seq, floor base.Seq, result []byte) {
	w.raise(floor)
	w.mark(seq)
	w.pending = append(w.pending, schema.StoredResult{Seq: seq, Bytes: result})
}

// close ends a batch: it returns the group to write and the groups to delete,
// whose results are all below the floor.
func (w *window) close() (write *schema.Results, first base.Seq, dead []base.Seq) {
	g := group{w.pending[0].Seq, w.pending[0].Seq}
	for _, p := range w.pending {
		g.first, g.last = min(g.first, p.Seq), max(g.last, p.Seq)
	}
	live := w.groups[:0]
	for _, old := range w.groups {
		if old.last < w.floor {
			dead = append(dead, old.first)
		} else {
			live = append(live, old)
		}
	}
	w.groups = append(live, g)
	write = &schema.Results{Floor: w.floor, Items: w.pending}
	w.pending = nil
	return write, g.first, dead
}

// load takes in one stored group.
func (w *window) load(first base.Seq, r *schema.Results) {
	g := group{first, first}
	for _, i := range r.Items {
		g.last = max(g.last, i.Seq)
		w.pending = append(w.pending, schema.StoredResult{Seq: i.Seq})
	}
	w.floor = max(w.floor, r.Floor)
	w.groups = append(w.groups, g)
}

// loaded ends the loading of a window.
func (w *window) loaded() {
	for _, p := range w.pending {
		if p.Seq >= w.floor {
			w.mark(p.Seq)
		}
	}
	w.pending = nil
}

// join takes in a group that comes to those that are here (PROTOCOLS C5).
func (w *window) join(first base.Seq, r *schema.Results) {
	g := group{first, first}
	w.raise(r.Floor)
	for _, i := range r.Items {
		if g.last = max(g.last, i.Seq); i.Seq >= w.floor {
			w.mark(i.Seq)
		}
	}
	w.groups = append(w.groups, g)
}

// maxSeq returns the largest sequence number that has a result.
func (w *window) maxSeq() base.Seq {
	var s base.Seq
	for _, g := range w.groups {
		s = max(s, g.last)
	}
	for _, p := range w.pending {
		s = max(s, p.Seq)
	}
	return s
}

// keys returns the first sequence numbers of all groups, in order.
func (w *window) keys() []base.Seq {
	var s []base.Seq
	for _, g := range w.groups {
		s = append(s, g.first)
	}
	slices.Sort(s)
	return s
}
