package sim

import "math"

// What operations cost. Service is time of a node with speed 1; the numbers have the
// proportions that docs/benchmarks.md measures (creates to lookups to pages of listings), for a node
// that makes 20,000 files a second.
const (
	createService  = 50e-6 // seconds
	lookupService  = 20e-6
	readdirService = 200e-6
	createWait     = 1e-3 // the commit: waiting that is no work
	lookupWait     = 0.2e-3

	followerShare = 0.25 // of a write's work, at each follower
	copyRate      = 50_000.0
	copyShare     = 0.2
	legOverhead   = 0.1  // seconds for each range or subtree that moves, besides copying
	movePause     = 0.02 // seconds
	leasePause    = 0.2
	failover      = 3 // seconds until another replica of a dead holder's serves

	crossWork  = 0.15   // more work where each directory's parent is on another shard: transactions, and one shard more for each name of a path
	crossWait  = 0.2e-3 // and one round trip more
	carvedPart = 0.1    // of that, for a tree that is carved out: its root's border alone
	splitPart  = 0.2    // of that, for a directory in fragments

	saturated  = 0.98 // of a node's time is served at most
	entryBytes = 400
)

// mix is the parts of a directory's operations; they add up to 1.
type mix struct{ create, lookup, readdir float64 }

func (m mix) service() float64 {
	return m.create*createService + m.lookup*lookupService + m.readdir*readdirService
}

func (m mix) wait() float64 { return m.create*createWait + (m.lookup+m.readdir)*lookupWait }

// decayed is means of a rate that decay over 10 s, 1 min and 10 min.
type decayed struct{ short, minute, long float64 }

var decay = [3]float64{1 - math.Exp(-1.0/10), 1 - math.Exp(-1.0/60), 1 - math.Exp(-1.0/600)}

// tick takes in the rate of one second.
func (d *decayed) tick(v float64) {
	d.short += (v - d.short) * decay[0]
	d.minute += (v - d.minute) * decay[1]
	d.long += (v - d.long) * decay[2]
}

// random is a sequence of numbers that a seed fixes: SplitMix64 (Steele, Lea, Flood 2014).
type random struct{ state uint64 }

func (r *random) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// float returns a number in [0, 1).
func (r *random) float() float64 { return float64(r.next()>>11) / (1 << 53) }

// below returns a number in [0, n).
func (r *random) below(n int) int { return int(r.next() % uint64(n)) }
