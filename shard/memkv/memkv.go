// Package memkv is a shard.Writer in memory, for tests. It is strict where a real
// store is merely entitled to be: what Get and Scan return is overwritten by the
// next call, and calls within a Scan panic. Not for concurrent use.
package memkv

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/canopyfs/canopy/shard"
)

// Store is an ordered map of keys to values. The zero Store is not usable: New.
type Store struct {
	m      map[string]string
	keys   []string // sorted, of the keys when it was last needed
	stale  bool     // keys is not what m has
	inScan bool
	lent   [][]byte // to the caller of the last Get
	// Counts of calls since ResetCounts, to test what an operation costs.
	Gets, Scans, Sets, Deletes int
}

var _ shard.Writer = (*Store)(nil)

// New returns an empty Store.
func New() *Store { return &Store{m: map[string]string{}} }

// ResetCounts sets the counts of calls to zero.
func (s *Store) ResetCounts() { s.Gets, s.Scans, s.Sets, s.Deletes = 0, 0, 0, 0 }

func (s *Store) enter() {
	if s.inScan {
		panic("memkv: a call on a store within its Scan")
	}
	s.reclaim()
}

func (s *Store) reclaim() {
	for _, b := range s.lent {
		for i := range b {
			b[i] = 0xdb
		}
	}
	s.lent = s.lent[:0]
}

func (s *Store) lend(v string) []byte {
	b := []byte(v)
	s.lent = append(s.lent, b)
	return b
}

// Get implements shard.Reader.
func (s *Store) Get(key []byte) ([]byte, bool, error) {
	s.enter()
	s.Gets++
	v, ok := s.m[string(key)]
	if !ok {
		return nil, false, nil
	}
	return s.lend(v), true, nil
}

// GetNew implements shard.Reader.
func (s *Store) GetNew(key []byte) ([]byte, bool, error) { return s.Get(key) }

// Scan implements shard.Reader.
func (s *Store) Scan(lo, hi []byte, fn func(key, value []byte) (bool, error)) error {
	s.enter()
	s.Scans++
	s.sort()
	from, to := s.bounds(lo, hi)
	s.inScan = true
	defer func() { s.inScan = false }()
	for _, k := range s.keys[from:to] {
		more, err := fn(s.lend(k), s.lend(s.m[k]))
		s.reclaim()
		if err != nil || !more {
			return err
		}
	}
	return nil
}

func (s *Store) bounds(lo, hi []byte) (from, to int) {
	from = sort.SearchStrings(s.keys, string(lo))
	if hi == nil {
		return from, len(s.keys)
	}
	return from, max(from, sort.SearchStrings(s.keys, string(hi)))
}

func (s *Store) sort() {
	if !s.stale {
		return
	}
	s.keys = s.keys[:0]
	for k := range s.m {
		s.keys = append(s.keys, k)
	}
	slices.Sort(s.keys)
	s.stale = false
}

// Set implements shard.Writer.
func (s *Store) Set(key, value []byte) error {
	s.enter()
	s.Sets++
	if _, ok := s.m[string(key)]; !ok {
		s.stale = true
	}
	s.m[string(key)] = string(value)
	return nil
}

// Delete implements shard.Writer.
func (s *Store) Delete(key []byte) error {
	s.enter()
	s.Deletes++
	if _, ok := s.m[string(key)]; ok {
		s.stale = true
		delete(s.m, string(key))
	}
	return nil
}

// DeleteRange implements shard.Writer.
func (s *Store) DeleteRange(lo, hi []byte) error {
	s.enter()
	s.sort()
	from, to := s.bounds(lo, hi)
	for _, k := range s.keys[from:to] {
		delete(s.m, k)
		s.stale = true
	}
	return nil
}

// Len returns the number of keys.
func (s *Store) Len() int { return len(s.m) }

// Clone returns a copy, as a snapshot.
func (s *Store) Clone() *Store {
	c := New()
	for k, v := range s.m {
		c.m[k] = v
	}
	c.stale = true
	return c
}

// Diff returns how other differs from s, by key in the words of format; empty
// when both hold the same bytes.
func (s *Store) Diff(other *Store, format func(key []byte) string) string {
	var b strings.Builder
	for _, side := range []struct {
		a, b *Store
		name string
	}{{s, other, "only first"}, {other, s, "only second"}} {
		side.a.stale = true
		side.a.sort()
		for _, k := range side.a.keys {
			v, ok := side.b.m[k]
			switch {
			case !ok:
				fmt.Fprintf(&b, "%s: %s = %x\n", side.name, format([]byte(k)), side.a.m[k])
			case side.a == s && !bytes.Equal([]byte(v), []byte(s.m[k])):
				fmt.Fprintf(&b, "%s: %x, %x\n", format([]byte(k)), s.m[k], v)
			}
		}
	}
	return b.String()
}
