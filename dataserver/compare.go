package dataserver

import (
	"context"
	"encoding/binary"
	"fmt"

	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// How much is compared at a time: data ids per list, and bytes of a column (its
// range is locked meanwhile).
const (
	listPage   = 512
	copyBlocks = 256
)

// ask sends one request of recovery to a member.
func (g *group) ask(ctx context.Context, id base.NodeID, key chunkstore.Key, head *canopyv1.DataRequest, payload mem.BufferSlice) (*link.Response, error) {
	pg, _, _ := g.state()
	head.Column = columnOf(key)
	head.PgEpoch = pg.Epoch
	head.FromPrimary = true
	response, err := g.s.peers.do(ctx, id, &link.Request{DataRequest: head, Payload: payload})
	if err != nil {
		return nil, err
	}
	if response.Error != 0 {
		response.Free()
		return nil, answered(id, response)
	}
	return response, nil
}

// tell is ask where the answer says nothing.
func (g *group) tell(ctx context.Context, id base.NodeID, key chunkstore.Key, head *canopyv1.DataRequest, payload mem.BufferSlice) error {
	response, err := g.ask(ctx, id, key, head, payload)
	response.Free()
	return err
}

func (g *group) key() chunkstore.Key { return chunkstore.Key{Pool: g.pool, PG: g.pg} }

func columnOf(key chunkstore.Key) *canopyv1.Column {
	return &canopyv1.Column{Pool: uint64(key.Pool), Pg: uint32(key.PG), DataId: uint64(key.Data), Component: key.Component, Column: key.Column}
}

func keyOf(c *canopyv1.Column) chunkstore.Key {
	return chunkstore.Key{Pool: base.PoolID(c.Pool), PG: base.PGID(c.Pg), Data: base.DataID(c.DataId), Component: c.Component, Column: c.Column}
}

// inFlightOf asks a member for its log of chunks in flight. The answer also says
// that the member has adopted the epoch.
func (g *group) inFlightOf(ctx context.Context, pg *canopyv1.PlacementGroup, id base.NodeID) ([]chunkstore.Key, error) {
	var keys []chunkstore.Key
	err := g.patiently(ctx, func() error {
		response, err := g.ask(ctx, id, g.key(), &canopyv1.DataRequest{Call: &canopyv1.DataRequest_InFlight{InFlight: &canopyv1.InFlightCall{}}}, nil)
		if err != nil {
			return err
		}
		defer response.Free()
		keys = nil
		for _, c := range response.Columns {
			keys = append(keys, keyOf(c.Column))
		}
		return nil
	})
	return keys, err
}

// member is what a list says of one data id at one place.
type held struct {
	tombstone bool
	columns   map[chunkstore.Key]contents
}

// contents is what tells columns apart.
type contents struct{ digest, sizeBytes uint64 }

// compare walks through both lists and makes every data id that differs equal.
func (g *group) compare(ctx context.Context, id base.NodeID, p *progress) (copied int, err error) {
	for after := base.DataID(0); ; {
		here, lastHere, err := g.listHere(after)
		if err != nil {
			return copied, err
		}
		there, lastThere, err := g.listThere(ctx, id, after, 0)
		if err != nil {
			return copied, err
		}
		// Only up to where both lists reach is known of both.
		upTo := min(lastHere, lastThere)
		ids := map[base.DataID]bool{}
		for data := range here {
			ids[data] = data <= upTo
		}
		for data := range there {
			ids[data] = data <= upTo
		}
		for data, known := range ids {
			if !known {
				continue
			}
			n, err := g.equalise(ctx, id, data, here[data], there[data], p)
			copied += n
			if err != nil {
				return copied, err
			}
		}
		if upTo == ^base.DataID(0) {
			return copied, nil
		}
		after = upTo
	}
}

// listHere returns a page of this server's list, and the data id up to which it
// is complete.
func (g *group) listHere(after base.DataID) (map[base.DataID]held, base.DataID, error) {
	infos, err := g.s.store.List(g.pool, g.pg, chunkstore.ListOptions{After: after, Max: listPage, Digest: true})
	if err != nil {
		return nil, 0, err
	}
	out := map[base.DataID]held{}
	last := base.DataID(0)
	for _, i := range infos {
		last = i.Key.Data
		add(out, i.Key, i.Tombstone, contents{i.Digest, i.SizeBytes})
	}
	if len(out) < listPage {
		last = ^base.DataID(0)
	}
	return out, last, nil
}

// listThere is listHere of a member; only restricts it to one data id.
func (g *group) listThere(ctx context.Context, id base.NodeID, after, only base.DataID) (map[base.DataID]held, base.DataID, error) {
	var response *link.Response
	err := g.patiently(ctx, func() (err error) {
		response, err = g.ask(ctx, id, g.key(), &canopyv1.DataRequest{Call: &canopyv1.DataRequest_ListColumns{
			ListColumns: &canopyv1.ListColumnsCall{AfterDataId: uint64(after), Max: listPage, Digest: true, DataId: uint64(only)},
		}}, nil)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	defer response.Free()
	out := map[base.DataID]held{}
	last := base.DataID(0)
	for _, c := range response.Columns {
		key := keyOf(c.Column)
		last = key.Data
		add(out, key, c.Tombstone, contents{c.Digest, c.Size})
	}
	if len(out) < listPage {
		last = ^base.DataID(0)
	}
	return out, last, nil
}

func add(to map[base.DataID]held, key chunkstore.Key, tombstone bool, c contents) {
	h := to[key.Data]
	if h.columns == nil {
		h.columns = map[chunkstore.Key]contents{}
	}
	if h.tombstone = h.tombstone || tombstone; !tombstone {
		h.columns[key] = c
	}
	to[key.Data] = h
}

// equalise makes one data id equal. A deletion anywhere is final: data ids are
// never re-used (PROTOCOLS H3).
func (g *group) equalise(ctx context.Context, id base.NodeID, data base.DataID, here, there held, p *progress) (copied int, err error) {
	any := g.key()
	any.Data = data
	switch {
	case here.tombstone && there.tombstone:
		return 0, nil
	case here.tombstone:
		return 0, g.deleteThere(ctx, id, any, there)
	case there.tombstone:
		for key := range here.columns {
			if err := g.s.store.Delete(key); err != nil {
				return 0, err
			}
		}
		return 0, g.s.store.Delete(any)
	}
	keys := map[chunkstore.Key]bool{}
	for key := range here.columns {
		keys[key] = true
	}
	for key := range there.columns {
		keys[key] = true
	}
	for key := range keys {
		if d := here.columns[key]; d.digest != 0 && d.digest == there.columns[key].digest {
			p.compared(d.sizeBytes)
			p.column(false)
			continue
		}
		if err := g.syncColumn(ctx, key, id, p); err != nil {
			return copied, err
		}
		p.column(true)
		copied++
	}
	return copied, nil
}

func (g *group) deleteThere(ctx context.Context, id base.NodeID, any chunkstore.Key, there held) error {
	remove := func(key chunkstore.Key) error {
		return g.tell(ctx, id, key, &canopyv1.DataRequest{Call: &canopyv1.DataRequest_Delete{Delete: &canopyv1.DeleteCall{}}}, nil)
	}
	for key := range there.columns {
		if err := remove(key); err != nil {
			return err
		}
	}
	return remove(any)
}

// syncMember makes everything on the member durable.
func (g *group) syncMember(ctx context.Context, id base.NodeID) error {
	return g.tell(ctx, id, g.key(), &canopyv1.DataRequest{Call: &canopyv1.DataRequest_Sync{Sync: &canopyv1.SyncCall{}}}, nil)
}

// sumsThere returns the checksums of blocks on the member.
func (g *group) sumsThere(ctx context.Context, id base.NodeID, key chunkstore.Key, first, blocks uint64) ([]uint32, error) {
	response, err := g.ask(ctx, id, key, &canopyv1.DataRequest{Call: &canopyv1.DataRequest_BlockSums{
		BlockSums: &canopyv1.BlockSumsCall{FirstBlock: first, Blocks: uint32(blocks)},
	}}, nil)
	if err != nil {
		return nil, err
	}
	defer response.Free()
	b := response.Payload.Materialize()
	if len(b) != int(blocks)*4 {
		return nil, fserr.New(fserr.Malformed, "block sums", fmt.Errorf("%d bytes for %d blocks", len(b), blocks))
	}
	sums := make([]uint32, blocks)
	for i := range sums {
		sums[i] = binary.LittleEndian.Uint32(b[i*4:])
	}
	return sums, nil
}
