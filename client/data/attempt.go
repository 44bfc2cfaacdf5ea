package data

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/client/data/poolmap"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

const (
	backoffMin = 5 * time.Millisecond
	backoffMax = 250 * time.Millisecond
	// mapPatience is how long a newer map is waited for before another layout
	// service is asked.
	mapPatience = time.Second
	// maxDamaged is how often bytes may be damaged under way, one call.
	maxDamaged = 3
	// manyRefusals of capabilities are a second's: what is wrong then does not pass by
	// itself.
	manyRefusals = 10
)

// target is one column and where a request for it goes.
type target struct {
	pool   base.PoolID
	pg     base.PGID
	column *canopyv1.Column
	permit *permit
}

// retry is the state of one call's attempts.
type retry struct {
	d       *Data
	backoff time.Duration
	damaged int
}

// pause waits before the next attempt, or until the map changed.
func (r *retry) pause(ctx context.Context) error {
	r.backoff = min(max(2*r.backoff, backoffMin), backoffMax)
	r.d.metrics.retries.Inc()
	_, changed := r.d.watcher.Next()
	timer := time.NewTimer(r.backoff/2 + rand.N(r.backoff))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-r.d.closed:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// again decides after a failed attempt: nil means try again. cause is the
// failure, answered is what the server said, nil if it said nothing.
func (r *retry) again(ctx context.Context, cause error, answered *link.Response, asked uint64, t target) error {
	if err := ctx.Err(); err != nil {
		return fserr.New(fserr.KindOf(err), "data", fmt.Errorf("%w; last failure: %w", err, cause))
	}
	switch kind := fserr.KindOf(cause); kind {
	case fserr.OldEpoch:
		if answered == nil || answered.PgEpoch == 0 {
			return cause // the size epoch's: the caller's to deal with
		}
		if answered.PgEpoch > asked {
			return r.awaitEpoch(ctx, t, answered.PgEpoch)
		}
	case fserr.NoCapability:
		again, atOnce := t.permit.refuse()
		switch {
		case !again:
			return cause
		case atOnce:
			return nil
		case t.permit.refusals == manyRefusals:
			r.d.logger.Warn("data servers refuse one capability after the other; trying on", "data_id", t.column.DataId, "error", cause)
		}
	case fserr.NotReady, fserr.Busy, fserr.NotHolder, fserr.TimedOut, fserr.Interrupted:
	case fserr.Malformed:
		if r.damaged++; r.damaged > maxDamaged {
			return fserr.New(fserr.IO, "data", cause)
		}
	default:
		return cause
	}
	if answered == nil {
		if err := r.d.gone(r.d.watcher.Current(), t); err != nil {
			return err
		}
	}
	return r.pause(ctx)
}

// awaitEpoch waits for a map with the group's epoch.
func (r *retry) awaitEpoch(ctx context.Context, t target, epoch uint64) error {
	timer := time.NewTimer(mapPatience)
	defer timer.Stop()
	for {
		m, changed := r.d.watcher.Next()
		if pg := m.PG(t.pool, t.pg); pg != nil && pg.Epoch >= epoch {
			return nil
		}
		select {
		case <-changed:
		case <-timer.C:
			r.d.watcher.Kick()
			return r.pause(ctx)
		case <-r.d.closed:
			return errClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// send does one attempt at one server. err is the failure, of the connection or
// as answered; then response is set only if the server answered, and is free of
// payload.
func (d *Data) send(ctx context.Context, m *poolmap.Map, server base.NodeID, request *link.Request) (response *link.Response, err error) {
	l, err := d.link(m, server, request.Column.DataId+uint64(request.Column.Component)+uint64(request.Column.Column))
	if err != nil {
		request.Free()
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.config.AttemptTimeout)
	defer cancel()
	response, err = l.Do(ctx, request)
	if err != nil {
		return nil, err
	}
	if kind := fserr.Kind(response.Error); kind != fserr.OK {
		response.Free()
		return response, fserr.New(kind, fmt.Sprintf("data server %d", server), errors.New(response.Detail))
	}
	return response, nil
}

// primary does a request at the group's primary, again until it is answered
// for good. build makes the request for an attempt. It also returns the group as
// it was when it answered. The caller frees the response.
func (d *Data) primary(ctx context.Context, t target, build func(epoch uint64) *link.Request) (*link.Response, *canopyv1.PlacementGroup, error) {
	r := &retry{d: d}
	for {
		m, _, err := d.poolMap(ctx, t.pool)
		if err != nil {
			return nil, nil, err
		}
		pg := m.PG(t.pool, t.pg)
		if pg == nil {
			return nil, nil, fserr.New(fserr.Invalid, "data", fmt.Errorf("there is no pg %d.%d", t.pool, t.pg))
		}
		request := build(pg.Epoch)
		if err := t.permit.show(ctx, request.DataRequest); err != nil {
			request.Free()
			return nil, nil, err
		}
		response, err := d.send(ctx, m, poolmap.Primary(pg), request)
		if err == nil {
			return response, pg, nil
		}
		if err := r.again(ctx, err, response, pg.Epoch, t); err != nil {
			return nil, nil, err
		}
	}
}
