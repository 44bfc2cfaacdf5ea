package heat

import (
	"cmp"
	"slices"
	"time"

	"github.com/canopyfs/canopy/internal/base"
)

// Rates are per second: operations, and seconds of time.
type Rates struct {
	Ops [Classes]float64
	// Over: so many more operations there may have been, of those before the key was
	// among the most used ones.
	Over                            float64
	Latency, Serve, Queue, Conflict float64
}

// All returns the operations of all classes.
func (r *Rates) All() (n float64) {
	for _, x := range r.Ops {
		n += x
	}
	return n
}

func (s *sums) rates(f float64) Rates {
	x := *s
	x.scale(f)
	return Rates{Ops: x.ops, Over: x.over, Latency: x.latency, Serve: x.serve, Queue: x.queue, Conflict: x.conflict}
}

// OpRate is the rate of one operation, by the caller's number.
type OpRate struct {
	Op                              uint8
	Ops                             float64
	Latency, Serve, Queue, Conflict float64
}

// Dir is a directory among the most used, or of a split one what a subtree has of it.
type Dir struct {
	Ino     base.Ino
	Subtree base.SubtreeID
	Rates   Rates
	Names   []string         // some that were used
	Created [Buckets]float64 // names made per second, by ranges of the hash
	Clients []PairRates      // who uses it, the most first
}

// Client is a client among the most active.
type Client struct {
	Client base.ClientID
	Rates  Rates
	Dirs   []PairRates // what it uses, the most first
}

// PairRates are a client's in a directory.
type PairRates struct {
	Dir    base.Ino
	Client base.ClientID
	Rates  Rates
}

// Top is what is hot.
type Top struct {
	Since   time.Duration // so long it has been counted
	Total   Rates
	Ops     []OpRate // those that occurred, by number
	Dirs    []Dir    // the most used first
	Clients []Client // the most active first
	// What is in no table has at most these rates of operations.
	OverDirs, OverClients, OverPairs float64
}

// maxPairs is how many clients of a directory are told, and directories of a client.
const maxPairs = 5

// Top returns the n most used directories and clients of a window, as of now.
func (s *Sketch) Top(now time.Duration, w, n int) *Top {
	f := s.perSecond(w, now)
	t := &Top{Since: s.now, Total: s.total[w].rates(f), OverDirs: s.dirs.over[w] * f, OverClients: s.clients.over[w] * f, OverPairs: s.pairs.over[w] * f}
	for i := range s.ops[w] {
		if o := s.ops[w][i]; o.ops > 0 {
			o.scale(f)
			t.Ops = append(t.Ops, OpRate{uint8(i), o.ops, o.latency, o.serve, o.queue, o.conflict})
		}
	}
	for _, e := range s.dirs.top(w, n) {
		d := Dir{Ino: base.Ino(e.key.a), Subtree: base.SubtreeID(e.key.b), Rates: e.windows[w].rates(f)}
		if e.detail != nil {
			d.Names = slices.Clone(e.detail.names)
			for b, x := range e.detail.created[w] {
				d.Created[b] = float64(x) * f
			}
		}
		t.Dirs = append(t.Dirs, d)
	}
	for _, e := range s.clients.top(w, n) {
		t.Clients = append(t.Clients, Client{Client: base.ClientID(e.key.a), Rates: e.windows[w].rates(f)})
	}
	s.join(t, w, f)
	return t
}

// join tells who uses the directories, and what the clients use.
func (s *Sketch) join(t *Top, w int, f float64) {
	dirs, clients := map[base.Ino][]PairRates{}, map[base.ClientID][]PairRates{}
	for _, d := range t.Dirs {
		dirs[d.Ino] = nil
	}
	for _, c := range t.Clients {
		clients[c.Client] = nil
	}
	for _, e := range s.pairs.top(w, len(s.pairs.entries)) {
		p := PairRates{base.Ino(e.key.a), base.ClientID(e.key.b), e.windows[w].rates(f)}
		if of, ok := dirs[p.Dir]; ok && len(of) < maxPairs {
			dirs[p.Dir] = append(of, p)
		}
		if of, ok := clients[p.Client]; ok && len(of) < maxPairs {
			clients[p.Client] = append(of, p)
		}
	}
	for i := range t.Dirs {
		t.Dirs[i].Clients = dirs[t.Dirs[i].Ino]
	}
	for i := range t.Clients {
		t.Clients[i].Dirs = clients[t.Clients[i].Client]
	}
}

// top returns the n entries of a window that saw most operations, the most first.
func (t *table) top(w, n int) []*entry {
	type ranked struct {
		e    *entry
		seen float64
	}
	all := make([]ranked, len(t.entries))
	for i := range t.entries {
		all[i] = ranked{&t.entries[i], t.entries[i].windows[w].seen()}
	}
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.seen, a.seen), cmp.Compare(a.e.key.a, b.e.key.a), cmp.Compare(a.e.key.b, b.e.key.b))
	})
	var out []*entry
	for _, r := range all[:min(n, len(all))] {
		if r.seen > 0 {
			out = append(out, r.e)
		}
	}
	return out
}

// Total returns the rates of all operations of a window, as of now.
func (s *Sketch) Total(now time.Duration, w int) Rates { return s.total[w].rates(s.perSecond(w, now)) }

// TopDir returns the share that the most used directory has of all operations of a
// window, 0 if there are none.
func (s *Sketch) TopDir(w int) (share float64) {
	most := 0.0
	for i := range s.dirs.entries {
		most = max(most, s.dirs.entries[i].windows[w].seen())
	}
	if total := s.total[w].seen(); total > 0 {
		return most / total
	}
	return 0
}
