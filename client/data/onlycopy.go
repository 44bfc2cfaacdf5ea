package data

import (
	"fmt"
	"sync"
	"time"

	"github.com/canopyfs/canopy/client/data/poolmap"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// defaultPool is the one that every cluster has.
const defaultPool = base.PoolID(1)

// restartPatience is how long requests wait for a data server that is away and
// alone has the bytes: a restart takes less.
const restartPatience = 5 * time.Second

// absences notes since when servers were seen to be away. The zero value is empty.
type absences struct {
	mu    sync.Mutex
	since map[base.NodeID]time.Time
}

// see notes whether the server is there and returns for how long it has been seen
// to be away.
func (a *absences) see(id base.NodeID, alive bool, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if alive {
		delete(a.since, id)
		return 0
	}
	if a.since == nil {
		a.since = map[base.NodeID]time.Time{}
	}
	at, known := a.since[id]
	if !known {
		a.since[id] = now
		return 0
	}
	return now.Sub(at)
}

// gone returns the error of a request whose only copy is on a server that is away
// for longer than a restart takes, nil as long as it makes sense to wait. A pool
// of one copy was chosen for what can be made again: its files fail, and nobody
// waits for them. With several copies all that are in sync being away is a
// disaster that ends, and in the default pool of a single server there is
// nothing else that could go on meanwhile.
func (d *Data) gone(m *poolmap.Map, t target) error {
	pool, pg := m.Pool(t.pool), m.PG(t.pool, t.pg)
	if t.pool == defaultPool || pool == nil || pg == nil || stripe.Members(stripe.RedundancyOf(pool)) != 1 {
		return nil
	}
	id := poolmap.Primary(pg)
	s := m.Server(id)
	if d.absences.see(id, s != nil && s.Alive, time.Now()) < restartPatience {
		return nil
	}
	return fserr.New(fserr.IO, "data", fmt.Errorf("data server %d, which has the only copy, is away", id))
}
