package sim

import (
	"github.com/canopyfs/canopy/balancer/policy"
)

// running is a step that is being carried out: one leg after the other.
type running struct {
	step  policy.Step
	began int
	legs  []leg
	left  float64 // seconds that the first leg still takes
}

// leg is the move of one thing from node to node.
type leg struct {
	from, to int
	seconds  float64 // of copying
	done     func()
}

// start begins a step.
func (w *world) start(s policy.Step) {
	r := &running{step: s, began: w.now, legs: w.legs(&s)}
	if len(r.legs) > 0 {
		r.left = r.legs[0].seconds
	}
	w.running = append(w.running, r)
	w.stats.began(w, r)
}

// legs says how a step is done.
func (w *world) legs(s *policy.Step) []leg {
	switch s.Kind {
	case policy.TransferLease:
		x, to := placeOf(s.Shard), placeOf(s.ToNode)
		return []leg{{placeOf(s.FromNode), to, leasePause, func() { w.handOver(x, to) }}}
	case policy.MoveReplica:
		x, from, to := placeOf(s.Shard), placeOf(s.FromNode), placeOf(s.ToNode)
		source := w.shards[x].holder
		if source < 0 {
			source = to
		}
		return []leg{{source, to, w.bytes(x)/entryBytes/copyRate + legOverhead, func() { w.replace(x, from, to) }}}
	case policy.Migrate:
		t, to := placeOf(s.Subtree), placeOf(s.To[0])
		return []leg{{w.holder(t), w.shards[to].holder, w.entries(t)/copyRate + legOverhead, func() { w.migrate(t, to) }}}
	case policy.Carve:
		i, to := unitOf(s.Dir), placeOf(s.To[0])
		u := &w.units[i]
		return []leg{{w.holder(u.parts[0].subtree), w.shards[to].holder, u.entries/copyRate + legOverhead, func() { w.carve(i, to) }}}
	case policy.Split:
		return w.splitLegs(s)
	case policy.Merge:
		return w.mergeLegs(s)
	}
	return nil
}

// splitLegs cuts each range into equal parts and moves all but the first of each.
func (w *world) splitLegs(s *policy.Step) (all []leg) {
	i := unitOf(s.Dir)
	u := &w.units[i]
	ratio := s.Fragments / len(u.parts)
	for _, p := range u.parts {
		for j := 1; j < ratio; j++ {
			to := placeOf(s.To[len(all)])
			cut := part{lo: p.lo + p.share()*float64(j)/float64(ratio), hi: p.lo + p.share()*float64(j+1)/float64(ratio)}
			all = append(all, leg{w.holder(p.subtree), w.shards[to].holder, u.entries*cut.share()/copyRate + legOverhead, func() { w.cut(i, cut, to) }})
		}
	}
	return all
}

func (w *world) mergeLegs(s *policy.Step) (all []leg) {
	i := unitOf(s.Dir)
	u := &w.units[i]
	home := u.parts[0].subtree
	for _, p := range u.parts[1:] {
		all = append(all, leg{w.holder(p.subtree), w.holder(home), u.entries*p.share()/copyRate + legOverhead, func() { w.join(i, p) }})
	}
	return all
}

// copy goes on with all steps for a second. At each end a share of the node goes into it.
func (w *world) copy() {
	var still []*running
	for _, r := range w.running {
		if failed := w.goOn(r); failed || len(r.legs) == 0 {
			w.history = append(w.history, policy.Past{Step: r.step, Began: at(r.began), Ended: at(w.now), Failed: failed})
			w.stats.ended(w, r, failed)
			continue
		}
		still = append(still, r)
	}
	w.running = still
}

func (w *world) goOn(r *running) (failed bool) {
	for second := 1.0; second > 0 && len(r.legs) > 0; {
		l := r.legs[0]
		if l.from < 0 || l.to < 0 || w.nodes[l.to].state == policy.Dead || w.nodes[l.from].state == policy.Dead {
			return true
		}
		used := min(second, r.left)
		if r.step.Kind != policy.TransferLease {
			w.nodes[l.from].copying += copyShare * used
			w.nodes[l.to].copying += copyShare * used
		}
		second, r.left = second-used, r.left-used
		if r.left > 1e-9 {
			return false
		}
		l.done()
		if r.legs = r.legs[1:]; len(r.legs) > 0 {
			r.left = r.legs[0].seconds
		}
	}
	return false
}

// pause makes the units of a subtree wait.
func (w *world) pause(tree int, seconds float64) {
	for _, i := range w.subtrees[tree].units {
		u := &w.units[i]
		for _, p := range u.parts {
			if p.subtree == tree {
				u.paused = min(1, u.paused+seconds*p.share())
			}
		}
	}
}

func (w *world) handOver(shard, to int) {
	s := &w.shards[shard]
	if w.nodes[to].state == policy.Dead {
		return
	}
	s.holder, s.heldAt = to, w.now
	for t := range w.subtrees {
		if w.subtrees[t].shard == shard {
			w.pause(t, leasePause)
		}
	}
}

func (w *world) replace(shard, from, to int) {
	s := &w.shards[shard]
	for i := range s.replicas {
		if s.replicas[i] == from {
			s.replicas[i] = to
		}
	}
	if s.holder == from {
		w.handOver(shard, to)
	}
}

func (w *world) migrate(tree, to int) {
	w.pause(tree, movePause)
	t := &w.subtrees[tree]
	t.from, t.shard, t.movedAt = shardID(t.shard), to, w.now
}

// newTree makes the subtree that something goes into.
func (w *world) newTree(unit, from, to int) int {
	t := w.addSubtree(to, w.units[unit].path)
	w.subtrees[t].movedAt, w.subtrees[t].from = w.now, shardID(w.subtrees[from].shard)
	return t
}

func (w *world) carve(unit, to int) {
	u := &w.units[unit]
	w.pause(u.parts[0].subtree, movePause)
	u.parts[0].subtree = w.newTree(unit, u.parts[0].subtree, to)
	u.scatter = max(u.scatter, carvedPart)
	w.index()
}

// cut moves a range of a directory's names to a subtree of its own.
func (w *world) cut(unit int, c part, to int) {
	u := &w.units[unit]
	var parts []part
	for _, p := range u.parts {
		if c.lo < p.lo || c.lo >= p.hi {
			parts = append(parts, p)
			continue
		}
		w.pause(p.subtree, movePause)
		c.subtree = w.newTree(unit, p.subtree, to)
		w.subtrees[c.subtree].of = inoOf(unit)
		for _, rest := range []part{{p.lo, c.lo, p.subtree}, c, {c.hi, p.hi, p.subtree}} {
			if rest.share() > 1e-9 {
				parts = append(parts, rest)
			}
		}
	}
	u.parts, u.splitAt, u.scatter = parts, w.now, max(u.scatter, splitPart)
	w.index()
}

// join moves a range of names home.
func (w *world) join(unit int, c part) {
	u := &w.units[unit]
	home := u.parts[0].subtree
	w.pause(c.subtree, movePause)
	var parts []part
	for _, p := range u.parts {
		if p.lo == c.lo {
			p.subtree = home
		}
		if n := len(parts); n > 0 && parts[n-1].subtree == p.subtree {
			parts[n-1].hi = p.hi
			continue
		}
		parts = append(parts, p)
	}
	if u.parts = parts; len(parts) == 1 {
		u.scatter = 0
		if u.path == w.subtrees[home].path {
			u.scatter = carvedPart
		}
	}
	w.index()
}
