package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/canopyfs/canopy/internal/base"
)

// TestNameHash holds the hash of format version 1 (PROTOCOLS F2): a change of any
// line is a change of the format.
func TestNameHash(t *testing.T) {
	for name, want := range map[string]Hash{
		"":              0xefd01f60ba9929,
		"a":             0x82a2a958a9bece,
		"file.00000001": 0xc6ef51f0b1780,
		"model.tmp":     0x691c4a4ca88e62,
		"model":         0x691c4a471da954,
	} {
		if got := NameHash([]byte(name)); got != want {
			t.Errorf("NameHash(%q) = %#x, want %#x", name, uint64(got), uint64(want))
		}
	}
}

func TestUndecorated(t *testing.T) {
	for name, want := range map[string]string{
		"ckpt.tmp": "ckpt", "ckpt.temp": "ckpt", "ckpt.part": "ckpt", "ckpt.partial": "ckpt", "index.lock": "index", "x.new": "x",
		"notes~": "notes", ".data.a1B2c3": "data", ".#main.go": "main.go",
		// Nothing is left off what is no known decoration, and never all of a name.
		"ckpt": "ckpt", "a.go": "a.go", "tmp": "tmp", ".tmp": ".tmp", "~": "~", ".#": ".#", "": "", "tmp.a1b2c3": "tmp.a1b2c3",
		".data.a1b2c": ".data.a1b2c", ".data.a1b2c-": ".data.a1b2c-", "..a1b2c3": "..a1b2c3", "tmpXa8f31": "tmpXa8f31",
		"a.tmp.tmp": "a.tmp", "lock": "lock",
	} {
		if got := string(Undecorated([]byte(name))); got != want {
			t.Errorf("Undecorated(%q) = %q, want %q", name, got, want)
		}
	}
}

// TestRenameStaysInFragment: what a program writes and renames falls on the same
// border hash, and the full hashes differ.
func TestRenameStaysInFragment(t *testing.T) {
	for _, pair := range [][2]string{{"model.ckpt.tmp", "model.ckpt"}, {".model.ckpt.Xy12ab", "model.ckpt"}, {"index.lock", "index"}} {
		a, b := NameHash([]byte(pair[0])), NameHash([]byte(pair[1]))
		if a.Border() != b.Border() || a == b {
			t.Errorf("%q has hash %#x, %q %#x", pair[0], uint64(a), pair[1], uint64(b))
		}
	}
}

func TestCookies(t *testing.T) {
	for i := range 1000 {
		h := NameHash(fmt.Appendf(nil, "name%d", i))
		for _, c := range []int{0, 1, Collisions - 1} {
			at := h.Cookie(c)
			if at <= base.CookieDotDot || int64(at) < 0 || HashOf(at) != h {
				t.Fatalf("hash %#x, collision %d: position %#x", uint64(h), c, uint64(at))
			}
		}
		if n := h.Next(); n.Border() != h.Border() || n == h {
			t.Fatalf("the hash after %#x is %#x", uint64(h), uint64(n))
		}
	}
	last := makeHash(7, fullMax)
	if n := last.Next(); n != makeHash(7, 0) {
		t.Errorf("the hash after the last is %#x", uint64(n))
	}
	if h := makeHash(0, 0); h.Cookie(0) <= base.CookieDotDot {
		t.Errorf("position %d is a fixed one", h.Cookie(0))
	}
	if h := makeHash(0, fullMax).Next(); h.Cookie(0) <= base.CookieDotDot {
		t.Errorf("position %d is a fixed one", h.Cookie(0))
	}
}

// TestHashSpreads: names that programs make fall evenly on 64 fragments.
func TestHashSpreads(t *testing.T) {
	for _, format := range []string{"file.%08d", "%d", "img_%06d.jpg", "rank-%d.pt.tmp", "tmp%06x"} {
		var count [64]int
		const names = 64 * 500
		for i := range names {
			count[NameHash(fmt.Appendf(nil, format, i)).Border()>>(BorderBits-6)]++
		}
		for f, n := range count {
			if n < 350 || n > 650 {
				t.Errorf("%s: fragment %d has %d names of %d", format, f, n, names)
			}
		}
	}
}

func TestFragmentMap(t *testing.T) {
	m := FragmentMap{{0, 1}, {1 << 26, 7}, {1 << 27, 8}}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	for border, want := range map[uint64]base.SubtreeID{0: 1, 1<<26 - 1: 1, 1 << 26: 7, 1<<27 - 1: 7, 1 << 27: 8, borderMax: 8} {
		if f := m.Find(makeHash(border, 3)); f.Subtree != want {
			t.Errorf("border %#x falls to subtree %v, want %v", border, f.Subtree, want)
		}
	}
	if f := Whole(1).Find(makeHash(99, 9)); f.Subtree != 1 {
		t.Errorf("an unsplit directory sent a name to %v", f.Subtree)
	}
	for _, bad := range []FragmentMap{nil, {{1, 1}}, {{0, 0}}, {{0, 1}, {0, 2}}, {{0, 1}, {9, 2}, {8, 3}}, {{0, 1}, {1 << 28, 2}}} {
		if bad.Check() == nil {
			t.Errorf("%v passes as a fragment map", bad)
		}
	}
}

// TestFragmentMapWith compares with a map that has an entry for each border hash of
// some.
func TestFragmentMapWith(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const points = 64
	const step = BorderEnd / points
	for range 200 {
		m, want := Whole(1), [points]base.SubtreeID{}
		for i := range want {
			want[i] = 1
		}
		for range 12 {
			lo := rng.Uint32N(points)
			hi := lo + 1 + rng.Uint32N(points-lo)
			to := base.SubtreeID(1 + rng.Uint64N(4))
			m = m.With(Range{lo * step, hi * step}, to)
			for i := lo; i < hi; i++ {
				want[i] = to
			}
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
			for i, s := range want {
				h := makeHash(uint64(i)*uint64(step), 1)
				if got := m.Find(h).Subtree; got != s {
					t.Fatalf("%v: at %d/%d is %v, want %v", m, i, points, got, s)
				}
				if !m.At(h.Border()).Contains(h.Border()) {
					t.Fatalf("%v: %v does not contain %d", m, m.At(h.Border()), h.Border())
				}
			}
			for i := 1; i < len(m); i++ {
				if m[i].Subtree == m[i-1].Subtree {
					t.Fatalf("%v has neighbours in one subtree", m)
				}
			}
		}
	}
}

// TestFragmentMapRefer: what a map says of a subtree that gave its ranges away is
// replaced by what that one knows.
func TestFragmentMapRefer(t *testing.T) {
	m := FragmentMap{{0, 1}, {BorderEnd / 2, 2}}
	other := FragmentMap{{0, 9}, {BorderEnd / 2, 2}, {BorderEnd / 4 * 3, 3}}
	want := FragmentMap{{0, 1}, {BorderEnd / 2, 2}, {BorderEnd / 4 * 3, 3}}
	if got := m.Refer(2, other); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
