package heat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/canopyfs/canopy/internal/base"
)

// exact counts without bounds on memory, faded as of each moment.
type exact struct {
	now  time.Duration
	keys [Windows]map[key]float64
	all  [Windows]float64
}

func newExact() *exact {
	e := &exact{}
	for w := range e.keys {
		e.keys[w] = map[key]float64{}
	}
	return e
}

func (e *exact) fade(now time.Duration) {
	for w, half := range HalfLives {
		f := math.Exp2(-float64(now-e.now) / float64(half))
		e.all[w] *= f
		for k := range e.keys[w] {
			e.keys[w][k] *= f
		}
	}
	e.now = now
}

func (e *exact) add(k key, n float64) {
	for w := range e.keys {
		e.keys[w][k] += n
		e.all[w] += n
	}
}

// near compares but for rounding.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*max(math.Abs(a), math.Abs(b), 1e-9) }

// checkBounds compares a table with exact counts: what was seen is not more than there
// was, with Over it is not less, and what is missing is within the table's own bound,
// which is small.
func checkBounds(t *testing.T, s *Sketch, table *table, e *exact) {
	t.Helper()
	weights := s.weights(s.now)
	inTable := map[key]bool{}
	for i := range table.entries {
		x := &table.entries[i]
		inTable[x.key] = true
		for w := range HalfLives {
			seen, over, want := x.windows[w].seen()/weights[w], x.windows[w].over/weights[w], e.keys[w][x.key]
			if seen > want*(1+1e-6)+1e-9 || seen+over < want*(1-1e-6)-1e-9 {
				t.Fatalf("window %d, %v: %v operations, seen %v and at most %v more", w, x.key, want, seen, over)
			}
		}
	}
	for w := range HalfLives {
		bound := table.over[w] / weights[w]
		for k, n := range e.keys[w] {
			if !inTable[k] && n > bound*(1+1e-6)+1e-9 {
				t.Fatalf("window %d: %v is missing with %v operations, the bound is %v", w, k, n, bound)
			}
		}
		if limit := e.all[w] / float64(table.capacity/4); bound > limit*(1+1e-6) {
			t.Fatalf("window %d: the bound is %v of %v operations, more than a %dth", w, bound, e.all[w], table.capacity/4)
		}
	}
}

// skewed returns samples of which few directories and clients get most.
func skewed(r *rand.Rand, n int) []Sample {
	dirs, clients := rand.NewZipf(r, 1.3, 4, 1<<18), rand.NewZipf(r, 1.2, 2, 1<<14)
	out := make([]Sample, n)
	for i := range out {
		out[i] = Sample{Dir: base.Ino(dirs.Uint64() + 1), Client: base.ClientID(clients.Uint64() + 1), Op: uint8(r.IntN(20)),
			Subtree: base.SubtreeID(1 + r.IntN(2)), Class: Class(r.IntN(int(Classes))), Count: uint32(1 + r.IntN(3)), ServeNS: 1000, LatencyNS: 5000}
	}
	return out
}

// TestBoundsHold: on skewed streams that change what is hot, with pauses, what the
// tables say lies within the bounds that they tell.
func TestBoundsHold(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			s, dirs, clients, pairs := NewSketch(seed), newExact(), newExact(), newExact()
			now := time.Duration(0)
			for round := range 60 {
				now += time.Duration(r.Int64N(int64(2 * time.Second)))
				if r.IntN(10) == 0 {
					now += time.Duration(r.Int64N(int64(30 * time.Minute))) // weights begin anew
				}
				samples := skewed(r, 2000)
				for _, e := range []*exact{dirs, clients, pairs} {
					e.fade(now)
				}
				for i := range samples {
					samples[i].Dir += base.Ino(round / 20 * 7) // others are hot
					x := &samples[i]
					dirs.add(dirKey(x), float64(x.Count))
					clients.add(clientKey(x), float64(x.Count))
					pairs.add(pairKey(x), float64(x.Count))
				}
				s.Add(now, samples)
				for w, half := range HalfLives {
					if got := s.total[w].seen() / s.weights(now)[w]; !near(got, dirs.all[w]) {
						t.Fatalf("%v: %v operations in all, were %v", half, got, dirs.all[w])
					}
				}
			}
			checkBounds(t, s, &s.dirs, dirs)
			checkBounds(t, s, &s.clients, clients)
			checkBounds(t, s, &s.pairs, pairs)
		})
	}
}

