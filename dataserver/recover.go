package dataserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// recovery is the primary's work to bring one member in sync. From its start all
// changes go to the member too; one that the member does not take ends it.
type recovery struct {
	g      *group
	server base.NodeID
	cancel context.CancelFunc

	mu       sync.Mutex
	failed   bool
	cause    error
	reported chan struct{} // not nil: the member is being reported in sync; closed when the outcome is known
}

// fail ends the recovery. While the member is being reported in sync it waits
// for the outcome: the change that failed must know whether the member counts.
func (r *recovery) fail(cause error) {
	r.mu.Lock()
	if reported := r.reported; reported != nil {
		r.mu.Unlock()
		<-reported
		return
	}
	first := !r.failed
	r.failed = true
	if first {
		r.cause = cause
	}
	r.mu.Unlock()
	r.leave()
	r.cancel()
}

// leave stops that changes are forwarded.
func (r *recovery) leave() {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	if r.g.recovering[r.server] == r {
		delete(r.g.recovering, r.server)
	}
}

// report tries to begin the report; it is too late after a failure.
func (r *recovery) report() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed {
		return r.cause
	}
	r.reported = make(chan struct{})
	return nil
}

// errLeaving is why a member leaves that others have replaced.
var errLeaving = errors.New("others have taken its place")

// recover brings the members in sync that are not and whose server is alive.
func (g *group) recover(ctx context.Context, pg *canopyv1.PlacementGroup) error {
	if done, err := g.shed(ctx, pg); done {
		return err // under the next epoch
	}
	var failed error
	for _, id := range pg.Members {
		if slices.Contains(pg.InSync, id) || slices.Contains(pg.Leaving, id) {
			continue
		}
		m := g.s.watcher.Current()
		if info := m.Server(base.NodeID(id)); info == nil || !info.Alive {
			continue
		}
		err := g.recoverInTurn(ctx, pg, base.NodeID(id))
		if err == nil {
			g.s.metrics.recoveries.WithLabelValues("done").Inc()
			return nil // under the next epoch
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		g.s.metrics.recoveries.WithLabelValues("failed").Inc()
		failed = errors.Join(failed, fmt.Errorf("recovery of server %d: %w", id, err))
	}
	return failed
}

// recoverInTurn recovers one member when there is a slot for it.
func (g *group) recoverInTurn(ctx context.Context, pg *canopyv1.PlacementGroup, id base.NodeID) (err error) {
	p := &progress{member: id, limit: g.s.recoveryRate}
	end := g.work(p)
	defer func() {
		if ctx.Err() != nil {
			end(nil) // another epoch: it begins anew
			return
		}
		end(err)
	}()
	select {
	case g.s.recoverySlots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-g.s.recoverySlots }()
	p.start()
	return g.recoverMember(ctx, pg, id, p)
}

func (g *group) recoverMember(ctx context.Context, pg *canopyv1.PlacementGroup, id base.NodeID, p *progress) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &recovery{g: g, server: id, cancel: cancel}
	g.mu.Lock()
	if g.current.Epoch != pg.Epoch {
		g.mu.Unlock()
		return nil
	}
	g.recovering[id] = r
	g.mu.Unlock()
	copied, err := g.recoverContents(ctx, id, p)
	if err == nil {
		err = r.report()
	}
	if err != nil {
		r.fail(err)
		return err
	}
	defer func() {
		r.leave()
		close(r.reported)
	}()
	if err := g.reportIn(ctx, pg, id); err != nil {
		return err
	}
	g.s.logger.Info("replica recovered", "pool", g.pool, "pg", g.pg, "server", id, "columns", copied, "bytes", p.bytesSent.Load(), "took", time.Since(*p.began.Load()))
	return nil
}

// recoverContents compares everything with the member and makes it equal.
func (g *group) recoverContents(ctx context.Context, id base.NodeID, p *progress) (copied int, err error) {
	// Changes that began before the member got them must end first.
	if err := g.log.drain(ctx); err != nil {
		return 0, err
	}
	if err := p.begin(g); err != nil {
		return 0, err
	}
	if copied, err = g.compare(ctx, id, p); err != nil {
		return copied, err
	}
	// What was durable here before must be durable there.
	return copied, g.syncMember(ctx, id)
}

// reportIn reports the member in sync until the outcome is known.
func (g *group) reportIn(ctx context.Context, pg *canopyv1.PlacementGroup, id base.NodeID) error {
	for {
		next, err := g.s.member.report(ctx, &canopyv1.ReportReplicaRequest{
			Pool: uint64(g.pool), Pg: uint32(g.pg), Epoch: pg.Epoch, Reporter: g.self(), Server: uint64(id), InSync: true,
		})
		g.adopt(next)
		now, _, _ := g.state()
		if now.Epoch > pg.Epoch && slices.Contains(now.InSync, uint64(id)) {
			return nil
		}
		switch kind := fserr.KindOf(err); {
		case err == nil || kind == fserr.OldEpoch || kind == fserr.Invalid || kind == fserr.Permission || now.Epoch > pg.Epoch:
			return err
		case g.s.ctx.Err() != nil:
			return err
		}
		// The outcome is unknown. An epoch change ends ctx; then the map tells.
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
