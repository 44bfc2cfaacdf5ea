package namespace

import (
	"sync"
	"sync/atomic"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/schema"
)

// standstills are the subtrees in which operations cannot go on for a moment, because
// they are about to be handed off, or were handed off to this shard and do not answer
// yet. Apply keeps them for whoever holds operations back; it does not look at them.
type standstills struct {
	any atomic.Int32 // how many there are; read without the lock

	mu sync.Mutex
	of map[base.SubtreeID]standstill
}

type standstill struct {
	state schema.OwnState
	epoch base.Epoch
	over  chan struct{} // closed when the subtree is in another state
}

// note takes in the states of all subtrees.
func (x *standstills) note(subtrees map[base.SubtreeID]*subtree) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, was := range x.of {
		if now := subtrees[id]; now == nil || now.State != was.state || now.Epoch != was.epoch {
			close(was.over)
			delete(x.of, id)
		}
	}
	for id, s := range subtrees {
		if s.State != schema.Frozen && s.State != schema.Importing || x.of[id].over != nil {
			continue
		}
		if x.of == nil {
			x.of = map[base.SubtreeID]standstill{}
		}
		x.of[id] = standstill{s.State, s.Epoch, make(chan struct{})}
	}
	x.any.Store(int32(len(x.of)))
}

// Standstill returns what is closed when it is worth having op applied, or read: its
// subtree is about to be handed off (PROTOCOLS E4), or it was handed off to this shard, as
// the client has heard, and is not active yet. nil: now. It says what was so a moment ago:
// what may be done is for Apply to say.
func (m *Machine) Standstill(op *canopyv1.Op) <-chan struct{} {
	if m.still.any.Load() == 0 {
		return nil
	}
	m.still.mu.Lock()
	defer m.still.mu.Unlock()
	w, ok := m.still.of[base.SubtreeID(op.GetSubtree())]
	switch {
	case !ok:
		return nil
	case w.state == schema.Frozen && IsRead(op), w.state == schema.Importing && op.GetEpoch() < uint64(w.epoch):
		return nil // reads go on; and who knows an older owner is sent there
	}
	return w.over
}
