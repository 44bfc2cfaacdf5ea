package placement

import (
	"context"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

const ringKey = "secrets/capability"

// Capabilities returns the last known keys of capabilities; the value is nil while
// there are none. It is shared: nobody changes it. It shows this Store's own
// writes at once. A change of it alone changes neither Map nor Data.
func (s *Store) Capabilities() Versioned[*canopyv1.CapabilityRing] { return *s.ring.Load() }

// PutCapabilities changes the keys of capabilities if they are at revision have (0:
// there are none), and returns their new revision. guard may be nil.
func (s *Store) PutCapabilities(ctx context.Context, guard *Leadership, ring *canopyv1.CapabilityRing, have Revision) (Revision, error) {
	key := s.key(ringKey)
	return s.commit(ctx, "change the keys of capabilities", append(guard.guard(), at(key, have)), write{key, ring})
}

func (m *mirror) ring() Versioned[*canopyv1.CapabilityRing] {
	r, ok := m.records[ringKey]
	if !ok {
		return Versioned[*canopyv1.CapabilityRing]{}
	}
	return Versioned[*canopyv1.CapabilityRing]{r.message.(*canopyv1.CapabilityRing), Revision(r.revision)}
}
