package sim

import "github.com/canopyfs/canopy/balancer/policy"

// solve finds what each unit gets in this second, and how busy that makes each node.
func (w *world) solve() {
	for i := range w.nodes {
		n := &w.nodes[i]
		n.open, n.closed = n.copying+n.follow, n.closed[:0]
	}
	for i := range w.units {
		u := &w.units[i]
		for _, p := range u.parts {
			h := w.holder(p.subtree)
			if h < 0 {
				continue
			}
			n := &w.nodes[h]
			n.open += u.rate * p.share() * u.work() / n.speed
			if u.workers > 0 {
				n.closed = append(n.closed, share{i, p.share()})
			}
		}
	}
	w.hot = w.hot[:0]
	for i := range w.nodes {
		n := &w.nodes[i]
		if len(n.closed) > 0 {
			w.hot = append(w.hot, i)
			continue
		}
		n.q = 1 / (1 - min(n.open, saturated))
	}
	// Nodes depend on each other through directories that lie on several: each is
	// solved with the others as they are, over and over. From second to second little changes.
	for range 6 {
		for _, i := range w.hot {
			w.solveNode(&w.nodes[i])
		}
	}
	w.settle()
}

// work is the service of an operation, with what crossing shards adds.
func (u *unit) work() float64 { return u.mix.service() * (1 + crossWork*u.scatter) }

// cycle is how long a worker takes for one operation.
func (w *world) cycle(u *unit) float64 {
	t := u.think + u.mix.wait() + crossWait*u.scatter
	for _, p := range u.parts {
		if h := w.holder(p.subtree); h >= 0 {
			t += p.share() * u.work() / w.nodes[h].speed * w.nodes[h].q
		} else {
			t += p.share() * failover
		}
	}
	return t
}

// solveNode finds the waiting at which the node is as busy as that waiting says: who waits
// longer asks less.
func (w *world) solveNode(n *node) {
	rest := make([]float64, len(n.closed)) // of each worker's cycle, without this node
	for i, c := range n.closed {
		u := &w.units[c.unit]
		rest[i] = w.cycle(u) - c.part*u.work()/n.speed*n.q
	}
	util := func(q float64) float64 {
		sum := min(n.open, saturated)
		for i, c := range n.closed {
			u := &w.units[c.unit]
			here := c.part * u.work() / n.speed
			sum += u.workers / (rest[i] + here*q) * here
		}
		return sum
	}
	low, high := 1.0, 1e5
	for range 40 {
		q := (low + high) / 2
		if low*4 < high {
			q = 2 * low
		}
		if q*(1-util(q)) < 1 {
			low = q
		} else {
			high = q
		}
	}
	n.q = (low + high) / 2
}

// settle takes down what everybody got.
func (w *world) settle() {
	for i := range w.nodes {
		n := &w.nodes[i]
		n.util, n.follow = min(n.open, saturated), 0
	}
	for i := range w.shards {
		w.shards[i].busy, w.shards[i].ops = 0, 0
	}
	for i := range w.subtrees {
		w.subtrees[i].busy, w.subtrees[i].ops = 0, 0
	}
	for i := range w.units {
		w.serve(&w.units[i])
	}
	for i := range w.nodes {
		n := &w.nodes[i]
		n.util = min(n.util, 1)
		n.waiting = n.util * (n.q - 1)
		if n.state == policy.Dead {
			n.util, n.waiting = 0, 0
		}
		n.utilD.tick(n.util)
		n.waitD.tick(n.waiting)
		n.copying = 0
	}
	for i := range w.shards {
		w.shards[i].busyD.tick(w.shards[i].busy)
	}
	for i := range w.subtrees {
		w.subtrees[i].busyD.tick(w.subtrees[i].busy)
	}
}

// serve takes down what a unit got.
func (w *world) serve(u *unit) {
	running := max(0, 1-u.paused)
	workers := 0.0
	if u.workers > 0 {
		workers = u.workers / w.cycle(u) * running
	}
	u.served, u.latency, u.busy = 0, 0, 0
	for _, p := range u.parts {
		t := &w.subtrees[p.subtree]
		s := &w.shards[t.shard]
		if s.holder < 0 {
			continue
		}
		n := &w.nodes[s.holder]
		open := u.rate * p.share()
		if n.open > saturated {
			open *= saturated / n.open
		}
		closed := workers * p.share()
		busy := (open + closed) * u.work() / n.speed
		n.util += closed * u.work() / n.speed
		s.busy, t.busy, u.busy = s.busy+busy, t.busy+busy, u.busy+busy
		s.ops, t.ops, u.served = s.ops+open+closed, t.ops+open+closed, u.served+open+closed
		u.latency += (open + closed) * (u.mix.wait() + crossWait*u.scatter + u.work()/n.speed*n.q)
		for _, r := range s.replicas {
			if r != s.holder {
				w.nodes[r].follow += (open + closed) * u.mix.create * createService * followerShare / w.nodes[r].speed
			}
		}
	}
	if u.served > 0 {
		u.latency = u.latency/u.served + u.paused*u.paused/2
	}
	u.entries += u.served * u.mix.create
	u.busyD.tick(u.busy)
	u.servedD.tick(u.served)
	u.paused = 0
}
