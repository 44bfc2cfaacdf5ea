package mds

import (
	"context"
	"time"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// clusterService serves api's Cluster service.
type clusterService struct {
	canopyv1.UnimplementedClusterServer
	server *Server
}

// mapSettle is how long changes are gathered before the map is sent again.
const mapSettle = 10 * time.Millisecond

// WatchMap sends the placement map at once, unless the caller has it, and after
// each change.
func (c *clusterService) WatchMap(request *canopyv1.WatchMapRequest, stream grpc.ServerStreamingServer[canopyv1.PlacementMap]) error {
	s := c.server
	changes, cancel := s.place.Subscribe()
	defer cancel()
	have, first := request.HaveRevision, true
	for {
		if m := s.place.Map(); m.Revision() != have || (first && have == 0) {
			if err := stream.Send(m.Message()); err != nil {
				return err
			}
			have = m.Revision()
		}
		first = false
		select {
		case <-stream.Context().Done():
			return nil
		case <-s.front.Draining():
			return fserr.New(fserr.NotReady, "watch the map", errStopping)
		case <-changes:
			if !pause(stream.Context(), mapSettle) {
				return nil
			}
		}
	}
}

// Status tells about the node.
func (c *clusterService) Status(context.Context, *canopyv1.StatusRequest) (*canopyv1.StatusResponse, error) {
	s := c.server
	u := s.disk.last.Load()
	return &canopyv1.StatusResponse{
		DiskTotalBytes: u.total, DiskFreeBytes: u.free, DiskReserveBytes: u.reserve, DiskFull: s.disk.full.Load(),
		Cluster:       s.cluster,
		Node:          s.info.Node,
		Version:       s.config.Version,
		MapRevision:   s.place.Map().Revision(),
		EtcdReachable: s.place.Reachable(),
		UptimeSeconds: int64(time.Since(s.started).Seconds()),
		Drained:       s.drained.Load(),
	}, nil
}
