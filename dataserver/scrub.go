package dataserver

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// scrubTick is how often a group looks whether it is to be scrubbed.
const scrubTick = time.Second

// maxFindings bounds what a result tells in words.
const maxFindings = 20

// scrubs scrubs the group whenever a run wants it and this server is its
// primary, one group at a time per server, until ctx is done.
func (g *group) scrubs(ctx context.Context) {
	tick := time.NewTicker(scrubTick)
	defer tick.Stop()
	for ctx.Err() == nil {
		pg, active, changed := g.state()
		if run := g.scrubWanted(); run != 0 && active && g.leads(pg) && g.s.lease.valid() {
			under, cancel := context.WithCancel(ctx)
			stop := cancelWhen(under, cancel, changed)
			err := g.scrubInTurn(under, pg, run)
			cancel()
			stop()
			if err != nil && ctx.Err() == nil {
				g.s.logger.Info("scrub of a placement group", "pool", g.pool, "pg", g.pg, "run", run, "error", err)
			}
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// scrubWanted returns the run that has not finished this group yet, 0 if there is
// none, and sets the pace.
func (g *group) scrubWanted() uint64 {
	m := g.s.watcher.Current()
	if m == nil || m.Message().Scrub == nil || m.Message().Scrub.Stopped {
		return 0
	}
	state := m.Message().Scrub
	limit := rate.Inf
	if state.RateBytes > 0 {
		limit = rate.Limit(state.RateBytes)
	}
	if g.s.scrubRate.Limit() != limit {
		g.s.scrubRate.SetLimit(limit)
	}
	pool := m.Pool(g.pool)
	if pool == nil || int(g.pg) < len(pool.Scrubbed) && pool.Scrubbed[g.pg] >= state.Run {
		return 0
	}
	return state.Run
}

// scrubInTurn scrubs the group and reports what it found.
func (g *group) scrubInTurn(ctx context.Context, pg *canopyv1.PlacementGroup, run uint64) (err error) {
	p := &progress{run: run, limit: g.s.scrubRate}
	end := g.work(p)
	defer func() {
		if ctx.Err() != nil {
			err = nil
		}
		end(err)
	}()
	select {
	case g.s.scrubSlot <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-g.s.scrubSlot }()
	p.start()
	if err := g.scrub(ctx, pg, p); err != nil {
		return err
	}
	return g.s.member.reportScrub(ctx, &canopyv1.ReportScrubRequest{
		Epoch: pg.Epoch, Reporter: g.self(), Result: &canopyv1.ScrubResult{
			Pool: uint64(g.pool), Pg: uint32(g.pg), Run: run,
			Columns: p.columnsDone.Load(), Bytes: p.bytesSent.Load(), Damaged: p.damaged.Load(), Differing: p.differing.Load(),
			Repaired: p.repaired.Load(), Unrepairable: p.lost.Load(), Findings: p.told(),
		},
	})
}

// scrub reads all columns from the disks of all members in sync, puts right what
// does not match its checksum, and then makes equal what differs though every
// copy is whole (PROTOCOLS J3).
func (g *group) scrub(ctx context.Context, pg *canopyv1.PlacementGroup, p *progress) error {
	if err := p.begin(g); err != nil {
		return err
	}
	keys, err := g.s.store.Keys(g.pool, g.pg)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if g.scrubWanted() != p.run {
			return errScrubEnded
		}
		if err := g.scrubColumn(ctx, pg, key, p); err != nil {
			return err
		}
		p.column(false)
	}
	for _, id := range pg.InSync[1:] {
		before := p.differing.Load()
		if _, err := g.compare(ctx, base.NodeID(id), &progress{scrub: p, limit: p.limit}); err != nil {
			return err
		}
		if n := p.differing.Load() - before; n > 0 {
			g.s.metrics.differing.Add(float64(n))
		}
	}
	return nil
}

var errScrubEnded = fserr.New(fserr.Interrupted, "scrub", fmt.Errorf("it was stopped, or another run began"))

// scrubColumn reads one column everywhere, range by range.
func (g *group) scrubColumn(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, p *progress) error {
	for first := uint64(0); ; first += copyBlocks {
		if err := p.pay(ctx); err != nil {
			return err
		}
		size, err := g.scrubRange(ctx, pg, key, first, p)
		if err != nil {
			return err
		}
		if size <= (first+copyBlocks)*chunkstore.BlockBytes {
			p.compared(size - min(size, first*chunkstore.BlockBytes))
			return nil
		}
		p.compared(copyBlocks * chunkstore.BlockBytes)
	}
}

// look is what the members have of one range of blocks, this server first.
type look struct {
	sums    [][]uint32
	damaged []map[uint64]bool
}

// whole reports whether nothing is damaged and all are equal.
func (l *look) whole() bool {
	for i := range l.sums {
		if len(l.damaged[i]) > 0 || !slices.Equal(l.sums[i], l.sums[0]) {
			return false
		}
	}
	return true
}

// scrubRange reads one range, first with changes kept out, and again with reads
// kept out too if something is wrong, to put it right. It returns the column's
// size.
func (g *group) scrubRange(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, first uint64, p *progress) (size uint64, err error) {
	for _, exclusive := range []bool{false, true} {
		size, fine, err := g.scrubHeld(ctx, pg, key, first, p, exclusive)
		if err != nil || fine {
			return size, err
		}
	}
	size, _, err = g.s.store.Size(key)
	return size, err
}

func (g *group) scrubHeld(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, first uint64, p *progress, exclusive bool) (size uint64, fine bool, err error) {
	lo := first * chunkstore.BlockBytes
	release, err := g.locks.acquire(ctx, key, lo, lo+copyBlocks*chunkstore.BlockBytes, exclusive)
	if err != nil {
		return 0, false, err
	}
	defer release()
	size, _, err = g.s.store.Size(key)
	if err != nil {
		p.finding("%s cannot be read by the primary: %v", key, err)
		p.damaged.Add(1)
		g.distrust(pg, key, err)
		if len(pg.InSync) > 1 {
			return 0, false, err // another takes over
		}
		p.lost.Add(1)
		return 0, true, nil
	}
	if size <= lo {
		return size, true, nil
	}
	blocks := min(copyBlocks, (size-lo+chunkstore.BlockBytes-1)/chunkstore.BlockBytes)
	l, err := g.look(ctx, pg, key, first, blocks, p)
	if err != nil || l == nil || l.whole() {
		return size, err == nil, err
	}
	if !exclusive {
		return size, false, nil
	}
	for block := first; block < first+blocks; block++ {
		if err := g.scrubBlock(ctx, pg, key, block, int(block-first), l, p); err != nil {
			return size, false, err
		}
	}
	return size, true, nil
}

// look reads the range from all disks. nil: a member cannot read the column at
// all, which the comparison of whole columns deals with.
func (g *group) look(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, first, blocks uint64, p *progress) (*look, error) {
	l := &look{}
	add := func(sums []uint32, damaged []uint64) {
		set := map[uint64]bool{}
		for _, b := range damaged {
			set[b] = true
		}
		l.sums, l.damaged = append(l.sums, sums), append(l.damaged, set)
		p.sent(int(blocks * chunkstore.BlockBytes))
		g.s.metrics.scrubbed.Add(float64(blocks * chunkstore.BlockBytes))
	}
	sums, damaged, err := g.s.store.Verify(key, first, blocks)
	if err != nil {
		return nil, err
	}
	add(sums, damaged)
	for _, id := range pg.InSync[1:] {
		response, err := g.ask(ctx, base.NodeID(id), key, &canopyv1.DataRequest{Call: &canopyv1.DataRequest_BlockSums{
			BlockSums: &canopyv1.BlockSumsCall{FirstBlock: first, Blocks: uint32(blocks), Verify: true},
		}}, nil)
		if fserr.KindOf(err) == fserr.IO {
			p.damaged.Add(1)
			p.finding("%s cannot be read by server %d: %v", key, id, err)
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		sums := chunkstore.DecodeSums(response.Payload.Materialize())
		damaged := response.Damaged
		response.Free()
		if len(sums) != int(blocks) {
			return nil, fserr.New(fserr.Malformed, "block sums", fmt.Errorf("%d for %d blocks", len(sums), blocks))
		}
		add(sums, damaged)
	}
	return l, nil
}

// scrubBlock puts one block right, under its lock. What is whole everywhere and
// differs is left to the comparison of columns, where the primary's copy counts;
// unless two others agree against it.
func (g *group) scrubBlock(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, block uint64, i int, l *look, p *progress) error {
	bad := 0
	for k := range l.damaged {
		if l.damaged[k][block] {
			bad++
			p.damaged.Add(1)
			p.finding("%s: block %d is damaged on server %d", key, block, pg.InSync[k])
		}
	}
	outvoted := bad == 0 && l.outvoted(i)
	switch {
	case bad == len(l.sums):
		g.s.metrics.lost.Inc()
		p.lost.Add(1)
		p.finding("%s: block %d is damaged on all members: its bytes are lost", key, block)
		return nil
	case l.damaged[0][block]:
		if err := g.repairHeld(ctx, pg, key, block); err != nil {
			return err
		}
		p.repaired.Add(1)
	case outvoted:
		p.finding("%s: block %d of server %d differs from what all others have", key, block, pg.InSync[0])
		p.differing.Add(1)
		lo := block * chunkstore.BlockBytes
		if err := g.repairFrom(ctx, base.NodeID(pg.InSync[1]), key, lo, lo+chunkstore.BlockBytes); err != nil {
			return err
		}
		p.repaired.Add(1)
	}
	size, epoch, err := g.s.store.Size(key)
	if err != nil {
		return err
	}
	lo := block * chunkstore.BlockBytes
	for k := 1; k < len(l.damaged); k++ {
		if !l.damaged[k][block] {
			continue
		}
		g.s.metrics.damaged.Inc()
		if err := g.copyRange(ctx, key, base.NodeID(pg.InSync[k]), lo, min(chunkstore.BlockBytes, size-lo), epoch); err != nil {
			return err
		}
		g.s.metrics.repaired.Inc()
		p.repaired.Add(1)
	}
	return nil
}

// outvoted reports whether two or more others have the same block number i, not
// a hole, and this server another one.
func (l *look) outvoted(i int) bool {
	if len(l.sums) < 3 {
		return false
	}
	for _, sums := range l.sums[2:] {
		if sums[i] != l.sums[1][i] {
			return false
		}
	}
	return l.sums[1][i] != 0 && l.sums[1][i] != l.sums[0][i]
}
