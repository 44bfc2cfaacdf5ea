package mds_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/mds"
	"github.com/canopyfs/canopy/placement"
)

// heat asks a shard's holder what keeps it busy.
func (c *cluster) heat(shard base.ShardID) *canopyv1.ShardHeat {
	c.t.Helper()
	var got *canopyv1.ShardHeat
	eventually(c.t, "the holder tells its heat", func() bool {
		for _, n := range c.nodes {
			if n == nil {
				continue
			}
			r, err := canopyv1.NewAdminClient(c.conn(n.Addr())).Heat(c.t.Context(), &canopyv1.HeatRequest{Shard: uint64(shard), HalfLifeSeconds: 600, Limit: 50})
			if err == nil && len(r.Shards) == 1 {
				got = r.Shards[0]
			}
		}
		return got != nil
	})
	return got
}

func dirHeat(h *canopyv1.ShardHeat, ino, subtree uint64) *canopyv1.DirHeat {
	for _, d := range h.Dirs {
		if d.Ino == ino && d.Subtree == subtree {
			return d
		}
	}
	return nil
}

// count turns a rate into operations: as many as a steady rate gives since the
// beginning, but for what has faded.
func count(h *canopyv1.ShardHeat, rate float64) float64 { return rate * max(h.SinceSeconds, 1) }

// about allows for what has faded, with a half-life of ten minutes, and for sampling.
func about(got float64, want, off int) bool {
	return got > float64(want)*0.8-float64(off) && got < float64(want)*1.2+float64(off)
}

// TestHeat: what clients do shows up under the right directory, operation and client,
// with time, waiting, names, and where the names would go in a split.
func TestHeat(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	c := newCluster(t, single, func(config *mds.Config) { config.Registerer = registry })
	a, b := c.caller(0xa).open(1), c.caller(0xb).open(1)
	hot := a.must(1, a.write(mkdir(1, "hot"))).Attr.Ino
	cool := a.must(1, a.write(mkdir(1, "cool"))).Attr.Ino
	n := c.nodes[0]
	var creates, reads []*canopyv1.Op
	for i := range 400 {
		creates = append(creates, a.write(create(hot, fmt.Sprint("n", i))))
	}
	for _, answered := range a.send(n, 1, creates...) {
		expect(t, "create", answer(t, answered), fserr.OK)
	}
	for i := range 400 { // in one message: these are sampled
		reads = append(reads, lookup(hot, fmt.Sprint("n", i)))
	}
	for _, answered := range b.send(n, 1, reads...) {
		expect(t, "lookup", answer(t, answered), fserr.OK)
	}
	for i := range 20 {
		b.must(1, lookup(1, "cool"))
		a.must(1, a.write(create(cool, fmt.Sprint("c", i))))
	}
	a.must(1, a.write(&canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_Rename{Rename: &canopyv1.RenameCall{
		SrcDir: hot, SrcName: []byte("n7"), DstDir: cool, DstName: []byte("moved")}}}))
	expect(t, "a name that exists", fserr.Kind(a.do(1, a.write(create(cool, "c1"))).Error), fserr.Exist)

	h := c.heat(1)
	if h.Off || h.LostOps != 0 || h.SinceSeconds <= 0 || len(h.Dirs) != 3 || h.Dirs[0].Ino != hot || len(h.Clients) != 2 {
		t.Fatalf("%+v", h)
	}
	d := dirHeat(h, hot, 1)
	if r := d.Rates; !about(count(h, r.CreateOpsPerSecond), 400, 0) || !about(count(h, r.LookupOpsPerSecond), 400, 0) || !about(count(h, r.RenameOpsPerSecond), 1, 0) || r.OverOpsPerSecond != 0 {
		t.Errorf("the hot directory, in %v s: %+v", h.SinceSeconds, r)
	}
	if r := d.Rates; r.ServeSecondsPerSecond <= 0 || r.QueueSecondsPerSecond <= 0 || r.LatencySecondsPerSecond <= r.ServeSecondsPerSecond+r.QueueSecondsPerSecond || r.ConflictSecondsPerSecond != 0 {
		t.Errorf("its times: %+v", r)
	}
	if !d.Found || d.Entries != 399 || string(d.Name) != "hot" || d.Parent != 1 || len(d.Names) == 0 {
		t.Errorf("the hot directory: %+v", d)
	}
	created := 0.0
	for _, x := range d.CreateOpsPerSecondByHash {
		created += x
		if count(h, x) > 60 {
			t.Errorf("names that differ by a number fall into one range: %v", d.CreateOpsPerSecondByHash)
		}
	}
	if !about(count(h, created), 400, 40) || len(d.CreateOpsPerSecondByHash) != 16 {
		t.Errorf("by hash: %v", d.CreateOpsPerSecondByHash)
	}
	who := map[uint64]*canopyv1.HeatRates{}
	for _, p := range d.Clients {
		who[p.Client] = p.Rates
	}
	if len(who) != 2 || !about(count(h, who[0xa].CreateOpsPerSecond), 400, 0) || who[0xa].LookupOpsPerSecond != 0 || who[0xb].CreateOpsPerSecond != 0 {
		t.Errorf("who uses it: %v", who)
	}
	if r := dirHeat(h, cool, 1).Rates; !about(count(h, r.CreateOpsPerSecond), 21, 0) || !about(count(h, r.RenameOpsPerSecond), 1, 0) {
		t.Errorf("where something was renamed to: %+v", r)
	}
	if r := h.Total; !about(count(h, r.CreateOpsPerSecond), 423, 0) || !about(count(h, r.LookupOpsPerSecond), 420, 0) || !about(count(h, r.RenameOpsPerSecond), 1, 0) || !about(count(h, r.OtherOpsPerSecond), 2, 0) {
		t.Errorf("in all: %+v", r)
	}
	for _, x := range h.Clients {
		if x.Host != "test" || x.Mount != "/mnt" || len(x.Dirs) == 0 || x.Dirs[0].Dir != hot {
			t.Errorf("client %x: %+v", x.Client, x)
		}
	}
	ops := map[string]float64{}
	for _, o := range h.Ops {
		ops[o.Op] = count(h, o.OpsPerSecond)
	}
	if !about(ops["mkdir"], 2, 0) || !about(ops["create"], 421, 0) || !about(ops["open_session"], 2, 0) {
		t.Errorf("by operation: %v", ops)
	}
	// 801 of 846 operations are in the hot directory.
	if got := gauge(t, registry, "canopy_mds_heat_top_directory_share"); got < 0.9 || got > 0.98 {
		t.Errorf("its share by the metrics: %v", got)
	}
	if gauge(t, registry, "canopy_mds_heat_ops_per_second") <= 0 || gauge(t, registry, "canopy_mds_heat_lost_operations") != 0 {
		t.Error("the metrics tell of no operations, or of lost ones")
	}
}

