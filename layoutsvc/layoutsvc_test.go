package layoutsvc

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement/embedded"
)

func testLogger() *slog.Logger {
	level := slog.LevelError
	if os.Getenv("CANOPY_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// fixture is an etcd and instances of the service.
type fixture struct {
	t    testing.TB
	etcd *embedded.Etcd
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	etcd, err := embedded.Start(context.Background(), embedded.Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	return &fixture{t, etcd}
}

// running is one instance.
type running struct {
	t       testing.TB
	address string
	client  canopyv1.LayoutServiceClient
	cancel  context.CancelFunc
	done    chan error
}

func (f *fixture) start(change func(*Config)) *running {
	f.t.Helper()
	ready := make(chan string, 1)
	config := Config{
		Listen: "127.0.0.1:0", Etcd: []string{f.etcd.Address()}, WantServers: 2, PGs: 4, ServerLease: time.Second,
		Logger: testLogger(), Ready: func(address, _ string) { ready <- address },
	}
	if change != nil {
		change(&config)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: f.t, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- Run(ctx, config) }()
	select {
	case r.address = <-ready:
	case err := <-r.done:
		cancel()
		f.t.Fatal(err)
	}
	conn, err := grpc.NewClient(r.address, append(wire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		f.t.Fatal(err)
	}
	r.client = canopyv1.NewLayoutServiceClient(conn)
	f.t.Cleanup(func() { conn.Close(); r.stop() })
	return r
}

func (r *running) stop() {
	r.t.Helper()
	if r.cancel == nil {
		return
	}
	r.cancel()
	r.cancel = nil
	select {
	case err := <-r.done:
		if err != nil {
			r.t.Errorf("stop: %v", err)
		}
	case <-time.After(patience):
		r.t.Error("stop hangs")
	}
}

// patience bounds every wait of these tests.
const patience = 60 * time.Second

func background(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// register registers until the leader takes it, at whichever instance leads.
func register(t testing.TB, request *canopyv1.RegisterServerRequest, instances ...*running) *canopyv1.RegisterServerResponse {
	t.Helper()
	request.Address = "127.0.0.1:1"
	var answer *canopyv1.RegisterServerResponse
	await.Until(t, patience, "a leader takes the registration", func() bool {
		for _, i := range instances {
			var err error
			if answer, err = i.client.RegisterServer(background(t), request); err != nil {
				t.Fatal(err)
			}
			if kind := fserr.Kind(answer.Error); kind != fserr.NotHolder && kind != fserr.NotReady {
				return true
			}
		}
		return false
	})
	return answer
}

func firstMap(t testing.TB, r *running) *canopyv1.PoolMap {
	t.Helper()
	ctx, cancel := context.WithCancel(background(t))
	defer cancel()
	stream, err := r.client.WatchPools(ctx, &canopyv1.WatchPoolsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestPoolIsMadeOnce: with the wanted number of servers, by the leader, seen by
// all instances, and still there after a restart.
func TestPoolIsMadeOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.start(nil), f.start(nil)
	first := register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a, b)
	if first.Error != 0 || first.Server == 0 || first.LeaseMs != 1000 || len(first.Map.Pools) != 0 {
		t.Fatalf("first server: %v", first)
	}
	second := register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a, b)
	if second.Error != 0 || len(second.Map.Pools) != 1 {
		t.Fatalf("second server: %v", second)
	}
	pool := second.Map.Pools[0]
	if len(pool.Pgs) != 4 || pool.Replicas != 2 || pool.Name != "default" || pool.Layout == nil {
		t.Fatalf("pool: %v", pool)
	}
	for _, pg := range pool.Pgs {
		if len(pg.Members) != 2 || len(pg.InSync) != 2 || pg.Epoch != 1 {
			t.Errorf("pg: %v", pg)
		}
	}
	for _, i := range []*running{a, b} {
		await.Until(t, patience, "each instance shows the pool", func() bool { return len(firstMap(t, i).Pools) == 1 })
	}
	a.stop()
	b.stop()
	again := f.start(func(c *Config) { c.PGs, c.WantServers = 7, 1 })
	third := register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, again)
	if third.Error != 0 || len(third.Map.Pools) != 1 || len(third.Map.Pools[0].Pgs) != 4 {
		t.Fatalf("after a restart: %v", third)
	}
}

// TestLeaderChange: the next leader takes over, and waits for leases that the
// one before may have given.
func TestLeaderChange(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.start(nil)
	first := register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a)
	second := register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a)
	b := f.start(nil)
	answer, err := b.client.HeartbeatServer(background(t), &canopyv1.HeartbeatServerRequest{Server: first.Server, Incarnation: 1})
	if err != nil || fserr.Kind(answer.Error) != fserr.NotHolder || answer.LeaderAddress != a.address {
		t.Fatalf("heartbeat at the one that does not lead: %v, %v", answer, err)
	}
	tookOver := time.Now() // not before: it does not lead yet
	a.stop()
	await.Until(t, patience, "the other leads", func() bool {
		asked := time.Now()
		answer, err := b.client.HeartbeatServer(background(t), &canopyv1.HeartbeatServerRequest{Server: first.Server, Incarnation: 1})
		if err != nil {
			t.Fatal(err)
		}
		if answer.Error != 0 {
			tookOver = asked
		}
		return answer.Error == 0
	})
	// The second server is silent: it leaves, but not before a lease that it may
	// have had from the leader before is over.
	await.Until(t, patience, "the silent server is taken out", func() bool {
		answer, err := b.client.HeartbeatServer(background(t), &canopyv1.HeartbeatServerRequest{Server: first.Server, Incarnation: 1})
		if err != nil || answer.Error != 0 {
			t.Fatalf("heartbeat: %v, %v", answer, err)
		}
		m := firstMap(t, b)
		if len(m.Pools[0].Pgs[0].InSync) != 1 {
			return false
		}
		if m.Pools[0].Pgs[0].InSync[0] != first.Server {
			t.Fatalf("server %d was taken out, not %d", first.Server, second.Server)
		}
		return true
	})
	if waited := time.Since(tookOver); waited < 900*time.Millisecond {
		t.Errorf("the new leader waited %v for a lease of 1 s", waited)
	}
	// It comes back with a new incarnation, and out of sync.
	back := register(t, &canopyv1.RegisterServerRequest{Cluster: second.Cluster, Server: second.Server, Incarnation: 2}, b)
	if back.Error != 0 || len(back.Map.Pools[0].Pgs[0].InSync) != 1 {
		t.Fatalf("the server that came back: %v", back)
	}
}

// TestReportReplica is PROTOCOLS J3: only the primary changes the in-sync set,
// under the present epoch; a member that leaves has confirmed or its lease is
// over when the answer comes; the last member stays.
func TestReportReplica(t *testing.T) {
	t.Parallel()
	const lease = 4 * time.Second
	f := newFixture(t)
	a := f.start(func(c *Config) { c.ServerLease = lease })
	registered := time.Now()
	ids := []uint64{
		register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a).Server,
		register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a).Server,
	}
	pg := firstMap(t, a).Pools[0].Pgs[0]
	primary, other := pg.InSync[0], pg.InSync[1]
	report := func(r *canopyv1.ReportReplicaRequest) *canopyv1.ReportReplicaResponse {
		t.Helper()
		r.Pool = 1
		answer, err := a.client.ReportReplica(background(t), r)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	for what, r := range map[string]*canopyv1.ReportReplicaRequest{
		"not the primary": {Epoch: 1, Reporter: other, Server: primary},
		"another epoch":   {Epoch: 2, Reporter: primary, Server: other},
		"no such pg":      {Pg: 77, Epoch: 1, Reporter: primary, Server: other},
		"in sync already": {Epoch: 1, Reporter: primary, Server: other, InSync: true},
	} {
		if answer := report(r); answer.Error == 0 {
			t.Errorf("%s: accepted: %v", what, answer)
		}
	}
	answer := report(&canopyv1.ReportReplicaRequest{Epoch: 1, Reporter: primary, Server: other})
	if answer.Error != 0 || answer.Pg.Epoch != 2 || len(answer.Pg.InSync) != 1 {
		t.Fatalf("out of sync: %v", answer)
	}
	if waited := time.Since(registered); waited < lease {
		t.Errorf("the answer came after %v: the member neither confirmed nor is its lease over", waited)
	}
	if answer := report(&canopyv1.ReportReplicaRequest{Epoch: 2, Reporter: primary, Server: primary}); answer.Error == 0 {
		t.Fatalf("the last member left: %v", answer)
	}
	// The other confirms by a heartbeat; then the next report need not wait.
	beat := func(id, revision uint64) {
		t.Helper()
		answer, err := a.client.HeartbeatServer(background(t), &canopyv1.HeartbeatServerRequest{Server: id, Incarnation: 1, MapRevision: revision})
		if err != nil || answer.Error != 0 {
			t.Fatalf("heartbeat: %v, %v", answer, err)
		}
	}
	beat(ids[0], 0)
	beat(ids[1], 0)
	back := report(&canopyv1.ReportReplicaRequest{Epoch: 2, Reporter: primary, Server: other, InSync: true})
	if back.Error != 0 || back.Pg.Epoch != 3 || fmt.Sprint(back.Pg.InSync) != fmt.Sprint(back.Pg.Members) {
		t.Fatalf("in sync: %v", back)
	}
	beat(other, 1<<60)
	started := time.Now()
	if answer := report(&canopyv1.ReportReplicaRequest{Epoch: 3, Reporter: primary, Server: other}); answer.Error != 0 {
		t.Fatalf("out of sync: %v", answer)
	}
	if waited := time.Since(started); waited > lease*9/10 {
		t.Errorf("the answer came after %v though the member had confirmed", waited)
	}
}

