package data

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/client/data/poolmap"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// touched returns the columns that the ranges lie in; all of the layout's
// without ranges.
func touched(m *stripe.Map, ranges []Range) ([]stripe.Column, error) {
	if len(ranges) == 0 {
		return m.Columns(), nil
	}
	var out []stripe.Column
	all := len(m.Columns())
	for _, r := range ranges {
		if r.Offset < 0 || r.Length < 0 {
			return nil, fserr.New(fserr.Invalid, "sync", fmt.Errorf("range [%d, +%d)", r.Offset, r.Length))
		}
		// Pieces beyond the columns' number times two repeat columns or lie in a
		// later component; then it is cheaper to take all.
		pieces := m.PiecesAtMost(uint64(r.Offset), uint64(r.Length), 2*all+1)
		if len(pieces) > 2*all {
			return m.Columns(), nil
		}
		for _, p := range pieces {
			if !slices.Contains(out, p.Column) {
				out = append(out, p.Column)
			}
		}
	}
	return out, nil
}

// eachColumn does one request at the primary of each column, and fails if one of
// the acknowledgements does not count any more for it.
func (d *Data) eachColumn(ctx context.Context, f File, columns []stripe.Column, acks Acks, build func(c stripe.Column, r *canopyv1.DataRequest)) error {
	if len(columns) == 1 {
		return d.oneColumn(ctx, f, columns[0], acks, build)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	for _, c := range columns {
		group.Go(func() error { return d.oneColumn(ctx, f, c, acks, build) })
	}
	return group.Wait()
}

func (d *Data) oneColumn(ctx context.Context, f File, c stripe.Column, acks Acks, build func(c stripe.Column, r *canopyv1.DataRequest)) error {
	t := d.target(f, c)
	response, pg, err := d.primary(ctx, t, func(epoch uint64) *link.Request {
		r := &canopyv1.DataRequest{
			Column: t.column, PgEpoch: epoch, SizeEpoch: f.SizeEpoch,
			Client: uint64(d.config.Client), Incarnation: d.config.Incarnation,
		}
		build(c, r)
		return &link.Request{DataRequest: r}
	})
	response.Free()
	if err == nil && acks.lostUnder(t.pool, pg) {
		return lostError(t.pool, pg)
	}
	return err
}

// Sync makes all that was acknowledged in the ranges durable on all in-sync
// replicas; without ranges, in the whole file. acks are those of the writes that
// have to be durable then; an error with cause ErrLost says that some of what they
// acknowledged may be gone.
func (d *Data) Sync(ctx context.Context, f File, acks Acks, ranges ...Range) (err error) {
	defer d.metrics.observe("sync", 0, time.Now(), &err)
	_, mapping, err := d.mapping(ctx, f)
	if err != nil {
		return err
	}
	columns, err := touched(mapping, ranges)
	if err != nil {
		return err
	}
	return d.eachColumn(ctx, f, columns, acks, func(_ stripe.Column, r *canopyv1.DataRequest) {
		r.Call = &canopyv1.DataRequest_Sync{Sync: &canopyv1.SyncCall{}}
	})
}

// Cut tells every column of the file its cuts (f.Cuts), durably. When it returns
// nil the cuts need not be sent with requests any more (PROTOCOLS J1).
func (d *Data) Cut(ctx context.Context, f File) (err error) {
	defer d.metrics.observe("cut", 0, time.Now(), &err)
	_, mapping, err := d.mapping(ctx, f)
	if err != nil {
		return err
	}
	return d.eachColumn(ctx, f, mapping.Columns(), nil, func(c stripe.Column, r *canopyv1.DataRequest) {
		r.Cuts = mapping.Cuts(c.Component, c.Column, f.Cuts)
		r.Call = &canopyv1.DataRequest_Cut{Cut: &canopyv1.CutCall{}}
	})
}

// Delete removes all bytes of the data id, of which none ever lay at size or
// behind (stripe.MaxFileBytes if that is not known). nil means that every member of every
// placement group, those out of sync too, has confirmed and keeps a tombstone
// against late writes (PROTOCOLS H3). A repetition is harmless. A member that
// cannot be reached makes it fail soon, with kind NotReady: try again later.
func (d *Data) Delete(ctx context.Context, id base.DataID, layout *canopyv1.Layout, size uint64) (err error) {
	defer d.metrics.observe("delete", 0, time.Now(), &err)
	f := File{ID: id, Layout: layout}
	m, mapping, err := d.mapping(ctx, f)
	if err != nil {
		return err
	}
	// One failure does not keep the others from being deleted.
	var group errgroup.Group
	group.SetLimit(maxParallel)
	for _, c := range mapping.ColumnsBelow(max(size, 1)) {
		group.Go(func() error { return d.deleteColumn(ctx, f, c, m) })
	}
	return group.Wait()
}

// deleteColumn deletes one column at every member of its group. Each answers the
// epoch that it knew when it had deleted: a member of that epoch that was not
// asked is asked too, since it may have got the column from another before.
func (d *Data) deleteColumn(ctx context.Context, f File, c stripe.Column, m *poolmap.Map) error {
	t := d.target(f, c)
	asked := map[uint64]bool{}
	for {
		pg := m.PG(t.pool, t.pg)
		var mu sync.Mutex
		newest := pg.Epoch
		var group errgroup.Group
		for _, member := range pg.Members {
			if asked[member] {
				continue
			}
			asked[member] = true
			group.Go(func() error {
				each := t
				each.permit = d.permit(f)
				epoch, err := d.deleteAt(ctx, each, base.NodeID(member))
				mu.Lock()
				defer mu.Unlock()
				newest = max(newest, epoch)
				return err
			})
		}
		if err := group.Wait(); err != nil || newest == pg.Epoch {
			return err
		}
		r := &retry{d: d}
		if err := r.awaitEpoch(ctx, t, newest); err != nil {
			return err
		}
		if m = d.watcher.Current(); m.PG(t.pool, t.pg).Epoch < newest {
			return fserr.New(fserr.NotReady, "delete", fmt.Errorf("epoch %d of pg %d.%d is not known here yet", newest, t.pool, t.pg))
		}
	}
}

// deleteAttempts is how often an unreachable member is tried.
const deleteAttempts = 3

// deleteAt returns the epoch that the member knows.
func (d *Data) deleteAt(ctx context.Context, t target, member base.NodeID) (epoch uint64, err error) {
	r := &retry{d: d}
	for attempt := 1; ; attempt++ {
		m := d.watcher.Current()
		request := &canopyv1.DataRequest{
			Column: t.column, PgEpoch: epochOf(m, t), Client: uint64(d.config.Client), Incarnation: d.config.Incarnation,
			Call: &canopyv1.DataRequest_Delete{Delete: &canopyv1.DeleteCall{}},
		}
		if err := t.permit.show(ctx, request); err != nil {
			return 0, err
		}
		response, err := d.send(ctx, m, member, &link.Request{DataRequest: request})
		if err == nil {
			response.Free()
			return response.PgEpoch, nil
		}
		if attempt == deleteAttempts && !errors.Is(err, fserr.Busy) {
			return 0, err
		}
		if err := r.again(ctx, err, response, epochOf(m, t), t); err != nil {
			return 0, err
		}
	}
}

func epochOf(m *poolmap.Map, t target) uint64 {
	if pg := m.PG(t.pool, t.pg); pg != nil {
		return pg.Epoch
	}
	return 0
}
