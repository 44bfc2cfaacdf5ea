package raftgroup

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/schema"
)

func acquireEntry(epoch base.LeaseEpoch, seen, instance uint64) *entry {
	return &entry{epoch: epoch, lease: leaseCommand{
		action: canopyv1.LeaseAction_LEASE_ACQUIRE, node: base.NodeID(instance), replica: base.ReplicaID(instance),
		seenRenewal: seen, durationMS: 1500, instance: instance,
	}}
}

func numbered(epoch base.LeaseEpoch, number uint64) *entry {
	return &entry{epoch: epoch, number: number}
}

// A2: apply takes only the next number of the current epoch; what was reordered,
// dropped or repeated changes nothing.
func TestA2OnlyTheNextNumber(t *testing.T) {
	release := numbered(2, 2)
	release.lease.action = canopyv1.LeaseAction_LEASE_RELEASE
	steps := []struct {
		what string
		e    *entry
		ok   bool
	}{
		{"a write before any lease", numbered(0, 1), false},
		{"acquire", acquireEntry(1, 0, 7), true},
		{"entry 2 while 1 was dropped", numbered(1, 2), false},
		{"entry 1", numbered(1, 1), true},
		{"entry 1 again", numbered(1, 1), false},
		{"entry 2, proposed again", numbered(1, 2), true},
		{"an entry of a later epoch", numbered(2, 1), false},
		{"acquire that saw an old renewal", acquireEntry(2, 1, 8), false},
		{"acquire of an epoch too far", acquireEntry(3, 3, 8), false},
		{"acquire that saw the last renewal", acquireEntry(2, 3, 8), true},
		{"the deposed holder's next entry", numbered(1, 3), false},
		{"entry 1 of the new epoch", numbered(2, 1), true},
		{"B5: release", release, true},
		{"B5: an entry behind the release", numbered(2, 3), false},
		{"acquire after release", acquireEntry(3, 6, 9), true},
	}
	var rec schema.Lease
	for _, s := range steps {
		next, ok := admit(rec, s.e)
		if ok != s.ok {
			t.Fatalf("%s: accepted %v, want %v; record %+v", s.what, ok, s.ok, rec)
		}
		if !ok && next != rec {
			t.Fatalf("%s: refused, but the record changed", s.what)
		}
		if ok && next.Renewal != rec.Renewal+1 {
			t.Fatalf("%s: renewal %d after %d (B1)", s.what, next.Renewal, rec.Renewal)
		}
		rec = next
	}
	if !(rec.Epoch == 3 && !rec.Released && rec.Instance == 9) {
		t.Fatalf("%+v", rec)
	}
}

// A3: apply's time is the maximum of the last and the entry's.
func TestA3TimeNeverRunsBackwards(t *testing.T) {
	rec, _ := admit(schema.Lease{}, acquireEntry(1, 0, 1))
	for i, tc := range []struct{ entry, want int64 }{{100, 100}, {90, 100}, {0, 100}, {101, 101}} {
		e := numbered(1, uint64(i+1))
		e.timeNS = tc.entry
		var ok bool
		if rec, ok = admit(rec, e); !ok || rec.TimeNS != tc.want {
			t.Fatalf("entry at %d: time %d (accepted %v), want %d", tc.entry, rec.TimeNS, ok, tc.want)
		}
	}
}

// A3: the holder's clock goes on monotonically from the last entry, follows the
// wall clock where it is near, and raises an alarm where it is not.
func TestA3HoldersClock(t *testing.T) {
	const s = int64(time.Second)
	wall := func(ns int64) time.Time { return time.Unix(0, ns) }
	var c entryClock
	if jump := c.start(1000*s, 0, wall(1001*s)); jump != 0 || c.timeNS != 1001*s {
		t.Fatal(jump, c.timeNS)
	}
	steps := []struct {
		boot       time.Duration
		wall, want int64
		alarm      bool
	}{
		{1 * time.Second, 1002 * s, 1002 * s, false},
		{2 * time.Second, 1003*s + 1000, 1003*s + 1000, false},               // slewed ahead
		{3 * time.Second, 1004 * s, 1004*s + 1000, false},                    // slewed back: monotonic
		{4 * time.Second, 900 * s, 1005*s + 1000, true},                      // jumped back: monotonic, with an alarm
		{5 * time.Second, 901 * s, 1006*s + 1000, false},                     // once
		{6 * time.Second, 2000 * s, 2000 * s, true},                          // jumped ahead
		{5 * time.Second, 2000 * s, 2000 * s, false},                         // even if the boot clock went back
		{5*time.Second + time.Millisecond, 2000 * s, 2000*s + s/1000, false}, // stands still: monotonic
	}
	for i, st := range steps {
		got, jump := c.next(st.boot, wall(st.wall))
		if got != st.want || (jump != 0) != st.alarm {
			t.Fatalf("step %d: %d with jump %v, want %d, alarm %v", i, got, jump, st.want, st.alarm)
		}
	}
	if jump := c.start(3000*s, 0, wall(1*s)); jump == 0 || c.timeNS != 3000*s {
		t.Fatal("a wall clock far behind the log is no alarm")
	}
}

