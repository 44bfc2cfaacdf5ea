package heat

import (
	"math"
	"time"
)

// HalfLives are those that counts are kept by: what is so old counts half.
var HalfLives = [Windows]time.Duration{10 * time.Second, time.Minute, 10 * time.Minute}

// Capacities of the tables. A table grows as keys come, to these. With 350 bytes a key,
// and up to 550 more for names and creates of a directory, a Sketch takes at most 2 MB.
const (
	dirCapacity    = 1024
	clientCapacity = 1024
	pairCapacity   = 1024
)

// rebaseAfter is after how many half-lives weights begin at 1 again, long before they
// overflow: 2^64.
const rebaseAfter = 64

// opSums are the faded counts of one operation in one window.
type opSums struct{ ops, latency, serve, queue, conflict float64 }

func (o *opSums) scale(f float64) {
	o.ops *= f
	o.latency *= f
	o.serve *= f
	o.queue *= f
	o.conflict *= f
}

// Sketch is what is known of a shard's heat.
type Sketch struct {
	now     time.Duration          // the latest that was told
	origin  [Windows]time.Duration // when the weight was 1
	total   [Windows]sums
	ops     [Windows][MaxOps]opSums
	dirs    table // by directory and subtree
	clients table // by client
	pairs   table // by directory and client
	random  uint64
}

// NewSketch returns an empty sketch that begins at time 0. seed decides which names
// are kept.
func NewSketch(seed uint64) *Sketch {
	return &Sketch{dirs: newTable(dirCapacity), clients: newTable(clientCapacity), pairs: newTable(pairCapacity), random: seed | 1}
}

// Add takes samples in at the time now. Time does not run backwards.
func (s *Sketch) Add(now time.Duration, samples []Sample) {
	weights := s.weights(now)
	for i := range samples {
		x := &samples[i]
		p := partOf(x)
		if !x.Again {
			s.all(x, &p, &weights)
		}
		if x.Dir == 0 {
			continue // it names none
		}
		s.pairs.add(pairKey(x), &p, &weights)
		s.describe(s.dirs.add(dirKey(x), &p, &weights), x, &weights)
	}
}

// all counts what each operation is counted by once.
func (s *Sketch) all(x *Sample, p *part, weights *[Windows]float64) {
	for w, weight := range weights {
		s.total[w].add(p, weight)
		o := &s.ops[w][x.Op%MaxOps]
		o.ops += p.ops * weight
		o.latency += p.latency * weight
		o.serve += p.serve * weight
		o.queue += p.queue * weight
		o.conflict += p.conflict * weight
	}
	s.clients.add(clientKey(x), p, weights)
}

// add counts a part under a key, whose entry it returns.
func (t *table) add(k key, p *part, weights *[Windows]float64) *entry {
	e := t.at(k)
	for w, weight := range weights {
		e.windows[w].add(p, weight)
		e.most[w] += p.ops * weight
	}
	return e
}

// describe keeps names of a directory, and by which hashes names are made in it.
func (s *Sketch) describe(e *entry, x *Sample, weights *[Windows]float64) {
	if e.detail == nil {
		if last := Windows - 1; e.windows[last].seen() < detailAfter*weights[last] {
			return
		}
		e.detail = &detail{}
	}
	e.detail.see(x.Name, s.next())
	if !x.Class.makes() {
		return
	}
	for b, n := range x.Created {
		if n == 0 {
			continue
		}
		for w, weight := range weights {
			e.detail.created[w][b] += float32(float64(n) * weight)
		}
	}
}

// next returns a random number (Marsaglia: Xorshift RNGs).
func (s *Sketch) next() uint64 {
	s.random ^= s.random << 13
	s.random ^= s.random >> 7
	s.random ^= s.random << 17
	return s.random >> 1
}

// weights returns what a count that comes at now is multiplied by.
func (s *Sketch) weights(now time.Duration) (weights [Windows]float64) {
	s.now = max(s.now, now)
	for w, half := range HalfLives {
		age := float64(s.now-s.origin[w]) / float64(half)
		if age > rebaseAfter {
			s.rebase(w, math.Exp2(-age))
			age = 0
		}
		weights[w] = math.Exp2(age)
	}
	return weights
}

// rebase makes now the time of weight 1 in a window.
func (s *Sketch) rebase(w int, f float64) {
	s.origin[w] = s.now
	s.total[w].scale(f)
	for i := range s.ops[w] {
		s.ops[w][i].scale(f)
	}
	for _, t := range []*table{&s.dirs, &s.clients, &s.pairs} {
		t.scale(w, f)
	}
}

// youngest bounds rates from above when the counting has just begun.
const youngest = time.Second

// perSecond returns what turns sums of a window into rates as of now: one over the
// sum that one operation a second leaves, had it come since the beginning.
func (s *Sketch) perSecond(w int, now time.Duration) float64 {
	weights := s.weights(now)
	lambda := math.Ln2 / HalfLives[w].Seconds()
	whole := -math.Expm1(-lambda * max(s.now, youngest).Seconds())
	return lambda / whole / weights[w]
}

// Known tells how many keys are kept: of directories, of clients, of clients in directories.
func (s *Sketch) Known() (dirs, clients, pairs int) {
	return len(s.dirs.entries), len(s.clients.entries), len(s.pairs.entries)
}
