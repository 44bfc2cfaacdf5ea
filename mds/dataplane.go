package mds

import (
	"context"
	"crypto/rand"
	"encoding/binary"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/placement"
)

// clusterData is the data plane of a cluster: data servers are found by the
// layout services that the placement map names.
type clusterData struct{ *data.Data }

// openDataPlane makes the node's data plane, unless the configuration has one.
// The connections are made when they are needed.
func (s *Server) openDataPlane() error {
	if s.config.Data != nil {
		return nil
	}
	var id [8]byte
	rand.Read(id[:]) // never fails
	d, err := data.New(data.Config{
		LayoutServices: func() []string {
			var addresses []string
			for _, service := range s.place.Map().Services(placement.LayoutService) {
				addresses = append(addresses, service.Address)
			}
			return addresses
		},
		Cluster: s.cluster,
		Client:  base.ClientID(binary.BigEndian.Uint64(id[:]) | 1),
		Access:  ownAccess{s},
		Memory:  s.config.Memory,
		Logger:  s.log,
	})
	if err != nil {
		return err
	}
	s.config.Data, s.ownData = clusterData{d}, d
	return nil
}

// closeDataPlane ends what openDataPlane began.
func (s *Server) closeDataPlane() {
	if s.ownData != nil {
		_ = s.ownData.Close() // nothing waits for it any more
	}
}

// Cut implements DataPlane.
func (c clusterData) Cut(ctx context.Context, id base.DataID, layout *canopyv1.Layout, sizeEpoch uint64, cuts []*canopyv1.Cut) error {
	return c.Data.Cut(ctx, data.File{ID: id, Layout: layout, SizeEpoch: sizeEpoch, Cuts: cuts})
}

var _ DataPlane = clusterData{}