func TestB2HolderCountsFromBeforeTheProposal(t *testing.T) {
	var v leaseView
	rec := schema.Lease{Epoch: 1, Renewal: 1, DurationMS: 1600}
	v.saw(rec, 5*time.Second)
	v.acquired(1, 1600, 4*time.Second)
	if !v.valid(5400 * time.Millisecond) {
		t.Fatal("not valid within the lease")
	}
	if v.valid(5500 * time.Millisecond) {
		t.Fatal("valid 1.5 s after the proposal of a lease of 1.6 s: the margin for drift is 0.1 s")
	}
	v.renewed(1600, 3*time.Second) // an entry proposed earlier, applied later
	if !v.valid(5400 * time.Millisecond) {
		t.Fatal("an older renewal shortened the lease")
	}
}

func TestB3WaitsAFullDuration(t *testing.T) {
	var v leaseView
	v.saw(schema.Lease{Epoch: 4, Renewal: 9, DurationMS: 1500}, 10*time.Second)
	v.saw(schema.Lease{Epoch: 4, Renewal: 9, DurationMS: 1500}, 11*time.Second) // the same renewal, seen again
	if w := v.acquireIn(11 * time.Second); w != 500*time.Millisecond {
		t.Fatalf("wait %v, want 500 ms", w)
	}
	v.saw(schema.Lease{Epoch: 4, Renewal: 10, DurationMS: 1500}, 12*time.Second)
	if w := v.acquireIn(12 * time.Second); w != 1500*time.Millisecond {
		t.Fatalf("wait %v after a renewal, want 1.5 s", w)
	}
	v.saw(schema.Lease{Epoch: 4, Renewal: 11, DurationMS: 1500, Released: true}, 12*time.Second)
	if w := v.acquireIn(12 * time.Second); w != 0 {
		t.Fatalf("wait %v after a release, want none", w)
	}
}

// B3: an entry counts from its arrival in the log; where another came in its place,
// from that one's.
func TestB3CountsFromTheArrival(t *testing.T) {
	var a arrivals
	a.saved(1, 10, 1*time.Second)
	a.saved(11, 20, 2*time.Second)
	a.saved(15, 30, 3*time.Second) // a new leader's entries replace the tail
	a.saved(40, 41, 4*time.Second) // what is between came in a snapshot
	for _, c := range []struct {
		index uint64
		want  time.Duration
	}{{3, 1}, {10, 1}, {12, 2}, {14, 2}, {15, 3}, {20, 3}, {30, 3}, {35, 0}, {41, 4}, {42, 0}} {
		at, ok := a.take(c.index)
		if want := c.want * time.Second; ok != (want != 0) || (ok && at != want) {
			t.Errorf("index %d: %v, %v, want %v", c.index, at, ok, want)
		}
	}
	for i := range uint64(2 * maxArrivals) {
		a.saved(50+i, 50+i, time.Duration(i))
	}
	if _, ok := a.take(50); ok || len(a.marks) > maxArrivals {
		t.Errorf("%d arrivals are kept, at most %d", len(a.marks), maxArrivals)
	}
	a.saved(1, 5, time.Second)
	if at, ok := a.take(4); !ok || at != time.Second || len(a.marks) != 1 {
		t.Errorf("after the log was replaced from its start: %v, %v", at, ok)
	}
}

func TestB5NothingIsAnsweredAfterStop(t *testing.T) {
	var v leaseView
	v.saw(schema.Lease{Epoch: 1, Renewal: 1, DurationMS: 1500}, 0)
	v.acquired(1, 1500, 0)
	v.stop()
	if v.valid(0) {
		t.Fatal("valid after stop")
	}
	v.saw(schema.Lease{Epoch: 1, Renewal: 2, DurationMS: 1500}, 0)
	if v.valid(0) {
		t.Fatal("valid again by a renewal after stop")
	}
}

// simReplica is a replica of the lease simulation: it applies the shared log at
// its own pace, with a clock of its own rate.
type simReplica struct {
	view     leaseView
	applied  int
	received int // entries of the log
	came     arrivals
	rec      schema.Lease
	instance uint64
	rate     float64 // of its clock against true time
	number   uint64
	pending  map[[2]uint64]time.Duration // epoch, number or 0 for acquire -> first proposal
}

func (r *simReplica) clock(now time.Duration) time.Duration {
	return time.Duration(float64(now) * r.rate)
}

// receive takes in the log up to an index; what is behind its end is a tail that
// is replaced later, as that of a leader that died.
func (r *simReplica) receive(upTo, length int, now time.Duration) {
	if upTo > r.received {
		r.came.saved(uint64(r.received)+1, uint64(upTo), r.clock(now))
		r.received = min(upTo, length)
	}
}

