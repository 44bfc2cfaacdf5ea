package stripe

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// Map is the mapping of one file: a valid layout, its data id and the number
// of PGs of its pool. Safe for concurrent use; the zero Map is not valid.
type Map struct {
	components []*canopyv1.LayoutComponent
	first      []uint32 // number of columns in the components before
	start      uint32   // PG of the first column
	pgs        uint32
}

// NewMap returns the mapping. The layout must not change afterwards.
func NewMap(l *canopyv1.Layout, id base.DataID, pgs int) (*Map, error) {
	if err := Validate(l); err != nil {
		return nil, err
	}
	if pgs < 1 {
		return nil, invalid("pool %d has no placement groups", l.Pool)
	}
	m := &Map{components: l.Components, first: make([]uint32, len(l.Components)), pgs: uint32(pgs)}
	m.start = uint32(mix(uint64(id)) % uint64(pgs))
	for i := 1; i < len(l.Components); i++ {
		m.first[i] = m.first[i-1] + l.Components[i-1].StripeCount
	}
	return m, nil
}

// mix is the finaliser of MurmurHash3: data ids are counters, and files made
// one after the other should start on PGs far apart.
func mix(v uint64) uint64 {
	v ^= v >> 33
	v *= 0xff51afd7ed558ccd
	v ^= v >> 33
	v *= 0xc4ceb9fe1a85ec53
	v ^= v >> 33
	return v
}

// PG returns the placement group of a column.
func (m *Map) PG(component, column uint32) base.PGID {
	return base.PGID((m.start + m.first[component] + column) % m.pgs)
}

// Has reports whether the layout has the column.
func (m *Map) Has(component, column uint32) bool {
	return int(component) < len(m.components) && column < m.components[component].StripeCount
}

// Columns returns all columns of the layout.
func (m *Map) Columns() []Column { return m.ColumnsBelow(MaxFileBytes) }

// ColumnsBelow returns the columns that can hold bytes of a file of the size.
func (m *Map) ColumnsBelow(size uint64) []Column {
	var columns []Column
	for i, c := range m.components {
		if size <= c.Offset {
			break
		}
		units := (min(size, m.end(i)) - c.Offset + c.StripeBytes - 1) / c.StripeBytes
		for j := range uint32(min(uint64(c.StripeCount), units)) {
			columns = append(columns, Column{Component: uint32(i), Column: j, PG: m.PG(uint32(i), j)})
		}
	}
	return columns
}

// end returns where component i ends in the file.
func (m *Map) end(i int) uint64 {
	if i+1 < len(m.components) {
		return m.components[i+1].Offset
	}
	return MaxFileBytes
}

// Pieces appends to dst the pieces of the file's range, in file order. What lies
// beyond MaxFileBytes has none.
func (m *Map) Pieces(dst []Piece, offset, length uint64) []Piece {
	return m.pieces(dst, offset, length, 0)
}

// PiecesAtMost returns the first pieces of the range, at most limit.
func (m *Map) PiecesAtMost(offset, length uint64, limit int) []Piece {
	return m.pieces(nil, offset, length, limit)
}

func (m *Map) pieces(dst []Piece, offset, length uint64, limit int) []Piece {
	if offset >= MaxFileBytes {
		return dst
	}
	end := min(MaxFileBytes, offset+min(length, MaxFileBytes))
	i := 0
	for offset < end {
		for m.end(i) <= offset {
			i++
		}
		c := m.components[i]
		within := offset - c.Offset
		unit, rest := within/c.StripeBytes, within%c.StripeBytes
		n := min(end, m.end(i), offset+c.StripeBytes-rest) - offset
		column := uint32(unit % uint64(c.StripeCount))
		p := Piece{
			Column:       Column{Component: uint32(i), Column: column, PG: m.PG(uint32(i), column)},
			FileOffset:   offset,
			ColumnOffset: unit/uint64(c.StripeCount)*c.StripeBytes + rest,
			Length:       n,
		}
		if last := len(dst) - 1; last >= 0 && dst[last].joins(p) {
			dst[last].Length += n
		} else if limit > 0 && len(dst) == limit {
			return dst
		} else {
			dst = append(dst, p)
		}
		offset += n
	}
	return dst
}

// joins reports whether q continues p in the file and in the column.
func (p Piece) joins(q Piece) bool {
	return p.Column == q.Column && p.FileOffset+p.Length == q.FileOffset && p.ColumnOffset+p.Length == q.ColumnOffset
}

// FileOffset is the inverse: where in the file a byte of a column lies. ok is
// false for a byte that no file can have.
func (m *Map) FileOffset(component, column uint32, columnOffset uint64) (offset uint64, ok bool) {
	if !m.Has(component, column) || columnOffset > MaxFileBytes {
		return 0, false
	}
	c := m.components[component]
	row, rest := columnOffset/c.StripeBytes, columnOffset%c.StripeBytes
	limit := uint64(MaxFileBytes) / c.StripeBytes / uint64(c.StripeCount)
	if row > limit {
		return 0, false
	}
	offset = c.Offset + (row*uint64(c.StripeCount)+uint64(column))*c.StripeBytes + rest
	return offset, offset < m.end(int(component))
}

// ColumnSize returns how many bytes of the column a file of the size has: what
// remains of the column when the file is cut to size.
func (m *Map) ColumnSize(component, column uint32, size uint64) uint64 {
	c := m.components[component]
	size = min(size, m.end(int(component)))
	if size <= c.Offset {
		return 0
	}
	within := size - c.Offset
	units, rest := within/c.StripeBytes, within%c.StripeBytes
	rows, last := units/uint64(c.StripeCount), uint32(units%uint64(c.StripeCount))
	n := rows * c.StripeBytes
	switch {
	case column < last:
		n += c.StripeBytes
	case column == last:
		n += rest
	}
	return n
}

// Cuts translates a file's cuts to those of one column.
func (m *Map) Cuts(component, column uint32, cuts []*canopyv1.Cut) []*canopyv1.Cut {
	if len(cuts) == 0 {
		return nil
	}
	out := make([]*canopyv1.Cut, len(cuts))
	for i, c := range cuts {
		out[i] = &canopyv1.Cut{SizeEpoch: c.SizeEpoch, Size: m.ColumnSize(component, column, c.Size)}
	}
	return out
}
