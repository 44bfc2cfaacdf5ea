package dataserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/dataserver/chunkstore/rangelock"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// patiently repeats what fails because the member is behind or its connection
// broke, for a while.
func (g *group) patiently(ctx context.Context, do func() error) error {
	began := time.Now()
	for attempt := 0; ; attempt++ {
		err := do()
		switch fserr.KindOf(err) {
		case fserr.NotReady, fserr.Busy, fserr.OldEpoch:
		default:
			return err
		}
		if time.Since(began) > patienceWith(err) {
			return err
		}
		select {
		case <-time.After(retryPause(attempt)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// syncColumn makes a member's column what it is here. Ranges are locked one by
// one while they are compared and copied, so that changes of others go on.
func (g *group) syncColumn(ctx context.Context, key chunkstore.Key, id base.NodeID, p *progress) error {
	done, err := g.syncShape(ctx, key, id, p)
	if done || err != nil {
		return err
	}
	for first := uint64(0); ; first += copyBlocks {
		if err := p.pay(ctx); err != nil {
			return err
		}
		more, empty, err := g.syncRange(ctx, key, id, first, p)
		if err != nil || !more {
			return err
		}
		if !empty {
			continue
		}
		at := (first + copyBlocks) * chunkstore.BlockBytes
		next, err := g.nextData(ctx, key, id, at)
		if err != nil {
			return err
		}
		size, _, err := g.s.store.Size(key)
		if err != nil {
			return err
		}
		if next == chunkstore.NoOffset {
			p.compared(max(size, at) - at)
			return nil
		}
		next -= next % (copyBlocks * chunkstore.BlockBytes)
		p.compared(next - at)
		first = next/chunkstore.BlockBytes - copyBlocks
	}
}

// nextData returns where, at or behind offset, the column has data next, here or
// there: what has none on both needs no comparison.
func (g *group) nextData(ctx context.Context, key chunkstore.Key, id base.NodeID, offset uint64) (uint64, error) {
	here, err := g.s.store.Seek(key, offset, false, 0, nil)
	if err != nil {
		return 0, err
	}
	response, err := g.ask(ctx, id, key, &canopyv1.DataRequest{Call: &canopyv1.DataRequest_Seek{Seek: &canopyv1.SeekCall{Offset: offset}}}, nil)
	if err != nil {
		return 0, err
	}
	defer response.Free()
	return min(here, response.ColumnSize), nil
}

// syncShape settles existence, size epoch and surplus of the member's column
// under the whole column's lock. done: nothing is left to compare.
func (g *group) syncShape(ctx context.Context, key chunkstore.Key, id base.NodeID, p *progress) (done bool, err error) {
	release, err := g.locks.acquire(ctx, key, 0, rangelock.All, true)
	if err != nil {
		return false, err
	}
	defer release()
	if g.s.store.Deleted(key) {
		return true, g.deleteThere(ctx, id, key, held{})
	}
	here, exists, err := g.s.store.Stat(key, true)
	if err != nil {
		return false, err
	}
	if exists && here.Digest == 0 {
		return g.condemnAll(ctx, key, id)
	}
	there, found, err := g.statThere(ctx, id, key)
	if err != nil {
		return false, err
	}
	if there.Tombstone {
		return true, g.s.store.Delete(key)
	}
	if exists && found && here.Digest == there.Digest {
		return true, nil
	}
	if exists || found {
		p.differs(key, id)
	}
	if exists && found && there.Digest == 0 && g.standing(id).inSync {
		// It is dropped there to be sent again. If this server ended before it has sent it,
		// readers of a member in sync would find zeros.
		g.s.metrics.damaged.Inc()
		return true, g.giveUp(ctx, id, fserr.New(fserr.IO, "compare", fmt.Errorf("server %d cannot read %s", id, key)))
	}
	if found && (!exists || there.Digest == 0) {
		err := g.tell(ctx, id, key, &canopyv1.DataRequest{Call: &canopyv1.DataRequest_DropColumn{DropColumn: &canopyv1.DropColumnCall{}}}, nil)
		if err != nil {
			return false, err
		}
		found = false
	}
	if !exists {
		return true, nil
	}
	// What is there and here is never dropped to be sent again: the member may be in
	// sync, and this server may end before it has sent it. A column of holes alone is
	// made too: it knows the size epoch.
	missing := !found && here.AllocatedBytes == 0
	if missing || found && (there.SizeEpoch != here.SizeEpoch || there.Size > here.SizeBytes) {
		return missing || here.SizeBytes == 0, g.tell(ctx, id, key, &canopyv1.DataRequest{
			SizeEpoch: here.SizeEpoch,
			Call:      &canopyv1.DataRequest_Cut{Cut: &canopyv1.CutCall{Exact: true, Size: here.SizeBytes}},
		}, nil)
	}
	return false, nil
}

// statThere returns what the member knows of the column.
func (g *group) statThere(ctx context.Context, id base.NodeID, key chunkstore.Key) (info *canopyv1.ColumnInfo, found bool, err error) {
	response, err := g.ask(ctx, id, key, &canopyv1.DataRequest{Call: &canopyv1.DataRequest_ListColumns{
		ListColumns: &canopyv1.ListColumnsCall{Max: 1, Digest: true, DataId: uint64(key.Data)},
	}}, nil)
	if err != nil {
		return nil, false, err
	}
	defer response.Free()
	for _, c := range response.Columns {
		if c.Tombstone || keyOf(c.Column) == key {
			return c, !c.Tombstone, nil
		}
	}
	return &canopyv1.ColumnInfo{}, false, nil
}

// syncRange compares and copies one range of blocks under its lock. empty: there is
// no data, here and there.
func (g *group) syncRange(ctx context.Context, key chunkstore.Key, id base.NodeID, first uint64, p *progress) (more, empty bool, err error) {
	lo, hi := first*chunkstore.BlockBytes, (first+copyBlocks)*chunkstore.BlockBytes
	release, err := g.locks.acquire(ctx, key, lo, hi, true)
	if err != nil {
		return false, false, err
	}
	defer release()
	size, epoch, err := g.s.store.Size(key)
	if err != nil || size <= lo {
		return false, false, err
	}
	blocks := min(copyBlocks, (size-lo+chunkstore.BlockBytes-1)/chunkstore.BlockBytes)
	here, err := g.s.store.Sums(key, first, blocks)
	if err != nil {
		return false, false, err
	}
	there, err := g.sumsThere(ctx, id, key, first, blocks)
	if err != nil {
		return false, false, err
	}
	empty = true
	for i := range here {
		empty = empty && here[i] == 0 && there[i] == 0
	}
	for i, j := uint64(0), uint64(0); i < blocks; i = max(j, i+1) {
		for j = i; j < blocks && here[j] != there[j] && (here[j] == 0) == (here[i] == 0); {
			j++
		}
		offset := (first + i) * chunkstore.BlockBytes
		length := min((first+j)*chunkstore.BlockBytes, size) - offset
		switch {
		case j == i:
			continue
		case here[i] == 0:
			err = g.punchThere(ctx, key, id, offset, (j-i)*chunkstore.BlockBytes, epoch)
		default:
			if err = g.copyWhole(ctx, key, id, offset, length, epoch, here[i:j]); err == nil {
				p.sent(int(length))
			}
		}
		if err != nil {
			return false, false, err
		}
	}
	p.compared(min(size, hi) - lo)
	return size > hi, empty, nil
}

// copyWhole is copyRange of blocks with the checksums, of which some may be
// damaged here: they are fetched from others in sync; those that nobody has are
// lost, and are made unreadable there as well.
func (g *group) copyWhole(ctx context.Context, key chunkstore.Key, id base.NodeID, offset, length, epoch uint64, sums []uint32) error {
	start := offset / chunkstore.BlockBytes
	before := ^uint64(0)
	for length > 0 {
		err := g.copyRange(ctx, key, id, offset, length, epoch)
		var damaged *chunkstore.ChecksumError
		if !errors.As(err, &damaged) {
			return err
		}
		pg, _, _ := g.state()
		if damaged.Block != before && g.repairHeld(ctx, pg, key, damaged.Block) == nil {
			before = damaged.Block
			continue
		}
		at := damaged.Block * chunkstore.BlockBytes
		if at > offset {
			if err := g.copyRange(ctx, key, id, offset, at-offset, epoch); err != nil {
				return err
			}
		}
		end := min(at+chunkstore.BlockBytes, offset+length)
		err = g.tell(ctx, id, key, &canopyv1.DataRequest{SizeEpoch: epoch, Call: &canopyv1.DataRequest_Condemn{Condemn: &canopyv1.CondemnCall{
			FirstBlock: damaged.Block, Sums: chunkstore.EncodeSums(sums[damaged.Block-start : damaged.Block-start+1]), Size: end,
		}}}, nil)
		if err != nil {
			return err
		}
		offset, length = end, offset+length-end
	}
	return nil
}

// condemnAll deals with a column that cannot be read here while it is compared
// with a member's: others in sync may have it, and then this server must not be
// the source. Else it is lost, and there as well.
func (g *group) condemnAll(ctx context.Context, key chunkstore.Key, id base.NodeID) (done bool, err error) {
	pg, _, _ := g.state()
	cause := fserr.New(fserr.IO, "compare", fmt.Errorf("%s cannot be read here", key))
	if len(pg.InSync) > 1 {
		g.distrust(pg, key, cause)
		return false, cause
	}
	return true, g.tell(ctx, id, key, &canopyv1.DataRequest{Call: &canopyv1.DataRequest_Condemn{Condemn: &canopyv1.CondemnCall{}}}, nil)
}

// copyRange sends bytes from here to the member.
func (g *group) copyRange(ctx context.Context, key chunkstore.Key, id base.NodeID, offset, length, epoch uint64) error {
	payload, crc, err := g.s.readPayload(key, offset, length, 0, nil)
	if err != nil {
		return err
	}
	g.s.metrics.recovered.Add(float64(payload.Len()))
	return g.tell(ctx, id, key, &canopyv1.DataRequest{
		SizeEpoch: epoch,
		Call:      &canopyv1.DataRequest_Write{Write: &canopyv1.WriteCall{Offset: offset, Crc32C: crc, Repair: true}},
	}, payload)
}

// readPayload reads from the store into pooled memory that the caller frees.
func (s *server) readPayload(key chunkstore.Key, offset, length, sizeEpoch uint64, cuts []*canopyv1.Cut) (mem.BufferSlice, uint32, error) {
	buffer := s.memory.Get(chunkstore.BufferBytes(offset, length))
	data, crc, err := s.store.Read(key, offset, length, sizeEpoch, cuts, *buffer)
	if err != nil || len(data) == 0 {
		s.memory.Put(buffer)
		return nil, crc, err
	}
	whole := mem.NewBuffer(buffer, s.memory)
	defer whole.Free()
	skip := int(offset % chunkstore.BlockBytes)
	return mem.BufferSlice{whole.Slice(skip, skip+len(data))}, crc, nil
}
