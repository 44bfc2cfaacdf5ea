package heat

import (
	"math"

	"github.com/canopyfs/canopy/internal/base"
)

// Sample stands for operations of one kind, by one client in one directory. The times
// are those of all of them together, in nanoseconds.
type Sample struct {
	Dir     base.Ino
	Subtree base.SubtreeID // that was addressed: of a split directory, a fragment's
	Client  base.ClientID
	Op      uint8 // the caller's number of the operation, below MaxOps
	Class   Class
	Count   uint32 // operations
	Again   bool   // they are counted already: this is another directory of theirs

	LatencyNS  int64 // from arrival to answer
	ServeNS    int64 // that the node worked on it
	QueueNS    int64 // that it waited until somebody did
	ConflictNS int64 // that it waited for others: locks, transactions, moves

	Name    string // of one of them; "": not told
	Created [Buckets]uint16
}

// MaxOps bounds Sample.Op.
const MaxOps = 64

// BatchSamples is how many samples a Batch holds.
const BatchSamples = 128

// Batch adds samples up that have the same directory, subtree, client and operation, so that a
// Sketch has fewer of them to take in.
type Batch struct {
	n       int
	samples [BatchSamples]Sample
	places  [2 * BatchSamples]uint8 // by hash: where a sample may be
}

// Add takes a sample in; false: there is no room, and nothing was taken.
func (b *Batch) Add(s *Sample) bool {
	h := pairKey(s).hash() + uint64(s.Op)
	place := &b.places[h%uint64(len(b.places))]
	if at := int(*place); at < b.n {
		if x := &b.samples[at]; x.Dir == s.Dir && x.Client == s.Client && x.Op == s.Op && x.Subtree == s.Subtree && x.Again == s.Again {
			x.merge(s)
			return true
		}
	}
	if b.n == BatchSamples {
		return false
	}
	*place = uint8(b.n)
	b.samples[b.n] = *s
	b.n++
	return true
}

func (x *Sample) merge(s *Sample) {
	x.Count += s.Count
	x.LatencyNS += s.LatencyNS
	x.ServeNS += s.ServeNS
	x.QueueNS += s.QueueNS
	x.ConflictNS += s.ConflictNS
	if s.Name != "" {
		x.Name = s.Name
	}
	if !s.Class.makes() {
		return
	}
	for i, n := range s.Created {
		x.Created[i] += min(n, math.MaxUint16-x.Created[i])
	}
}

// Samples returns what was taken in: the Batch's own, until Reset.
func (b *Batch) Samples() []Sample { return b.samples[:b.n] }

// Count returns how many operations there are.
func (b *Batch) Count() (n uint64) {
	for i := range b.Samples() {
		n += uint64(b.samples[i].Count)
	}
	return n
}

// Reset empties the batch.
func (b *Batch) Reset() {
	clear(b.samples[:b.n]) // names
	b.n = 0
}
