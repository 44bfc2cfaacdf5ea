package dataserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// How long a member may fail to take a change before it is reported out of
// sync; how long the server waits for a newer map that a member told of.
const (
	replicaPatience = 700 * time.Millisecond
	// behindPatience is for a member that answers, but is behind: it has not got
	// the map yet. It is alive; taking it out would cost a recovery.
	behindPatience = 3 * time.Second
	replicaTimeout = 10 * time.Second
	replicaRetry   = 10 * time.Millisecond
	newerMapWait   = 2 * time.Second
)

// change is one modification of a column by the primary: made here and on all
// members that must have it.
type change struct {
	key     chunkstore.Key
	lo, hi  uint64 // the bytes that it locks
	request *link.Request
	local   func() (bytes uint64, err error) // allocated, or by a punch freed
	wanted  func() error                     // asked under the range's lock; nil: it is
}

// errDeposed ends a change whose server is not the primary any more.
var errDeposed = fserr.New(fserr.NotHolder, "data", errors.New("this server is not the primary any more"))

// replicate makes a change here and on the members in parallel, in the order of
// the column's range lock, and returns when all have it.
func (g *group) replicate(ctx context.Context, c *change) (bytes uint64, err error) {
	release, err := g.locks.acquire(ctx, c.key, c.lo, c.hi, true)
	if err != nil {
		return 0, err
	}
	if c.wanted != nil {
		if err := c.wanted(); err != nil {
			release()
			return 0, err
		}
	}
	bytes, equal, err := g.replicateHeld(ctx, c)
	release()
	if !equal {
		return bytes, g.mend(ctx, c.key, err)
	}
	return bytes, err
}

// replicateHeld is replicate under the lock. With equal false members may
// differ.
func (g *group) replicateHeld(ctx context.Context, c *change) (bytes uint64, equal bool, err error) {
	var targets []base.NodeID
	seq, err := g.log.begin(ctx, c.key, func() { targets = g.targets() })
	if err != nil {
		return 0, true, err
	}
	defer func() { g.log.end(seq, equal) }()
	if !g.standing(0).primary {
		return 0, true, errDeposed
	}
	floor := g.log.low()
	errs := make([]error, len(targets))
	var wg sync.WaitGroup
	for i, id := range targets {
		wg.Go(func() { errs[i] = g.forward(ctx, id, c.request, seq, floor) })
	}
	bytes, local := c.local()
	wg.Wait()
	if local == nil {
		local = errors.Join(errs...)
		return bytes, local == nil, local
	}
	return 0, refusedByAll(local, errs), local
}

// refusedByAll reports whether every member refused the change for the same
// reason, having changed nothing.
func refusedByAll(local error, errs []error) bool {
	kind := fserr.KindOf(local)
	switch kind {
	case fserr.Stale, fserr.OldEpoch, fserr.Malformed, fserr.FileTooBig:
	default:
		return len(errs) == 0
	}
	for _, err := range errs {
		if fserr.KindOf(err) != kind {
			return false
		}
	}
	return true
}

// mend deals with a change that not all members have, and returns what to
// answer. A primary whose own disk fails hands over to a member that has it;
// otherwise the members are made as this server is.
func (g *group) mend(ctx context.Context, key chunkstore.Key, cause error) error {
	pg, _, _ := g.state()
	if !g.leads(pg) {
		return cause // whoever leads now asks for what was in flight
	}
	if kind := fserr.KindOf(cause); kind == fserr.IO && len(pg.InSync) > 1 {
		if err := g.reportOut(ctx, base.NodeID(g.self()), cause); err != nil {
			return errors.Join(cause, err)
		}
		return fserr.New(fserr.NotReady, "data", fmt.Errorf("this server's disk failed, another one takes over: %w", cause))
	}
	for _, id := range g.targets() {
		if err := g.mendAt(ctx, id, key); err != nil {
			g.s.logger.Warn("members of a placement group differ", "column", key.String(), "server", id, "error", err)
		}
	}
	g.log.settled([]chunkstore.Key{key})
	return cause
}

