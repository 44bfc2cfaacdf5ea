package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/fserr"
)

// keyPatience is how long a data server may take to get a key that is new.
const keyPatience = 5 * time.Second

// inspect is call at a data server, with what allows it (PROTOCOLS J4): metadata
// nodes hand that out. do may be called again as long as the server is not ready.
func (c *Cluster) inspect(ctx context.Context, address string, timeout time.Duration, do func(ctx context.Context, conn *grpc.ClientConn) error) error {
	for until := time.Now().Add(keyPatience); ; {
		grant, err := c.inspectionGrant(ctx)
		if err != nil {
			return err
		}
		err = c.call(metadata.AppendToOutgoingContext(ctx, wire.MetadataCapability, string(grant)), address, timeout, do)
		if fserr.KindOf(err) != fserr.NotReady || time.Now().After(until) {
			return err
		}
		select {
		case <-time.After(keyPatience / 50):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// inspectionGrant asks the nodes in turn.
func (c *Cluster) inspectionGrant(ctx context.Context) ([]byte, error) {
	var failures []error
	for _, n := range c.m.GetNodes() {
		var grant *canopyv1.GrantInspectionResponse
		err := c.call(ctx, n.GetAddress(), c.opts.Timeout, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			grant, err = canopyv1.NewAdminClient(conn).GrantInspection(ctx, &canopyv1.GrantInspectionRequest{})
			return err
		})
		if err == nil {
			return grant.GetCapability(), nil
		}
		failures = append(failures, fmt.Errorf("node %d: %w", n.GetNode(), err))
	}
	return nil, fmt.Errorf("no metadata node grants access to data servers: %w", errors.Join(failures...))
}

// Data calls visit for each column that the data server at address holds,
// tombstones included.
func (c *Cluster) Data(ctx context.Context, address string, visit func(*canopyv1.ColumnInfo)) error {
	return c.inspect(ctx, address, fsckTimeout, func(ctx context.Context, conn *grpc.ClientConn) error {
		s, err := canopyv1.NewDataClient(conn).ListData(ctx, &canopyv1.ListDataRequest{})
		if err != nil {
			return err
		}
		for {
			r, err := s.Recv()
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return err
			}
			for _, col := range r.GetColumns() {
				visit(col)
			}
		}
	})
}
