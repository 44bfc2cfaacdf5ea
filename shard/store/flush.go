package store

import (
	"bytes"
	"errors"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
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

// GetDurable returns the key's value in what a crash now would leave on the disk.
// The value is the caller's. It reads past the caches: not for every request.
func (s *Store) GetDurable(key []byte) (value []byte, found bool, err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{
		LowerBound: key, UpperBound: append(bytes.Clone(key), 0), OnlyReadGuaranteedDurable: true,
	})
	if err != nil {
		return nil, false, err
	}
	if it.First() {
		v, verr := it.ValueAndErr()
		value, found, err = bytes.Clone(v), verr == nil, verr
	}
	return value, found, errors.Join(err, it.Error(), it.Close())
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
