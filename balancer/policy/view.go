package policy

import (
	"time"

	"github.com/canopyfs/canopy/internal/base"
)

// View is what is known of a cluster at one moment. Points in time are durations since
// a moment that is the same for all views; zero is "never". Nodes, shards, subtrees and
// directories are in ascending order of their ids.
type View struct {
	Now      time.Duration
	Nodes    []Node
	Shards   []Shard
	Subtrees []Subtree // at least the hottest of each shard
	Dirs     []Dir     // the hottest, the largest, and those that are split
	Running  []Step    // begun and not ended
	Spent    Budget    // by steps that began within the last hour
	History  []Past    // of the last day, in order
}

// Load is how much of something there is: for work, seconds spent per second (1 is
// all of a node); for waiting, operations that wait at a time. Short, Minute and Long
// are means that decay over 10 s, 1 min and 10 min. Floor and Peak are the least and
// the most that Short was lately (Memory fills them in): what does not last has no Floor.
type Load struct {
	Short, Minute, Long float64
	Floor, Peak         float64
}

// Steady returns the load that has always been v.
func Steady(v float64) Load { return Load{v, v, v, v, v} }

// State is what may be done with a node.
type State int

// States of nodes.
const (
	Live State = iota
	Draining
	Dead
)

// String returns the state's name.
func (s State) String() string { return [...]string{"live", "draining", "dead"}[s] }

// Node is a metadata node.
type Node struct {
	ID        base.NodeID
	Domain    Domain
	State     State
	Since     time.Duration // of the state
	Speed     float64       // work per second against other nodes; 0 is 1
	Util      Load          // of its capacity, by all that it does
	Waiting   Load          // operations that wait in it
	DiskBytes int64         // of the disk; 0: not known
	UsedBytes int64
}

func (n *Node) speed() float64 {
	if n.Speed <= 0 {
		return 1
	}
	return n.Speed
}

// Domain is a node's failure domain: zone, rack and host, each empty if not known.
type Domain [3]string

// Shard is one Raft group.
type Shard struct {
	ID       base.ShardID
	Replicas []base.NodeID
	Want     int         // replicas that it should have; 0: as many as it has
	Holder   base.NodeID // 0: nobody has the lease
	HeldAt   time.Duration
	Busy     Load // the holder's work for it, of the holder's capacity
	Ops      float64
	Bytes    int64
}

// Subtree is a subtree that a shard serves.
type Subtree struct {
	ID      base.SubtreeID
	Shard   base.ShardID
	Path    string
	Of      base.Ino // of a fragment's subtree: the directory
	Entries int64
	Bytes   int64 // 0: not known
	Ops     Rates
	Busy    Load
	MovedAt time.Duration
	From    base.ShardID // where it was before
	Pinned  bool
}

// Rates are operations per second, by what they are.
type Rates struct{ Create, Unlink, Lookup, Readdir, Stat, Other float64 }

// All returns the sum.
func (r Rates) All() float64 { return r.ByName() + r.Readdir + r.Stat + r.Other }

// ByName returns the rate of what is about one name: this is what a split spreads.
func (r Rates) ByName() float64 { return r.Create + r.Unlink + r.Lookup }

// Buckets is how many ranges of hashes a directory's creates are counted by.
const Buckets = 16

// Dir is a directory that is worth a look of its own.
type Dir struct {
	Ino       base.Ino
	Path      string
	Subtree   base.SubtreeID // home
	Root      bool           // it is its subtree's main root
	Entries   int64
	Ops       Rates
	Busy      Load             // in the directory itself, all fragments
	Creates   [Buckets]float64 // rates by the first bits of the names' hashes; all 0: not known
	Below     int64            // entries of the tree of it, its own among them; 0: not known
	TreeBusy  Load             // in the tree of it; all 0: not known
	Fragments []Fragment       // of a split one, by range
	SplitAt   time.Duration    // last split
	ColdSince time.Duration    // of a split one (Memory fills it in)
	Pinned    bool
}

// Fragment is one range of a split directory's names, all of the same width.
type Fragment struct {
	Subtree base.SubtreeID
	Entries int64
	Busy    Load
}

// parts returns how many fragments there are, at least one.
func (d *Dir) parts() int { return max(1, len(d.Fragments)) }

// below returns the entries and the work that a carve of the directory takes along.
func (d *Dir) below() (entries int64, busy Load) {
	entries, busy = max(d.Below, d.Entries), d.TreeBusy
	if busy == (Load{}) {
		busy = d.Busy
	}
	return entries, busy
}

// Past is a step that has ended.
type Past struct {
	Step
	Began, Ended time.Duration
	Failed       bool
}
