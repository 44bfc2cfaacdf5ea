package data

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/client/data/poolmap"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

const (
	// readPatience is how long a read waits for one member while another could
	// answer.
	readPatience = 1500 * time.Millisecond
	// troubleTime is how long a server that did not answer is asked last.
	troubleTime = 3 * time.Second
)

// troubles remembers servers that did not answer.
type troubles struct {
	mu    sync.Mutex
	until map[base.NodeID]time.Time
}

func (t *troubles) add(id base.NodeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.until == nil {
		t.until = map[base.NodeID]time.Time{}
	}
	t.until[id] = time.Now().Add(troubleTime)
}

func (t *troubles) has(id base.NodeID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	until, ok := t.until[id]
	if ok && time.Now().After(until) {
		delete(t.until, id)
		return false
	}
	return ok
}

// readOrder returns the members in sync in the order in which a read asks them:
// those that answer before those that do not, then the nearest, then as they are
// in the group: the primary first.
func (d *Data) readOrder(m *poolmap.Map, pg *canopyv1.PlacementGroup) []base.NodeID {
	type place struct{ away, far int }
	places := make(map[base.NodeID]place, len(pg.InSync))
	order := make([]base.NodeID, 0, len(pg.InSync))
	for _, x := range pg.InSync {
		id := base.NodeID(x)
		p := place{away: 2}
		if s := m.Server(id); s != nil {
			p.far = -stripe.Nearness(d.config.Labels, stripe.WithHost(s.Labels, s.Host))
			if s.Alive {
				p.away = 0
				if d.troubles.has(id) {
					p.away = 1
				}
			}
		}
		places[id] = p
		order = append(order, id)
	}
	slices.SortStableFunc(order, func(a, b base.NodeID) int {
		return cmp.Or(cmp.Compare(places[a].away, places[b].away), cmp.Compare(places[a].far, places[b].far))
	})
	return order
}

// reading is the state of one read's attempts.
type reading struct {
	d       *Data
	retry   retry
	asked   map[base.NodeID]bool // in this round, in vain
	damaged map[base.NodeID]bool // members whose disk failed us
	any     bool                 // the primary does not answer: any member may say what it has
}

// next returns whom to ask, and whether somebody else is left for the round.
// Members with damage come last.
func (r *reading) next(m *poolmap.Map, pg *canopyv1.PlacementGroup) (id base.NodeID, last bool) {
	var open []base.NodeID
	for _, x := range r.d.readOrder(m, pg) {
		if !r.asked[x] && !r.damaged[x] {
			open = append(open, x)
		}
	}
	if len(open) == 0 {
		return poolmap.Primary(pg), true
	}
	return open[0], len(open) == 1
}

// failed decides after an attempt: nil means try again.
func (r *reading) failed(ctx context.Context, pg *canopyv1.PlacementGroup, t target, id base.NodeID, last bool, response *link.Response, err error) error {
	silent := response == nil && (fserr.KindOf(err) == fserr.NotReady || errors.Is(err, context.DeadlineExceeded))
	if silent {
		r.d.troubles.add(id)
	}
	primary := id == poolmap.Primary(pg)
	switch kind := fserr.KindOf(err); {
	case ctx.Err() != nil:
	case kind == fserr.IO && !last:
		r.damaged[id] = true
		return nil
	case kind == fserr.NotHolder && !primary && !r.asked[poolmap.Primary(pg)]:
		// It says that the primary knows. That one is asked next, wherever it is.
		for _, x := range pg.InSync[1:] {
			r.asked[base.NodeID(x)] = true
		}
		return nil
	case (silent || kind == fserr.NotReady || kind == fserr.NotHolder) && !last:
		r.asked[id] = true
		r.any = r.any || primary
		return nil
	case silent && primary && !r.any && len(pg.InSync) > 1:
		// The others sent us here.
		r.any = true
		r.asked = map[base.NodeID]bool{id: true}
		return nil
	}
	r.asked = map[base.NodeID]bool{}
	return r.retry.again(ctx, err, response, pg.Epoch, t)
}

// readChunk reads from the nearest member in sync, or from another when that
// fails.
func (d *Data) readChunk(ctx context.Context, f File, mapping *stripe.Map, c stripe.Piece, p []byte) error {
	t := d.target(f, c.Column)
	cuts := mapping.Cuts(c.Component, c.Column.Column, f.Cuts)
	r := &reading{d: d, retry: retry{d: d}, asked: map[base.NodeID]bool{}, damaged: map[base.NodeID]bool{}}
	for {
		m, _, err := d.poolMap(ctx, t.pool)
		if err != nil {
			return err
		}
		pg := m.PG(t.pool, t.pg)
		id, last := r.next(m, pg)
		if s := m.Server(poolmap.Primary(pg)); s == nil || !s.Alive || d.troubles.has(poolmap.Primary(pg)) {
			r.any = true
		}
		request := &canopyv1.DataRequest{
			Column: t.column, PgEpoch: pg.Epoch, SizeEpoch: f.SizeEpoch, Cuts: cuts,
			Client: uint64(d.config.Client), Incarnation: d.config.Incarnation,
			Call: &canopyv1.DataRequest_Read{Read: &canopyv1.ReadCall{Offset: c.ColumnOffset, Length: uint32(len(p)), Any: r.any}},
		}
		if err := t.permit.show(ctx, request); err != nil {
			return err
		}
		response, err := d.readOnce(ctx, m, id, last, request)
		if err == nil {
			if err = fill(p, response); err == nil {
				d.metrics.reads.WithLabelValues(role(pg, id)).Inc()
				return nil
			}
		}
		if err := r.failed(ctx, pg, t, id, last, response, err); err != nil {
			return err
		}
	}
}

func role(pg *canopyv1.PlacementGroup, id base.NodeID) string {
	if id == poolmap.Primary(pg) {
		return "primary"
	}
	return "replica"
}

// readOnce asks one member, for a shorter time while another could answer.
func (d *Data) readOnce(ctx context.Context, m *poolmap.Map, id base.NodeID, last bool, request *canopyv1.DataRequest) (*link.Response, error) {
	if !last {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, min(readPatience, d.config.AttemptTimeout))
		defer cancel()
	}
	return d.send(ctx, m, id, &link.Request{DataRequest: request})
}
