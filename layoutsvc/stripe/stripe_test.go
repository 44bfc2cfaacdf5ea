package stripe

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

func drawLayout(r *rapid.T) *canopyv1.Layout {
	l := &canopyv1.Layout{Pool: 1}
	offset := uint64(0)
	for range rapid.IntRange(1, 4).Draw(r, "components") {
		l.Components = append(l.Components, &canopyv1.LayoutComponent{
			Offset:      offset,
			StripeBytes: UnitMultiple * rapid.Uint64Range(1, 5).Draw(r, "unit"),
			StripeCount: rapid.Uint32Range(1, 5).Draw(r, "count"),
		})
		offset += UnitMultiple * rapid.Uint64Range(1, 40).Draw(r, "gap")
	}
	return l
}

func drawMap(r *rapid.T) *Map {
	m, err := NewMap(drawLayout(r), base.DataID(rapid.Uint64Range(1, 1<<50).Draw(r, "id")), rapid.IntRange(1, 8).Draw(r, "pgs"))
	if err != nil {
		r.Fatal(err)
	}
	return m
}

// TestPieces: pieces tile the range in order, each byte's column position maps
// back to it, and lies within the column's size for a file that ends there.
func TestPieces(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := drawMap(r)
		offset := rapid.Uint64Range(0, 1<<20).Draw(r, "offset")
		length := rapid.Uint64Range(0, 1<<19).Draw(r, "length")
		at := offset
		for _, p := range m.Pieces(nil, offset, length) {
			if p.FileOffset != at || p.Length == 0 {
				r.Fatalf("piece %+v, want one at %d", p, at)
			}
			if p.PG != m.PG(p.Component, p.Column.Column) {
				r.Fatalf("piece %+v is on pg %d", p, m.PG(p.Component, p.Column.Column))
			}
			for _, within := range []uint64{0, p.Length / 2, p.Length - 1} {
				back, ok := m.FileOffset(p.Component, p.Column.Column, p.ColumnOffset+within)
				if !ok || back != p.FileOffset+within {
					r.Fatalf("%+v byte %d maps back to %d, %v", p, within, back, ok)
				}
				if s := m.ColumnSize(p.Component, p.Column.Column, back+1); s != p.ColumnOffset+within+1 {
					r.Fatalf("a file of %d bytes has %d in the column, want %d", back+1, s, p.ColumnOffset+within+1)
				}
				if s := m.ColumnSize(p.Component, p.Column.Column, back); s != p.ColumnOffset+within {
					r.Fatalf("a file of %d bytes has %d in the column, want %d", back, s, p.ColumnOffset+within)
				}
			}
			at += p.Length
		}
		if at != offset+length {
			r.Fatalf("pieces end at %d, want %d", at, offset+length)
		}
	})
}

// TestColumnsBelow: just the columns with a size above 0 can exist, and their
// sizes sum up to the file's.
func TestColumnsBelow(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := drawMap(r)
		size := rapid.Uint64Range(0, 1<<20).Draw(r, "size")
		below := map[Column]bool{}
		for _, c := range m.ColumnsBelow(size) {
			below[c] = true
		}
		sum := uint64(0)
		for _, c := range m.Columns() {
			n := m.ColumnSize(c.Component, c.Column, size)
			sum += n
			if (n > 0) != below[c] {
				r.Fatalf("column %+v has %d bytes of a file of %d; listed: %v", c, n, size, below[c])
			}
		}
		if sum != size {
			r.Fatalf("columns have %d bytes of a file of %d", sum, size)
		}
	})
}

