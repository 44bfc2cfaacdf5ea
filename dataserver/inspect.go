package dataserver

import (
	"context"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

func listOptions(c *canopyv1.ListColumnsCall) chunkstore.ListOptions {
	n := int(c.Max)
	if n == 0 || n > maxListed {
		n = maxListed
	}
	return chunkstore.ListOptions{After: base.DataID(c.AfterDataId), Max: n, Only: base.DataID(c.DataId), Digest: c.Digest}
}

func infoOf(i chunkstore.Info) *canopyv1.ColumnInfo {
	return &canopyv1.ColumnInfo{
		Column: columnOf(i.Key), Size: i.SizeBytes, AllocatedBytes: i.AllocatedBytes, SizeEpoch: i.SizeEpoch,
		Version: i.Changes, Tombstone: i.Tombstone, Digest: i.Digest,
	}
}

// StatColumns implements the service.
func (s *server) StatColumns(ctx context.Context, r *canopyv1.StatColumnsRequest) (*canopyv1.StatColumnsResponse, error) {
	if err := s.guard.inspector(ctx, "stat columns"); err != nil {
		return nil, err
	}
	if r.DataId == 0 {
		return nil, fserr.New(fserr.Malformed, "stat columns", nil)
	}
	response := &canopyv1.StatColumnsResponse{}
	pgs, err := s.store.PGs()
	if err != nil {
		return nil, err
	}
	for _, pg := range pgs {
		infos, err := s.store.List(pg.Pool, pg.PG, chunkstore.ListOptions{Only: base.DataID(r.DataId), Digest: true})
		if err != nil {
			return nil, err
		}
		for _, i := range infos {
			response.Columns = append(response.Columns, infoOf(i))
		}
	}
	return response, nil
}

// ListData implements the service: everything that this server holds, by
// placement group.
func (s *server) ListData(_ *canopyv1.ListDataRequest, stream grpc.ServerStreamingServer[canopyv1.ListDataResponse]) error {
	if err := s.guard.inspector(stream.Context(), "list data"); err != nil {
		return err
	}
	pgs, err := s.store.PGs()
	if err != nil {
		return err
	}
	for _, pg := range pgs {
		for after := base.DataID(0); ; {
			infos, err := s.store.List(pg.Pool, pg.PG, chunkstore.ListOptions{After: after, Max: listPage})
			if err != nil {
				return err
			}
			if len(infos) == 0 {
				break
			}
			response := &canopyv1.ListDataResponse{}
			for _, i := range infos {
				response.Columns = append(response.Columns, infoOf(i))
			}
			if err := stream.Send(response); err != nil {
				return err
			}
			after = infos[len(infos)-1].Key.Data
		}
	}
	return nil
}
