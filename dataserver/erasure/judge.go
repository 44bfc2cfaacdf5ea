package erasure

import "github.com/canopyfs/canopy/layoutsvc/stripe"

// Seen is what one member has of one row.
type Seen struct {
	Shard int
	// Trusted: a member in sync, whose block may be used. Another is only judged.
	Trusted bool
	Damaged bool   // the block, or a parity's entry, does not match its checksum
	Sum     uint32 // of the block; 0: hole
	Entry   Entry  // of parity
}

// Verdict is what the members' blocks of a row are together.
type Verdict struct {
	// Lost: fewer than k blocks of one codeword are there, so some data block can
	// not be had any more. The rest is then empty.
	Lost bool
	Sums []uint32 // of the row's data blocks
	// Sources are the indices of members whose blocks give the row: all data, or k
	// of one codeword.
	Sources []int
	// Wrong are the indices of members whose block, or entry, must be written anew.
	Wrong []int
}

// Judge says which blocks of a row belong together. Data blocks that are all there
// are right by themselves: parity is made of them. If some are missing those count
// that a parity shard's entry names along with all that are there.
func (c *Code) Judge(seen []Seen) (v Verdict) {
	at := make([]int, c.data) // who has the data block
	known := 0
	for i := range at {
		at[i] = -1
	}
	for i, s := range seen {
		if s.Trusted && !s.Damaged && !c.IsParity(s.Shard) && at[s.Shard] < 0 {
			at[s.Shard] = i
			known++
		}
	}
	v.Sums = make([]uint32, c.data)
	for shard, i := range at {
		if i >= 0 {
			v.Sums[shard] = seen[i].Sum
			v.Sources = append(v.Sources, i)
		}
	}
	if known < c.data {
		class := c.class(seen, at, c.data-known)
		if class == nil {
			return Verdict{Lost: true}
		}
		v.Sources = append(v.Sources, class...)
		for shard := range at {
			v.Sums[shard] = seen[class[0]].Entry.Sum(shard)
		}
	}
	for i, s := range seen {
		if s.Damaged || !c.fits(s, v.Sums) {
			v.Wrong = append(v.Wrong, i)
		}
	}
	return v
}

// class returns want parity members, of different shards, whose entries are equal
// and name the data blocks that are there.
func (c *Code) class(seen []Seen, at []int, want int) []int {
	for i := range seen {
		if !c.usable(seen, i, at) {
			continue
		}
		var class []int
		used := [stripe.MaxParity]bool{}
		for j, s := range seen {
			if c.usable(seen, j, at) && !used[s.Shard-c.data] && c.sameData(s.Entry, seen[i].Entry) {
				used[s.Shard-c.data] = true
				class = append(class, j)
			}
		}
		if len(class) >= want {
			return class[:want]
		}
	}
	return nil
}

// usable reports whether member i is a whole parity block that was made of the data
// blocks that are there.
func (c *Code) usable(seen []Seen, i int, at []int) bool {
	s := seen[i]
	if !s.Trusted || s.Damaged || !c.IsParity(s.Shard) || s.Entry.Own() != s.Sum {
		return false
	}
	for shard, j := range at {
		if j >= 0 && s.Entry.Sum(shard) != seen[j].Sum {
			return false
		}
	}
	return true
}

func (c *Code) sameData(a, b Entry) bool {
	return [4 * stripe.MaxData]byte(a[:]) == [4 * stripe.MaxData]byte(b[:])
}

// fits reports whether a member's block is the one of the row.
func (c *Code) fits(s Seen, sums []uint32) bool {
	if !c.IsParity(s.Shard) {
		return s.Sum == sums[s.Shard]
	}
	return s.Entry == MakeEntry(sums, s.Sum) && (s.Sum != 0 || allZero(sums))
}

func allZero(sums []uint32) bool {
	for _, s := range sums {
		if s != 0 {
			return false
		}
	}
	return true
}
