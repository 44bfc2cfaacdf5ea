package policy

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Decide returns what to do now. It changes nothing of the view.
func Decide(v *View, s *Settings) Plan {
	m := newModel(v, s)
	steps := m.s.MaxSteps * (len(v.Nodes)/16 + 1)
	m.repair(steps)
	m.relieve(steps)
	m.grown(steps)
	m.cold(steps)
	return m.plan
}

// maxNotes bounds what a plan says of what it leaves.
const maxNotes = 20

func (m *model) note(format string, args ...any) {
	if len(m.plan.Notes) < maxNotes {
		m.plan.Notes = append(m.plan.Notes, fmt.Sprintf(format, args...))
	}
}

// accept adds a step to the plan: nobody who takes part in it is in another one.
func (m *model) accept(s *Step) {
	for _, n := range m.involved(s) {
		m.quiet[n] = "takes part in a step of this plan"
	}
	m.claim(s)
	if s.Kind == MoveReplica {
		m.replicas[m.nodes[s.ToNode]]++
		if i, ok := m.nodes[s.FromNode]; ok {
			m.replicas[i]--
		}
	}
	s.Reason, s.explain = s.explain(), nil
	m.left = Budget{m.left.Moves - s.Spend.Moves, m.left.Bytes - s.Spend.Bytes, m.left.Pause - s.Spend.Pause}
	m.plan.Steps = append(m.plan.Steps, *s)
}

// felt tells whether a node is to be relieved (P1): it lasts, and somebody waits.
func (m *model) felt(node int) bool {
	n := &m.v.Nodes[node]
	return n.State != Dead && (n.Util.Floor >= m.s.Felt || m.s.floor(n.Waiting) >= m.s.FeltWaiting)
}

// relieve plans for the nodes that are felt, the hottest first: for each the best step.
func (m *model) relieve(limit int) {
	var hot []int
	for i := range m.v.Nodes {
		if m.felt(i) {
			hot = append(hot, i)
		}
	}
	slices.SortFunc(hot, func(a, b int) int { return cmp.Or(cmp.Compare(m.give[b], m.give[a]), cmp.Compare(a, b)) })
	for _, n := range hot {
		if len(m.plan.Steps) >= limit {
			return
		}
		if why := m.quiet[n]; why != "" {
			m.note("node %v at %.2f: it %s", m.v.Nodes[n].ID, m.v.Nodes[n].Util.Floor, why)
			continue
		}
		m.relieveNode(n)
	}
}

// candidates looks so far down the lists of what could move, and of where to.
const (
	maxUnits   = 16
	maxTargets = 8
)

func (m *model) relieveNode(n int) {
	var all []Step
	for _, x := range m.held[n][:min(maxUnits, len(m.held[n]))] {
		all = m.leases(all, n, &m.v.Shards[x])
		all = m.carriedAway(all, n, &m.v.Shards[x])
		for _, t := range m.under[x][:min(maxUnits, len(m.under[x]))] {
			all = m.migrations(all, n, &m.v.Subtrees[t])
			for _, d := range m.dirs[t][:min(maxUnits, len(m.dirs[t]))] {
				all = m.carves(all, n, &m.v.Dirs[d])
				all = m.splits(all, n, &m.v.Dirs[d])
			}
			if of := m.dir(m.v.Subtrees[t].Of); of != nil && m.holder(of.Subtree) != n {
				all = m.splits(all, n, of) // a fragment of it is here
			}
		}
	}
	all = slices.DeleteFunc(all, func(s Step) bool { return s.Gain <= 0 })
	// The best is that with the largest net value, of equals the first.
	slices.SortStableFunc(all, func(a, b Step) int { return cmp.Compare(m.value(&b, m.s.Horizon), m.value(&a, m.s.Horizon)) })
	refused := ""
	for i := range all {
		why := m.refuse(&all[i], m.s.Horizon)
		if why == "" {
			all[i].For = m.v.Nodes[n].ID
			m.accept(&all[i])
			return
		}
		if refused == "" {
			refused = all[i].String() + ": " + why
		}
	}
	if refused == "" {
		refused = "nothing of it can go to a node that is much less busy and would stay so"
	}
	m.note("node %v at %.2f: %s", m.v.Nodes[n].ID, m.v.Nodes[n].Util.Floor, refused)
}

// value is what a step is worth over its cost, in operation-seconds. What is gained
// begins when the step is done.
func (m *model) value(s *Step, horizon time.Duration) float64 {
	return s.Gain*max(0, horizon-s.Took).Seconds() - m.s.GainOverCost*s.Cost
}