// apply takes the next entry of the log.
func (r *simReplica) apply(log []*entry, now time.Duration) {
	if r.applied == len(log) {
		return
	}
	r.receive(r.applied+1, len(log), now)
	e := log[r.applied]
	r.applied++
	next, ok := admit(r.rec, e)
	r.rec = next
	local := r.clock(now)
	if ok {
		at, mine := r.pending[[2]uint64{uint64(e.epoch), e.number}]
		switch {
		case e.lease.action == canopyv1.LeaseAction_LEASE_ACQUIRE:
			if mine && e.lease.instance == r.instance {
				r.view.acquired(e.epoch, e.lease.durationMS, at)
				r.number = 0
			}
		case mine && r.view.own == e.epoch:
			r.view.renewed(next.DurationMS, at)
		}
	}
	if came, ok := r.came.take(uint64(r.applied)); ok {
		local = came
	}
	r.view.saw(next, local)
}

// B2, B3: whatever is delayed, dropped, repeated or restarted, and with clocks
// that drift by less than the margin, never do two replicas hold the lease at
// one moment, and one that holds it has applied all that was accepted.
func TestB2B3NeverTwoHolders(t *testing.T) {
	for range 50 { // the histories that break a wrong rule are rare
		rapid.Check(t, leaseHistory)
	}
}

func leaseHistory(rt *rapid.T) {
	var log, lost []*entry
	var now time.Duration
	instances := uint64(0)
	start := func(rate float64) *simReplica {
		instances++
		return &simReplica{instance: instances, rate: rate, pending: make(map[[2]uint64]time.Duration)}
	}
	replicas := make([]*simReplica, 3)
	for i := range replicas {
		replicas[i] = start(rapid.Float64Range(0.98, 1.02).Draw(rt, "rate"))
		replicas[i].view.saw(schema.Lease{}, 0)
	}
	// put appends to the log, or keeps the entry for later, or both.
	put := func(e *entry) {
		switch rapid.IntRange(0, 4).Draw(rt, "fate") {
		case 0:
			lost = append(lost, e)
		case 1:
			lost, log = append(lost, e), append(log, e)
		default:
			log = append(log, e)
		}
	}
	for range rapid.IntRange(0, 150).Draw(rt, "steps") {
		i := rapid.IntRange(0, 2).Draw(rt, "replica")
		r := replicas[i]
		switch rapid.SampledFrom([]string{"apply", "apply", "apply", "time", "acquire", "renew", "late", "receive", "restart"}).Draw(rt, "step") {
		case "apply":
			r.apply(log, now)
		case "time":
			now += time.Duration(rapid.IntRange(1, 900).Draw(rt, "ms")) * time.Millisecond
		case "acquire":
			if r.view.own == 0 && r.view.acquireIn(r.clock(now)) == 0 {
				key := [2]uint64{uint64(r.rec.Epoch + 1), 0}
				if _, ok := r.pending[key]; !ok {
					r.pending[key] = r.clock(now)
				}
				put(acquireEntry(r.rec.Epoch+1, r.rec.Renewal, r.instance))
			}
		case "renew":
			if r.view.own != 0 {
				n := r.rec.Number + 1
				key := [2]uint64{uint64(r.view.own), n}
				if _, ok := r.pending[key]; !ok { // a time of 0 is one too
					r.pending[key] = r.clock(now)
				}
				put(numbered(r.view.own, n))
			}
		case "late":
			if len(lost) > 0 {
				k := rapid.IntRange(0, len(lost)-1).Draw(rt, "which")
				log = append(log, lost[k])
			}
		case "receive":
			r.receive(rapid.IntRange(r.received, len(log)+3).Draw(rt, "up to"), len(log), now)
		case "restart":
			fresh := start(r.rate)
			fresh.rec, fresh.applied = r.rec, r.applied
			fresh.receive(r.received, len(log), now)
			fresh.view.saw(r.rec, fresh.clock(now))
			replicas[i] = fresh
		}
		checkHolders(rt, replicas, log, now)
	}
}

func checkHolders(rt *rapid.T, replicas []*simReplica, log []*entry, now time.Duration) {
	holders := 0
	for _, r := range replicas {
		if !r.view.valid(r.clock(now)) {
			continue
		}
		holders++
		// What it has not applied can only be its own or refused: nobody else can
		// have been acknowledged.
		rec := r.rec
		for _, e := range log[r.applied:] {
			next, ok := admit(rec, e)
			if ok && e.epoch != r.view.own {
				rt.Fatalf("a holder of epoch %d has not applied an accepted entry of epoch %d", r.view.own, e.epoch)
			}
			rec = next
		}
	}
	if holders > 1 {
		rt.Fatalf("%d holders at %v", holders, now)
	}
}
