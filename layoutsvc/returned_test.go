package layoutsvc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/fserr"
)

// pair registers two servers, in sync in every group, and lets their leases run
// out, both at once: on a busy machine that may take some attempts.
func pair(t *testing.T) (a *running, first, second *canopyv1.RegisterServerResponse) {
	t.Helper()
	for range 20 {
		a = newFixture(t).start(nil)
		first = register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a)
		second = register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a)
		apart := false // one's lease ran out while the other's lasted
		await.Until(t, patience, "the leases run out", func() bool {
			m := firstMap(t, a)
			for _, pg := range m.Pools[0].Pgs {
				apart = apart || len(pg.InSync) != 2
			}
			return !slices.ContainsFunc(m.Servers, (*canopyv1.DataServerInfo).GetAlive)
		})
		if !apart {
			return a, first, second
		}
	}
	t.Fatal("they never died at once")
	return nil, nil, nil
}

func comeBack(of *canopyv1.RegisterServerResponse, lost bool) *canopyv1.RegisterServerRequest {
	return &canopyv1.RegisterServerRequest{Cluster: of.Cluster, Server: of.Server, Incarnation: 2, LostUnsynced: lost, Address: "127.0.0.1:1"}
}

func requireGroups(t *testing.T, a *running, source uint64, lossEpoch uint64) {
	t.Helper()
	for _, pg := range firstMap(t, a).Pools[0].Pgs {
		if fmt.Sprint(pg.InSync) != fmt.Sprint([]uint64{source}) || pg.LossEpoch != lossEpoch || pg.LossEpoch > pg.Epoch {
			t.Errorf("pg %v, want %d in sync, loss epoch %d", pg, source, lossEpoch)
		}
	}
}

// TestLossIsRecorded: a server that lost what it had not synced waits a little
// for one that may have it. When nobody comes it is the source, under an epoch
// that says what is lost; whoever comes later is compared with it.
func TestLossIsRecorded(t *testing.T) {
	t.Parallel()
	a, first, second := pair(t)
	started := time.Now()
	if answer := register(t, comeBack(first, true), a); answer.Error != 0 {
		t.Fatal(answer)
	}
	if waited := time.Since(started); waited < lossPatience*time.Second {
		t.Errorf("it waited %v for the other", waited)
	}
	requireGroups(t, a, first.Server, 2)
	if answer := register(t, comeBack(second, false), a); answer.Error != 0 {
		t.Fatal(answer)
	}
	requireGroups(t, a, first.Server, 2)
}

// TestKeptIsPreferred: the other comes while the one that lost bytes waits.
func TestKeptIsPreferred(t *testing.T) {
	t.Parallel()
	a, first, second := pair(t)
	answer, err := a.client.RegisterServer(background(t), comeBack(first, true))
	if err != nil || fserr.Kind(answer.Error) != fserr.NotReady {
		t.Fatalf("it does not wait: %v, %v", answer, err)
	}
	if answer := register(t, comeBack(second, false), a); answer.Error != 0 {
		t.Fatal(answer)
	}
	if answer := register(t, comeBack(first, true), a); answer.Error != 0 {
		t.Fatal(answer)
	}
	requireGroups(t, a, second.Server, 0)
}

// TestKillIsNoLoss: nothing is recorded where nothing was lost.
func TestKillIsNoLoss(t *testing.T) {
	t.Parallel()
	a, first, second := pair(t)
	for _, s := range []*canopyv1.RegisterServerResponse{first, second} {
		if answer := register(t, comeBack(s, false), a); answer.Error != 0 {
			t.Fatal(answer)
		}
	}
	requireGroups(t, a, first.Server, 0)
}

// TestAllLost: all come back without it, at once.
func TestAllLost(t *testing.T) {
	t.Parallel()
	a, first, second := pair(t)
	for _, s := range []*canopyv1.RegisterServerResponse{first, second} {
		if answer, err := a.client.RegisterServer(background(t), comeBack(s, true)); err != nil {
			t.Fatal(answer, err)
		}
	}
	if answer := register(t, comeBack(first, true), a); answer.Error != 0 {
		t.Fatal(answer)
	}
	for _, pg := range firstMap(t, a).Pools[0].Pgs {
		if pg.LossEpoch == 0 || pg.LossEpoch > pg.Epoch || len(pg.InSync) != 1 {
			t.Errorf("pg %v", pg)
		}
	}
}

// TestLeavingIsNoExpiry: a server that gives its lease up is out at once, and is
// not counted, nor warned of, as one whose lease ran out.
func TestLeavingIsNoExpiry(t *testing.T) {
	registry := prometheus.NewRegistry()
	a := newFixture(t).start(func(c *Config) { c.Registerer = registry })
	first := register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a)
	second := register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a)
	answer, err := a.client.HeartbeatServer(background(t), &canopyv1.HeartbeatServerRequest{Server: first.Server, Incarnation: 1, Leaving: true})
	if err != nil || answer.Error != 0 {
		t.Fatalf("leaving: %v, %v", answer, err)
	}
	requireGroups(t, a, second.Server, 0)
	for _, s := range firstMap(t, a).Servers {
		if s.Alive != (s.Server == second.Server) {
			t.Errorf("server %v", s)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "canopy_layout_leases_expired_total" && f.Metric[0].Counter.GetValue() != 0 {
			t.Errorf("%v leases ran out", f.Metric[0].Counter.GetValue())
		}
	}
}