// refuse tells why a step is not to be done, "" if it is (P3, P4, P5, P7).
func (m *model) refuse(s *Step, horizon time.Duration) string {
	factor, early := m.impatience(s)
	gained := s.Gain * max(0, horizon-s.Took).Seconds()
	switch {
	case factor == 0:
		return early
	case s.Gain < factor*m.s.MinGain || gained < factor*m.s.GainOverCost*s.Cost:
		why := fmt.Sprintf("%.1f operations fewer would wait, %.0f operation-seconds within %v, for a cost of %.0f", s.Gain, gained, horizon, s.Cost)
		if early != "" {
			why = early + ": " + why
		}
		return why
	case !s.Spend.within(m.left):
		return fmt.Sprintf("it takes %v, and %v are left of this hour's", s.Spend, m.left)
	}
	return ""
}

// impatience returns by how much more a step has to be worth because of what was done
// before with the same thing, and why: 1 for nothing, 0 for not at all (P5).
func (m *model) impatience(s *Step) (factor float64, why string) {
	factor = 1
	early := func(since time.Duration, times int, what string) {
		stay := m.s.Residence << min(times, 6)
		if age := m.v.Now - since; since > 0 && age < stay && factor != 0 {
			factor, why = m.s.EarlyFactor, fmt.Sprintf("%s %s ago and stays for %v", what, ago(age), stay)
		}
	}
	moved, failed := 0, 0
	var last, lastFailed time.Duration
	for i := range m.v.History {
		p := &m.v.History[i]
		switch {
		case !same(&p.Step, s):
		case p.Failed:
			failed, lastFailed = failed+1, p.Ended
		default:
			moved, last = moved+1, p.Ended
			if back(&p.Step, s) && m.v.Now-p.Ended < 2*m.s.Residence {
				return 0, fmt.Sprintf("it left there %s ago", ago(m.v.Now-p.Ended))
			}
		}
	}
	switch s.Kind {
	case TransferLease, MoveReplica:
		last = max(last, m.v.Shards[m.shards[s.Shard]].HeldAt)
	case Migrate:
		t := &m.v.Subtrees[m.subtrees[s.Subtree]]
		if last = max(last, t.MovedAt); last > 0 && t.From == s.To[0] && m.v.Now-last < 2*m.s.Residence {
			return 0, fmt.Sprintf("it came from there %s ago", ago(m.v.Now-last))
		}
	case Split, Merge:
		last = max(last, m.dir(s.Dir).SplitAt)
	}
	early(last, max(0, moved-1), "it moved")
	if wait := m.s.Backoff << min(max(0, failed-1), 6); failed > 0 && m.v.Now-lastFailed < wait {
		return 0, fmt.Sprintf("it failed %d times, the last %s ago, and rests for %v", failed, ago(m.v.Now-lastFailed), wait)
	}
	return factor, why
}

// same reports whether two steps are about the same thing.
func same(a, b *Step) bool {
	lease := func(s *Step) bool { return s.Kind == TransferLease || s.Kind == MoveReplica }
	switch {
	case lease(a) || lease(b):
		return lease(a) && lease(b) && a.Shard == b.Shard
	case a.Dir != 0 && a.Dir == b.Dir:
		return true
	}
	return a.Kind == Migrate && b.Kind == Migrate && a.Subtree == b.Subtree
}

// tenths returns a duration in tenths of a second.
func tenths(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }

// back reports whether a step leads to where an earlier one about the same thing led away from.
func back(earlier, s *Step) bool {
	switch s.Kind {
	case TransferLease, MoveReplica:
		return earlier.FromNode == s.ToNode
	case Migrate:
		return earlier.Shard == s.To[0]
	}
	return false
}

// ago returns a duration in whole seconds.
func ago(d time.Duration) string { return d.Truncate(time.Second).String() }

// targets calls f for the nodes that can take work from node n, the coolest first, until
// it returns false. P2: such a node is less busy by MinDifference.
func (m *model) targets(n int, f func(node int) bool) {
	for _, t := range m.order {
		if t == n || m.takes(t) != "" || m.give[n]-m.take[t] < m.s.MinDifference {
			continue
		}
		if !f(t) {
			return
		}
	}
}

// lightest returns the shard of those that a node holds that does least, not counting
// those that are changing: nil if there is none.
func (m *model) lightest(node int) *Shard {
	for i := len(m.held[node]) - 1; i >= 0; i-- {
		if x := &m.v.Shards[m.held[node][i]]; !m.changing[x.ID] {
			return x
		}
	}
	return nil
}

// state describes a node that gives.
func (m *model) state(n int) string {
	x := &m.v.Nodes[n]
	s := fmt.Sprintf("node %v has been at %.2f of its capacity for %v", x.ID, x.Util.Floor, m.s.Hold)
	if x.Waiting.Floor >= 1 {
		s += fmt.Sprintf(" with %.0f operations waiting", x.Waiting.Floor)
	}
	return s
}