// mendAt makes a member's column as it is here. One that cannot be made so leaves
// the members in sync, or is recovered from the start: a member that is being
// recovered has taken changes too, and its columns may have been compared already.
func (g *group) mendAt(ctx context.Context, id base.NodeID, key chunkstore.Key) error {
	err := g.syncColumn(ctx, key, id, nil)
	if err == nil {
		return nil
	}
	now := g.standing(id)
	if !now.inSync && now.recovery != nil {
		now.recovery.fail(err)
		now = g.standing(id) // it may have been reported in sync meanwhile
	}
	if !now.inSync {
		return nil
	}
	return g.giveUp(ctx, id, err)
}

// forward brings a change to one member. nil: it has it, or need not have it any
// more. Kinds: NotHolder (this server was deposed), Stale, OldEpoch of the size
// epoch, NoSpace, FileTooBig, Malformed: what the member refused.
func (g *group) forward(ctx context.Context, id base.NodeID, request *link.Request, seq, floor uint64) error {
	var failing time.Time // since when
	for attempt := 0; ; attempt++ {
		now := g.standing(id)
		switch {
		case !now.primary:
			return errDeposed
		case !now.inSync && now.recovery == nil:
			return nil
		}
		kind, err := g.forwardOnce(now.under, id, request, seq, floor, now.epoch)
		if kind == fserr.OK {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if now.under.Err() != nil {
			continue // another epoch: the member may not count any more
		}
		if !now.inSync {
			now.recovery.fail(err)
			continue
		}
		switch kind {
		case fserr.Stale, fserr.NoSpace, fserr.FileTooBig, fserr.Fenced:
			return err
		case fserr.OldEpoch:
			if errors.As(err, new(*epochError)) {
				continue // the newer map was waited for
			}
			return err
		}
		if failing.IsZero() {
			failing = time.Now()
		}
		if hard := kind == fserr.IO || kind == fserr.Internal; hard || time.Since(failing) > patienceWith(err) {
			if err := g.reportOut(ctx, id, err); err != nil {
				return err
			}
			continue
		}
		select {
		case <-time.After(retryPause(attempt)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// retryPause grows, with jitter.
func retryPause(attempt int) time.Duration {
	return replicaRetry/2 + rand.N(replicaRetry<<min(attempt, 4))
}

// behindError is what a member answered that has not caught up yet.
type behindError struct{ error }

func (b behindError) Unwrap() error { return b.error }

// patienceWith returns how long a member may fail so.
func patienceWith(err error) time.Duration {
	if errors.As(err, new(behindError)) {
		return behindPatience
	}
	return replicaPatience
}

// answered makes an error of a member's answer.
func answered(id base.NodeID, response *link.Response) error {
	kind := fserr.Kind(response.Error)
	err := fserr.New(kind, fmt.Sprintf("server %d", id), errors.New(response.Detail))
	if kind == fserr.NotReady {
		return behindError{err}
	}
	return err
}

// forwardOnce tries once, as long as the epoch lasts.
func (g *group) forwardOnce(ctx context.Context, id base.NodeID, request *link.Request, seq, floor, epoch uint64) (fserr.Kind, error) {
	head := &canopyv1.DataRequest{
		Column: request.Column, PgEpoch: epoch, SizeEpoch: request.SizeEpoch, Cuts: request.Cuts,
		Client: request.Client, Incarnation: request.Incarnation, Seq: request.Seq, Floor: request.Floor,
		FromPrimary: true, LogSeq: seq, LogFloor: floor, Call: request.Call,
	}
	request.Payload.Ref()
	response, err := g.s.peers.do(ctx, id, &link.Request{DataRequest: head, Payload: request.Payload})
	if err != nil {
		return fserr.KindOf(err), err
	}
	defer response.Free()
	kind := fserr.Kind(response.Error)
	if kind == fserr.OK {
		return kind, nil
	}
	if kind == fserr.OldEpoch && response.PgEpoch > epoch {
		g.awaitEpoch(ctx, response.PgEpoch)
		return kind, &epochError{response.PgEpoch, epoch}
	}
	return kind, answered(id, response)
}

// awaitEpoch waits a while until this server has adopted the epoch.
func (g *group) awaitEpoch(ctx context.Context, epoch uint64) {
	timeout := time.NewTimer(newerMapWait)
	defer timeout.Stop()
	for {
		pg, _, changed := g.state()
		if pg.Epoch >= epoch {
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			g.s.watcher.Kick()
			return
		case <-ctx.Done():
			return
		}
	}
}
