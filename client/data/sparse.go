package data

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// sparseBytes is how much of a column one punch or reservation is about.
const sparseBytes = 256 << 20

// none is what a data server answers when there is nothing to be found.
const none = math.MaxUint64

// columnRange is a range of one column.
type columnRange struct {
	stripe.Column
	lo, hi uint64
}

// columnRanges returns what the file's range is in each column.
func columnRanges(m *stripe.Map, r Range) ([]columnRange, error) {
	if r.Offset < 0 || r.Length < 0 || uint64(r.Offset)+uint64(r.Length) > stripe.MaxFileBytes {
		return nil, fserr.New(fserr.FileTooBig, "data", fmt.Errorf("range [%d, +%d)", r.Offset, r.Length))
	}
	end := uint64(r.Offset) + uint64(r.Length)
	var out []columnRange
	for _, c := range m.ColumnsBelow(end) {
		lo, hi := m.ColumnSize(c.Component, c.Column, uint64(r.Offset)), m.ColumnSize(c.Component, c.Column, end)
		if lo < hi {
			out = append(out, columnRange{c, lo, hi})
		}
	}
	return out, nil
}

// Punch makes a range zeros on all in-sync replicas and gives the space of whole
// blocks back: freed says how many bytes, counted once and not per replica. After
// an error a part of it may have been done, of which freed and the acks tell too.
func (d *Data) Punch(ctx context.Context, f File, r Range) (freed uint64, acks Acks, err error) {
	return d.sparse(ctx, "punch", f, r, func(c columnRange, seq *canopyv1.DataRequest) {
		seq.Call = &canopyv1.DataRequest_Punch{Punch: &canopyv1.PunchCall{Offset: c.lo, Length: c.hi - c.lo}}
	})
}

// Reserve gives the holes of a range space on all in-sync replicas; allocated says
// how many bytes that took, counted once. NoSpace leaves what it got so far.
func (d *Data) Reserve(ctx context.Context, f File, r Range) (allocated uint64, acks Acks, err error) {
	return d.sparse(ctx, "reserve", f, r, func(c columnRange, seq *canopyv1.DataRequest) {
		seq.Call = &canopyv1.DataRequest_Reserve{Reserve: &canopyv1.ReserveCall{Offset: c.lo, Length: c.hi - c.lo}}
	})
}

func (d *Data) sparse(ctx context.Context, name string, f File, r Range, call func(columnRange, *canopyv1.DataRequest)) (bytes uint64, acks Acks, err error) {
	defer d.metrics.observe(name, 0, time.Now(), &err)
	_, mapping, err := d.mapping(ctx, f)
	if err != nil {
		return 0, nil, err
	}
	ranges, err := columnRanges(mapping, r)
	if err != nil {
		return 0, nil, err
	}
	var mu sync.Mutex
	var group errgroup.Group // as for writes, an error ends none of the others
	group.SetLimit(maxParallel)
	for _, c := range ranges {
		group.Go(func() error {
			for lo := c.lo; lo < c.hi; {
				if name == "punch" && c.hi-lo > sparseBytes {
					// Where nothing is there is nothing to be done.
					at, err := d.seekColumn(ctx, f, mapping, c.Column, lo, false)
					if err != nil {
						return err
					}
					if lo = max(lo, at); lo >= c.hi {
						return nil
					}
				}
				part := columnRange{c.Column, lo, min(c.hi, lo+sparseBytes)}
				n, ack, err := d.change(ctx, f, mapping, c.Column, func(r *canopyv1.DataRequest) { call(part, r) })
				if err != nil {
					return err
				}
				mu.Lock()
				bytes += n
				acks.add(ack)
				mu.Unlock()
				lo = part.hi
			}
			return nil
		})
	}
	err = group.Wait()
	return bytes, acks, err
}

