package dataserver

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/base"
)

// progress counts what one recovery, or scrub, of a group has done, and paces it.
// A nil progress counts nothing and is not paced: activation and the mending of
// a write hold up clients.
type progress struct {
	member base.NodeID // who is recovered; 0: a scrub
	run    uint64      // of the scrub
	scrub  *progress   // counts what a comparison of this scrub finds
	limit  *rate.Limiter

	columnsTotal, bytesTotal           atomic.Uint64
	columnsDone, bytesDone             atomic.Uint64
	columnsSent, bytesSent             atomic.Uint64
	damaged, repaired, lost, differing atomic.Uint64
	owed                               int                       // bytes moved and not paid for yet; of the goroutine that works
	began                              atomic.Pointer[time.Time] // when its turn came; nil: it waits
	mu                                 sync.Mutex
	findings                           []string
}

// paceBurst is what may be moved at once; no single step moves more.
const paceBurst = 4 << 20

func newLimiter(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond <= 0 {
		return rate.NewLimiter(rate.Inf, paceBurst)
	}
	return rate.NewLimiter(rate.Limit(bytesPerSecond), paceBurst)
}

// pay waits until what was moved is within the rate. It is called without a lock
// held: clients must not wait for it.
func (p *progress) pay(ctx context.Context) error {
	for p != nil && p.owed > 0 {
		n := min(p.owed, paceBurst)
		if err := p.limit.WaitN(ctx, n); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		p.owed -= n
	}
	return nil
}

// sent counts bytes that were sent to the member.
func (p *progress) sent(n int) {
	if p != nil {
		p.owed += n
		p.bytesSent.Add(uint64(n))
	}
}

// start says that its turn has come.
func (p *progress) start() {
	now := time.Now()
	p.began.Store(&now)
}

// column counts a column that is done; with differences if any were found.
func (p *progress) column(differed bool) {
	if p == nil {
		return
	}
	p.columnsDone.Add(1)
	if differed {
		p.columnsSent.Add(1)
	}
}

// differs counts a column whose copy on the member is not what it is here.
func (p *progress) differs(key chunkstore.Key, id base.NodeID) {
	if p == nil || p.scrub == nil {
		return
	}
	p.scrub.differing.Add(1)
	p.scrub.repaired.Add(1) // or the comparison fails
	p.scrub.finding("%s of server %d differed from the primary's", key, id)
}

// finding keeps what is told in words, up to a bound.
func (p *progress) finding(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.findings) < maxFindings {
		p.findings = append(p.findings, fmt.Sprintf(format, args...))
	}
}

func (p *progress) told() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.findings)
}

// compared counts bytes of columns that are equal now.
func (p *progress) compared(n uint64) {
	if p != nil {
		p.bytesDone.Add(n)
	}
}

// begin counts what there is to do.
func (p *progress) begin(g *group) error {
	columns, bytes, err := g.s.store.Count(g.pool, g.pg)
	if err != nil {
		return err
	}
	p.columnsTotal.Store(columns)
	p.bytesTotal.Store(bytes)
	return nil
}

// message is the progress as others see it. Columns that came meanwhile make the
// total larger, never the share above one.
func (p *progress) message(g *group) *canopyv1.GroupRepair {
	pg, _, _ := g.state()
	running := time.Duration(0)
	began := p.began.Load()
	if began != nil {
		running = time.Since(*began)
	}
	return &canopyv1.GroupRepair{
		Pool: uint64(g.pool), Pg: uint32(g.pg), Epoch: pg.Epoch, Member: uint64(p.member), Run: p.run,
		ColumnsTotal: max(p.columnsTotal.Load(), p.columnsDone.Load()), ColumnsDone: p.columnsDone.Load(), ColumnsSent: p.columnsSent.Load(),
		BytesTotal: max(p.bytesTotal.Load(), p.bytesDone.Load()), BytesDone: p.bytesDone.Load(), BytesSent: p.bytesSent.Load(),
		RunningMs: uint64(running / time.Millisecond), Waiting: began == nil,
		Damaged: p.damaged.Load(), Repaired: p.repaired.Load(), Unrepairable: p.lost.Load(),
	}
}

// RepairStatus implements the service.
func (s *server) RepairStatus(ctx context.Context, _ *canopyv1.RepairStatusRequest) (*canopyv1.RepairStatusResponse, error) {
	if err := s.guard.inspector(ctx, "repair status"); err != nil {
		return nil, err
	}
	return s.repairStatus(), nil
}

// repairStatus returns the recoveries and scrubs that this server drives.
func (s *server) repairStatus() *canopyv1.RepairStatusResponse {
	s.mu.Lock()
	groups := make([]*group, 0, len(s.groups))
	for _, g := range s.groups {
		groups = append(groups, g)
	}
	s.mu.Unlock()
	out := &canopyv1.RepairStatusResponse{}
	if limit := s.recoveryRate.Limit(); limit != rate.Inf {
		out.RateBytes = uint64(limit)
	}
	for _, g := range groups {
		out.Groups = append(out.Groups, g.repairs()...)
	}
	return out
}

// repairs returns what is under way, and what failed and is tried again.
func (g *group) repairs() []*canopyv1.GroupRepair {
	g.mu.Lock()
	works := make([]*progress, 0, len(g.works))
	failures := map[base.NodeID]string{}
	for _, p := range g.works {
		works = append(works, p)
		failures[p.member] = g.failures[p.member]
	}
	pg := g.current
	var failed []*canopyv1.GroupRepair
	for id, cause := range g.failures {
		if _, running := failures[id]; !running && g.leads(pg) {
			failed = append(failed, &canopyv1.GroupRepair{Pool: uint64(g.pool), Pg: uint32(g.pg), Epoch: pg.Epoch, Member: uint64(id), Error: cause})
		}
	}
	g.mu.Unlock()
	for _, p := range works {
		m := p.message(g)
		m.Error = failures[p.member]
		failed = append(failed, m)
	}
	return failed
}

// work shows a progress until the returned function is called with its outcome.
func (g *group) work(p *progress) (end func(error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.works[p.member] = p
	return func(err error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.works, p.member)
		delete(g.failures, p.member)
		if err != nil {
			g.failures[p.member] = err.Error()
		}
	}
}