// TestWhatIsHotIsFound: directories with more than the bound are told, in order, with
// who uses them, among a flood of others that are used once.
func TestWhatIsHotIsFound(t *testing.T) {
	s := NewSketch(1)
	for second := range 30 {
		var samples []Sample
		for i := range 2000 {
			samples = append(samples, Sample{Dir: base.Ino(1000 + second*2000 + i), Client: base.ClientID(100 + i), Op: 1, Class: Lookup, Count: 1})
		}
		for rank := range 5 {
			samples = append(samples, Sample{Dir: base.Ino(rank + 1), Client: base.ClientID(rank + 1), Op: 2, Class: Create, Count: uint32(500 - 90*rank)})
		}
		s.Add(time.Duration(second)*time.Second, samples)
	}
	top := s.Top(30*time.Second, 1, 5)
	for rank := range 5 {
		d, want := top.Dirs[rank], float64(500-90*rank)
		if d.Ino != base.Ino(rank+1) || d.Rates.All() > want*1.1 || d.Rates.All() < want*0.9 || len(d.Clients) != 1 || d.Clients[0].Client != base.ClientID(rank+1) {
			t.Errorf("rank %d: %+v", rank, d)
		}
	}
	if sum := top.Total.All(); sum < 2000 || top.OverDirs > sum/(dirCapacity/4) {
		t.Errorf("%v operations/s in all, any other directory has at most %v", sum, top.OverDirs)
	}
}

// TestRates: a steady stream shows its rate from the first second on, in every window;
// when it ends the rate halves with each half-life.
func TestRates(t *testing.T) {
	s := NewSketch(1)
	step := 100 * time.Millisecond
	now := time.Duration(0)
	for ; now < 20*time.Minute; now += step {
		if now == 2*time.Second || now == time.Minute || now == 19*time.Minute {
			for w, half := range HalfLives {
				top := s.Top(now, w, 1)
				if got := top.Dirs[0].Rates; math.Abs(got.All()-200) > 200*0.06 || math.Abs(got.Serve-0.01) > 0.01*0.06 || math.Abs(got.Queue-0.02) > 0.02*0.06 {
					t.Errorf("after %v, half-life %v: %+v", now, half, got)
				}
			}
		}
		s.Add(now, []Sample{{Dir: 7, Client: 3, Op: 5, Class: Stat, Count: 20, ServeNS: 1e6, QueueNS: 2e6}})
	}
	for w, half := range HalfLives {
		before := s.Top(now, w, 1).Dirs[0].Rates.All()
		now += half
		if after := s.Top(now, w, 1).Dirs[0].Rates.All(); math.Abs(after-before/2) > before*0.3 {
			t.Errorf("half-life %v: %v operations/s, then %v", half, before, after)
		}
	}
}

// TestMemoryIsBounded: however many keys come, no more are kept than there is room for.
func TestMemoryIsBounded(t *testing.T) {
	s := NewSketch(1)
	n := uint64(0)
	for range 300 {
		var samples []Sample
		for range 1000 {
			n++
			samples = append(samples, Sample{Dir: base.Ino(n), Client: base.ClientID(n % 5000), Class: Create, Count: 40, Name: fmt.Sprintf("%0300d", n)})
		}
		s.Add(time.Duration(n)*time.Microsecond, samples)
	}
	dirs, clients, pairs := s.Known()
	if dirs > dirCapacity || clients > clientCapacity || pairs > pairCapacity || cap(s.dirs.entries) > 2*dirCapacity || len(s.dirs.index) > 2*dirCapacity {
		t.Errorf("%d directories (room for %d, index %d), %d clients, %d pairs", dirs, cap(s.dirs.entries), len(s.dirs.index), clients, pairs)
	}
	for i := range s.dirs.entries {
		if d := s.dirs.entries[i].detail; d != nil {
			for _, name := range d.names {
				if len(d.names) > maxNames || len(name) > maxNameBytes {
					t.Fatalf("names %q", d.names)
				}
			}
		}
	}
}

// TestSameInputSameSketch: nothing but what is passed in counts.
func TestSameInputSameSketch(t *testing.T) {
	run := func() *Top {
		r := rand.New(rand.NewPCG(5, 5))
		s := NewSketch(9)
		for i := range 50 {
			samples := skewed(r, 500)
			for k := range samples {
				samples[k].Name = fmt.Sprint("n", k)
			}
			s.Add(time.Duration(i)*time.Second, samples)
		}
		return s.Top(50*time.Second, 0, 100)
	}
	if a, b := run(), run(); !reflect.DeepEqual(a, b) {
		t.Error("two runs differ")
	}
}

