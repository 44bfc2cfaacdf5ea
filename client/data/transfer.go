package data

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// chunkBytes is the largest part of a column that one request carries. Its
// multiples split a column, so that chunks do not share a block.
const chunkBytes = 512 << 10

// castagnoli is CRC-32C; the table is constant.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// chunks splits a range of a file into what single requests carry.
func chunks(m *stripe.Map, off, length int64) ([]stripe.Piece, error) {
	if off < 0 || uint64(off)+uint64(length) > stripe.MaxFileBytes {
		return nil, fserr.New(fserr.FileTooBig, "data", fmt.Errorf("range [%d, +%d)", off, length))
	}
	pieces := m.Pieces(nil, uint64(off), uint64(length))
	var out []stripe.Piece
	for _, p := range pieces {
		for p.Length > 0 {
			n := min(p.Length, chunkBytes-p.ColumnOffset%chunkBytes)
			c := p
			c.Length = n
			out = append(out, c)
			p.FileOffset, p.ColumnOffset, p.Length = p.FileOffset+n, p.ColumnOffset+n, p.Length-n
		}
	}
	return out, nil
}

// each calls do for every chunk, in parallel as far as the budget allows. A change
// goes on with the others after an error: one that is given up while a server may
// have it can still be made, behind what is written there next (PROTOCOLS J3).
func (d *Data) each(ctx context.Context, list []stripe.Piece, changes bool, do func(context.Context, stripe.Piece) error) error {
	one := func(ctx context.Context, p stripe.Piece) error {
		if err := d.budget.acquire(ctx, d.closed, int64(p.Length)); err != nil {
			return fserr.New(fserr.KindOf(err), "data", err)
		}
		defer d.budget.release(int64(p.Length))
		return do(ctx, p)
	}
	if len(list) == 1 {
		return one(ctx, list[0])
	}
	group, until := errgroup.WithContext(ctx)
	if changes {
		until = ctx
	}
	group.SetLimit(maxParallel)
	for _, p := range list {
		group.Go(func() error { return one(until, p) })
	}
	return group.Wait()
}

// maxParallel bounds the goroutines of one call.
const maxParallel = 64

func (d *Data) target(f File, c stripe.Column) target {
	pool := base.PoolID(f.Layout.Pool)
	return target{pool: pool, pg: c.PG, permit: d.permit(f), column: &canopyv1.Column{
		Pool: uint64(pool), Pg: uint32(c.PG), DataId: uint64(f.ID), Component: c.Component, Column: c.Column,
	}}
}

// Written is the answer to a write.
type Written struct {
	AllocatedBytes uint64 // newly allocated, counted once and not per replica
	Acks           Acks   // for the Sync that makes the bytes durable
}

// WriteAt writes p at off. It returns when all in-sync replicas have it, in
// memory: Sync makes it durable. p is not kept. After an error any part of p may
// have been written, but none is any more; only when ctx ended it may be later.
func (d *Data) WriteAt(ctx context.Context, f File, p []byte, off int64) (w Written, err error) {
	if len(p) == 0 {
		return Written{}, nil
	}
	defer d.metrics.observe("write", len(p), time.Now(), &err)
	_, mapping, err := d.mapping(ctx, f)
	if err != nil {
		return Written{}, err
	}
	list, err := chunks(mapping, off, int64(len(p)))
	if err != nil {
		return Written{}, err
	}
	type result struct {
		allocated uint64
		epoch     uint64
	}
	results := make([]result, len(list))
	index := func(c stripe.Piece) int { // list is in file order
		lo, hi := 0, len(list)
		for hi-lo > 1 {
			if mid := (lo + hi) / 2; list[mid].FileOffset <= c.FileOffset {
				lo = mid
			} else {
				hi = mid
			}
		}
		return lo
	}
	err = d.each(ctx, list, true, func(ctx context.Context, c stripe.Piece) error {
		at := int64(c.FileOffset) - off
		allocated, epoch, err := d.writeChunk(ctx, f, mapping, c, p[at:at+int64(c.Length)])
		results[index(c)] = result{allocated, epoch}
		return err
	})
	for i, r := range results {
		w.AllocatedBytes += r.allocated
		if r.epoch != 0 {
			w.Acks.add(Ack{base.PoolID(f.Layout.Pool), list[i].PG, r.epoch})
		}
	}
	return w, err
}

// writeChunk also returns the epoch under which the group acknowledged.
func (d *Data) writeChunk(ctx context.Context, f File, mapping *stripe.Map, c stripe.Piece, p []byte) (allocated, epoch uint64, err error) {
	t := d.target(f, c.Column)
	cuts := mapping.Cuts(c.Component, c.Column.Column, f.Cuts)
	// The copy is what makes "p is not kept" true when an attempt is abandoned.
	copied := d.memory.Get(len(p))
	copy(*copied, p)
	payload := mem.BufferSlice{mem.NewBuffer(copied, d.memory)}
	defer payload.Free()
	crc := crc32.Checksum(*copied, castagnoli)
	sequence := d.sequence(groupKey{t.pool, t.pg})
	seq := sequence.begin()
	defer sequence.end(seq)
	response, pg, err := d.primary(ctx, t, func(epoch uint64) *link.Request {
		payload.Ref()
		return &link.Request{
			DataRequest: &canopyv1.DataRequest{
				Column: t.column, PgEpoch: epoch, SizeEpoch: f.SizeEpoch, Cuts: cuts,
				Client: uint64(d.config.Client), Incarnation: d.config.Incarnation, Seq: seq, Floor: sequence.floor(),
				Call: &canopyv1.DataRequest_Write{Write: &canopyv1.WriteCall{Offset: c.ColumnOffset, Crc32C: crc}},
			},
			Payload: payload,
		}
	})
	if err != nil {
		return 0, 0, err
	}
	response.Free()
	return response.AllocatedBytes, pg.Epoch, nil
}

// ReadAt fills p with what is at off: holes and what was never written read as
// zeros, so n is len(p) unless there is an error. The caller bounds the range by
// the file's size.
func (d *Data) ReadAt(ctx context.Context, f File, p []byte, off int64) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	defer d.metrics.observe("read", len(p), time.Now(), &err)
	_, mapping, err := d.mapping(ctx, f)
	if err != nil {
		return 0, err
	}
	list, err := chunks(mapping, off, int64(len(p)))
	if err != nil {
		return 0, err
	}
	err = d.each(ctx, list, false, func(ctx context.Context, c stripe.Piece) error {
		at := int64(c.FileOffset) - off
		return d.readChunk(ctx, f, mapping, c, p[at:at+int64(c.Length)])
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// fill copies a read's bytes to p and verifies them; what is missing is zeros.
func fill(p []byte, response *link.Response) error {
	defer response.Free()
	if response.Payload.Len() > len(p) {
		return fserr.New(fserr.Malformed, "read", errors.New("the answer is longer than what was asked for"))
	}
	var crc uint32
	rest := p
	for _, b := range response.Payload {
		n := copy(rest, b.ReadOnlyData())
		crc = crc32.Update(crc, castagnoli, rest[:n])
		rest = rest[n:]
	}
	if crc != response.Crc32C {
		return fserr.New(fserr.Malformed, "read", fmt.Errorf("checksum %08x, announced %08x", crc, response.Crc32C))
	}
	clear(rest)
	return nil
}
