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

// FragmentMap is a directory's fragments in ascending order of Lo. An unsplit
// directory has one, the full range.
type FragmentMap []Fragment

// Whole returns the map of an unsplit directory whose entries lie in subtree.
func Whole(subtree base.SubtreeID) FragmentMap { return FragmentMap{{Subtree: subtree}} }

// Find returns the fragment that h falls into.
func (m FragmentMap) Find(h Hash) Fragment {
	i, found := slices.BinarySearchFunc(m, h.Border(), func(f Fragment, b uint32) int {
		return int(int64(f.Lo) - int64(b))
	})
	if !found {
		i--
	}
	return m[i]
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
