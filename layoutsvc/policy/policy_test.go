package policy

import (
	"testing"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// TestText: what people write is what is shown, and what makes no sense is
// refused.
func TestText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ key, value, shown string }{
		{"class", "checkpoint", "checkpoint"},
		{"stripes", "16x8M", "stripes=16x8M"},
		{"stripes", "1x1024K,1M:4x4M", "stripes=1x1M,1M:4x4M"},
		{"data", "replica:3", "data=replica:3"},
		{"data", "ec:4+2", "data=ec:4+2"},
		{"sync", "none", "sync=none"},
		{"stripes", "3x4096k", "stripes=3x4M"},
		{"direct", "off", "direct=off"},
	} {
		p := &canopyv1.LayoutPolicy{}
		if err := Set(p, c.key, c.value); err != nil || OwnText(p) != c.shown {
			t.Errorf("%s=%s: %q, %v", c.key, c.value, OwnText(p), err)
		}
	}
	for _, bad := range [][2]string{
		{"class", "fast"}, {"stripes", "3"}, {"stripes", "0x1M"}, {"stripes", "4x3"}, {"stripes", "4x1M,4x1M"}, {"stripes", "1M:4x1M"},
		{"stripes", "2000x1M"}, {"data", "3"}, {"sync", "later"}, {"stripes", "1x-1"}, {"stripes", "1x99999999999T"},
		{"direct", "yes"}, {"speed", "9"},
	} {
		if err := Set(&canopyv1.LayoutPolicy{}, bad[0], bad[1]); err == nil {
			t.Errorf("%s=%s is taken", bad[0], bad[1])
		}
	}
}

// TestClassesAreWhole: each class can be set, says what it is for, and gives a
// valid layout.
func TestClassesAreWhole(t *testing.T) {
	t.Parallel()
	standard := stripe.Default(1)
	for _, name := range Classes() {
		set := &canopyv1.LayoutPolicy{Class: name}
		if Class(name).GetData() != nil {
			set.ClassPool = 7
		}
		own, err := Merge(nil, set, nil)
		if err != nil || About(name) == "" {
			t.Errorf("%s: %v, %q", name, err, About(name))
		}
		for level := range uint32(len(levels) + 1) {
			if err := stripe.Validate(Effective{}.Below(1, own, level).Layout(standard)); err != nil {
				t.Errorf("%s, level %d: %v", name, level, err)
			}
		}
	}
	if l := (Effective{}).Layout(standard); !proto.Equal(l, standard) {
		t.Errorf("without a policy: %v", l)
	}
}

// TestMerge: a class takes the place of what it sets, single values of the same
// change stay, and nothing is left when all is cleared.
func TestMerge(t *testing.T) {
	t.Parallel()
	merge := func(old, set *canopyv1.LayoutPolicy, clear ...string) *canopyv1.LayoutPolicy {
		t.Helper()
		p, err := Merge(old, set, clear)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := merge(nil, &canopyv1.LayoutPolicy{Stripes: single(4, mib), Data: stripe.Copies(3), Pool: 3, Direct: on(false)})
	second := merge(first, &canopyv1.LayoutPolicy{Class: Checkpoint, Direct: on(false)})
	if got := OwnText(second); got != "checkpoint data=replica:3 direct=off" {
		t.Errorf("class over values: %s", got)
	}
	if got := OwnText(merge(second, &canopyv1.LayoutPolicy{Class: Standard})); got != "default" {
		t.Errorf("the class that resets all: %s", got)
	}
	if got := OwnText(first); got != "stripes=4x1M data=replica:3 direct=off" {
		t.Errorf("an argument was changed: %s", got)
	}
	if p := merge(second, nil, "class", "data", "direct"); p != nil {
		t.Errorf("all cleared: %v", p)
	}
	for what, bad := range map[string]*canopyv1.LayoutPolicy{
		"a class without its pool": {Class: Scratch},
		"a pool without a class":   {Class: Checkpoint, ClassPool: 2},
		"data without a pool":      {Data: stripe.Copies(2)},
		"two kinds of redundancy":  {Data: &canopyv1.Redundancy{Copies: 1, Data: 2, Parity: 1}, Pool: 2},
		"an unknown sync":          {Sync: 7},
		"no stripes":               {Stripes: single(0, mib)},
	} {
		if p, err := Merge(nil, bad, nil); err == nil {
			t.Errorf("%s: taken as %v", what, p)
		}
	}
}

// TestLevels: auto chooses by the mean size.
func TestLevels(t *testing.T) {
	t.Parallel()
	for size, want := range map[uint64]string{0: "small files", mib - 1: "small files", mib: "middling files", 64 * mib: "large files", 1 << 62: "large files"} {
		if got := LevelText(LevelOf(size)); got != want {
			t.Errorf("%d bytes: %s, want %s", size, got, want)
		}
	}
}
