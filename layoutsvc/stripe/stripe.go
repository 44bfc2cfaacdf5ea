// Package stripe is the arithmetic between a file's bytes and columns: which
// column and placement group (PG) holds which byte, under a layout. It is pure
// and shared by clients, data servers and the layout service, so that no call
// to anyone is needed to find a byte.
//
// A layout is a list of components by file offset. Component i covers the file
// from its offset to the next component's (the last one to MaxFileBytes), and
// spreads it round-robin over its columns in stripe units. Bytes within a
// column are dense: stripe unit k of a component lies in column k mod count, at
// column offset (k div count) * unit.
//
// Columns of a file lie on consecutive PGs, beginning at a hash of the data id;
// consecutive PGs have different primaries (Assign), so that a file's columns
// spread over servers.
package stripe

import (
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

const (
	// MaxFileBytes is the largest file, as of Linux: offsets stay positive as signed
	// 64-bit integers. Sums of two offsets fit in unsigned ones.
	MaxFileBytes = 1<<63 - 1
	// UnitMultiple divides every stripe unit and component offset, so that no
	// block of a column's checksums is shared by two columns.
	UnitMultiple = 4096
	// MaxComponents and MaxColumns bound what a layout may ask for.
	MaxComponents = 16
	MaxColumns    = 1024
)

// Column names one column of a file.
type Column struct {
	Component uint32
	Column    uint32
	PG        base.PGID
}

// Piece is a contiguous part of one column that holds a contiguous part of a
// file.
type Piece struct {
	Column
	FileOffset   uint64 // bytes
	ColumnOffset uint64 // bytes
	Length       uint64 // bytes
}

// Default returns the layout of a pool that names none: the first MiB on one
// PG, so that a small file sits on one server, then 1 MiB stripes over three.
func Default(pool base.PoolID) *canopyv1.Layout {
	const mib = 1 << 20
	return &canopyv1.Layout{Pool: uint64(pool), Components: []*canopyv1.LayoutComponent{
		{Offset: 0, StripeBytes: mib, StripeCount: 1},
		{Offset: mib, StripeBytes: mib, StripeCount: 3},
	}}
}

// Validate reports what is wrong with a layout, as kind Invalid.
func Validate(l *canopyv1.Layout) error {
	if l == nil || len(l.Components) == 0 {
		return invalid("a layout needs at least one component")
	}
	if l.Pool == 0 {
		return invalid("a layout names a pool")
	}
	if len(l.Components) > MaxComponents {
		return invalid("a layout has at most %d components, not %d", MaxComponents, len(l.Components))
	}
	columns := uint64(0)
	for i, c := range l.Components {
		if err := validateComponent(l, i); err != nil {
			return err
		}
		columns += uint64(c.StripeCount)
	}
	if columns > MaxColumns {
		return invalid("a layout has at most %d columns, not %d", MaxColumns, columns)
	}
	return nil
}

func validateComponent(l *canopyv1.Layout, i int) error {
	c := l.Components[i]
	switch {
	case c == nil:
		return invalid("component %d is missing", i)
	case i == 0 && c.Offset != 0:
		return invalid("the first component starts at 0, not %d", c.Offset)
	case i > 0 && c.Offset <= l.Components[i-1].Offset:
		return invalid("component %d starts at %d, not behind the one before", i, c.Offset)
	case c.Offset > MaxFileBytes || c.Offset%UnitMultiple != 0:
		return invalid("component %d starts at %d, which is no multiple of %d within a file", i, c.Offset, UnitMultiple)
	case c.StripeBytes == 0 || c.StripeBytes%UnitMultiple != 0 || c.StripeBytes > 1<<40:
		return invalid("component %d has stripes of %d bytes: want a multiple of %d up to 1 TiB", i, c.StripeBytes, UnitMultiple)
	case c.StripeCount == 0 || c.StripeCount > MaxColumns:
		return invalid("component %d has %d columns: want 1 to %d", i, c.StripeCount, MaxColumns)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fserr.New(fserr.Invalid, "layout", fmt.Errorf(format, args...))
}