// TestPiecesAtEnd: nothing overflows near the largest file.
func TestPiecesAtEnd(t *testing.T) {
	m, err := NewMap(Default(1), 7, 32)
	if err != nil {
		t.Fatal(err)
	}
	last := uint64(MaxFileBytes - 10)
	sum := uint64(0)
	for _, p := range m.Pieces(nil, last, 1<<40) {
		sum += p.Length
		if back, ok := m.FileOffset(p.Component, p.Column.Column, p.ColumnOffset); !ok || back != p.FileOffset {
			t.Errorf("%+v maps back to %d, %v", p, back, ok)
		}
	}
	if sum != 10 {
		t.Errorf("pieces of the last 10 bytes have %d", sum)
	}
	if p := m.Pieces(nil, MaxFileBytes, 1); len(p) != 0 {
		t.Errorf("there is a piece beyond the largest file: %v", p)
	}
}

func TestValidate(t *testing.T) {
	bad := map[string]func(*canopyv1.Layout){
		"no pool":            func(l *canopyv1.Layout) { l.Pool = 0 },
		"no component":       func(l *canopyv1.Layout) { l.Components = nil },
		"nil component":      func(l *canopyv1.Layout) { l.Components[1] = nil },
		"late start":         func(l *canopyv1.Layout) { l.Components[0].Offset = 4096 },
		"same offset":        func(l *canopyv1.Layout) { l.Components[1].Offset = 0 },
		"odd unit":           func(l *canopyv1.Layout) { l.Components[1].StripeBytes = 5000 },
		"no unit":            func(l *canopyv1.Layout) { l.Components[1].StripeBytes = 0 },
		"no column":          func(l *canopyv1.Layout) { l.Components[1].StripeCount = 0 },
		"too many columns":   func(l *canopyv1.Layout) { l.Components[1].StripeCount = MaxColumns },
		"offset beyond file": func(l *canopyv1.Layout) { l.Components[1].Offset = 1 << 63 },
	}
	for name, spoil := range bad {
		l := Default(1)
		spoil(l)
		if err := Validate(l); !errors.Is(err, fserr.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Validate(Default(1)); err != nil {
		t.Error(err)
	}
	if err := Validate(nil); !errors.Is(err, fserr.Invalid) {
		t.Error(err)
	}
}

// TestAssign: members differ, are balanced, primaries go round, and domains are
// kept apart where there are enough.
func TestAssign(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(r, "servers")
		racks := rapid.IntRange(1, 4).Draw(r, "racks")
		replicas := rapid.IntRange(1, min(3, n)).Draw(r, "replicas")
		var servers []Server
		rackOf := map[base.NodeID]int{}
		used := map[int]bool{}
		for i := range n {
			id := base.NodeID(i + 1)
			rackOf[id] = i % racks
			used[i%racks] = true
			servers = append(servers, Server{ID: id, Labels: []string{"disk=nvme", "rack=r" + string(rune('a'+i%racks))}})
		}
		pgs := n * rapid.IntRange(1, 8).Draw(r, "rounds")
		groups, err := Assign(pgs, replicas, servers)
		if err != nil {
			r.Fatal(err)
		}
		primaries := map[base.NodeID]int{}
		for i, g := range groups {
			seen, racksSeen := map[base.NodeID]bool{}, map[int]bool{}
			for _, id := range g {
				seen[id], racksSeen[rackOf[id]] = true, true
			}
			if len(seen) != replicas {
				r.Fatalf("pg %d has members %v, want %d different ones", i, g, replicas)
			}
			if len(racksSeen) < min(replicas, len(used)) {
				r.Fatalf("pg %d has members %v in %d racks of %d", i, g, len(racksSeen), len(used))
			}
			if i > 0 && n > 1 && g[0] == groups[i-1][0] {
				r.Fatalf("pgs %d and %d have the same primary", i-1, i)
			}
			primaries[g[0]]++
		}
		for id, k := range primaries {
			if k != pgs/n {
				r.Fatalf("server %d leads %d of %d pgs", id, k, pgs)
			}
		}
	})
	if _, err := Assign(4, 3, make([]Server, 2)); !errors.Is(err, fserr.NotReady) {
		t.Errorf("too few servers: %v", err)
	}
}
