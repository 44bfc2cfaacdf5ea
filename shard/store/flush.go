package store

import (
	"sync"
	"time"
)

// flusher makes one flush serve all that wait for it (PROTOCOLS A5).
type flusher struct {
	mu      sync.Mutex
	cond    sync.Cond
	flushed uint64 // batches up to here are durable
	running bool
}

func (f *flusher) init() { f.cond.L = &f.mu }

// Flush returns when every batch up to seq, which Commit returned, is durable:
// at once if that is so already (PROTOCOLS A5).
func (s *Store) Flush(seq uint64) error {
	f := &s.flush
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.flushed < seq {
		if f.running {
			f.cond.Wait()
			continue
		}
		if err := s.flushLocked(); err != nil {
			return err
		}
	}
	return nil
}

// flushAll makes everything that is visible now durable.
func (s *Store) flushAll() error { return s.Flush(s.committed.Load()) }

// flushLocked runs one flush with f.mu released meanwhile. A batch's number is
// given out after it became visible, so all up to the target are flushed.
func (s *Store) flushLocked() error {
	f := &s.flush
	f.running = true
	target := s.committed.Load()
	f.mu.Unlock()
	begun := time.Now()
	err := s.db.Flush()
	s.metrics.flushSeconds.Observe(time.Since(begun).Seconds())
	f.mu.Lock()
	f.running = false
	if err == nil && target > f.flushed {
		f.flushed = target
	}
	f.cond.Broadcast()
	return err
}
