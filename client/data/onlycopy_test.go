package data

import (
	"errors"
	"syscall"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/poolmap"
	"github.com/canopyfs/canopy/internal/base"
)

// TestOnlyCopyGone: requests for what has one copy, by policy, give up when its
// server is away for longer than a restart; all others wait.
func TestOnlyCopyGone(t *testing.T) {
	one := []*canopyv1.PlacementGroup{{Members: []uint64{7}, InSync: []uint64{7}}}
	m := poolmap.New(&canopyv1.PoolMap{
		Pools: []*canopyv1.Pool{
			{Pool: 1, Replicas: 1, Pgs: one},
			{Pool: 2, Replicas: 1, Pgs: one, Redundancy: &canopyv1.Redundancy{Copies: 1}},
			{Pool: 3, Replicas: 2, Pgs: one, Redundancy: &canopyv1.Redundancy{Copies: 2}}, // degraded
			{Pool: 4, Replicas: 3, Pgs: one, Redundancy: &canopyv1.Redundancy{Data: 2, Parity: 1}},
		},
		Servers: []*canopyv1.DataServerInfo{{Server: 7}},
	})
	d := &Data{}
	if err := d.gone(m, target{pool: 2}); err != nil {
		t.Errorf("at once: %v", err)
	}
	d.absences.since[7] = time.Now().Add(-restartPatience)
	if err := d.gone(m, target{pool: 2}); !errors.Is(err, syscall.EIO) {
		t.Errorf("one copy, by policy: %v", err)
	}
	for _, pool := range []uint64{1, 3, 4} {
		if err := d.gone(m, target{pool: base.PoolID(pool)}); err != nil {
			t.Errorf("pool %d does not wait: %v", pool, err)
		}
	}
	m.Server(7).Alive = true
	if err := d.gone(m, target{pool: 2}); err != nil {
		t.Errorf("it is back: %v", err)
	}
	m.Server(7).Alive = false
	if err := d.gone(m, target{pool: 2}); err != nil {
		t.Errorf("away anew: %v", err)
	}
}
