package client

import (
	"sync"

	"github.com/canopyfs/canopy/internal/base"
)

// maxOutstanding bounds the sequence numbers between the floor and the newest
// (PROTOCOLS C1): what a server keeps of this client is bounded by it.
const maxOutstanding = 4096

// sequencer hands out the client's request sequence numbers, which run over all
// shards, and knows the floor: the lowest one without an answer (PROTOCOLS C1).
type sequencer struct {
	mu       sync.Mutex
	floor    base.Seq // lowest unanswered; == next when there is none
	next     base.Seq
	answered [maxOutstanding]bool // by number modulo maxOutstanding, for [floor, next)
	waiting  map[poker]struct{}   // told once when a number is free again
}

// poker is somebody who waits for a sequence number; poke must not block.
type poker interface{ poke() }

func newSequencer() *sequencer {
	return &sequencer{floor: 1, next: 1, waiting: map[poker]struct{}{}}
}

// acquire returns the next number, or 0 when maxOutstanding numbers are not
// answered yet; then it pokes w, once, when there is one again.
func (s *sequencer) acquire(w poker) base.Seq {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next-s.floor >= maxOutstanding {
		s.waiting[w] = struct{}{}
		return 0
	}
	seq := s.next
	s.next++
	s.answered[seq%maxOutstanding] = false
	return seq
}

// release says that seq was answered, or that its caller gave up: from the next
// request on, the floor tells servers never to execute it.
func (s *sequencer) release(seq base.Seq) {
	if seq == 0 {
		return
	}
	s.mu.Lock()
	s.answered[seq%maxOutstanding] = true
	for s.floor < s.next && s.answered[s.floor%maxOutstanding] {
		s.floor++
	}
	if len(s.waiting) > 0 && s.next-s.floor < maxOutstanding {
		for w := range s.waiting {
			w.poke()
		}
		clear(s.waiting)
	}
	s.mu.Unlock()
}

// lowest returns the floor, and newest the next number to be handed out.
func (s *sequencer) lowest() (floor, newest base.Seq) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.floor, s.next
}
