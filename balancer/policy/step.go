package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/canopyfs/canopy/internal/base"
)

// Kind is what a step does.
type Kind int

// Kinds of steps. A carve is a migration of a directory that is no subtree yet.
const (
	TransferLease Kind = iota + 1
	Migrate
	Carve
	Split
	Merge
	MoveReplica
)

// String returns the kind's name.
func (k Kind) String() string {
	return [...]string{"none", "transfer-lease", "migrate", "carve", "split", "merge", "move-replica"}[k]
}

// Step is one thing to do.
type Step struct {
	Kind      Kind
	Shard     base.ShardID   // whose lease or replica; where the subtree is
	Subtree   base.SubtreeID // what moves; of a carve, split or merge: the directory's
	Dir       base.Ino       // of a carve, split or merge
	Path      string
	Fragments int            // of a split or merge: how many there are afterwards
	To        []base.ShardID // of a migration or carve: one; of a split: one for each new fragment, by range
	FromNode  base.NodeID    // of a lease: the holder; of a replica: where it goes from; 0: it is one more
	ToNode    base.NodeID

	Gain   float64     // by how many operations fewer wait at a time
	Cost   float64     // operation-seconds, once
	For    base.NodeID // of a step for relief: the node that is relieved
	Relief float64     // and by how much less is wanted of it
	Spend  Budget
	Took   time.Duration // expected
	Reason string

	explain func() string // makes Reason, of what is chosen
}

// String returns the step in a line.
func (s *Step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v", s.Kind)
	switch s.Kind {
	case TransferLease:
		fmt.Fprintf(&b, " shard=%v from=n%v to=n%v", s.Shard, s.FromNode, s.ToNode)
	case MoveReplica:
		fmt.Fprintf(&b, " shard=%v from=n%v to=n%v", s.Shard, s.FromNode, s.ToNode)
	case Migrate:
		fmt.Fprintf(&b, " subtree=%v path=%s shard=%v to=%v", s.Subtree, s.Path, s.Shard, s.To)
	case Carve:
		fmt.Fprintf(&b, " dir=%v path=%s shard=%v to=%v", s.Dir, s.Path, s.Shard, s.To)
	case Split:
		fmt.Fprintf(&b, " dir=%v path=%s fragments=%d to=%v", s.Dir, s.Path, s.Fragments, s.To)
	case Merge:
		fmt.Fprintf(&b, " dir=%v path=%s fragments=%d", s.Dir, s.Path, s.Fragments)
	}
	return b.String()
}

// Plan is what to do now. Steps may run side by side.
type Plan struct {
	Steps []Step
	Notes []string // what was felt and is left as it is, and why
}

// Budget is what steps use up: ranges, subtrees, replicas and leases that go from one
// place to another, bytes that are copied, and time for which somebody waits.
type Budget struct {
	Moves int
	Bytes int64
	Pause time.Duration
}

// add returns the sum.
func (b Budget) add(o Budget) Budget {
	return Budget{b.Moves + o.Moves, b.Bytes + o.Bytes, b.Pause + o.Pause}
}

// within reports whether b is at most o.
func (b Budget) within(o Budget) bool {
	return b.Moves <= o.Moves && b.Bytes <= o.Bytes && b.Pause <= o.Pause
}

// String returns the budget's numbers.
func (b Budget) String() string {
	return fmt.Sprintf("%d moves, %d MiB, %v of pause", b.Moves, b.Bytes>>20, b.Pause)
}
