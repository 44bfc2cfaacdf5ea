package schema

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// Layout maps a file's bytes to columns; see canopyv1.Layout. The zero Layout is
// none.
type Layout struct {
	Pool       uint64
	Components []Component
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
	l := Layout{Pool: p.Pool}
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
	p.Pool = l.Pool
	for i, c := range l.Components {
		m := &all[i]
		m.Offset, m.StripeBytes, m.StripeCount = c.Offset, c.StripeBytes, c.StripeCount
		p.Components[i] = m
	}
	return p
}

func (l Layout) append(dst []byte) []byte {
	dst = putU64(dst, l.Pool)
	dst = putU64(dst, uint64(len(l.Components)))
	for _, c := range l.Components {
		dst = putU64(dst, c.Offset)
		dst = putU64(dst, c.StripeBytes)
		dst = putU64(dst, uint64(c.StripeCount))
	}
	return dst
}

func (d *decoder) layout() Layout {
	l := Layout{Pool: d.u64()}
	if n := d.count(); n > 0 {
		l.Components = make([]Component, n)
		for i := range l.Components {
			l.Components[i] = Component{d.u64(), d.u64(), d.u32()}
		}
	}
	return l
}
