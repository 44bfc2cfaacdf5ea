package capability

import (
	"sync"
	"time"
)

// How long capabilities live. Data servers keep tombstones for longer than MaxLife
// of the default period (PROTOCOLS H3).
const (
	// lifePeriods: a capability is valid in the period in which it was signed and in
	// the next one.
	lifePeriods = 1
	// blindPeriods is how far a signer that hears of no new period counts on by
	// itself.
	blindPeriods = 120
	// KeepPeriods is how long a replaced key is accepted: longer than a signer that
	// was cut off when it was replaced can go on with it.
	KeepPeriods = blindPeriods + lifePeriods + 7
	// MaxKeys bounds a ring.
	MaxKeys = 16
	// DefaultPeriod makes capabilities live as long as a session does at the most.
	DefaultPeriod = 15 * time.Second
	// MaxPeriod keeps MaxLife below the time that tombstones stay.
	MaxPeriod = 10 * time.Minute
	// settle is how long a signer waits with a new key: data servers get it
	// meanwhile.
	settle = 5 * time.Second
)

// MaxLife returns how long a capability can be accepted after it was signed, at
// the most.
func MaxLife(period time.Duration) time.Duration {
	return (blindPeriods + lifePeriods + 1) * period
}

// Signer grants capabilities to clients. Safe for concurrent use; the zero value
// has no keys.
type Signer struct {
	mu      sync.RWMutex
	ring    *Keyring
	heard   time.Time // when the ring's period was first seen
	using   *key      // the ring's newest one, or until settled the one before
	settled time.Time // when the newest key is with all data servers
}

// Update takes a newer ring.
func (s *Signer) Update(ring *Keyring, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ring != nil && ring.Version() <= s.ring.Version() {
		return
	}
	if s.ring == nil || ring.Period() != s.ring.Period() {
		s.heard = now
	}
	before := s.keyLocked(now)
	if s.ring != nil && s.ring.newest().id != ring.newest().id {
		s.settled = now.Add(settle)
	}
	s.using = ring.newest()
	if before != nil {
		if still := ring.find(before.id); still != nil {
			s.using = still
		} // else it is revoked
	}
	s.ring = ring
}

// Version returns the version of the ring, 0 without one.
func (s *Signer) Version() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.ring == nil {
		return 0
	}
	return s.ring.Version()
}

// keyLocked returns the key to sign with; nil: there is none.
func (s *Signer) keyLocked(now time.Time) *key {
	if s.ring != nil && !now.Before(s.settled) {
		return s.ring.newest()
	}
	return s.using
}

// Sign grants a client rights on a data id. Not ok: there are no keys yet.
func (s *Signer) Sign(client, data uint64, rights Rights, now time.Time) (t Token, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.ring == nil || client == 0 || data == 0 {
		return t, false
	}
	return s.keyLocked(now).sign(Grant{Client: client, Data: data, Rights: rights, Until: s.periodLocked(now) + lifePeriods}), true
}

// Service is Keyring.Service with the newest ring.
func (s *Signer) Service(rights Rights, now time.Time) (t Token, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.ring == nil {
		return t, false
	}
	return s.keyLocked(now).sign(Grant{Rights: rights, Until: s.periodLocked(now) + lifePeriods}), true
}

// periodLocked counts on from the last period that was heard of, for a node that
// is cut off from etcd alone must not hand out what has ended. While etcd is away
// for all, the periods stand still, and what is signed then lives longer.
func (s *Signer) periodLocked(now time.Time) uint32 {
	length := time.Duration(s.ring.ring.PeriodMs) * time.Millisecond
	return s.ring.Period() + uint32(min(max(now.Sub(s.heard)/length, 0), blindPeriods))
}
