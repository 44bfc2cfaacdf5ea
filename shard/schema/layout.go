package schema

import (
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// Layout maps a file's bytes to columns; see canopyv1.Layout. The zero Layout is
// none.
type Layout struct {
	Pool       uint64
	Components []Component
	Flags      uint32 // canopyv1.LayoutFlag bits
}

// Component covers the bytes from Offset to the next component's.
type Component struct {
	Offset      uint64
	StripeBytes uint64
	StripeCount uint32
}

// LayoutOf returns what p says.
func LayoutOf(p *canopyv1.Layout) Layout {
	if p == nil {
		return Layout{}
	}
	l := Layout{Pool: p.Pool, Flags: p.Flags}
	for _, c := range p.Components {
		if c != nil {
			l.Components = append(l.Components, Component{c.Offset, c.StripeBytes, c.StripeCount})
		}
	}
	return l
}

// Proto returns the layout as a message, nil for none.
func (l Layout) Proto() *canopyv1.Layout {
	if l.Pool == 0 && len(l.Components) == 0 {
		return nil
	}
	const few = 2 // what most layouts have: such a message is one piece of memory
	n := len(l.Components)
	var p *canopyv1.Layout
	var all []canopyv1.LayoutComponent
	if n <= few {
		var whole struct {
			layout     canopyv1.Layout
			components [few]*canopyv1.LayoutComponent
			all        [few]canopyv1.LayoutComponent
		}
		p, all = &whole.layout, whole.all[:n]
		p.Components = whole.components[:n:n]
	} else {
		p, all = &canopyv1.Layout{Components: make([]*canopyv1.LayoutComponent, n)}, make([]canopyv1.LayoutComponent, n)
	}
	p.Pool, p.Flags = l.Pool, l.Flags
	for i, c := range l.Components {
		m := &all[i]
		m.Offset, m.StripeBytes, m.StripeCount = c.Offset, c.StripeBytes, c.StripeCount
		p.Components[i] = m
	}
	return p
}

// layoutExtended in the count of components says that flags follow. A layout has
// fewer components than that.
const layoutExtended = 1 << 5

func (l Layout) append(dst []byte) []byte {
	dst = putU64(dst, l.Pool)
	n := uint64(len(l.Components))
	if l.Flags != 0 {
		n |= layoutExtended
	}
	dst = putU64(dst, n)
	for _, c := range l.Components {
		dst = putU64(dst, c.Offset)
		dst = putU64(dst, c.StripeBytes)
		dst = putU64(dst, uint64(c.StripeCount))
	}
	if l.Flags != 0 {
		dst = putU64(dst, uint64(l.Flags))
	}
	return dst
}

func (d *decoder) layout() Layout {
	l := Layout{Pool: d.u64()}
	n := d.u64()
	extended := n&layoutExtended != 0
	l.Components = d.components(n &^ layoutExtended)
	if extended {
		if l.Flags = d.u32(); l.Flags == 0 {
			d.fail() // there is one encoding of each layout
		}
	}
	return l
}

func (d *decoder) components(n uint64) []Component {
	if n == 0 {
		return nil
	}
	if n >= layoutExtended || n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	out := make([]Component, n)
	for i := range out {
		out[i] = Component{d.u64(), d.u64(), d.u32()}
	}
	return out
}

// String returns the layout's fields, flags if there are any.
func (l Layout) String() string {
	s := fmt.Sprintf("{Pool:%d Components:%+v", l.Pool, l.Components)
	if l.Flags != 0 {
		s += fmt.Sprintf(" Flags:%d", l.Flags)
	}
	return s + "}"
}
