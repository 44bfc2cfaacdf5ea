package client

import "slices"

// blockBytes is the unit of write-back: aligned pieces of a file. Layouts have
// stripe units of this size or multiples by default, so that a full block goes
// to one column in one request.
const blockBytes = 1 << 20

// blockEnd returns where block i ends: the last one of the largest file ends with it.
func blockEnd(i int64) int64 { return int64(min(uint64(i+1)*blockBytes, maxFileBytes)) }

// extent is a run of bytes of a file in memory.
type extent struct {
	off int64
	b   []byte
}

func (e extent) end() int64 { return e.off + int64(len(e.b)) }

// extents are runs of bytes by ascending offset, disjoint.
type extents []extent

// bytes returns how many bytes there are.
func (x extents) bytes() int64 {
	var n int64
	for _, e := range x {
		n += int64(len(e.b))
	}
	return n
}

// end returns where the last byte ends, 0 if there is none.
func (x extents) end() int64 {
	if len(x) == 0 {
		return 0
	}
	return x[len(x)-1].end()
}

// search returns the index of the first extent that ends behind off.
func (x extents) search(off int64) int {
	i, _ := slices.BinarySearchFunc(x, off, func(e extent, off int64) int {
		if e.end() <= off {
			return -1
		}
		return 1
	})
	return i
}

// write copies p to off. Bytes that are there are overwritten in place; an
// extent that p continues grows, up to limit at most.
func (x *extents) write(off int64, p []byte, limit int64) {
	end := off + int64(len(p))
	i := x.search(off)
	if i > 0 && (*x)[i-1].end() == off {
		i-- // p continues this one
	}
	if i < len(*x) {
		e := &(*x)[i]
		last := i+1 >= len(*x) || (*x)[i+1].off >= end
		switch {
		case e.off <= off && end <= e.end():
			copy(e.b[off-e.off:], p)
			return
		case e.off <= off && off <= e.end() && last:
			n := copy(e.b[off-e.off:], p)
			e.b = grow(e.b, len(p)-n, limit-e.off)
			e.b = append(e.b, p[n:]...)
			return
		}
	}
	x.put(extent{off, slices.Clone(p)})
}

// grow makes room for n more bytes: it doubles, so that many small writes copy
// little, but never beyond limit bytes in all if they suffice.
func grow(b []byte, n int, limit int64) []byte {
	need := len(b) + n
	if need <= cap(b) {
		return b
	}
	size := max(2*cap(b), 4096)
	if int64(size) > limit {
		size = int(limit)
	}
	bigger := make([]byte, len(b), max(size, need))
	copy(bigger, b)
	return bigger
}

// put takes e over; where there are bytes already, e's win.
func (x *extents) put(e extent) {
	if len(e.b) == 0 {
		return
	}
	i := x.search(e.off)
	j := i
	var left, right extent
	for j < len(*x) && (*x)[j].off < e.end() {
		old := (*x)[j]
		if old.off < e.off {
			left = extent{old.off, old.b[: e.off-old.off : e.off-old.off]}
		}
		if old.end() > e.end() {
			right = extent{e.end(), old.b[e.end()-old.off:]}
		}
		j++
	}
	var with [3]extent
	n := 0
	for _, piece := range []extent{left, e, right} {
		if len(piece.b) > 0 {
			with[n] = piece
			n++
		}
	}
	*x = slices.Replace(*x, i, j, with[:n]...)
}

// over puts all of newer on top and returns the result; both are used up.
func (x extents) over(newer extents) extents {
	if len(x) == 0 {
		return newer
	}
	for _, e := range newer {
		x.put(e)
	}
	return x
}

// without returns x less what newer covers.
func (x extents) without(newer extents) extents {
	if len(newer) == 0 {
		return x
	}
	var out extents
	for _, e := range x {
		for i := newer.search(e.off); i < len(newer) && newer[i].off < e.end(); i++ {
			n := newer[i]
			if n.off > e.off {
				out = append(out, extent{e.off, e.b[: n.off-e.off : n.off-e.off]})
			}
			if n.end() >= e.end() {
				e.b = nil
				break
			}
			e = extent{n.end(), e.b[n.end()-e.off:]}
		}
		if len(e.b) > 0 {
			out = append(out, e)
		}
	}
	return out
}

// cut drops what lies at or beyond at.
func (x *extents) cut(at int64) {
	for i, e := range *x {
		if e.end() <= at {
			continue
		}
		if e.off < at {
			(*x)[i].b = e.b[: at-e.off : at-e.off]
			i++
		}
		clear((*x)[i:])
		*x = (*x)[:i]
		return
	}
}

// copyTo copies what lies in [off, off+len(p)) to p and marks it in have.
func (x extents) copyTo(p []byte, off int64, have *spans) {
	end := off + int64(len(p))
	for i := x.search(off); i < len(x) && x[i].off < end; i++ {
		e := x[i]
		lo, hi := max(e.off, off), min(e.end(), end)
		copy(p[lo-off:hi-off], e.b[lo-e.off:])
		have.add(lo, hi)
	}
}

// span is a range [lo, hi) of a file.
type span struct{ lo, hi int64 }

// spans are ascending, disjoint, not touching.
type spans []span

// add includes [lo, hi).
func (s *spans) add(lo, hi int64) {
	if lo >= hi {
		return
	}
	i := 0
	for i < len(*s) && (*s)[i].hi < lo {
		i++
	}
	j := i
	for j < len(*s) && (*s)[j].lo <= hi {
		lo, hi = min(lo, (*s)[j].lo), max(hi, (*s)[j].hi)
		j++
	}
	*s = slices.Replace(*s, i, j, span{lo, hi})
}

// gaps returns what [lo, hi) has besides s.
func (s spans) gaps(lo, hi int64) spans {
	var out spans
	for _, h := range s {
		if h.lo >= hi {
			break
		}
		if h.lo > lo {
			out = append(out, span{lo, h.lo})
		}
		lo = max(lo, h.hi)
	}
	if lo < hi {
		out = append(out, span{lo, hi})
	}
	return out
}

// bound joins neighbours until there are at most n spans.
func (s *spans) bound(n int) {
	for len(*s) > n {
		best := 1
		for i := 1; i < len(*s); i++ {
			if (*s)[i].lo-(*s)[i-1].hi < (*s)[best].lo-(*s)[best-1].hi {
				best = i
			}
		}
		(*s)[best-1].hi = (*s)[best].hi
		*s = slices.Delete(*s, best, best+1)
	}
}
