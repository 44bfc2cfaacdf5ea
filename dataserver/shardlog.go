package dataserver

import (
	"context"
	"errors"

	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/fserr"
)

// What the log of chunks in flight does for erasure coded groups alone. Requests can be
// late: of one whose connection broke a copy may be executed after its primary has gone
// on without it. In a group of copies a member is then made equal to the primary. Here
// each member has another part, so that nobody can say later which of them is right:
//   - what is of a term before the newest that the member has heard of is refused. A
//     primary names its term when it asks for the logs, before it decides on what they say;
//   - what was numbered before something of the same rows that was executed is refused;
//   - so is what is below the floor, and what was made undone.

// raise makes what is of older terms refused from now on.
func (l *changeLog) raise(term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fence = max(l.fence, term)
}

// settleTo makes what is of older terms, and of this one below the floor, refused.
func (l *changeLog) settleTo(term, floor uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if term < l.fence {
		return
	}
	l.fence = term
	if floor > 0 {
		l.advanceLocked(term, floor)
	}
}

// ofTerm returns a condition for visit and take: that, and that the term is not over.
func (l *changeLog) ofTerm(term uint64, still func() bool) func() bool {
	return func() bool { return term >= l.fence && still() }
}

// takeRows is take of a change of rows of the term.
func (l *changeLog) takeRows(term, seq, floor uint64, rows rowsTaken, still func() bool) (t *taking, mine, ok bool) {
	t, mine, ok = l.take(term, seq, floor, rows.key, l.ofTerm(term, func() bool {
		if l.results[seq] == nil {
			for s, other := range l.rows {
				if s > seq && term == l.primary && rows.overlap(other) {
					return false
				}
			}
		}
		if !still() {
			return false
		}
		l.fence = term
		return true
	}))
	if mine {
		l.mu.Lock()
		l.rows[seq] = rows
		l.mu.Unlock()
	}
	return t, mine, ok
}

func (r rowsTaken) overlap(o rowsTaken) bool {
	return r.key == o.key && r.first < o.end && o.first < r.end
}

// number gives a repair of this primary a number in the order of changes. As long as
// it is under way, until done is called, members do not take it for one that is late.
func (l *changeLog) number() (seq uint64, done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	seq = l.next
	l.repairs[seq] = true
	return seq, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.repairs, seq)
	}
}

// unsettle keeps the floor at or below a change until the next activation.
func (l *changeLog) unsettle(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unsettledSeq == 0 || seq < l.unsettledSeq {
		l.unsettledSeq = seq
	}
}

// errUndone is what a late copy of a change gets that was made undone.
var errUndone = fserr.New(fserr.NotReady, "data", errors.New("this change was undone"))

// bar keeps copies of a forwarded change out that come from now on, after one that
// runs has ended. It returns the client's write that was noted with it.
func (l *changeLog) bar(ctx context.Context, seq uint64) (writeID, error) {
	for {
		l.mu.Lock()
		t := l.results[seq]
		finished := t == nil
		if t != nil {
			select {
			case <-t.finished:
				finished = true
			default:
			}
		}
		if finished {
			barred := &taking{finished: make(chan struct{}), err: errUndone}
			close(barred.finished)
			l.results[seq] = barred
			if _, ok := l.taken[seq]; !ok {
				l.taken[seq] = chunkstore.Key{}
			}
			l.mu.Unlock()
			if t == nil {
				return writeID{}, nil
			}
			return t.id, nil
		}
		l.mu.Unlock()
		select {
		case <-t.finished:
		case <-ctx.Done():
			return writeID{}, ctx.Err()
		}
	}
}
