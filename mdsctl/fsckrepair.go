package mdsctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
)

// planned is one repair, and what became of it.
type planned struct {
	Shard   uint64 `json:"shard"`
	Repair  string `json:"repair"`
	Outcome string `json:"outcome"` // "would be made", "made", or why it was not

	order *canopyv1.Repair
}

// Outcomes of repairs.
const (
	outcomePlanned = "would be made"
	outcomeMade    = "made"
)

// plan adds a repair; several findings can have the same.
func (r *fsckReport) plan(shard base.ShardID, repair *canopyv1.Repair) {
	if repair == nil || len(r.Repairs) == maxFindings {
		return
	}
	p := &planned{uint64(shard), inspect.DescribeRepair(repair), outcomePlanned, repair}
	if n := len(r.Repairs); n > 0 && r.Repairs[n-1].Shard == p.Shard && r.Repairs[n-1].Repair == p.Repair {
		return
	}
	r.Repairs = append(r.Repairs, p)
}

// settlePlan drops what is planned twice, and of a directory what would be a guess: if
// two names claim it neither counts, and one that has a name needs none in /lost+found.
func (r *fsckReport) settlePlan() {
	type place struct {
		dir  uint64
		name string
	}
	claims := map[uint64][]place{}
	for _, p := range r.Repairs {
		if p.order.GetKind() == canopyv1.RepairKind_REPAIR_PARENT {
			at := place{p.order.GetTo().GetDir(), string(p.order.GetTo().GetName())}
			if ino := p.order.GetIno(); !slices.Contains(claims[ino], at) {
				claims[ino] = append(claims[ino], at)
			}
		}
	}
	seen := map[string]bool{}
	r.Repairs = slices.DeleteFunc(r.Repairs, func(p *planned) bool {
		named := len(claims[p.order.GetIno()])
		drop := false
		switch p.order.GetKind() {
		case canopyv1.RepairKind_REPAIR_PARENT:
			drop = named > 1
		case canopyv1.RepairKind_REPAIR_RECONNECT, canopyv1.RepairKind_REPAIR_NEW_NAME:
			drop = named > 0
		}
		key := fmt.Sprint(p.Shard, p.Repair)
		drop = drop || seen[key]
		seen[key] = true
		return drop
	})
}

// maxRounds bounds how often it is checked again after repairs: one can show what
// another one hid, as a directory that has a name again and whose header does not say so.
const maxRounds = 5

// repair makes the planned repairs, round by round, and returns the last report with
// all that was done.
func (a *app) repair(ctx context.Context, cl *inspect.Cluster, o fsckOptions, r *fsckReport) (*fsckReport, error) {
	if o.dryRun {
		return r, nil
	}
	var done []*planned
	for range maxRounds {
		if len(r.Repairs) == 0 {
			break
		}
		if err := a.confirm(r.Repairs, o.yes); err != nil {
			return nil, err
		}
		if err := makeRepairs(ctx, cl, r.Repairs); err != nil {
			return nil, err
		}
		done = append(done, r.Repairs...)
		made := slices.ContainsFunc(r.Repairs, func(p *planned) bool { return p.Outcome == outcomeMade })
		next, err := a.check(ctx, cl, o)
		if err != nil {
			return nil, err
		}
		if r = next; !made {
			break
		}
	}
	r.Repairable, r.Repairs = len(r.Repairs), done
	return r, nil
}

// confirm shows what is about to be done and asks, unless it was said before.
func (a *app) confirm(plan []*planned, yes bool) error {
	if yes {
		return nil
	}
	for _, p := range plan {
		fmt.Fprintf(a.env.Stderr, "shard %d: %s\n", p.Shard, p.Repair)
	}
	if a.env.Stdin == nil {
		return errors.New("nobody can be asked here: look with --repair --dry-run, and give --yes")
	}
	fmt.Fprintf(a.env.Stderr, "Make these %d repairs? [y/N] ", len(plan))
	answer, err := bufio.NewReader(a.env.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if s := strings.ToLower(strings.TrimSpace(answer)); s != "y" && s != "yes" {
		return errors.New("nothing was repaired")
	}
	return nil
}

// makeRepairs makes the repairs, those of each shard in their order.
func makeRepairs(ctx context.Context, cl *inspect.Cluster, plan []*planned) error {
	at := map[uint64][]*planned{}
	for _, p := range plan {
		at[p.Shard] = append(at[p.Shard], p)
	}
	for _, s := range cl.Map().GetShards() {
		var orders []*canopyv1.Repair
		for _, p := range at[s.GetShard()] {
			orders = append(orders, p.order)
		}
		outcomes, err := cl.Repair(ctx, base.ShardID(s.GetShard()), orders)
		for i, o := range outcomes {
			at[s.GetShard()][i].Outcome = o.GetDetail()
			if o.GetRepaired() {
				at[s.GetShard()][i].Outcome = outcomeMade
			}
		}
		if err != nil {
			return fmt.Errorf("repair: %w", err)
		}
	}
	return nil
}

func writePlan(t *table, all []*planned) {
	if len(all) == 0 {
		return
	}
	t.title("")
	t.row("SHARD", "REPAIR", "OUTCOME")
	for _, p := range all {
		t.row(p.Shard, p.Repair, p.Outcome)
	}
}

// fsckProgress shows on a terminal how far a check is.
type fsckProgress struct {
	w            io.Writer // nil: nobody looks
	total        uint64    // inodes of all shards, as their holders count them
	before, last uint64
	shard        base.ShardID
	begun        time.Time
}

func (a *app) progressOf(ctx context.Context, cl *inspect.Cluster) *fsckProgress {
	p := &fsckProgress{begun: time.Now()}
	f, ok := a.env.Stderr.(*os.File)
	if !ok {
		return p
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return p
	}
	p.w = f
	for _, n := range cl.Nodes(ctx) {
		for _, s := range n.Shards {
			for _, sub := range s.GetSubtrees() {
				p.total += sub.GetFiles() + sub.GetDirectories()
			}
		}
	}
	return p
}

func (p *fsckProgress) show(shard base.ShardID, rows uint64) {
	if p.w == nil {
		return
	}
	if shard != p.shard || rows < p.last {
		p.before, p.shard = p.before+p.last, shard
	}
	p.last = rows
	all := p.before + rows
	fmt.Fprintf(p.w, "\rshard %v: %d rows checked of some %d inodes, %.0f/s ", shard, all, p.total, float64(all)/time.Since(p.begun).Seconds())
}

func (p *fsckProgress) end() {
	if p.w != nil && p.shard != 0 {
		fmt.Fprintln(p.w)
	}
}
