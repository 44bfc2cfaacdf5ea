package data

import (
	"context"
	"errors"
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/poolmap"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// poolMap waits for a map that has the pool.
func (d *Data) poolMap(ctx context.Context, pool base.PoolID) (*poolmap.Map, *canopyv1.Pool, error) {
	for {
		m, changed := d.watcher.Next()
		if m != nil && m.Pool(pool) != nil {
			return m, m.Pool(pool), nil
		}
		select {
		case <-changed:
		case <-d.closed:
			return nil, nil, errClosed
		case <-ctx.Done():
			what := "no layout service answers"
			if m != nil {
				what = fmt.Sprintf("there is no pool %d yet", pool)
			}
			return nil, nil, fserr.New(fserr.KindOf(ctx.Err()), "data", fmt.Errorf("%s: %w", what, ctx.Err()))
		}
	}
}

var errClosed = fserr.New(fserr.NotConnected, "data", errors.New("closed"))

// Usage returns capacity and free bytes of a pool as a mount should show them:
// those of the servers that are alive, divided by the number of replicas.
func (d *Data) Usage(ctx context.Context, pool base.PoolID) (totalBytes, freeBytes uint64, err error) {
	m, p, err := d.poolMap(ctx, pool)
	if err != nil {
		return 0, 0, err
	}
	members := map[uint64]bool{}
	for _, pg := range p.Pgs {
		for _, id := range pg.Members {
			members[id] = true
		}
	}
	for id := range members {
		if s := m.Server(base.NodeID(id)); s != nil && s.Alive {
			totalBytes += s.TotalBytes
			freeBytes += s.FreeBytes
		}
	}
	replicas := uint64(max(p.Replicas, 1))
	return totalBytes / replicas, freeBytes / replicas, nil
}

// PoolMap waits for a pool map and returns the newest known. It is shared: do
// not change it.
func (d *Data) PoolMap(ctx context.Context) (*canopyv1.PoolMap, error) {
	for {
		m, changed := d.watcher.Next()
		if m != nil {
			return m.Message(), nil
		}
		select {
		case <-changed:
		case <-d.closed:
			return nil, errClosed
		case <-ctx.Done():
			return nil, fserr.New(fserr.KindOf(ctx.Err()), "pool map", fmt.Errorf("no layout service answers: %w", ctx.Err()))
		}
	}
}

// DefaultLayout returns the layout that files of the pool get if nobody says
// otherwise. It is shared: do not change it.
func (d *Data) DefaultLayout(ctx context.Context, pool base.PoolID) (*canopyv1.Layout, error) {
	_, p, err := d.poolMap(ctx, pool)
	if err != nil {
		return nil, err
	}
	if p.Layout == nil {
		return stripe.Default(pool), nil
	}
	return p.Layout, nil
}

// Location says where a piece of a file lies.
type Location struct {
	FileOffset   int64
	Length       int64
	Component    uint32
	Column       uint32
	ColumnOffset uint64
	PG           base.PGID
	PGEpoch      base.Epoch
	Servers      []*canopyv1.DataServerInfo // in-sync ones, primary first
}

// Locate returns where the pieces of a range of a file lie, in file order.
func (d *Data) Locate(ctx context.Context, f File, r Range) ([]Location, error) {
	if r.Offset < 0 || r.Length < 0 {
		return nil, fserr.New(fserr.Invalid, "locate", fmt.Errorf("range [%d, +%d)", r.Offset, r.Length))
	}
	m, mapping, err := d.mapping(ctx, f)
	if err != nil {
		return nil, err
	}
	var out []Location
	for _, p := range mapping.Pieces(nil, uint64(r.Offset), uint64(r.Length)) {
		pg := m.PG(base.PoolID(f.Layout.Pool), p.PG)
		l := Location{
			FileOffset: int64(p.FileOffset), Length: int64(p.Length), Component: p.Component, Column: p.Column.Column,
			ColumnOffset: p.ColumnOffset, PG: p.PG, PGEpoch: base.Epoch(pg.Epoch),
		}
		for _, id := range pg.InSync {
			if s := m.Server(base.NodeID(id)); s != nil {
				l.Servers = append(l.Servers, s)
			}
		}
		out = append(out, l)
	}
	return out, nil
}

// StatColumns returns what every data server holds of a data id, by server. It
// is an error if a server does not answer.
func (d *Data) StatColumns(ctx context.Context, id base.DataID) (map[base.NodeID][]*canopyv1.ColumnInfo, error) {
	message, err := d.PoolMap(ctx)
	if err != nil {
		return nil, err
	}
	ctx, err = d.inspecting(ctx)
	if err != nil {
		return nil, err
	}
	out := map[base.NodeID][]*canopyv1.ColumnInfo{}
	for _, s := range message.Servers {
		l, err := d.link(poolmap.New(message), base.NodeID(s.Server), 0)
		if err != nil {
			return nil, err
		}
		answer, err := canopyv1.NewDataClient(l.Conn()).StatColumns(ctx, &canopyv1.StatColumnsRequest{DataId: uint64(id)})
		if err != nil {
			return nil, fserr.New(fserr.KindOf(err), fmt.Sprintf("stat columns at server %d", s.Server), err)
		}
		out[base.NodeID(s.Server)] = answer.Columns
	}
	return out, nil
}

// mapping returns the newest map and the file's arithmetic.
func (d *Data) mapping(ctx context.Context, f File) (*poolmap.Map, *stripe.Map, error) {
	if f.ID == 0 || f.Layout == nil {
		return nil, nil, fserr.New(fserr.Invalid, "data", errors.New("the file has no data id or no layout"))
	}
	m, pool, err := d.poolMap(ctx, base.PoolID(f.Layout.Pool))
	if err != nil {
		return nil, nil, err
	}
	mapping, err := stripe.NewMap(f.Layout, f.ID, len(pool.Pgs))
	return m, mapping, err
}
