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
	response, err := g.readLocked(ctx, key, r)
	var damaged *chunkstore.ChecksumError
	if errors.As(err, &damaged) {
		g.s.metrics.damaged.Inc()
		g.s.logger.Error("a damaged block", "column", key.String(), "block", damaged.Block)
		if err = g.repair(ctx, pg, key, c.Offset, uint64(c.Length)); err == nil {
			response, err = g.readLocked(ctx, key, r)
		}
	}
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

// repair fetches a range from another member and writes it here. At a replica
// it asks the primary first.
func (g *group) repair(ctx context.Context, pg *canopyv1.PlacementGroup, key chunkstore.Key, offset, length uint64) error {
	lo := offset - offset%chunkstore.BlockBytes
	hi := (offset + length + chunkstore.BlockBytes - 1) / chunkstore.BlockBytes * chunkstore.BlockBytes
	release, err := g.locks.acquire(ctx, key, lo, hi, true)
	if err != nil {
		return err
	}
	defer release()
	err = fserr.New(fserr.IO, "read", fmt.Errorf("%s is damaged and no other member is in sync", key))
	for _, id := range pg.InSync {
		if id == g.self() {
			continue
		}
		if err = g.repairFrom(ctx, base.NodeID(id), key, lo, hi); err == nil {
			g.s.logger.Warn("repaired from another member", "column", key.String(), "server", id)
			return nil
		}
	}
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