// change makes a change without a payload, of this client's sequence.
func (d *Data) change(ctx context.Context, f File, mapping *stripe.Map, c stripe.Column, call func(*canopyv1.DataRequest)) (bytes uint64, ack Ack, err error) {
	t := d.target(f, c)
	sequence := d.sequence(groupKey{t.pool, t.pg})
	seq := sequence.begin()
	defer sequence.end(seq)
	response, pg, err := d.primary(ctx, t, func(epoch uint64) *link.Request {
		r := &canopyv1.DataRequest{
			Column: t.column, PgEpoch: epoch, SizeEpoch: f.SizeEpoch, Cuts: mapping.Cuts(c.Component, c.Column, f.Cuts),
			Client: uint64(d.config.Client), Incarnation: d.config.Incarnation, Seq: seq, Floor: sequence.floor(),
		}
		call(r)
		return &link.Request{DataRequest: r}
	})
	if err != nil {
		return 0, Ack{}, err
	}
	defer response.Free()
	return response.AllocatedBytes + response.FreedBytes, Ack{base.PoolID(f.Layout.Pool), t.pg, pg.Epoch}, nil
}

// Seek returns the first offset, at or behind off, that has data, or with hole one
// that has none; -1 if there is none. Behind all data everything is a hole.
func (d *Data) Seek(ctx context.Context, f File, off int64, hole bool) (at int64, err error) {
	defer d.metrics.observe("seek", 0, time.Now(), &err)
	_, mapping, err := d.mapping(ctx, f)
	if err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, fserr.New(fserr.Invalid, "seek", fmt.Errorf("offset %d", off))
	}
	at = -1
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	for _, c := range mapping.Columns() {
		from := mapping.ColumnSize(c.Component, c.Column, uint64(off))
		if _, ok := mapping.FileOffset(c.Component, c.Column, from); !ok {
			continue // all of the column lies before off
		}
		group.Go(func() error {
			found, err := d.seekColumn(ctx, f, mapping, c, from, hole)
			if err != nil || found == none {
				return err
			}
			file, ok := mapping.FileOffset(c.Component, c.Column, found)
			if !ok {
				return nil // the column is full up to its component's end
			}
			mu.Lock()
			defer mu.Unlock()
			if at < 0 || int64(file) < at {
				at = int64(file)
			}
			return nil
		})
	}
	err = group.Wait()
	return at, err
}

// seekColumn is Seek within a column; none if there is nothing.
func (d *Data) seekColumn(ctx context.Context, f File, mapping *stripe.Map, c stripe.Column, from uint64, hole bool) (at uint64, err error) {
	err = d.ask(ctx, f, mapping, c, &canopyv1.SeekCall{Offset: from, Hole: hole}, func(r *canopyv1.DataResponse) { at = r.ColumnSize })
	return at, err
}

// Allocated returns how many bytes have space on the data servers, counted once.
func (d *Data) Allocated(ctx context.Context, f File) (bytes uint64, err error) {
	defer d.metrics.observe("allocated", 0, time.Now(), &err)
	_, mapping, err := d.mapping(ctx, f)
	if err != nil {
		return 0, err
	}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	for _, c := range mapping.Columns() {
		group.Go(func() error {
			return d.ask(ctx, f, mapping, c, &canopyv1.SeekCall{Usage: true}, func(r *canopyv1.DataResponse) {
				mu.Lock()
				bytes += r.AllocatedBytes
				mu.Unlock()
			})
		})
	}
	err = group.Wait()
	return bytes, err
}

// ask asks the column's primary and calls fn with its answer.
func (d *Data) ask(ctx context.Context, f File, mapping *stripe.Map, c stripe.Column, call *canopyv1.SeekCall, fn func(*canopyv1.DataResponse)) error {
	t := d.target(f, c)
	response, _, err := d.primary(ctx, t, func(epoch uint64) *link.Request {
		return &link.Request{DataRequest: &canopyv1.DataRequest{
			Column: t.column, PgEpoch: epoch, SizeEpoch: f.SizeEpoch, Cuts: mapping.Cuts(c.Component, c.Column, f.Cuts),
			Client: uint64(d.config.Client), Incarnation: d.config.Incarnation,
			Call: &canopyv1.DataRequest_Seek{Seek: call},
		}}
	})
	if err != nil {
		return err
	}
	defer response.Free()
	fn(response.DataResponse)
	return nil
}
