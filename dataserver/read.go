package dataserver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// clientRead reads from this server, which is in sync. The primary waits for
// overlapping changes that are not on all members yet, so that what a read saw
// does not go away; another member sends the client to the primary, unless that
// one does not answer the client.
func (g *group) clientRead(ctx context.Context, key chunkstore.Key, r *link.Request) (*link.Response, error) {
	c := r.GetRead()
	if err := checkRange(key, c.Offset, uint64(c.Length), maxReadBytes); err != nil {
		return nil, err
	}
	pg, err := g.admit(ctx, r.PgEpoch)
	if err != nil {
		return nil, err
	}
	if g.leads(pg) {
		if pg, err = g.admitPrimary(ctx, r.PgEpoch); err != nil {
			return nil, err
		}
	} else if !slices.Contains(pg.InSync, g.self()) || g.quits(pg.Epoch) {
		return nil, fserr.New(fserr.NotHolder, "read", errors.New("this server is not in sync"))
	}
	response, err := g.readRepaired(ctx, pg, key, r)
	if err != nil {
		return nil, err
	}
	// After the bytes, or a change could come between.
	if !g.leads(pg) && !c.Any && g.log.unsettled(key) {
		response.Free()
		return nil, fserr.New(fserr.NotHolder, "read", errors.New("a change may not be on all members yet: the primary knows"))
	}
	// As PROTOCOLS B4: the lease is looked at after the bytes.
	if !g.s.lease.valid() {
		response.Free()
		return nil, errNoLease
	}
	return response, nil
}

func (g *group) readLocked(ctx context.Context, key chunkstore.Key, r *link.Request) (*link.Response, error) {
	c := r.GetRead()
	length := uint64(c.Length)
	release, err := g.locks.acquire(ctx, key, c.Offset, c.Offset+length, false)
	if err != nil {
		return nil, err
	}
	defer release()
	payload, crc, err := g.s.readPayload(key, c.Offset, length, r.SizeEpoch, r.Cuts)
	if err != nil {
		return nil, err
	}
	return &link.Response{DataResponse: &canopyv1.DataResponse{Crc32C: crc}, Payload: payload}, nil
}

// readRepaired reads, and puts right what is damaged here as far as another
// member has it.
func (g *group) readRepaired(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, r *link.Request) (*link.Response, error) {
	before := ^uint64(0)
	for {
		response, err := g.readLocked(ctx, key, r)
		var damaged *chunkstore.ChecksumError
		switch {
		case err == nil:
			return response, nil
		case !errors.As(err, &damaged):
			g.distrust(pg, key, err)
			return nil, err
		case damaged.Block == before:
			return nil, err // what was written there does not stay
		}
		before = damaged.Block
		if err := g.repair(ctx, pg, key, damaged.Block); err != nil {
			return nil, err
		}
	}
}

// distrust deals with a column that cannot be read here at all: this server
// leaves the group's members in sync, and gets the column from them.
func (g *group) distrust(pg *canopyv1.PlacementGroup, key chunkstore.Key, cause error) {
	if fserr.KindOf(cause) != fserr.IO {
		return
	}
	g.s.metrics.damaged.Inc()
	g.s.logger.Error("a column cannot be read", "column", key.String(), "error", cause)
	if len(pg.InSync) > 1 {
		g.s.inBackground(func() { _ = g.reportOut(g.s.ctx, pgSelf(g), cause) }) // repeated by run
	}
}

// repair fetches a block from another member in sync and writes it here.
func (g *group) repair(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, block uint64) error {
	lo := block * chunkstore.BlockBytes
	release, err := g.locks.acquire(ctx, key, lo, lo+chunkstore.BlockBytes, true)
	if err != nil {
		return err
	}
	defer release()
	return g.repairHeld(ctx, pg, key, block)
}

// repairHeld is repair under the block's lock.
func (g *group) repairHeld(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, block uint64) error {
	g.s.metrics.damaged.Inc()
	g.s.logger.Error("a damaged block", "column", key.String(), "block", block)
	var err error = fserr.New(fserr.IO, "read", fmt.Errorf("%s: block %d is damaged, and no other member in sync has it", key, block))
	lo := block * chunkstore.BlockBytes
	for _, id := range pg.InSync {
		if id == g.self() {
			continue
		}
		if err = g.repairFrom(ctx, base.NodeID(id), key, lo, lo+chunkstore.BlockBytes); err == nil {
			g.s.metrics.repaired.Inc()
			g.s.logger.Warn("repaired from another member", "column", key.String(), "block", block, "server", id)
			return nil
		}
	}
	g.s.metrics.lost.Inc()
	return err
}

func (g *group) repairFrom(ctx context.Context, id base.NodeID, key chunkstore.Key, lo, hi uint64) error {
	size, epoch, err := g.s.store.Size(key)
	if err != nil {
		return err
	}
	hi = min(hi, size)
	for at := lo; at < hi; {
		n := min(hi-at, 1<<20)
		response, err := g.ask(ctx, id, key, &canopyv1.DataRequest{Call: &canopyv1.DataRequest_FetchColumn{
			FetchColumn: &canopyv1.FetchColumnCall{Offset: at, Length: uint32(n)},
		}}, nil)
		if err != nil {
			return err
		}
		if response.Payload.Len() > 0 {
			_, err = g.s.store.Write(key, chunkstore.Write{
				Offset: at, Parts: parts(response.Payload), CRC: response.Crc32C, SizeEpoch: epoch, Repair: true,
			})
		}
		response.Free()
		if err != nil {
			return err
		}
		at += n
	}
	return nil
}
