package mdsctl

import (
	"fmt"
	"slices"
	"strings"
)

// topAdvice is what a split or a move of a directory would do, by the operations that
// are counted now: those in the directory itself. A move takes what lies below along.
type topAdvice struct {
	Shard        uint64   `json:"shard"` // that has most of it
	OpsPerSecond float64  `json:"shard_ops_per_second"`
	Share        float64  `json:"share"` // that the directory has of them
	Split        *topPlan `json:"split,omitempty"`
	Move         *topPlan `json:"move,omitempty"`
}

// topPlan is one of the two.
type topPlan struct {
	Fragments int       `json:"fragments,omitempty"` // of a split
	Shares    []float64 `json:"shares,omitempty"`    // of the names made now, by fragment
	To        uint64    `json:"to,omitempty"`        // of a move
	// Operations per second afterwards: at the shard that had it, and at the busiest.
	OpsPerSecond float64 `json:"shard_ops_per_second"`
	Busiest      uint64  `json:"busiest_shard"`
	BusiestOps   float64 `json:"busiest_shard_ops_per_second"`
}

const (
	// adviceShare of its shard's operations make a directory worth a thought, and
	// adviceGain is what the busiest shard has to lose by it.
	adviceShare = 0.1
	adviceGain  = 0.1
	// maxAdvised fragments is as far as creates are counted by hash.
	maxAdvised = 16
)

// advise works out what could be done about a directory.
func (r *topReport) advise(d *topDir) {
	if len(d.Places) == 0 {
		return
	}
	home := r.shard(d.Places[0].Shard)
	here := d.at(home.Shard)
	a := &topAdvice{Shard: home.Shard, OpsPerSecond: home.OpsPerSecond, Share: portion(here, home.OpsPerSecond)}
	d.Advice = a
	fit := r.fit()
	switch {
	case a.Share < adviceShare:
		d.Hint = fmt.Sprintf("leave: %.0f %% of shard %d", 100*a.Share, a.Shard)
		return
	case len(fit) < 2:
		d.Hint = fmt.Sprintf("%.0f %% of shard %d; no other shard can take any of it", 100*a.Share, a.Shard)
		if len(r.Shards) == 1 {
			d.Hint += ": mdsctl shard create"
		}
		return
	}
	if len(d.Places) == 1 && d.Ino != 1 {
		a.Move = r.planMove(home, here, fit)
	}
	if d.Fragments == 1 {
		a.Split = r.planSplit(d, home, here, fit)
	}
	d.Hint = a.words(d)
}

func (r *topReport) shard(id uint64) *topShard {
	i := slices.IndexFunc(r.Shards, func(s topShard) bool { return s.Shard == id })
	return &r.Shards[i] // it told of the directory
}

// at is what a shard does in the directory.
func (d *topDir) at(shard uint64) (ops float64) {
	for _, p := range d.Places {
		if p.Shard == shard {
			ops += p.OpsPerSecond
		}
	}
	return ops
}

// fit are the shards that can take something, by id.
func (r *topReport) fit() (ids []uint64) {
	for _, s := range r.Shards {
		if s.Error == "" && s.ReadOnly == "" {
			ids = append(ids, s.Shard)
		}
	}
	return ids
}

// after fills in who has what when the home gives and others take.
func (r *topReport) after(p *topPlan, home uint64, takes map[uint64]float64) *topPlan {
	for _, s := range r.Shards {
		ops := s.OpsPerSecond + takes[s.Shard]
		if s.Shard == home {
			p.OpsPerSecond = ops
		}
		if p.Busiest == 0 || ops > p.BusiestOps {
			p.Busiest, p.BusiestOps = s.Shard, ops
		}
	}
	return p
}

func (r *topReport) planMove(home *topShard, ops float64, fit []uint64) *topPlan {
	to := uint64(0)
	for _, id := range fit {
		if id != home.Shard && (to == 0 || r.shard(id).OpsPerSecond < r.shard(to).OpsPerSecond) {
			to = id
		}
	}
	if to == 0 {
		return nil
	}
	return r.after(&topPlan{To: to}, home.Shard, map[uint64]float64{home.Shard: -ops, to: ops})
}

// planSplit splits as mdsctl split does: as many fragments as there are shards, or more
// up to a power of two, at the shards in turn from the home on.
func (r *topReport) planSplit(d *topDir, home *topShard, ops float64, fit []uint64) *topPlan {
	n := 2
	for n < len(fit) && n < maxAdvised {
		n *= 2
	}
	p := &topPlan{Fragments: n, Shares: fragmentShares(d.CreatesByHash, n)}
	takes := map[uint64]float64{home.Shard: -ops}
	at := max(slices.Index(fit, home.Shard), 0)
	for i, part := range p.Shares {
		takes[fit[(at+i)%len(fit)]] += part * ops
	}
	return r.after(p, home.Shard, takes)
}

// fragmentShares is how names fall into n equal fragments: as those that are made now,
// or evenly if none are.
func fragmentShares(byHash []float64, n int) []float64 {
	shares, sum := make([]float64, n), 0.0
	for i, x := range byHash {
		shares[i*n/len(byHash)] += x
		sum += x
	}
	for i := range shares {
		if sum > 0 {
			shares[i] /= sum
		} else {
			shares[i] = 1 / float64(n)
		}
	}
	return shares
}

// words says which of the two is better, and what it would do.
func (a *topAdvice) words(d *topDir) string {
	best := a.Split
	if a.Move != nil && (best == nil || a.Move.BusiestOps <= best.BusiestOps) {
		best = a.Move
	}
	where := fmt.Sprintf("%.0f %% of shard %d", 100*a.Share, a.Shard)
	switch {
	case best == nil && d.Fragments > 1:
		return fmt.Sprintf("%s, split in %d already", where, d.Fragments)
	case best == nil || best.BusiestOps > a.OpsPerSecond*(1-adviceGain):
		return where + "; neither a split nor a move would help"
	case best == a.Move:
		return where + "; " + a.moveWords()
	}
	return where + "; " + a.splitWords()
}

func (a *topAdvice) moveWords() string {
	return fmt.Sprintf("move to shard %d: shard %d %s -> %s/s, the busiest (%d) %s/s", a.Move.To, a.Shard,
		rateText(a.OpsPerSecond), rateText(a.Move.OpsPerSecond), a.Move.Busiest, rateText(a.Move.BusiestOps))
}

func (a *topAdvice) splitWords() string {
	return fmt.Sprintf("split in %d: names fall %s %%, shard %d %s -> %s/s, the busiest (%d) %s/s", a.Split.Fragments, sharesText(a.Split.Shares), a.Shard,
		rateText(a.OpsPerSecond), rateText(a.Split.OpsPerSecond), a.Split.Busiest, rateText(a.Split.BusiestOps))
}

// sharesText lists few shares, and tells the range of many.
func sharesText(shares []float64) string {
	if len(shares) > 4 {
		return fmt.Sprintf("%.0f to %.0f", 100*slices.Min(shares), 100*slices.Max(shares))
	}
	parts := make([]string, len(shares))
	for i, s := range shares {
		parts[i] = fmt.Sprintf("%.0f", 100*s)
	}
	return strings.Join(parts, "/")
}

// rateText prints a rate in at most five letters.
func rateText(x float64) string {
	switch {
	case x < 0.05:
		return "0"
	case x < 10:
		return fmt.Sprintf("%.1f", x)
	case x < 10_000:
		return fmt.Sprintf("%.0f", x)
	case x < 10_000_000:
		return fmt.Sprintf("%.4gk", x/1000)
	}
	return fmt.Sprintf("%.4gM", x/1e6)
}
