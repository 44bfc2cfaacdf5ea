package txn

import (
	"slices"
	"testing"
	"time"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/schema"
)

var id = schema.TxnID{Shard: 1, Epoch: 5, Number: 7}

// TestAnswer is the table of PROTOCOLS D1.
func TestAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		now              uint64
		decided, running bool
		want             Status
	}{
		{5, false, true, Running}, // presuming abort of a live one commits half a rename
		{5, true, true, Committed},
		{5, true, false, Committed},
		{5, false, false, Gone},
		{6, false, false, Gone},
		{6, false, true, Gone}, // its driver cannot be heard in a later epoch
		{6, true, false, Committed},
		{4, false, false, NotMine}, // a holder that has not heard of the epoch
	} {
		if got := Answer(id, base.LeaseEpoch(c.now), c.decided, c.running); got != c.want {
			t.Errorf("in epoch %d, decided %v, running %v: %v, want %v", c.now, c.decided, c.running, got, c.want)
		}
	}
}

func asking(parts ...Participant) *Coordinator {
	c := New(id)
	for _, p := range parts {
		c.Ask(p)
	}
	return c
}

var here, there = Participant{1, 1}, Participant{2, 9}

// TestPaths: each way through the states, and who is told at its end.
func TestPaths(t *testing.T) {
	t.Parallel()
	c := asking(here, there, there, Participant{2, 0})
	if told := c.Abort(); !slices.Equal(told, []Participant{here, there}) || c.State() != Aborting {
		t.Errorf("abort: %v, %v", told, c.State())
	}
	if c.Decide() || c.Abort() != nil {
		t.Error("an aborted transaction can be decided")
	}

	c = asking(here, there)
	if !c.Decide() || c.Abort() != nil {
		t.Error("a transaction that is being decided can be aborted")
	}
	if told := c.Decided(Refused, true, nil); len(told) != 2 || c.State() != Aborting {
		t.Errorf("refused: %v, %v", told, c.State())
	}

	c = asking(here, there)
	c.Decide()
	c.Decided(NoAnswer, true, nil)
	if told := c.Decided(Refused, true, nil); told != nil || c.State() != Unknown {
		t.Errorf("a decision that may have been accepted is aborted: %v, %v", told, c.State())
	}
	if c.Decided(Accepted, true, []Participant{there}); c.State() != Committing {
		t.Errorf("accepted the second time: %v", c.State())
	}
	if c.Confirm(here) || !c.Confirm(there) || c.State() != Done {
		t.Errorf("confirmed: %v", c.State())
	}

	c = asking(here, there)
	c.Decide()
	if told := c.Decided(Accepted, false, nil); !slices.Equal(told, []Participant{there}) || c.State() != Aborting {
		t.Errorf("a failure: %v, %v", told, c.State())
	}

	c = asking(here)
	c.Decide()
	if c.Decided(Accepted, true, nil); c.State() != Done {
		t.Errorf("all in one shard: %v", c.State())
	}
}

// TestBackoff: it grows, has a bound, and falls with age.
func TestBackoff(t *testing.T) {
	t.Parallel()
	if Backoff(0, 0) >= Backoff(3, 0) || Backoff(60, 0) > 20*time.Millisecond {
		t.Error("the wait does not grow to a bound")
	}
	if Backoff(60, 5*time.Second) >= Backoff(60, 0) {
		t.Error("the older does not come back sooner")
	}
}
