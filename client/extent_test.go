package client

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// check verifies that extents are ordered, disjoint and not empty.
func (x extents) check(t *testing.T) {
	t.Helper()
	for i, e := range x {
		if len(e.b) == 0 || i > 0 && x[i-1].end() > e.off {
			t.Fatalf("extent %d of %v", i, x)
		}
	}
}

// flat paints extents over a background.
func (x extents) flat(background []byte) []byte {
	out := bytes.Clone(background)
	for _, e := range x {
		copy(out[e.off:], e.b)
	}
	return out
}

func TestExtentsAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const size = 300
	piece := func() (int64, []byte) {
		p := make([]byte, 1+rng.IntN(40))
		for i := range p {
			p[i] = byte(1 + rng.IntN(255))
		}
		return int64(rng.IntN(size - len(p))), p
	}
	for range 300 {
		var x, y extents
		model, other := make([]byte, size), make([]byte, size)
		for range 20 {
			off, p := piece()
			if rng.IntN(2) == 0 {
				x.write(off, p, size)
			} else {
				x.put(extent{off, bytes.Clone(p)})
			}
			copy(model[off:], p)
			x.check(t)
			if rng.IntN(3) == 0 {
				off, p = piece()
				y.write(off, p, size)
				copy(other[off:], p)
				y.check(t)
			}
			if rng.IntN(10) == 0 {
				at := rng.IntN(size)
				x.cut(int64(at))
				clear(model[at:])
				x.check(t)
			}
		}
		zero := make([]byte, size)
		if !bytes.Equal(x.flat(zero), model) || !bytes.Equal(y.flat(zero), other) {
			t.Fatal("write, put and cut differ from the model")
		}
		var n int64
		covered := make([]byte, size)
		var have spans
		x.copyTo(covered, 0, &have)
		for _, s := range have {
			n += s.hi - s.lo
		}
		for _, g := range have.gaps(0, size) {
			n += g.hi - g.lo
		}
		if n != size || !bytes.Equal(covered, model) {
			t.Fatal("copyTo or gaps")
		}
		less := x.without(y)
		less.check(t)
		want := bytes.Clone(model)
		for i := range want {
			if other[i] != 0 {
				want[i] = 0
			}
		}
		if !bytes.Equal(less.flat(zero), want) {
			t.Fatal("without differs from the model")
		}
		for i := range want {
			if other[i] != 0 {
				want[i] = other[i]
			} else {
				want[i] = model[i]
			}
		}
		both := x.over(y)
		both.check(t)
		if !bytes.Equal(both.flat(zero), want) {
			t.Fatal("over differs from the model")
		}
	}
}

func TestSpansAreBounded(t *testing.T) {
	var s spans
	for i := range int64(100) {
		s.add(i*10, i*10+1+i%3)
	}
	s.bound(7)
	if len(s) != 7 || s[0].lo != 0 || s[6].hi < 991 {
		t.Errorf("%v", s)
	}
}