// TestCreatedByHash: names that are made are counted by the range that they would go to
// in a split; names are shown, the late ones too.
func TestCreatedByHash(t *testing.T) {
	s := NewSketch(3)
	for i := range 200 {
		x := Sample{Dir: 1, Client: 1, Class: Create, Count: 10, Name: fmt.Sprint("name", i)}
		x.Created[3], x.Created[15] = 9, 1
		s.Add(time.Duration(i)*100*time.Millisecond, []Sample{x})
	}
	d := s.Top(20*time.Second, 1, 1).Dirs[0]
	sum := 0.0
	for _, x := range d.Created {
		sum += x
	}
	if math.Abs(d.Created[3]/sum-0.9) > 0.001 || math.Abs(d.Created[15]/sum-0.1) > 0.001 || math.Abs(sum-d.Rates.Ops[Create]) > 5 {
		t.Errorf("created by hash %v, %v in all of %v", d.Created, sum, d.Rates.Ops[Create])
	}
	if len(d.Names) != maxNames || reflect.DeepEqual(d.Names, []string{"name0", "name1", "name2", "name3"}) {
		t.Errorf("names %q", d.Names)
	}
}

// TestBatch: adding samples up first makes no difference, and a batch without room
// says so.
func TestBatch(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	direct, batched, b := NewSketch(1), NewSketch(1), &Batch{}
	flush := func(now time.Duration) {
		batched.Add(now, b.Samples())
		b.Reset()
	}
	refused := 0
	for i := range 40 {
		now := time.Duration(i) * time.Second
		samples := skewed(r, 300)
		for k := range samples {
			x := &samples[k]
			x.Client, x.Op = x.Client%5, uint8(x.Class) // one class for each operation
			x.Dir %= 200
			x.Created[k%Buckets] = uint16(x.Count)
			if !b.Add(x) {
				refused++
				flush(now)
				b.Add(x)
			}
		}
		direct.Add(now, samples)
		flush(now)
	}
	if refused == 0 {
		t.Error("the batch was never full")
	}
	for w := range HalfLives {
		a, c := direct.Top(40*time.Second, w, 50), batched.Top(40*time.Second, w, 50)
		if len(a.Dirs) != len(c.Dirs) || len(a.Ops) != len(c.Ops) {
			t.Fatalf("%d and %d directories, %d and %d operations", len(a.Dirs), len(c.Dirs), len(a.Ops), len(c.Ops))
		}
		for i := range a.Dirs {
			x, y := a.Dirs[i], c.Dirs[i]
			if x.Ino != y.Ino || !near(x.Rates.All(), y.Rates.All()) || !near(x.Rates.Serve, y.Rates.Serve) || len(x.Clients) != len(y.Clients) {
				t.Errorf("window %d, rank %d: %+v and %+v", w, i, x, y)
			}
		}
	}
}

func TestNth(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for range 2000 {
		all := make([]float64, 1+r.IntN(40))
		for i := range all {
			all[i] = float64(r.IntN(20))
		}
		n := r.IntN(len(all))
		got, less, equal := nth(all, n), 0, 0
		for _, x := range all {
			if x < got {
				less++
			} else if x == got {
				equal++
			}
		}
		if n < less || n >= less+equal {
			t.Fatalf("%v: the %dth smallest is not %v", all, n, got)
		}
	}
}

func BenchmarkAddHot(b *testing.B) {
	s, batch := NewSketch(1), &Batch{}
	x := Sample{Dir: 1, Client: 1, Op: 3, Class: Lookup, Count: 1, ServeNS: 1000, LatencyNS: 2000}
	for i := range b.N {
		x.Client = base.ClientID(i % 64)
		if !batch.Add(&x) || i%4096 == 0 {
			s.Add(time.Duration(i)*time.Microsecond, batch.Samples())
			batch.Reset()
		}
	}
}

func BenchmarkAddScattered(b *testing.B) {
	s, batch := NewSketch(1), &Batch{}
	r := rand.New(rand.NewPCG(2, 2))
	x := Sample{Op: 3, Class: Lookup, Count: 1, ServeNS: 1000, LatencyNS: 2000}
	for i := range b.N {
		x.Client, x.Dir = base.ClientID(i%64), base.Ino(r.Uint64N(1<<20)+1)
		if !batch.Add(&x) {
			s.Add(time.Duration(i)*time.Microsecond, batch.Samples())
			batch.Reset()
			batch.Add(&x)
		}
	}
}
