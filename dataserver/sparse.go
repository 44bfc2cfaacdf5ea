package dataserver

import (
	"context"
	"errors"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// maxSparseBytes bounds one punch or reservation: a member has to be done before
// its primary takes it for stuck.
const maxSparseBytes = 1 << 30

func rangeOf(r *link.Request, offset, length uint64, repair bool) chunkstore.Range {
	return chunkstore.Range{Offset: offset, Length: length, SizeEpoch: r.SizeEpoch, Cuts: r.Cuts, Repair: repair}
}

// storePunch and storeReserve are the changes of this server's own copy.
func (g *group) storePunch(key chunkstore.Key, r *link.Request) (freed uint64, err error) {
	p := r.GetPunch()
	return g.s.store.Punch(key, rangeOf(r, p.Offset, p.Length, p.Repair))
}

func (g *group) storeReserve(key chunkstore.Key, r *link.Request) (allocated uint64, err error) {
	c := r.GetReserve()
	return g.s.store.Reserve(key, rangeOf(r, c.Offset, c.Length, false))
}

// clientPunch makes a hole on all members.
func (g *group) clientPunch(ctx context.Context, key chunkstore.Key, r *link.Request) (*link.Response, error) {
	p := r.GetPunch()
	if err := checkRange(key, p.Offset, p.Length, maxSparseBytes); err != nil {
		return nil, err
	}
	if p.Repair {
		return nil, fserr.New(fserr.Malformed, "punch", errors.New("a client's punch is no repair"))
	}
	freed, err := g.clientChange(ctx, key, r, p.Offset, p.Length, func() (uint64, error) { return g.storePunch(key, r) })
	if err != nil {
		return nil, err
	}
	response := ok()
	response.FreedBytes = freed
	return response, nil
}

// clientReserve gives a range space on all members.
func (g *group) clientReserve(ctx context.Context, key chunkstore.Key, r *link.Request) (*link.Response, error) {
	c := r.GetReserve()
	if err := checkRange(key, c.Offset, c.Length, maxSparseBytes); err != nil {
		return nil, err
	}
	allocated, err := g.clientChange(ctx, key, r, c.Offset, c.Length, func() (uint64, error) { return g.storeReserve(key, r) })
	if err != nil {
		return nil, err
	}
	response := ok()
	response.AllocatedBytes = allocated
	return response, nil
}

// clientSeek answers of the primary's copy where data or holes are. It waits for
// no change under way: who asks has got the answers to its own, and of another's
// it may see either state.
func (g *group) clientSeek(ctx context.Context, key chunkstore.Key, r *link.Request) (*link.Response, error) {
	c := r.GetSeek()
	if err := checkRange(key, c.Offset, 0, 0); err != nil {
		return nil, err
	}
	if _, err := g.admitPrimary(ctx, r.PgEpoch); err != nil {
		return nil, err
	}
	response := ok()
	var err error
	if c.Usage {
		response.AllocatedBytes, err = g.s.store.Allocated(key, r.SizeEpoch, r.Cuts)
	} else {
		response.ColumnSize, err = g.s.store.Seek(key, c.Offset, c.Hole, r.SizeEpoch, r.Cuts)
	}
	if err != nil {
		return nil, err
	}
	// As PROTOCOLS B4: the lease is looked at after the answer.
	if !g.s.lease.valid() {
		return nil, errNoLease
	}
	return response, nil
}

// punchThere makes a hole of a member's column where here is one.
func (g *group) punchThere(ctx context.Context, key chunkstore.Key, id base.NodeID, offset, length, epoch uint64) error {
	return g.tell(ctx, id, key, &canopyv1.DataRequest{
		SizeEpoch: epoch,
		Call:      &canopyv1.DataRequest_Punch{Punch: &canopyv1.PunchCall{Offset: offset, Length: length, Repair: true}},
	}, nil)
}