// TestRefusals: what may not register, and settings that make no sense.
func TestRefusals(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.start(nil)
	first := register(t, &canopyv1.RegisterServerRequest{Incarnation: 5}, a)
	for what, c := range map[string]struct {
		request *canopyv1.RegisterServerRequest
		want    fserr.Kind
	}{
		"another cluster": {&canopyv1.RegisterServerRequest{Cluster: "other", Server: 1, Incarnation: 1}, fserr.WrongCluster},
		"an old copy":     {&canopyv1.RegisterServerRequest{Cluster: first.Cluster, Server: first.Server, Incarnation: 4}, fserr.Fenced},
		"no incarnation":  {&canopyv1.RegisterServerRequest{}, fserr.Malformed},
		"an id alone":     {&canopyv1.RegisterServerRequest{Server: 9, Incarnation: 1}, fserr.Malformed},
	} {
		if answer := register(t, c.request, a); fserr.Kind(answer.Error) != c.want {
			t.Errorf("%s: %v", what, answer)
		}
	}
	for what, change := range map[string]func(*Config){
		"no etcd":            func(c *Config) { c.Etcd = nil },
		"too many replicas":  func(c *Config) { c.Replicas = 3 },
		"a lease too short":  func(c *Config) { c.ServerLease = time.Millisecond },
		"negative groups":    func(c *Config) { c.PGs = -1 },
		"the port is in use": func(c *Config) { c.Listen = a.address },
	} {
		config := Config{Listen: "127.0.0.1:0", Etcd: []string{f.etcd.Address()}, WantServers: 2}
		change(&config)
		err := Run(background(t), config)
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestStripeMap tells the servers of a range.
func TestStripeMap(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.start(nil)
	register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a)
	register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, a)
	answer, err := a.client.StripeMap(background(t), &canopyv1.StripeMapRequest{DataId: 7, Offset: 100, Length: 3 << 20})
	if err != nil || answer.Error != 0 || len(answer.Ranges) != 4 {
		t.Fatalf("%v, %v", answer, err)
	}
	at := uint64(100)
	for _, r := range answer.Ranges {
		if r.Offset != at || len(r.Servers) != 2 || r.PgEpoch != 1 {
			t.Errorf("range %v, want one at %d", r, at)
		}
		at += r.Length
	}
	if at != 100+3<<20 {
		t.Errorf("ranges end at %d", at)
	}
	if answer, err := a.client.StripeMap(background(t), &canopyv1.StripeMapRequest{DataId: 7, Layout: &canopyv1.Layout{Pool: 9}}); err != nil || fserr.Kind(answer.Error) != fserr.NotFound {
		t.Errorf("unknown pool: %v, %v", answer, err)
	}
}
