package erasure

import "github.com/canopyfs/canopy/layoutsvc/stripe"

// Seen is what one member has of one row.
type Seen struct {
	Shard int
	// Trusted: a member in sync, whose block may be used. Another's is judged, and used
	// only if what is trusted says that it is the right one, and does not suffice.
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
		of, class := c.class(seen, at, c.data-known)
		if class == nil {
			return Verdict{Lost: true}
		}
		v.Sources = append(v.Sources, class...)
		for shard := range at {
			v.Sums[shard] = seen[of].Entry.Sum(shard)
		}
	}
	for i, s := range seen {
		if s.Damaged || !c.fits(s, v.Sums) {
			v.Wrong = append(v.Wrong, i)
		}
	}
	return v
}

// class returns want members besides those in at, of different shards, whose blocks
// are of one codeword: that of the entry of parity member of, which names the data
// blocks that are there. Members that are not trusted count where they have just what
// the entry says, if it cannot be done without them.
func (c *Code) class(seen []Seen, at []int, want int) (of int, class []int) {
	for of := range seen {
		if !c.usable(seen, of, at) {
			continue
		}
		var class []int
		used := [stripe.MaxData + stripe.MaxParity]bool{}
		for _, trusted := range [2]bool{true, false} {
			for j, s := range seen {
				if s.Trusted == trusted && !used[s.Shard] && c.belongs(s, at, seen[of].Entry) {
					used[s.Shard] = true
					class = append(class, j)
				}
			}
		}
		if len(class) >= want {
			return of, class[:want]
		}
	}
	return 0, nil
}

// belongs reports whether a member's block is of the codeword of the entry, and not of
// a data shard that is there.
func (c *Code) belongs(s Seen, at []int, e Entry) bool {
	switch {
	case s.Damaged:
		return false
	case c.IsParity(s.Shard):
		return s.Entry.Own() == s.Sum && c.sameData(s.Entry, e)
	}
	return at[s.Shard] < 0 && s.Sum == e.Sum(s.Shard)
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
