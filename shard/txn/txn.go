// Package txn is the coordinator's side of a transaction over subtrees as explicit
// states (PROTOCOLS D): what may still hold locks, whether it is decided, who has
// to be told, and what an inquiry is answered. It is pure: mds does what it says.
//
//	Preparing --decide--> Deciding --accepted--> Committing --all confirmed--> Done
//	    |                    |--refused--> Aborting --told--> Done
//	    |--conflict, error--------------->     |
//	                         |--no answer--> Unknown: the next lease epoch decides
//
// Only a coordinator that knows that no decision was or will be accepted may abort;
// whoever holds a lock of one in state Unknown asks.
package txn

import (
	"slices"
	"time"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/schema"
)

// State is how far a transaction is.
type State int

// The states.
const (
	Preparing State = iota
	Deciding
	Unknown
	Committing
	Aborting
	Done
)

var stateNames = [...]string{"preparing", "deciding", "unknown", "committing", "aborting", "done"}

func (s State) String() string { return stateNames[s] }

// Participant is a subtree that has a part in a transaction, and its shard.
type Participant struct {
	Shard   base.ShardID
	Subtree base.SubtreeID
}

// Coordinator is one transaction at its coordinator.
type Coordinator struct {
	ID    schema.TxnID
	state State
	asked []Participant // that may hold locks
	owing []Participant // that have not confirmed the commit
}

// New returns a transaction that has asked nobody.
func New(id schema.TxnID) *Coordinator { return &Coordinator{ID: id} }

// State returns how far it is.
func (c *Coordinator) State() State { return c.state }

// Ask notes that a prepare is about to be sent: from then on the participant may
// hold locks, whatever becomes of the message.
func (c *Coordinator) Ask(p Participant) {
	if c.state == Preparing && p.Subtree != base.ShardMeta && !slices.Contains(c.asked, p) {
		c.asked = append(c.asked, p)
	}
}

// Asked returns who may hold locks.
func (c *Coordinator) Asked() []Participant { return c.asked }

// Abort gives the transaction up. It returns who is to be told, nil if that is not
// the coordinator's to say any more.
func (c *Coordinator) Abort() []Participant {
	if c.state != Preparing {
		return nil
	}
	c.state = Aborting
	return c.asked
}

// Decide begins the decision: afterwards only its outcome counts. False: it is too
// late.
func (c *Coordinator) Decide() bool {
	if c.state != Preparing {
		return false
	}
	c.state = Deciding
	return true
}

// Verdict is what the coordinator's log said to a decision.
type Verdict int

// The verdicts.
const (
	Accepted Verdict = iota
	Refused          // surely not accepted, now or later
	NoAnswer
)

// Decided takes in the log's verdict. remote are the participants of other shards,
// which have to confirm. It returns who is to be told of an abort.
func (c *Coordinator) Decided(v Verdict, commit bool, remote []Participant) (abort []Participant) {
	if c.state != Deciding && c.state != Unknown {
		return nil
	}
	switch {
	case v == NoAnswer:
		c.state = Unknown
	case v == Refused && c.state == Unknown:
		// An earlier copy of the decision may have been accepted.
	case v == Refused:
		c.state = Aborting
		return c.asked
	case !commit:
		c.state = Aborting
		return slices.DeleteFunc(slices.Clone(c.asked), func(p Participant) bool { return p.Shard == c.ID.Shard })
	default:
		c.state = Committing
		c.owing = slices.Clone(remote)
		if len(c.owing) == 0 {
			c.state = Done
		}
	}
	return nil
}

// Confirm notes that a participant has committed; true: it was the last.
func (c *Coordinator) Confirm(p Participant) bool {
	c.owing = slices.DeleteFunc(c.owing, func(o Participant) bool { return o == p })
	if c.state != Committing || len(c.owing) > 0 {
		return false
	}
	c.state = Done
	return true
}

// Status is the answer to an inquiry.
type Status int

// The answers.
const (
	NotMine   Status = iota // ask a later holder
	Running                 // not decided as of the question
	Committed               // the decision says what is to be done
	Gone                    // aborted, or confirmed by all: a lock that is left is given back
)

// Answer is PROTOCOLS D1: what a holder in lease epoch now says of a transaction.
// decided: its log had a decision; running: its table had the transaction, and still
// has after the log was read.
func Answer(t schema.TxnID, now base.LeaseEpoch, decided, running bool) Status {
	switch {
	case decided:
		return Committed
	case t.Epoch > now:
		return NotMine
	case t.Epoch == now && running:
		return Running
	}
	// Of an earlier epoch: it cannot be decided any more, so that it is aborted for
	// ever, whatever its driver believes.
	return Gone
}

// Backoff is how long a transaction waits after a conflict, before jitter. Those
// that have tried for long come back sooner, so that nobody starves (PROTOCOLS D2).
func Backoff(try int, age time.Duration) time.Duration {
	const first, most = 500 * time.Microsecond, 20 * time.Millisecond
	d := most
	if try < 6 {
		d = first << try
	}
	if age > time.Second {
		d = max(first, most/time.Duration(1+age/time.Second))
	}
	return min(d, most)
}