// gauge returns the value of a metric with one label.
func gauge(t *testing.T, from prometheus.Gatherer, name string) float64 {
	t.Helper()
	all, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.GetName() == name && len(m.Metric) == 1 {
			return m.Metric[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no one %s", name)
	return 0
}

// TestHeatOfWaits: who waits for another's lock is counted as in conflict, in the
// directory of the file.
func TestHeatOfWaits(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, nil)
	ls := c.lockers(1, 2)
	a, b := ls[0], ls[1]
	expect(t, "a's lock", a.set(1, 10, 0, false), fserr.OK)
	waits := b.wait(c.nodes[0], 1, 10, 100)
	expect(t, "a's unlock", a.set(1, 10, 0, true), fserr.OK)
	expect(t, "b's wait", answer(t, waits), fserr.OK)
	h := c.heat(1)
	d := dirHeat(h, 1, 1)
	if d == nil || d.Rates.ConflictSecondsPerSecond <= 0 {
		t.Fatalf("%+v", d)
	}
	for _, p := range d.Clients {
		if (p.Rates.ConflictSecondsPerSecond > 0) != (p.Client == 2) {
			t.Errorf("client %d: %+v", p.Client, p.Rates)
		}
	}
}

// TestHeatOfAMovedDirectory: counting begins anew at the shard that a directory is moved
// to, and the one that it left says that it has it no more.
func TestHeatOfAMovedDirectory(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 2, Shards: 2, Replicas: 1}, nil)
	k := c.caller(0xa).open(1)
	dir := k.must(1, k.write(mkdir(1, "d"))).Attr.Ino
	for i := range 50 {
		k.must(1, k.write(create(dir, fmt.Sprint("f", i))))
	}
	r := c.startMove(1, 2, 1, dir)
	if r.Error != 0 {
		t.Fatal(fserr.Kind(r.Error), r.Detail)
	}
	c.moved(1, r.Move)
	into := r.Move.Into
	expect(t, "at the old owner", fserr.Kind(k.do(1, lookup(dir, "f1")).Error), fserr.Moved)
	for i := range 10 {
		k.must(2, in(into, lookup(dir, fmt.Sprint("f", i))))
	}
	here, there := c.heat(1), c.heat(2)
	if d := dirHeat(here, dir, 1); d == nil || d.Found || !about(count(here, d.Rates.CreateOpsPerSecond), 50, 0) || d.Rates.LookupOpsPerSecond != 0 {
		t.Errorf("where it was: %+v", d)
	}
	if d := dirHeat(there, dir, into); d == nil || !d.Found || d.Entries != 50 || !about(count(there, d.Rates.LookupOpsPerSecond), 10, 0) || d.Rates.CreateOpsPerSecond != 0 {
		t.Errorf("where it is: %+v", d)
	}
}

// TestHeatOff: a node that is not to count says so, and has counted nothing.
func TestHeatOff(t *testing.T) {
	t.Parallel()
	c := newCluster(t, single, func(config *mds.Config) { config.NoHeat = true })
	k := c.caller(0xa).open(1)
	k.must(1, k.write(create(1, "f")))
	k.must(1, lookup(1, "f"))
	if h := c.heat(1); !h.Off || len(h.Dirs) != 0 || len(h.Ops) != 0 {
		t.Errorf("%+v", h)
	}
}
