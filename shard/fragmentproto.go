package shard

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// Proto returns the map's form in messages.
func (m FragmentMap) Proto() []*canopyv1.Fragment {
	out := make([]*canopyv1.Fragment, len(m))
	for i, f := range m {
		out[i] = &canopyv1.Fragment{Lo: f.Lo, Subtree: uint64(f.Subtree)}
	}
	return out
}

// FragmentsOf reads a map from a message; nil if there is none, or what is there is none.
func FragmentsOf(all []*canopyv1.Fragment) FragmentMap {
	if len(all) == 0 || len(all) > MaxFragments {
		return nil
	}
	m := make(FragmentMap, len(all))
	for i, f := range all {
		m[i] = Fragment{Lo: f.GetLo(), Subtree: base.SubtreeID(f.GetSubtree())}
	}
	if m.Check() != nil {
		return nil
	}
	return m
}
