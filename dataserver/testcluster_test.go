package dataserver

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/capability"
	"github.com/canopyfs/canopy/layoutsvc"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/placement/embedded"
)

// testCluster is an etcd, one layout service and some data servers in this
// process.
type testCluster struct {
	t       testing.TB
	dir     string
	etcd    *embedded.Etcd
	layout  *process
	layAddr string
	config  layoutsvc.Config
	servers []*testServer
	logger  *slog.Logger
	options clusterOptions
	keys    *placement.Store
}

type testServer struct {
	c       *testCluster
	n       int
	id      uint64
	address string
	process *process
	server  *server // set by the test hook
	fs      *powerFS
	full    *fullFS
	boot    string
}

// process is a Run under way.
type process struct {
	cancel context.CancelFunc
	done   chan error
}

func start(run func(ctx context.Context) error) *process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{cancel: cancel, done: make(chan error, 1)}
	go func() { p.done <- run(ctx) }()
	return p
}

func (p *process) stop(t testing.TB) {
	t.Helper()
	p.cancel()
	select {
	case err := <-p.done:
		if err != nil {
			t.Errorf("stop: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("stop: it hangs")
	}
}

func testLogger() *slog.Logger {
	level := slog.LevelError
	if os.Getenv("CANOPY_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

type clusterOptions struct {
	servers, replicas, pgs int
	lease                  time.Duration
	power                  bool // servers can be killed and lose power
	full                   bool // the disks of servers can be full
	rebuildAfter           time.Duration
	recoveryRate           int64
	keyPeriod              time.Duration
}

// newCluster starts everything and waits for the pool.
func newCluster(t testing.TB, o clusterOptions) *testCluster {
	t.Helper()
	if o.lease == 0 {
		o.lease = 600 * time.Millisecond
	}
	if o.pgs == 0 {
		o.pgs = 4
	}
	c := &testCluster{t: t, dir: t.TempDir(), logger: testLogger(), options: o}
	etcd, err := embedded.Start(context.Background(), embedded.Config{Dir: filepath.Join(c.dir, "etcd"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c.etcd = etcd
	t.Cleanup(etcd.Close)
	if c.keys, err = placement.Open(context.Background(), placement.Config{Endpoints: []string{etcd.Address()}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.keys.Close() })
	c.config = layoutsvc.Config{
		Listen: "127.0.0.1:0", Etcd: []string{etcd.Address()}, WantServers: o.servers, Replicas: o.replicas, PGs: o.pgs,
		ServerLease: o.lease, RebuildAfter: o.rebuildAfter, KeyPeriod: o.keyPeriod, Logger: c.logger,
	}
	c.startLayout()
	t.Cleanup(func() { c.layout.stop(t) })
	for i := range o.servers {
		s := &testServer{c: c, n: i, boot: "boot"}
		if o.power {
			s.fs = newPowerFS()
		}
		if o.full {
			s.full = &fullFS{}
		}
		c.servers = append(c.servers, s)
		s.start()
		t.Cleanup(s.stopIfRunning)
	}
	return c
}

func (c *testCluster) startLayout() {
	c.t.Helper()
	ready := make(chan string, 1)
	config := c.config
	if c.layAddr != "" {
		config.Listen = c.layAddr
	}
	config.Ready = func(address, _ string) { ready <- address }
	c.layout = start(func(ctx context.Context) error { return layoutsvc.Run(ctx, config) })
	select {
	case address := <-ready:
		if c.layAddr == "" { // clients read it
			c.layAddr = address
		}
	case err := <-c.layout.done:
		c.t.Fatalf("layout service: %v", err)
	}
}

func (s *testServer) dir() string { return filepath.Join(s.c.dir, fmt.Sprintf("data%d", s.n)) }

func (s *testServer) start() {
	s.c.t.Helper()
	ready := make(chan uint64, 1)
	listen := s.address
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	config := Config{
		DataDir: s.dir(), Listen: listen, LayoutServices: []string{s.c.layAddr},
		Logger: s.c.logger.With("server", s.n),
		Ready: func(id uint64, address, _ string) {
			s.address = address
			ready <- id
		},
		testHook: func(x *server) { s.server = x },
		Boot:     s.boot,

		RecoveryRate: s.c.options.recoveryRate,
	}
	if s.fs != nil {
		config.testFS = s.fs
	}
	if s.full != nil {
		config.testFS = s.full
	}
	s.process = start(func(ctx context.Context) error { return Run(ctx, config) })
	select {
	case s.id = <-ready:
	case err := <-s.process.done:
		s.c.t.Fatalf("data server: %v", err)
	case <-time.After(20 * time.Second):
		s.c.t.Fatal("data server: not ready")
	}
}

func (s *testServer) stop() {
	s.c.t.Helper()
	s.process.stop(s.c.t)
	s.process = nil
}

func (s *testServer) stopIfRunning() {
	if s.process != nil {
		s.stop()
	}
}

func (c *testCluster) client(id base.ClientID) *data.Data {
	c.t.Helper()
	d, err := data.New(data.Config{LayoutServices: func() []string { return []string{c.layAddr} }, Client: id, Access: &serviceAccess{keys: c.keys}, Logger: c.logger, AttemptTimeout: 3 * time.Second})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { d.Close() })
	return d
}

// serviceAccess allows everything, by the keys in etcd.
type serviceAccess struct {
	keys *placement.Store
	last atomic.Pointer[serviceToken]
}

// serviceToken is a capability of one version of the keys.
type serviceToken struct {
	of    *canopyv1.CapabilityRing
	token capability.Token
}

func (a *serviceAccess) Capability(ctx context.Context, _ bool, _ []byte) ([]byte, error) {
	for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		message := a.keys.Capabilities().Value
		if message == nil {
			continue
		}
		last := a.last.Load()
		if last == nil || last.of != message {
			ring, err := capability.NewKeyring(message)
			if err != nil {
				return nil, err
			}
			last = &serviceToken{message, ring.Service(capability.Read | capability.Write | capability.Inspect | capability.Purge)}
			a.last.Store(last)
		}
		return last.token[:], nil
	}
	return nil, ctx.Err()
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func testFile(id base.DataID) data.File {
	return data.File{ID: id, Layout: stripe.Default(1)}
}

func randomBytes(seed uint64, n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	p := make([]byte, n)
	r.Read(p)
	return p
}

func mustWrite(t testing.TB, d *data.Data, f data.File, p []byte, off int64) uint64 {
	t.Helper()
	w, err := d.WriteAt(testContext(t), f, p, off)
	if err != nil {
		t.Fatalf("write [%d, +%d): %v", off, len(p), err)
	}
	return w.AllocatedBytes
}

func mustRead(t testing.TB, d *data.Data, f data.File, n int, off int64) []byte {
	t.Helper()
	p := make([]byte, n)
	if _, err := d.ReadAt(testContext(t), f, p, off); err != nil {
		t.Fatalf("read [%d, +%d): %v", off, n, err)
	}
	return p
}

// waitMap waits for a pool map that satisfies the condition.
func (c *testCluster) waitMap(d *data.Data, what string, ok func(*canopyv1.PoolMap) bool) {
	c.t.Helper()
	var last *canopyv1.PoolMap
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		m, err := d.PoolMap(testContext(c.t))
		if err != nil {
			c.t.Fatal(err)
		}
		if last = m; ok(m) {
			return
		}
	}
	c.t.Fatalf("waited in vain for %s; map: %v", what, last)
}

func allInSync(m *canopyv1.PoolMap) bool {
	for _, p := range m.Pools {
		for _, pg := range p.Pgs {
			if len(pg.InSync) != len(pg.Members) {
				return false
			}
		}
	}
	return len(m.Pools) > 0
}

func outOfSyncEverywhere(server uint64) func(*canopyv1.PoolMap) bool {
	return func(m *canopyv1.PoolMap) bool {
		for _, p := range m.Pools {
			for _, pg := range p.Pgs {
				for _, id := range pg.InSync {
					if id == server && len(pg.Members) > 1 {
						return false
					}
				}
			}
		}
		return len(m.Pools) > 0
	}
}

// requireEqualReplicas compares the digests of all columns of data ids between
// the members that have them.
func (c *testCluster) requireEqualReplicas(d *data.Data, replicas int, ids ...base.DataID) {
	c.t.Helper()
	for _, id := range ids {
		var byServer map[base.NodeID][]*canopyv1.ColumnInfo
		await.Nil(c.t, 20*time.Second, "every server tells of its columns", func() (err error) {
			byServer, err = d.StatColumns(testContext(c.t), id) // a connection to one that was away may not stand yet
			return err
		})
		type found struct {
			digest  uint64
			servers []base.NodeID
		}
		columns := map[string]found{}
		for server, infos := range byServer {
			for _, i := range infos {
				if i.Tombstone {
					continue
				}
				key := keyOf(i.Column).String()
				f := columns[key]
				if len(f.servers) > 0 && f.digest != i.Digest {
					c.t.Errorf("%s differs between servers %v and %d", key, f.servers, server)
				}
				columns[key] = found{i.Digest, append(f.servers, server)}
			}
		}
		for key, f := range columns {
			if len(f.servers) != replicas {
				c.t.Errorf("%s is on servers %v, want %d replicas", key, f.servers, replicas)
			}
		}
	}
}

func requireBytes(t testing.TB, got, want []byte, what string) {
	t.Helper()
	if !bytes.Equal(got, want) {
		at := 0
		for at < len(got) && at < len(want) && got[at] == want[at] {
			at++
		}
		t.Fatalf("%s: %d and %d bytes, differ at %d", what, len(got), len(want), at)
	}
}
