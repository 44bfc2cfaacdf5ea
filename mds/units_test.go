package mds

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
)

func TestErrorOfAgreesWithDecoding(t *testing.T) {
	for _, kind := range []fserr.Kind{fserr.OK, fserr.NotFound, fserr.Internal, fserr.Busy, fserr.Malformed, 127, 128, 300, 1 << 20} {
		for _, r := range []*canopyv1.Result{{}, {Detail: "x", Attr: &canopyv1.Attr{Ino: 8}}, {Data: []byte("data")}} {
			r.Error = uint32(kind)
			if got := errorOf(encodeResult(r)); got != kind {
				t.Errorf("kind %d: read as %d", kind, got)
			}
		}
	}
	for _, b := range [][]byte{nil, {8}, {8, 0x80}, {8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
		errorOf(b)
	}
}

// TestOutcomesAreCoalesced: what waits goes out together, in bounded messages.
func TestOutcomesAreCoalesced(t *testing.T) {
	var sizes []int
	var ids []uint64
	q := newOutcomeQueue(10, func(r *canopyv1.OperateResponse) error {
		sizes = append(sizes, len(r.Outcomes))
		for _, o := range r.Outcomes {
			ids = append(ids, o.Id)
		}
		return nil
	})
	for i := range uint64(10) {
		if !q.admit() {
			t.Fatalf("operation %d was not admitted", i)
		}
	}
	if q.admit() {
		t.Error("an eleventh operation was admitted")
	}
	for i := range uint64(10) {
		q.put(1, outcome{i + 1, make([]byte, answerBytes/4)})
	}
	q.finish()
	err := q.send(t.Context(), nil)
	if err != nil || len(sizes) != 3 || len(ids) != 10 || ids[0] != 1 || ids[9] != 10 {
		t.Errorf("messages of %v outcomes, ids %v, %v", sizes, ids, err)
	}
}

// TestRequestsWaitForASlowClient: a client that does not take its answers stops
// being read; the end of the stream frees the reader.
func TestRequestsWaitForASlowClient(t *testing.T) {
	q := newOutcomeQueue(4, nil)
	for i := range uint64(9) {
		q.put(0, outcome{i, nil})
	}
	var wg sync.WaitGroup
	results := make(chan bool, 2)
	wg.Go(func() { results <- q.room() })
	q.take(nil) // the client takes some
	if !<-results {
		t.Error("the reader was not let on")
	}
	q.put(0, outcome{1, make([]byte, queueBytes+1)})
	wg.Go(func() { results <- q.room() })
	q.close()
	if <-results {
		t.Error("the reader goes on after the end")
	}
	wg.Wait()
	q.put(0, outcome{1, nil})
	if out, _ := q.take(nil); len(out) != 0 {
		t.Error("a closed queue keeps answers")
	}
}

func TestSendEnds(t *testing.T) {
	q := newOutcomeQueue(4, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := q.send(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	sent := 0
	q = newOutcomeQueue(4, func(*canopyv1.OperateResponse) error { sent++; return nil })
	q.add(0, []outcome{{1, nil}})
	stop := make(chan struct{})
	close(stop)
	err := q.send(t.Context(), stop)
	if fserr.KindOf(err) != fserr.NotReady || sent != 1 {
		t.Errorf("a stopping node: %v, sent %d", err, sent)
	}
}

// TestReports: PROTOCOLS H1, H2.
func TestReports(t *testing.T) {
	var o openTable
	places := func(inos ...uint64) (out []*canopyv1.Place) {
		for _, i := range inos {
			out = append(out, &canopyv1.Place{Ino: i})
		}
		return out
	}
	if o.apply(&canopyv1.ReportOpensRequest{Opened: places(1), Number: 1}) {
		t.Error("a change without a full report before it was taken")
	}
	if !o.apply(&canopyv1.ReportOpensRequest{Full: true, Opened: places(1, 2), Number: 2}) || !o.holds(1) || !o.reported {
		t.Error("a full report")
	}
	o.apply(&canopyv1.ReportOpensRequest{Opened: places(3), Closed: places(1), Number: 4})
	o.apply(&canopyv1.ReportOpensRequest{Opened: places(1), Closed: places(3), Number: 3}) // late
	if o.holds(1) || !o.holds(2) || !o.holds(3) {
		t.Errorf("open: %v", o.inos)
	}
	o.apply(&canopyv1.ReportOpensRequest{Full: true, Number: 5})
	if len(o.inos) != 0 || !o.reported {
		t.Errorf("after an empty full report: %v", o.inos)
	}
	o.apply(&canopyv1.ReportOpensRequest{Full: true, Opened: places(7), Number: 6, More: true})
	if o.reported {
		t.Error("the first part of a full report counts as all of it")
	}
	o.apply(&canopyv1.ReportOpensRequest{Opened: places(8), Number: 7})
	if !o.reported || !o.holds(7) || !o.holds(8) {
		t.Errorf("after the last part: %+v", o)
	}
	o.overflow = true
	if !o.holds(99) {
		t.Error("a table that overflowed must hold everything")
	}
}

// TestShardClockIsALowerBound: an idle shard's time goes on, and never runs ahead.
func TestShardClockIsALowerBound(t *testing.T) {
	var c shardClock
	begin := time.Now()
	if got := c.now(1000, begin); got != 1000 {
		t.Errorf("first look: %d", got)
	}
	if got := c.now(1000, begin.Add(50)); got != 1050 {
		t.Errorf("idle for 50 ns: %d", got)
	}
	if got := c.now(2000, begin.Add(60)); got != 2000 {
		t.Errorf("a new entry: %d", got)
	}
}

// TestShardClockSeesJumps: a wall clock that is set forward does not make what is
// new look old (PROTOCOLS A3, H2).
func TestShardClockSeesJumps(t *testing.T) {
	const grace = 10 * time.Second
	var c shardClock
	at, entry := time.Now(), int64(1e18)
	step := func(passed, entryPassed time.Duration) bool {
		at, entry = at.Add(passed), entry+int64(entryPassed)
		c.now(entry, at)
		return c.settled(at, grace)
	}
	for range 10 {
		if !step(time.Second, time.Second) {
			t.Fatal("an even clock counts as a jump")
		}
	}
	if !step(time.Minute, 0) || !step(0, time.Minute) {
		t.Fatal("an entry after a minute of silence counts as a jump")
	}
	if step(time.Second, 5*time.Hour) {
		t.Fatal("a jump by hours goes unseen")
	}
	if step(9*time.Second, 9*time.Second) {
		t.Fatal("settled before the grace period has passed since the jump")
	}
	if !step(time.Second, time.Second) || !step(time.Hour, time.Hour) {
		t.Fatal("not settled after the grace period")
	}
	if !step(time.Second, -5*time.Hour) {
		t.Fatal("a clock that is set back counts as a jump ahead")
	}
}

func TestDataDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	d, err := openDataDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openDataDir(path); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a second process: %v", err)
	}
	d.node = nodeRecord{Cluster: "c", Node: 3, Incarnation: 2}
	if err := d.checkStore(1); err != nil {
		t.Fatal(err)
	}
	d.close()
	if d, err = openDataDir(path); err != nil || d.node.Node != 3 || d.node.Store != 1 {
		t.Fatalf("reopened: %+v, %v", d, err)
	}
	// PROTOCOLS A6: a store that was restored from a copy stays refused.
	if err := d.checkStore(1); err == nil || !strings.Contains(err.Error(), "--rebuild") {
		t.Errorf("an old store: %v", err)
	}
	d.close()
	if d, err = openDataDir(path); err != nil || d.damaged() == nil {
		t.Errorf("after it: %v, %v", err, d.damaged())
	}
	if err := d.discard(); err != nil || d.damaged() != nil {
		t.Errorf("discarded: %v, %v", err, d.damaged())
	}
	d.node.Format = dirFormat
	d.close()
	for name, contents := range map[string]string{
		"newer format": `{"format": 99, "node": 1}`,
		"no node":      `{"format": 1}`,
		"no JSON":      `garbage`,
	} {
		if err := os.WriteFile(filepath.Join(path, nodeFile), []byte(contents), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openDataDir(path); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Remove(filepath.Join(path, nodeFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(path, storeDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	if _, err := openDataDir(path); err == nil {
		t.Error("a state without its record was accepted")
	}
}

func TestSettings(t *testing.T) {
	good := Config{
		DataDir: "d", Listen: "127.0.0.1:0", RaftListen: "127.0.0.1:7", Etcd: []string{"e"},
		Bootstrap: placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 1},
	}
	if _, err := good.withDefaults(); err != nil {
		t.Fatal(err)
	}
	for name, breakIt := range map[string]func(*Config){
		"no directory":       func(c *Config) { c.DataDir = "" },
		"no etcd":            func(c *Config) { c.Etcd = nil },
		"no raft address":    func(c *Config) { c.RaftListen = "" },
		"raft port 0":        func(c *Config) { c.RaftListen = "127.0.0.1:0" },
		"raft on all":        func(c *Config) { c.RaftListen = "0.0.0.0:7" },
		"listen on all":      func(c *Config) { c.Listen = ":7000" },
		"advertise port 0":   func(c *Config) { c.Advertise = "host:0" },
		"negative":           func(c *Config) { c.OrphanGrace = -1 },
		"heartbeat too long": func(c *Config) { c.Heartbeat = time.Minute },
		"two replicas":       func(c *Config) { c.Bootstrap.Replicas = 2 },
	} {
		c := good
		breakIt(&c)
		if _, err := c.withDefaults(); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// TestSilenceIsCountedFromTheTerm: PROTOCOLS C3. A new holder waits a full
// time-out before it ends a session, whatever happened before.
func TestSilenceIsCountedFromTheTerm(t *testing.T) {
	metrics, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	tn := newTenure(&hosted{server: &Server{metrics: metrics}}, 1)
	tn.mu.Lock()
	tn.clientLocked(7).known = true
	tn.mu.Unlock()
	if got := tn.overdue(time.Second); len(got) != 0 {
		t.Errorf("ended at once: %v", got)
	}
	tn.since = tn.since.Add(-2 * time.Second) // two seconds later
	if got := tn.overdue(time.Second); !got[7] {
		t.Error("a silent client is never overdue")
	}
	tn.touch(tn.client(7))
	if got := tn.overdue(time.Second); len(got) != 0 {
		t.Errorf("overdue right after a request: %v", got)
	}
}
