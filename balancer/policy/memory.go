package policy

import (
	"time"

	"github.com/canopyfs/canopy/internal/base"
)

// slots is how many parts of Hold are told apart.
const slots = 4

// Memory is what has to be known of earlier views: how low and how high each load was
// during the last Hold, and since when split directories are cold. The zero value
// knows nothing, so that for one Hold nothing counts as lasting. It keeps what the last
// view named, and nothing else.
type Memory struct {
	nodes    map[base.NodeID]nodeTrace
	shards   map[base.ShardID]trace
	subtrees map[base.SubtreeID]trace
	dirs     map[base.Ino]dirTrace
}

type nodeTrace struct{ util, waiting trace }

type dirTrace struct {
	busy, tree trace
	coldSince  time.Duration
}

// ring is how many parts are kept: those of a Hold, and two that the first and the last view
// fall into and do not fill.
const ring = slots + 2

// trace is the extremes of a load in parts of Hold.
type trace struct {
	part      int64 // of the time
	seen      int   // parts with a value, up to ring
	low, high [ring]float64
}

// add takes in a value and returns the extremes of the last Hold: no floor until it
// is full. A gap in the views begins anew.
func (t trace) add(part int64, v float64) (_ trace, floor, peak float64) {
	i := int(part % ring)
	switch {
	case t.seen == 0 || part > t.part+1 || part < t.part:
		t = trace{part: part, seen: 1}
		t.low[i], t.high[i] = v, v
	case part > t.part:
		t.part, t.seen = part, min(t.seen+1, ring)
		t.low[i], t.high[i] = v, v
	default:
		t.low[i], t.high[i] = min(t.low[i], v), max(t.high[i], v)
	}
	floor = v
	for back := range t.seen {
		j := int((part - int64(back)) % ring)
		floor, peak = min(floor, t.low[j]), max(peak, t.high[j])
	}
	if t.seen < ring {
		floor = 0
	}
	return t, floor, peak
}

// Observe takes in a view and fills in its floors, peaks and what is cold since when.
// Views have to come at least four times within Hold.
func (m *Memory) Observe(v *View, s *Settings) {
	part := int64(v.Now / max(1, s.Hold/slots))
	fill := func(t trace, l *Load) trace {
		t, l.Floor, l.Peak = t.add(part, l.Short)
		return t
	}
	next := Memory{make(map[base.NodeID]nodeTrace, len(v.Nodes)), make(map[base.ShardID]trace, len(v.Shards)),
		make(map[base.SubtreeID]trace, len(v.Subtrees)), make(map[base.Ino]dirTrace, len(v.Dirs))}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		t := m.nodes[n.ID]
		next.nodes[n.ID] = nodeTrace{fill(t.util, &n.Util), fill(t.waiting, &n.Waiting)}
	}
	for i := range v.Shards {
		x := &v.Shards[i]
		next.shards[x.ID] = fill(m.shards[x.ID], &x.Busy)
	}
	for i := range v.Subtrees {
		x := &v.Subtrees[i]
		next.subtrees[x.ID] = fill(m.subtrees[x.ID], &x.Busy)
	}
	for i := range v.Dirs {
		d := &v.Dirs[i]
		t := m.dirs[d.Ino]
		t.busy = fill(t.busy, &d.Busy)
		if d.TreeBusy != (Load{}) {
			t.tree = fill(t.tree, &d.TreeBusy)
		}
		if d.Busy.Short > s.MergeShare || len(d.Fragments) < 2 {
			t.coldSince = 0
		} else if t.coldSince == 0 {
			t.coldSince = v.Now
		}
		d.ColdSince = t.coldSince
		share(d)
		next.dirs[d.Ino] = t
	}
	*m = next
}

// floor returns the floor of what lasts: 0 if it comes or goes (P1).
func (s *Settings) floor(l Load) float64 {
	if l.Floor < s.Steady*l.Peak {
		return 0
	}
	return l.Floor
}

// share gives fragments their part of the directory's floor and peak.
func share(d *Dir) {
	for i := range d.Fragments {
		b := &d.Fragments[i].Busy
		if d.Busy.Short > 0 {
			b.Floor, b.Peak = b.Short/d.Busy.Short*d.Busy.Floor, b.Short/d.Busy.Short*d.Busy.Peak
		}
	}
}
