package dataserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/dataserver/chunkstore/rangelock"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// Bounds of one request.
const (
	maxReadBytes  = 4 << 20
	maxWriteBytes = 4 << 20
	maxSumBlocks  = 1 << 16
	maxListed     = 4096
)

// execute does one request. The response is set if err is nil.
func (s *server) execute(ctx context.Context, r *link.Request) (*link.Response, error) {
	if r.Column == nil || r.Call == nil {
		return nil, fserr.New(fserr.Malformed, "data", errors.New("a request names a column and a call"))
	}
	g := s.group(keyOf(r.Column))
	if g == nil {
		return nil, s.notMine(r)
	}
	key := keyOf(r.Column)
	if r.FromPrimary {
		return g.executeReplica(ctx, key, r)
	}
	switch r.Call.(type) {
	case *canopyv1.DataRequest_Write:
		return g.clientWrite(ctx, key, r)
	case *canopyv1.DataRequest_Read:
		return g.clientRead(ctx, key, r)
	case *canopyv1.DataRequest_Sync:
		return g.clientSync(ctx, key, r)
	case *canopyv1.DataRequest_Punch:
		return g.clientPunch(ctx, key, r)
	case *canopyv1.DataRequest_Reserve:
		return g.clientReserve(ctx, key, r)
	case *canopyv1.DataRequest_Seek:
		return g.clientSeek(ctx, key, r)
	case *canopyv1.DataRequest_Cut:
		return g.clientCut(ctx, key, r)
	case *canopyv1.DataRequest_Delete:
		// Every member is told by itself, whatever the epoch (PROTOCOLS H3).
		return g.delete(key)
	}
	return nil, fserr.New(fserr.Permission, "data", fmt.Errorf("%T is for the members of a placement group", r.Call))
}

// notMine refuses a request for a group that this server is no member of, as
// far as it knows.
func (s *server) notMine(r *link.Request) error {
	m := s.watcher.Current()
	if m == nil {
		return fserr.New(fserr.NotReady, "data", errors.New("this server has no pool map yet"))
	}
	key := keyOf(r.Column)
	if pg := m.PG(key.Pool, key.PG); pg != nil && pg.Epoch > r.PgEpoch {
		return &epochError{pg.Epoch, r.PgEpoch}
	}
	return fserr.New(fserr.NotReady, "data", fmt.Errorf("this server is no member of pg %d.%d", key.Pool, key.PG))
}

func ok() *link.Response { return &link.Response{DataResponse: &canopyv1.DataResponse{}} }

// checkRange refuses what no column can have.
func checkRange(key chunkstore.Key, offset, length, limit uint64) error {
	if key.Data == 0 || length > limit || offset > stripe.MaxFileBytes || length > stripe.MaxFileBytes-offset {
		return fserr.New(fserr.Malformed, "data", fmt.Errorf("%s, range [%d, +%d)", key, offset, length))
	}
	return nil
}

// storeWrite is the write of this server's own copy.
func (g *group) storeWrite(key chunkstore.Key, r *link.Request) (uint64, error) {
	w := r.GetWrite()
	allocated, err := g.s.store.Write(key, chunkstore.Write{
		Offset: w.Offset, Parts: parts(r.Payload), CRC: w.Crc32C, SizeEpoch: r.SizeEpoch, Cuts: r.Cuts, Repair: w.Repair,
	})
	if err == nil && w.Sync {
		err = g.s.store.Sync(key)
	}
	return allocated, err
}

func (g *group) clientWrite(ctx context.Context, key chunkstore.Key, r *link.Request) (*link.Response, error) {
	w := r.GetWrite()
	length := uint64(r.Payload.Len())
	if err := checkRange(key, w.Offset, length, maxWriteBytes); err != nil {
		return nil, err
	}
	if w.Repair {
		return nil, fserr.New(fserr.Malformed, "write", errors.New("a client's write is no repair"))
	}
	allocated, err := g.clientChange(ctx, key, r, w.Offset, length, func() (uint64, error) { return g.storeWrite(key, r) })
	if err != nil {
		return nil, err
	}
	response := ok()
	response.AllocatedBytes = allocated
	return response, nil
}

