package shard

import (
	"fmt"
	"slices"

	"github.com/canopyfs/canopy/internal/base"
)

// Fragment is the range [Lo, next fragment's Lo) of border hashes of one
// directory, and the subtree that holds the range's entries.
type Fragment struct {
	Lo      uint32 // border bits of the first hash; 0 in the first fragment
	Subtree base.SubtreeID
}

// BorderEnd is the end of the last fragment: one above the largest border hash.
const BorderEnd uint32 = 1 << BorderBits

// MaxFragments bounds the fragments of a directory.
const MaxFragments = 256

// FragmentMap is a directory's fragments in ascending order of Lo. An unsplit
// directory has one, the full range. Neighbours in one subtree are one fragment.
//
// Each fragment's subtree keeps a copy with the directory's header. It is right about
// what lies in that subtree, and a hint about the rest: who is asked there for a name
// that has gone on knows where to.
type FragmentMap []Fragment

// Whole returns the map of an unsplit directory whose entries lie in subtree.
func Whole(subtree base.SubtreeID) FragmentMap { return FragmentMap{{Subtree: subtree}} }

// Find returns the fragment that h falls into.
func (m FragmentMap) Find(h Hash) Fragment { return m[m.at(h.Border())] }

// at returns the index of the fragment that the border hash b falls into.
func (m FragmentMap) at(b uint32) int {
	i, found := slices.BinarySearchFunc(m, b, func(f Fragment, b uint32) int { return int(int64(f.Lo) - int64(b)) })
	if !found {
		i--
	}
	return i
}

// Home returns the subtree of the first fragment: the directory's own, which its
// name in the parent tells. It never changes by a split or a merge.
func (m FragmentMap) Home() base.SubtreeID { return m[0].Subtree }

// Split reports whether there is more than one fragment.
func (m FragmentMap) Split() bool { return len(m) > 1 }

// Has reports whether the name with hash h lies in subtree.
func (m FragmentMap) Has(subtree base.SubtreeID, h Hash) bool { return m.Find(h).Subtree == subtree }

// Range is the border hashes [Lo, Hi).
type Range struct{ Lo, Hi uint32 }

// WholeRange is the range of an unsplit directory.
var WholeRange = Range{0, BorderEnd}

// Contains reports whether the border hash b is in the range.
func (r Range) Contains(b uint32) bool { return r.Lo <= b && b < r.Hi }

// First and Last return the first and the last listing position of the range.
func (r Range) First() base.Cookie { return base.Cookie(uint64(r.Lo) << (FullBits + CollisionBits)) }

// Last is the last position.
func (r Range) Last() base.Cookie { return base.Cookie(uint64(r.Hi)<<(FullBits+CollisionBits)) - 1 }

// String returns the range in hexadecimal.
func (r Range) String() string { return fmt.Sprintf("[%07x, %07x)", r.Lo, r.Hi) }

// Range returns the range of fragment i.
func (m FragmentMap) Range(i int) Range {
	if i+1 < len(m) {
		return Range{m[i].Lo, m[i+1].Lo}
	}
	return Range{m[i].Lo, BorderEnd}
}

// At returns the range of the fragment that the border hash b falls into.
func (m FragmentMap) At(b uint32) Range { return m.Range(m.at(b)) }

// Of returns the subtree that holds the names with the border hash b.
func (m FragmentMap) Of(b uint32) base.SubtreeID { return m[m.at(b)].Subtree }

// In returns the ranges that lie in subtree.
func (m FragmentMap) In(subtree base.SubtreeID) (all []Range) {
	for i, f := range m {
		if f.Subtree == subtree {
			all = append(all, m.Range(i))
		}
	}
	return all
}

// With returns the map in which r lies in subtree.
func (m FragmentMap) With(r Range, subtree base.SubtreeID) FragmentMap {
	var out FragmentMap
	add := func(lo uint32, subtree base.SubtreeID) {
		if n := len(out); n == 0 || out[n-1].Subtree != subtree {
			out = append(out, Fragment{lo, subtree})
		}
	}
	for i, f := range m {
		have := m.Range(i)
		if have.Lo < r.Lo {
			add(have.Lo, f.Subtree)
		}
		if have.Lo <= r.Lo && r.Lo < have.Hi {
			add(r.Lo, subtree)
		}
		if r.Hi < have.Hi {
			add(max(have.Lo, r.Hi), f.Subtree)
		}
	}
	return out
}

// Refer returns the map with what other says of the ranges that m has in subtree from:
// other is the map that from keeps.
func (m FragmentMap) Refer(from base.SubtreeID, other FragmentMap) FragmentMap {
	out := m
	for _, r := range m.In(from) {
		for i, f := range other {
			o := other.Range(i)
			if part := (Range{max(r.Lo, o.Lo), min(r.Hi, o.Hi)}); part.Lo < part.Hi {
				out = out.With(part, f.Subtree)
			}
		}
	}
	return out
}

// Check returns what is wrong with the map: nil when the fragments are in order
// and cover every hash exactly once.
func (m FragmentMap) Check() error {
	if len(m) == 0 {
		return fmt.Errorf("fragment map is empty")
	}
	if m[0].Lo != 0 {
		return fmt.Errorf("first fragment starts at %d, not at 0", m[0].Lo)
	}
	for i, f := range m {
		if f.Subtree == 0 {
			return fmt.Errorf("fragment %d has no subtree", i)
		}
		if f.Lo > borderMax {
			return fmt.Errorf("fragment %d starts at %d, beyond the largest border hash", i, f.Lo)
		}
		if i > 0 && f.Lo <= m[i-1].Lo {
			return fmt.Errorf("fragment %d starts at %d, not above the one before", i, f.Lo)
		}
	}
	return nil
}
