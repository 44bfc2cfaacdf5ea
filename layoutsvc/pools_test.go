package layoutsvc

import (
	"strings"
	"sync"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

func ensure(t testing.TB, r *running, class *canopyv1.Redundancy) *canopyv1.EnsurePoolResponse {
	t.Helper()
	answer, err := r.client.EnsurePool(background(t), &canopyv1.EnsurePoolRequest{Redundancy: class})
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// TestPoolsByClass: a class has one pool, made when it is first asked for, also
// by many at once; the default pool is that of its class; what there is no place
// for is refused in one line.
func TestPoolsByClass(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.start(nil)
	await.Until(t, patience, "the service leads", func() bool {
		return fserr.Kind(ensure(t, a, stripe.Copies(1)).Error) != fserr.NotHolder
	})
	if early := ensure(t, a, stripe.Copies(1)); fserr.Kind(early.Error) != fserr.NotReady || !strings.Contains(early.Detail, "0 of 2 data servers") {
		t.Fatalf("before there are servers: %v", early)
	}
	register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a)
	register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a)
	if same := ensure(t, a, stripe.Copies(2)); same.Error != 0 || same.Pool != uint64(DefaultPool) {
		t.Fatalf("the default pool's class: %v", same)
	}
	var pools [8]uint64
	var all sync.WaitGroup
	for i := range pools {
		all.Go(func() { pools[i] = ensure(t, a, stripe.Copies(1)).Pool })
	}
	all.Wait()
	for _, p := range pools {
		if p != 2 {
			t.Fatalf("pools of one class: %v", pools)
		}
	}
	m := firstMap(t, a)
	if len(m.Pools) != 2 {
		t.Fatalf("pools: %v", m.Pools)
	}
	primaries := map[uint64]int{}
	for _, pg := range m.Pools[1].Pgs {
		if len(pg.Members) != 1 || len(pg.InSync) != 1 || pg.Epoch != 1 {
			t.Errorf("pg: %v", pg)
		}
		primaries[pg.InSync[0]]++
	}
	if p := m.Pools[1]; p.Name != "replica:1" || p.Replicas != 1 || p.Redundancy.GetCopies() != 1 || len(p.Pgs) != 4 || len(primaries) != 2 {
		t.Errorf("pool of one copy: %v, primaries %v", p, primaries)
	}
	for what, c := range map[string]struct {
		class *canopyv1.Redundancy
		kind  fserr.Kind
		says  string
	}{
		"too few servers": {stripe.Copies(3), fserr.NoSpace, "replica:3 needs 3 data servers that are alive, not drained and not full: there are 2"},
		"erasure coding":  {&canopyv1.Redundancy{Data: 4, Parity: 2}, fserr.NotSupported, "ec:4+2"},
		"no copies":       {&canopyv1.Redundancy{}, fserr.Invalid, "0 copies"},
		"nothing":         {nil, fserr.Invalid, "either"},
	} {
		got := ensure(t, a, c.class)
		if fserr.Kind(got.Error) != c.kind || got.Pool != 0 || !strings.Contains(got.Detail, c.says) || strings.Contains(got.Detail, "\n") {
			t.Errorf("%s: %v", what, got)
		}
	}
	// A third server: now there is place, and the ids go on.
	register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a)
	if three := ensure(t, a, stripe.Copies(3)); three.Error != 0 || three.Pool != 3 {
		t.Fatalf("three copies on three servers: %v", three)
	}
	a.stop()
	again := f.start(nil)
	await.Until(t, patience, "the next leader knows the pool", func() bool { return ensure(t, again, stripe.Copies(3)).Pool == 3 })
}