// clientChange makes a change of the client's sequence on all members, once: a
// repetition joins the first copy or gets its answer (PROTOCOLS J3).
func (g *group) clientChange(ctx context.Context, key chunkstore.Key, r *link.Request, offset, length uint64, local func() (uint64, error)) (uint64, error) {
	if r.Client == 0 || r.Seq == 0 {
		return 0, fserr.New(fserr.Malformed, "data", errors.New("a client's change has a client and a sequence"))
	}
	if _, err := g.admitPrimary(ctx, r.PgEpoch); err != nil {
		return 0, err
	}
	id := writeID{r.Client, r.Incarnation, r.Seq, r.Floor}
	mine, join, was, err := g.sessions.begin(id, time.Now())
	if err != nil {
		return 0, err
	}
	if join != nil {
		select {
		case <-join.finished:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		was = outcome{join.bytes, join.err}
	}
	if mine != nil {
		lo := offset - offset%chunkstore.BlockBytes
		hi := offset + length + chunkstore.BlockBytes - 1
		was.bytes, was.err = g.replicate(ctx, &change{key: key, lo: lo, hi: hi - hi%chunkstore.BlockBytes, request: r, local: local,
			wanted: func() error { return g.sessions.wanted(id) }})
		g.sessions.end(id, mine, was.bytes, was.err)
	}
	return was.bytes, was.err
}

// clientCut makes the column know its cuts, on all members, durably.
func (g *group) clientCut(ctx context.Context, key chunkstore.Key, r *link.Request) (*link.Response, error) {
	if err := checkRange(key, 0, 0, 0); err != nil {
		return nil, err
	}
	if _, err := g.admitPrimary(ctx, r.PgEpoch); err != nil {
		return nil, err
	}
	_, err := g.replicate(ctx, &change{
		key: key, lo: 0, hi: rangelock.All, request: r,
		local: func() (uint64, error) { return 0, g.s.store.Cut(key, r.SizeEpoch, r.Cuts) },
	})
	if err != nil {
		return nil, err
	}
	return ok(), nil
}

// clientSync makes the column durable on all members. It changes nothing, so it
// needs no lock and no place in the log.
func (g *group) clientSync(ctx context.Context, key chunkstore.Key, r *link.Request) (*link.Response, error) {
	if err := checkRange(key, 0, 0, 0); err != nil {
		return nil, err
	}
	if _, err := g.admitPrimary(ctx, r.PgEpoch); err != nil {
		return nil, err
	}
	targets := g.targets()
	errs := make(chan error, len(targets))
	for _, id := range targets {
		go func() { errs <- g.forward(ctx, id, r, 0, 0) }()
	}
	local := g.s.store.Sync(key)
	var remote error
	for range targets {
		remote = errors.Join(remote, <-errs)
	}
	if local != nil {
		return nil, g.mendSync(ctx, local)
	}
	if remote != nil {
		return nil, remote
	}
	return ok(), nil
}

// mendSync hands over to a member whose disk works.
func (g *group) mendSync(ctx context.Context, cause error) error {
	pg, _, _ := g.state()
	if !g.leads(pg) || len(pg.InSync) == 1 {
		return cause
	}
	if err := g.reportOut(ctx, pgSelf(g), cause); err != nil {
		return errors.Join(cause, err)
	}
	return fserr.New(fserr.NotReady, "sync", fmt.Errorf("this server's disk failed, another one takes over: %w", cause))
}

func (g *group) delete(key chunkstore.Key) (*link.Response, error) {
	if err := checkRange(key, 0, 0, 0); err != nil {
		return nil, err
	}
	if err := g.s.store.Delete(key); err != nil {
		return nil, err
	}
	// After the deletion: a member that the client does not know of was compared
	// with this one later, or the epoch tells of it (PROTOCOLS H3).
	pg, _, _ := g.state()
	response := ok()
	response.PgEpoch = pg.Epoch
	return response, nil
}

// executeReplica does what the primary asks of a member.
func (g *group) executeReplica(ctx context.Context, key chunkstore.Key, r *link.Request) (*link.Response, error) {
	if _, err := g.admit(ctx, r.PgEpoch); err != nil {
		return nil, err
	}
	still := func() bool { return g.isEpoch(r.PgEpoch) }
	if r.LogSeq != 0 {
		return g.forwarded(ctx, key, r, still)
	}
	switch call := r.Call.(type) {
	case *canopyv1.DataRequest_InFlight:
		return g.inFlight(ctx)
	case *canopyv1.DataRequest_ListColumns:
		if call.ListColumns.AfterDataId == 0 {
			// What the primary before had under way here must not come after.
			if err := g.log.drain(ctx); err != nil {
				return nil, err
			}
		}
		return g.list(call.ListColumns)
	}
	leave, err := g.log.visit(still)
	if err != nil {
		return nil, err
	}
	defer leave()
	return g.recoveryCall(key, r)
}

// forwarded executes a change that the primary makes everywhere.
func (g *group) forwarded(ctx context.Context, key chunkstore.Key, r *link.Request, still func() bool) (*link.Response, error) {
	switch r.Call.(type) {
	case *canopyv1.DataRequest_Write:
		w := r.GetWrite()
		length := uint64(r.Payload.Len())
		if err := checkRange(key, w.Offset, length, maxWriteBytes); err != nil {
			return nil, err
		}
		return g.replicaOf(ctx, key, r, w.Offset, length, still, func() (uint64, error) { return g.storeWrite(key, r) })
	case *canopyv1.DataRequest_Punch:
		p := r.GetPunch()
		return g.replicaOf(ctx, key, r, p.Offset, p.Length, still, func() (uint64, error) { return g.storePunch(key, r) })
	case *canopyv1.DataRequest_Reserve:
		c := r.GetReserve()
		return g.replicaOf(ctx, key, r, c.Offset, c.Length, still, func() (uint64, error) { return g.storeReserve(key, r) })
	case *canopyv1.DataRequest_Cut:
		return g.replicaChange(ctx, key, r, 0, rangelock.All, still, func() (uint64, error) {
			return 0, g.s.store.Cut(key, r.SizeEpoch, r.Cuts)
		})
	}
	return nil, fserr.New(fserr.NotSupported, "data", fmt.Errorf("%T", r.Call))
}

// recoveryCall executes what makes this member equal to the primary.
func (g *group) recoveryCall(key chunkstore.Key, r *link.Request) (*link.Response, error) {
	switch call := r.Call.(type) {
	case *canopyv1.DataRequest_Write:
		if err := checkRange(key, call.Write.Offset, uint64(r.Payload.Len()), maxWriteBytes); err != nil {
			return nil, err
		}
		_, err := g.storeWrite(key, r)
		return ok(), err
	case *canopyv1.DataRequest_Punch:
		if err := checkRange(key, call.Punch.Offset, call.Punch.Length, stripe.MaxFileBytes); err != nil {
			return nil, err
		}
		_, err := g.storePunch(key, r)
		return ok(), err
	case *canopyv1.DataRequest_Cut:
		if call.Cut.Exact {
			return ok(), g.s.store.Shape(key, r.SizeEpoch, call.Cut.Size)
		}
		return ok(), g.s.store.Cut(key, r.SizeEpoch, r.Cuts)
	case *canopyv1.DataRequest_Sync:
		if key.Data == 0 {
			return ok(), g.s.store.SyncAll()
		}
		return ok(), g.s.store.Sync(key)
	case *canopyv1.DataRequest_Delete:
		return g.delete(key)
	case *canopyv1.DataRequest_DropColumn:
		return ok(), g.s.store.Drop(key)
	case *canopyv1.DataRequest_FetchColumn:
		c := call.FetchColumn
		if err := checkRange(key, c.Offset, uint64(c.Length), maxReadBytes); err != nil {
			return nil, err
		}
		payload, crc, err := g.s.readPayload(key, c.Offset, uint64(c.Length), 0, nil)
		if err != nil {
			return nil, err
		}
		return &link.Response{DataResponse: &canopyv1.DataResponse{Crc32C: crc}, Payload: payload}, nil
	case *canopyv1.DataRequest_BlockSums:
		return g.blockSums(key, call.BlockSums)
	case *canopyv1.DataRequest_Condemn:
		return g.condemn(key, r, call.Condemn)
	case *canopyv1.DataRequest_Seek:
		response, err := ok(), error(nil)
		response.ColumnSize, err = g.s.store.Seek(key, call.Seek.Offset, call.Seek.Hole, 0, nil)
		return response, err
	}
	return nil, fserr.New(fserr.NotSupported, "data", fmt.Errorf("%T", r.Call))
}

// replicaOf executes a client's change that the primary forwarded.
func (g *group) replicaOf(ctx context.Context, key chunkstore.Key, r *link.Request, offset, length uint64, still func() bool, do func() (uint64, error)) (*link.Response, error) {
	if err := checkRange(key, offset, length, stripe.MaxFileBytes); err != nil {
		return nil, err
	}
	id := writeID{r.Client, r.Incarnation, r.Seq, r.Floor}
	if err := g.sessions.fence(id, time.Now()); err != nil {
		return nil, err
	}
	response, err := g.replicaChange(ctx, key, r, offset, offset+length, still, do)
	if err != nil {
		return nil, err
	}
	g.sessions.note(id, response.AllocatedBytes)
	return response, nil
}

// replicaChange executes what the primary forwarded, once: a repetition over
// another connection gets the first one's outcome.
func (g *group) replicaChange(ctx context.Context, key chunkstore.Key, r *link.Request, lo, hi uint64, still func() bool, do func() (uint64, error)) (*link.Response, error) {
	pg, _, _ := g.state()
	t, mine, open := g.log.take(primaryOf(pg), r.LogSeq, r.LogFloor, key, still)
	if !open {
		return nil, errOverrun
	}
	if mine {
		bytes, err := g.lockedDo(ctx, key, lo, hi, do)
		g.log.took(r.LogSeq, t, bytes, err)
	}
	select {
	case <-t.finished:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	response := ok()
	response.AllocatedBytes = t.bytes // of a punch: what it freed
	return response, t.err
}

// lockedDo keeps this server's own repair of damaged blocks out.
func (g *group) lockedDo(ctx context.Context, key chunkstore.Key, lo, hi uint64, do func() (uint64, error)) (uint64, error) {
	release, err := g.locks.acquire(ctx, key, lo, hi, true)
	if err != nil {
		return 0, err
	}
	defer release()
	return do()
}

// inFlight answers which columns may differ from other members', after changes
// of older epochs have ended here.
func (g *group) inFlight(ctx context.Context) (*link.Response, error) {
	if err := g.log.drain(ctx); err != nil {
		return nil, err
	}
	response := ok()
	for _, key := range g.log.columns() {
		response.Columns = append(response.Columns, &canopyv1.ColumnInfo{Column: columnOf(key)})
	}
	return response, nil
}

func (g *group) list(c *canopyv1.ListColumnsCall) (*link.Response, error) {
	infos, err := g.s.store.List(g.pool, g.pg, listOptions(c))
	if err != nil {
		return nil, err
	}
	response := ok()
	for _, i := range infos {
		response.Columns = append(response.Columns, infoOf(i))
	}
	return response, nil
}

func (g *group) blockSums(key chunkstore.Key, c *canopyv1.BlockSumsCall) (*link.Response, error) {
	if c.Blocks > maxSumBlocks || c.FirstBlock > stripe.MaxFileBytes/chunkstore.BlockBytes {
		return nil, fserr.New(fserr.Malformed, "block sums", fmt.Errorf("%d blocks from %d", c.Blocks, c.FirstBlock))
	}
	response := ok()
	var sums []uint32
	var err error
	if c.Verify {
		sums, response.Damaged, err = g.s.store.Verify(key, c.FirstBlock, uint64(c.Blocks))
	} else {
		sums, err = g.s.store.Sums(key, c.FirstBlock, uint64(c.Blocks))
	}
	if err != nil {
		return nil, err
	}
	response.Payload = mem.BufferSlice{mem.SliceBuffer(chunkstore.EncodeSums(sums))}
	return response, nil
}

func (g *group) condemn(key chunkstore.Key, r *link.Request, c *canopyv1.CondemnCall) (*link.Response, error) {
	if key.Data == 0 || len(c.Sums)%4 != 0 || len(c.Sums) > 4*maxSumBlocks || c.FirstBlock > stripe.MaxFileBytes/chunkstore.BlockBytes || c.Size > stripe.MaxFileBytes {
		return nil, fserr.New(fserr.Malformed, "condemn", fmt.Errorf("%s, %d bytes of sums from block %d", key, len(c.Sums), c.FirstBlock))
	}
	g.s.logger.Error("bytes that no member in sync has any more are marked as lost", "column", key.String(), "block", c.FirstBlock, "blocks", len(c.Sums)/4)
	if len(c.Sums) == 0 {
		return ok(), g.s.store.CondemnAll(key)
	}
	return ok(), g.s.store.Condemn(key, c.FirstBlock, chunkstore.DecodeSums(c.Sums), r.SizeEpoch, c.Size)
}
