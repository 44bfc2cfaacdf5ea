package layoutsvc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/capability"
	"github.com/canopyfs/canopy/internal/fserr"
)

// DefaultKeyRotation is how old a key of capabilities gets.
const DefaultKeyRotation = 24 * time.Hour

// leastRotation leaves room for two rotations by hand among the keys that are
// accepted at a time.
func leastRotation(period time.Duration) time.Duration {
	return (period * capability.KeepPeriods / (capability.MaxKeys - 2)).Round(time.Second)
}

// keeper has the leader's part in the keys of capabilities (PROTOCOLS J4): it
// counts the periods, replaces keys that are old, and drops those that were
// replaced long ago. under changes.
type keeper struct {
	ticked  time.Time // when the present period began, as far as this term knows
	rotated time.Time // when the newest key was made, likewise: a new leader counts anew
}

// tendKeys does what is due. There are keys when it has returned nil: nothing is
// served before.
func (t *term) tendKeys(ctx context.Context, now time.Time) error {
	t.changes.Lock()
	defer t.changes.Unlock()
	k := &t.keeper
	if t.s.store.Capabilities().Value == nil {
		first := &canopyv1.CapabilityRing{Period: 1}
		t.addKey(first)
		if err := t.putRing(ctx, first); err != nil {
			return err
		}
		t.s.logger.Info("made the first key of capabilities", "period", t.s.config.KeyPeriod)
	}
	if k.ticked.IsZero() {
		k.ticked, k.rotated = now, now
	}
	if now.Sub(k.ticked) < t.s.config.KeyPeriod {
		return nil
	}
	next := proto.CloneOf(t.s.store.Capabilities().Value)
	next.Period++
	dropOld(next)
	rotate := t.s.config.KeyRotation > 0 && now.Sub(k.rotated) >= t.s.config.KeyRotation && len(next.Keys) < capability.MaxKeys
	if rotate {
		t.addKey(next)
	}
	if err := t.putRing(ctx, next); err != nil {
		return err
	}
	k.ticked = now
	if rotate {
		t.noteRotation(next, now, false)
	}
	return nil
}

// dropOld drops the keys that nobody signs with any more.
func dropOld(ring *canopyv1.CapabilityRing) {
	kept := ring.Keys[:0]
	for _, x := range ring.Keys {
		if x.ReplacedPeriod == 0 || ring.Period < x.ReplacedPeriod+capability.KeepPeriods {
			kept = append(kept, x)
		}
	}
	ring.Keys = kept
}

// addKey makes a new key, which replaces the newest one.
func (t *term) addKey(ring *canopyv1.CapabilityRing) {
	id := uint32(1)
	if n := len(ring.Keys); n > 0 {
		last := ring.Keys[n-1]
		last.ReplacedPeriod, id = ring.Period, last.Id+1
	}
	secret := make([]byte, capability.SecretBytes)
	rand.Read(secret) // never fails
	ring.Keys = append(ring.Keys, &canopyv1.CapabilityKey{Id: id, Secret: secret, CreatedNs: time.Now().UnixNano(), CreatedPeriod: ring.Period})
}

// putRing writes the ring, by compare-and-set under the lead.
func (t *term) putRing(ctx context.Context, next *canopyv1.CapabilityRing) error {
	known := t.s.store.Capabilities()
	next.Version, next.PeriodMs = known.Value.GetVersion()+1, uint32(t.s.config.KeyPeriod/time.Millisecond)
	if _, err := t.s.store.PutCapabilities(ctx, t.lead, next, known.Revision); err != nil {
		return fserr.New(fserr.NotReady, "keys", errors.Join(err, t.s.store.Sync(ctx)))
	}
	return nil
}

func (t *term) noteRotation(ring *canopyv1.CapabilityRing, now time.Time, revoked bool) {
	t.keeper.rotated = now
	t.s.metrics.rotations.Inc()
	t.s.logger.Info("a new key of capabilities", "key", ring.Keys[len(ring.Keys)-1].Id, "accepted", len(ring.Keys), "revoked_old", revoked)
}

// rotate makes a new key. The old ones are accepted until what they signed has
// ended, or with revoke no more.
func (t *term) rotate(ctx context.Context, revoke bool) error {
	t.changes.Lock()
	defer t.changes.Unlock()
	next := proto.CloneOf(t.s.store.Capabilities().Value)
	dropOld(next)
	if len(next.Keys) >= capability.MaxKeys && !revoke {
		left := time.Duration(next.Keys[0].ReplacedPeriod+capability.KeepPeriods-next.Period) * t.s.config.KeyPeriod
		return fserr.New(fserr.Busy, "keys", fmt.Errorf("%d keys are accepted, which is the most: the oldest one goes in about %v", len(next.Keys), left))
	}
	t.addKey(next)
	if revoke {
		next.Keys = next.Keys[len(next.Keys)-1:]
	}
	if err := t.putRing(ctx, next); err != nil {
		return err
	}
	t.noteRotation(next, time.Now(), revoke)
	return nil
}

// Keys implements the service.
func (s *instance) Keys(ctx context.Context, r *canopyv1.KeysRequest) (*canopyv1.KeysResponse, error) {
	t := s.leading()
	if t == nil {
		kind, detail, leader := s.notLeader(ctx)
		return &canopyv1.KeysResponse{Error: kind, Detail: detail, LeaderAddress: leader}, nil
	}
	var err error
	switch {
	case r.Revoke && !r.Rotate:
		err = fserr.New(fserr.Invalid, "keys", errors.New("keys are revoked by a rotation"))
	case r.Rotate:
		err = t.rotate(ctx, r.Revoke)
	}
	if err != nil {
		return &canopyv1.KeysResponse{Error: uint32(fserr.KindOf(err)), Detail: err.Error()}, nil
	}
	ring := proto.CloneOf(s.store.Capabilities().Value)
	for _, k := range ring.GetKeys() {
		k.Secret = nil
	}
	return &canopyv1.KeysResponse{Ring: ring, KeepPeriods: capability.KeepPeriods, RotateMs: uint64(max(s.config.KeyRotation, 0) / time.Millisecond)}, nil
}
