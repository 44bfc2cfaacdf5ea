package dataserver

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
)

// powerFS is the real file system, and knows what of the columns was synced.
type powerFS struct {
	chunkstore.OS
	mu      sync.Mutex
	off     bool
	durable map[string][]byte
	touched map[string]bool
}

var errPowerOff = errors.New("the power is off")

func newPowerFS() *powerFS {
	return &powerFS{durable: map[string][]byte{}, touched: map[string]bool{}}
}

func (p *powerFS) OpenFile(name string, flag int) (chunkstore.File, error) {
	f, err := p.OS.OpenFile(name, flag)
	if err != nil || !strings.Contains(name, "/pgs/") {
		return f, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.touched[name] = true
	return &powerFile{f, p, name}, nil
}

func (p *powerFS) keepLocked(name string) error {
	if p.off {
		return errPowerOff
	}
	b, err := os.ReadFile(name)
	if err == nil {
		p.durable[name] = b
	}
	return nil
}

func (p *powerFS) SyncAll(string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.off {
		return errPowerOff
	}
	for name := range p.touched {
		if err := p.keepLocked(name); err != nil {
			return err
		}
	}
	return nil
}

type powerFile struct {
	chunkstore.File
	fs   *powerFS
	name string
}

func (f *powerFile) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return f.fs.keepLocked(f.name)
}

// revert drops what was not synced.
func (p *powerFS) revert(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = false
	for name := range p.touched {
		b, ok := p.durable[name]
		err := os.Remove(name)
		if ok {
			err = os.WriteFile(name, b, 0o600)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

// kill ends the server without that it syncs anything, gives its lease up or
// marks its directory clean. With crash the machine loses power: what was not
// synced is gone, and the next start is under another boot.
func (s *testServer) kill(crash bool) {
	s.c.t.Helper()
	s.fs.mu.Lock()
	s.fs.off = true
	s.fs.mu.Unlock()
	s.server.lease.end()
	s.process.cancel()
	select {
	case err := <-s.process.done:
		if !errors.Is(err, errPowerOff) {
			s.c.t.Errorf("a killed server synced its directory: %v", err)
		}
	case <-time.After(20 * time.Second):
		s.c.t.Fatal("it hangs")
	}
	s.process = nil
	if crash {
		s.fs.revert(s.c.t)
		s.boot += "'"
	}
	s.fs.mu.Lock()
	s.fs.off = false
	s.fs.mu.Unlock()
}

// startAll starts servers at the same time, as after a power failure.
func (c *testCluster) startAll() {
	var wg sync.WaitGroup
	for _, s := range c.servers {
		if s.process == nil {
			wg.Go(s.start)
		}
	}
	wg.Wait()
}

func writeAcked(t testing.TB, d *data.Data, f data.File, p []byte) data.Acks {
	t.Helper()
	w, err := d.WriteAt(testContext(t), f, p, 0)
	if err != nil {
		t.Fatal(err)
	}
	return w.Acks
}

// TestPowerLossOfAll: bytes that were acknowledged and not synced are gone with
// the power of all members. The sync that comes then says so; what was synced is
// there, and writing again makes it good.
func TestPowerLossOfAll(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, power: true})
	d := c.client(1)
	synced, unsynced := testFile(100), testFile(101)
	want := randomBytes(1, 3<<20)
	old := writeAcked(t, d, synced, want)
	if err := d.Sync(testContext(t), synced, old); err != nil {
		t.Fatal(err)
	}
	acks := writeAcked(t, d, unsynced, want)
	for _, s := range c.servers {
		s.kill(true)
	}
	c.startAll()
	if err := d.Sync(testContext(t), unsynced, acks); !errors.Is(err, data.ErrLost) {
		t.Fatalf("sync after the loss: %v", err)
	}
	if safe := d.Safe(acks); len(safe) != 0 {
		t.Errorf("acknowledgements %v are taken for safe", safe)
	}
	requireBytes(t, mustRead(t, d, synced, len(want), 0), want, "what was synced")
	again := writeAcked(t, d, unsynced, want)
	if err := d.Sync(testContext(t), unsynced, again); err != nil {
		t.Fatalf("sync of what was written again: %v", err)
	}
	c.waitMap(d, "all in sync", allInSync)
	for _, s := range c.servers {
		s.kill(true)
	}
	c.startAll()
	requireBytes(t, mustRead(t, d, unsynced, len(want), 0), want, "after the second loss")
	c.waitMap(d, "all in sync", allInSync)
	c.requireEqualReplicas(d, 2, synced.ID, unsynced.ID)
}

// TestKillOfAllLosesNothing: the ends of processes are no reason to report a
// loss.
func TestKillOfAllLosesNothing(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, power: true})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 3<<20)
	acks := writeAcked(t, d, f, want)
	for _, s := range c.servers {
		s.kill(false)
	}
	c.startAll()
	if err := d.Sync(testContext(t), f, acks); err != nil {
		t.Fatalf("sync: %v", err)
	}
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after the restart")
}

// TestPowerLossOneByOne: as long as a member kept the bytes, it is the source,
// whoever loses them before and after it was copied from. Nothing is reported.
func TestPowerLossOneByOne(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, power: true})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 3<<20)
	acks := writeAcked(t, d, f, want)
	for _, s := range c.servers {
		s.kill(true)
		c.waitMap(d, "the server to be out of sync", outOfSyncEverywhere(s.id))
		s.start()
		c.waitMap(d, "all in sync", allInSync)
	}
	if err := d.Sync(testContext(t), f, acks); err != nil {
		t.Fatalf("sync: %v", err)
	}
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after both lost power")
}

// TestKeptBytesAreTheSource: one member loses power, the other's process alone
// ends. The one that kept the bytes is the source, also when it comes back last.
func TestKeptBytesAreTheSource(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, lease: time.Second, power: true})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 3<<20)
	acks := writeAcked(t, d, f, want)
	crashed, killed := c.servers[0], c.servers[1]
	crashed.kill(true)
	killed.kill(false)
	c.waitMap(d, "leases to run out", func(m *canopyv1.PoolMap) bool {
		for _, s := range m.Servers {
			if s.Alive {
				return false
			}
		}
		return true
	})
	// Its start begins first.
	back := make(chan struct{})
	go func() { defer close(back); crashed.start() }()
	killed.start()
	<-back
	if err := d.Sync(testContext(t), f, acks); err != nil {
		t.Fatalf("sync: %v", err)
	}
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after the restart")
	c.waitMap(d, "all in sync", allInSync)
	c.requireEqualReplicas(d, 2, f.ID)
}
