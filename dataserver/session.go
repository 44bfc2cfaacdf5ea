package dataserver

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/canopyfs/canopy/internal/fserr"
)

// maxSpread bounds how far a client's writes may run ahead of its lowest
// unanswered one.
const maxSpread = 1 << 16

// sessionIdle is how long a client's record is kept without a request.
const sessionIdle = 15 * time.Minute

// sessions remembers, per client of one placement group, which writes were
// done, so that a repetition is answered and not executed: a delayed first copy
// must not overwrite what came later (PROTOCOLS J3).
type sessions struct {
	mu      sync.Mutex
	clients map[uint64]*session
	swept   time.Time
}

type session struct {
	incarnation uint64
	floor       uint64
	done        map[uint64]outcome
	running     map[uint64]*running
	used        time.Time
}

// outcome is the answer to a change: the bytes that it allocated, or as a punch
// freed; or why it was refused for good.
type outcome struct {
	bytes uint64
	err   error
}

// settles reports whether a client takes the error for the answer. What it sends
// again under the same number is not remembered.
func settles(err error) bool {
	switch fserr.KindOf(err) {
	case fserr.OK, fserr.NoSpace, fserr.FileTooBig, fserr.IO, fserr.Stale:
		return true
	case fserr.OldEpoch:
		return !errors.As(err, new(*epochError)) // the size epoch's
	}
	return false
}

// running is a write under way. Its fields are set before done is closed.
type running struct {
	finished chan struct{}
	bytes    uint64
	err      error
}

type writeID struct{ client, incarnation, seq, floor uint64 }

// begin decides what to do with a write: execute it (mine, which the caller
// must end), join a running one, or answer at once (both nil, or err).
func (s *sessions) begin(id writeID, now time.Time) (mine, join *running, was outcome, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.clientLocked(id, now)
	if err != nil {
		return nil, nil, outcome{}, err
	}
	if id.seq < c.floor {
		return nil, nil, outcome{}, fserr.New(fserr.BelowFloor, "write", fmt.Errorf("sequence %d, floor %d", id.seq, c.floor))
	}
	if id.seq-c.floor > maxSpread {
		return nil, nil, outcome{}, fserr.New(fserr.Busy, "write", fmt.Errorf("sequence %d is too far above floor %d", id.seq, c.floor))
	}
	if was, ok := c.done[id.seq]; ok {
		return nil, nil, was, nil
	}
	if r := c.running[id.seq]; r != nil {
		return nil, r, outcome{}, nil
	}
	r := &running{finished: make(chan struct{})}
	c.running[id.seq] = r
	return r, nil, outcome{}, nil
}

// wanted refuses a write that its client has given up since it began: the floor is
// above it. Asked when the write has its range: what the client wrote there since,
// under that floor, would be overwritten.
func (s *sessions) wanted(id writeID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[id.client]
	switch {
	case c == nil || c.incarnation != id.incarnation:
		return fserr.New(fserr.Fenced, "write", fmt.Errorf("client %016x has another incarnation since", id.client))
	case id.seq < c.floor:
		return fserr.New(fserr.BelowFloor, "write", fmt.Errorf("sequence %d, floor %d", id.seq, c.floor))
	}
	return nil
}

// clientLocked returns the client's record under its newest incarnation.
func (s *sessions) clientLocked(id writeID, now time.Time) (*session, error) {
	c := s.clients[id.client]
	if c == nil || id.incarnation > c.incarnation {
		c = &session{incarnation: id.incarnation, used: now, done: map[uint64]outcome{}, running: map[uint64]*running{}}
		if s.clients == nil {
			s.clients = map[uint64]*session{}
		}
		s.clients[id.client] = c
		s.sweepLocked(now)
	}
	if id.incarnation < c.incarnation {
		return nil, fserr.New(fserr.Fenced, "write", fmt.Errorf("client %016x wrote as incarnation %d, this is %d", id.client, c.incarnation, id.incarnation))
	}
	c.used = now
	if id.floor > c.floor {
		c.floor = id.floor
		for seq := range c.done {
			if seq < c.floor {
				delete(c.done, seq)
			}
		}
	}
	return c, nil
}

// sweepLocked forgets clients that were idle for long.
func (s *sessions) sweepLocked(now time.Time) {
	if now.Sub(s.swept) < sessionIdle/4 {
		return
	}
	s.swept = now
	for id, c := range s.clients {
		if now.Sub(c.used) > sessionIdle && len(c.running) == 0 {
			delete(s.clients, id)
		}
	}
}

// end tells those who joined, and remembers what the client takes for the answer: a
// delayed second copy of a write that was refused must not be made when there is
// space again, over what the client wrote since.
func (s *sessions) end(id writeID, r *running, bytes uint64, err error) {
	s.mu.Lock()
	if c := s.clients[id.client]; c != nil && c.incarnation == id.incarnation {
		if c.running[id.seq] == r {
			delete(c.running, id.seq)
		}
		if settles(err) && id.seq >= c.floor {
			c.done[id.seq] = outcome{bytes, err}
		}
	}
	s.mu.Unlock()
	r.bytes, r.err = bytes, err
	close(r.finished)
}

// fence refuses, at a replica, a write of an incarnation that a newer one of
// the same client has fenced.
func (s *sessions) fence(id writeID, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.clientLocked(id, now)
	return err
}

// note records, at a replica, a write that it took from the primary: it answers
// the repetition if it becomes the primary.
func (s *sessions) note(id writeID, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clients[id.client]; c != nil && c.incarnation == id.incarnation && id.seq >= c.floor {
		c.done[id.seq] = outcome{bytes: bytes}
	}
}
