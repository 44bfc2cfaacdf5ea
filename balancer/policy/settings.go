package policy

import (
	"fmt"
	"time"
)

// Settings are all numbers that Decide goes by. Default has values that need no
// touching; DESIGN.md says what each is for.
type Settings struct {
	// What is felt (P1, P2).
	Felt          float64       // a node is relieved when its utilisation stays above
	FeltWaiting   float64       // or as many operations keep waiting in it
	Hold          time.Duration // how long something has to last
	Steady        float64       // and is not less than this part of what it was at most meanwhile
	MinDifference float64       // between a node that gives and one that takes
	Ceiling       float64       // a node above this is given nothing
	RootCeiling   float64       // a node with the root's lease
	RootWeight    float64       // what waiting at that node counts
	QueueDeep     float64       // so many waiting operations stand for as much demand again as is served

	// What is worth it (P3, P4).
	Horizon      time.Duration // what is gained within is set against the cost
	GainOverCost float64       // and has to be so many times it
	MinGain      float64       // operations fewer that wait
	MinShare     float64       // of a node: what moves is at least so much of its work
	StepCharge   float64       // operation-seconds that any move of names costs: caches, redirects, the unforeseen
	LeaseCharge  float64       // the same for a lease
	CarveScatter float64       // part of the gain that a tree cut in two is worth less
	SplitScatter float64       // the same for a directory in fragments
	CopyRate     float64       // entries per second
	CopyShare    float64       // of a node, at both ends, while copying
	EntryBytes   int64         // where the bytes are not known
	MovePause    time.Duration // of a move of names
	LeasePause   time.Duration

	// Peace (P5, P6, P7).
	Residence   time.Duration // what has moved stays for
	EarlyFactor float64       // unless it is worth so many times more
	Backoff     time.Duration // after a failure; doubled by each
	Settle      time.Duration // nodes that took part in a step are left alone for
	NodeMoves   int           // per hour and node of the cluster, of which at least ten are counted
	NodeBytes   int64
	NodePause   time.Duration
	MaxSteps    int // at a time, for each 16 nodes begun

	// Directories (P8, P9, P10).
	SplitShare     float64       // of a node: a directory busier than this may be split
	SplitPart      float64       // of a node: what a fragment should be at most
	SplitByName    float64       // least part of the operations that are about one name
	SplitWidest    float64       // most of its work that the busiest part may keep
	SplitEntries   int64         // of a fragment: a directory with larger ones is split whatever it does
	MaxParts       int           // that one split makes
	MaxFragments   int           // in all
	MergeShare     float64       // of a node: below this, all together, fragments are cold
	MergeAfter     time.Duration // cold for so long; doubled by each split of the last day but the first
	FragmentCharge float64       // operations that wait for a fragment being one

	// Replicas (P11, P12).
	DeadFor  time.Duration // a node is given up after
	DiskHigh float64       // a fuller disk gives replicas away
	DiskLow  float64       // a fuller disk takes none
}

// Default returns the settings that are meant to be right.
func Default() Settings {
	return Settings{
		Felt: 0.6, FeltWaiting: 8, Hold: 20 * time.Second, Steady: 0.5, MinDifference: 0.2, Ceiling: 0.6, RootCeiling: 0.4, RootWeight: 2, QueueDeep: 32,
		Horizon: 10 * time.Minute, GainOverCost: 3, MinGain: 0.3, MinShare: 0.1, StepCharge: 30, LeaseCharge: 5, CarveScatter: 0.1, SplitScatter: 0.2,
		CopyRate: 50_000, CopyShare: 0.2, EntryBytes: 400, MovePause: 50 * time.Millisecond, LeasePause: 200 * time.Millisecond,
		Residence: 10 * time.Minute, EarlyFactor: 4, Backoff: 2 * time.Minute, Settle: 30 * time.Second,
		NodeMoves: 6, NodeBytes: 8 << 30, NodePause: 2 * time.Second, MaxSteps: 1,
		SplitShare: 0.5, SplitPart: 0.5, SplitByName: 0.6, SplitWidest: 0.75, SplitEntries: 20_000_000, MaxParts: 16, MaxFragments: 256,
		MergeShare: 0.05, MergeAfter: 10 * time.Minute, FragmentCharge: 0.05,
		DeadFor: 10 * time.Minute, DiskHigh: 0.85, DiskLow: 0.7,
	}
}

// Check returns what is wrong with the settings.
func (s *Settings) Check() error {
	for _, part := range []struct {
		name string
		v    float64
	}{{"felt", s.Felt}, {"steady", s.Steady}, {"min-difference", s.MinDifference}, {"ceiling", s.Ceiling}, {"root-ceiling", s.RootCeiling}, {"split-share", s.SplitShare},
		{"split-part", s.SplitPart}, {"split-by-name", s.SplitByName}, {"split-widest", s.SplitWidest}, {"merge-share", s.MergeShare},
		{"min-share", s.MinShare}, {"disk-high", s.DiskHigh}, {"disk-low", s.DiskLow}} {
		if !(part.v > 0 && part.v <= 1) {
			return fmt.Errorf("%s %v: want a part, above 0 and at most 1", part.name, part.v)
		}
	}
	for _, least := range []struct {
		name   string
		v, min float64
	}{{"felt-waiting", s.FeltWaiting, 1}, {"root-weight", s.RootWeight, 1}, {"queue-deep", s.QueueDeep, 1}, {"gain-over-cost", s.GainOverCost, 1},
		{"early-factor", s.EarlyFactor, 1}, {"copy-rate", s.CopyRate, 1}, {"horizon", s.Horizon.Seconds(), 1}, {"hold", s.Hold.Seconds(), 1},
		{"max-steps", float64(s.MaxSteps), 1}, {"max-parts", float64(s.MaxParts), 2}, {"max-fragments", float64(s.MaxFragments), 2},
		{"split-entries", float64(s.SplitEntries), 1}, {"merge-after", s.MergeAfter.Seconds(), 1}, {"entry-bytes", float64(s.EntryBytes), 1},
		{"min-gain", s.MinGain, 0}, {"step-charge", s.StepCharge, 0}, {"lease-charge", s.LeaseCharge, 0}, {"carve-scatter", s.CarveScatter, 0},
		{"split-scatter", s.SplitScatter, 0}, {"copy-share", s.CopyShare, 0}, {"fragment-charge", s.FragmentCharge, 0},
		{"residence", s.Residence.Seconds(), 0}, {"backoff", s.Backoff.Seconds(), 0}, {"settle", s.Settle.Seconds(), 0}, {"dead-for", s.DeadFor.Seconds(), 0}} {
		if !(least.v >= least.min) {
			return fmt.Errorf("%s %v: want at least %v", least.name, least.v, least.min)
		}
	}
	if s.MergeShare*2 > s.SplitShare {
		return fmt.Errorf("merge-share %v: want at most half of split-share %v, or what is merged is split again", s.MergeShare, s.SplitShare)
	}
	return nil
}

// Hourly returns what steps may use up within an hour.
func (s *Settings) Hourly(nodes int) Budget {
	n := max(10, nodes)
	return Budget{n * s.NodeMoves, int64(n) * s.NodeBytes, time.Duration(n) * s.NodePause}
}
