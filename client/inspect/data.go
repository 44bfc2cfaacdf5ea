package inspect

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// Data calls visit for each column that the data server at address holds,
// tombstones included.
func (c *Cluster) Data(ctx context.Context, address string, visit func(*canopyv1.ColumnInfo)) error {
	return c.call(ctx, address, fsckTimeout, func(ctx context.Context, conn *grpc.ClientConn) error {
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
