package heat

// Windows is how many half-lives are counted by.
const Windows = 3

// key names what is counted: a directory and the subtree in which it was addressed, a
// client, or a directory and a client.
type key struct{ a, b uint64 }

func dirKey(x *Sample) key    { return key{uint64(x.Dir), uint64(x.Subtree)} }
func clientKey(x *Sample) key { return key{uint64(x.Client), 0} }
func pairKey(x *Sample) key   { return key{uint64(x.Dir), uint64(x.Client)} }

// hash spreads a key (the finalizer of MurmurHash3, Appleby).
func (k key) hash() uint64 {
	h := k.a ^ k.b*0x9e3779b97f4a7c15
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// sums are faded counts of one window, multiplied by the weight of when they came.
type sums struct {
	ops                             [Classes]float64
	over                            float64 // operations that may have come before the key was in the table
	latency, serve, queue, conflict float64 // seconds
}

func (s *sums) seen() (n float64) {
	for _, x := range s.ops {
		n += x
	}
	return n
}

// add adds a part by its weight.
func (s *sums) add(p *part, weight float64) {
	s.ops[p.class] += p.ops * weight
	s.latency += p.latency * weight
	s.serve += p.serve * weight
	s.queue += p.queue * weight
	s.conflict += p.conflict * weight
}

// part is what a sample adds to sums.
type part struct {
	class                                Class
	ops, latency, serve, queue, conflict float64
}

func partOf(x *Sample) part {
	return part{x.Class, float64(x.Count), float64(x.LatencyNS) * 1e-9, float64(x.ServeNS) * 1e-9, float64(x.QueueNS) * 1e-9, float64(x.ConflictNS) * 1e-9}
}

func (s *sums) scale(f float64) {
	for i := range s.ops {
		s.ops[i] *= f
	}
	s.over *= f
	s.latency *= f
	s.serve *= f
	s.queue *= f
	s.conflict *= f
}

// entry is a key with its counts.
type entry struct {
	key     key
	most    [Windows]float64 // operations that there were at most: what was seen, and over
	windows [Windows]sums
	detail  *detail // of a directory with some operations
}

// table keeps up to capacity keys, those with most operations.
type table struct {
	capacity int // a power of two
	entries  []entry
	index    []int32 // open addressing: 0 is empty, else the place in entries + 1
	over     [Windows]float64
	scratch  []float64
}

// minIndex is the size that an index begins with; it doubles up to twice the capacity.
const minIndex = 64

func newTable(capacity int) table {
	return table{capacity: capacity, index: make([]int32, min(minIndex, 2*capacity))}
}

// at returns the key's entry, made as needed. It is valid until the next call.
func (t *table) at(k key) *entry {
	mask := uint64(len(t.index) - 1)
	i := k.hash() & mask
	for ; t.index[i] != 0; i = (i + 1) & mask {
		if e := &t.entries[t.index[i]-1]; e.key == k {
			return e
		}
	}
	switch {
	case len(t.entries) == t.capacity:
		t.purge()
		return t.at(k)
	case 2*(len(t.entries)+1) > len(t.index):
		t.reindex(2 * len(t.index))
		return t.at(k)
	}
	t.entries = append(t.entries, entry{key: k})
	t.index[i] = int32(len(t.entries))
	e := &t.entries[len(t.entries)-1]
	for w := range e.windows {
		e.windows[w].over, e.most[w] = t.over[w], t.over[w]
	}
	return e
}

// reindex makes an index of n places.
func (t *table) reindex(n int) {
	if n == len(t.index) {
		clear(t.index)
	} else {
		t.index = make([]int32, n)
	}
	mask := uint64(n - 1)
	for place := range t.entries {
		i := t.entries[place].key.hash() & mask
		for t.index[i] != 0 {
			i = (i + 1) & mask
		}
		t.index[i] = int32(place + 1)
	}
}

// purge drops the keys that are in no window among the first quarter of the capacity.
// What a dropped one may have had becomes what any key may have that is not here.
func (t *table) purge() {
	var limit [Windows]float64
	for w := range limit {
		t.scratch = t.scratch[:0]
		for i := range t.entries {
			t.scratch = append(t.scratch, t.entries[i].most[w])
		}
		limit[w] = nth(t.scratch, len(t.scratch)-1-t.capacity/4)
	}
	kept := t.entries[:0]
	for i := range t.entries {
		e := &t.entries[i]
		stays := false
		for w, most := range e.most {
			stays = stays || most > limit[w]
		}
		if stays {
			kept = append(kept, *e)
			continue
		}
		for w, most := range e.most {
			t.over[w] = max(t.over[w], most)
		}
	}
	clear(t.entries[len(kept):])
	t.entries = kept
	t.reindex(len(t.index))
}

// scale multiplies all that was counted in a window.
func (t *table) scale(w int, f float64) {
	t.over[w] *= f
	for i := range t.entries {
		t.entries[i].windows[w].scale(f)
		t.entries[i].most[w] *= f
		if d := t.entries[i].detail; d != nil {
			d.scale(w, f)
		}
	}
}

// nth returns the n-th smallest of all, counted from 0, and puts all in another order
// (Hoare: Algorithm 65, Find).
func nth(all []float64, n int) float64 {
	lo, hi := 0, len(all)-1
	for lo < hi {
		pivot := all[n]
		i, j := lo, hi
		for i <= j {
			for all[i] < pivot {
				i++
			}
			for all[j] > pivot {
				j--
			}
			if i <= j {
				all[i], all[j] = all[j], all[i]
				i++
				j--
			}
		}
		if j < n {
			lo = i
		}
		if n < i {
			hi = j
		}
	}
	return all[n]
}
