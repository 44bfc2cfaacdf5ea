package inspect

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// verdict is what all answers of a layout service say.
type verdict interface {
	GetError() uint32
	GetDetail() string
	GetLeaderAddress() string
}

// layoutLeader asks the layout service that leads. do returns its answer.
func (c *Cluster) layoutLeader(ctx context.Context, do func(context.Context, canopyv1.LayoutServiceClient) (verdict, error)) error {
	var addresses []string
	for _, s := range c.m.GetServices() {
		addresses = append(addresses, s.GetAddress())
	}
	if len(addresses) == 0 {
		return errors.New("no layout service is known: start one (layoutsvc)")
	}
	var failures []error
	asked := map[string]bool{}
	for len(addresses) > 0 {
		address := addresses[0]
		addresses = addresses[1:]
		if asked[address] {
			continue
		}
		asked[address] = true
		var answer verdict
		err := c.call(ctx, address, c.opts.Timeout, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			answer, err = do(ctx, canopyv1.NewLayoutServiceClient(conn))
			return err
		})
		if err == nil && fserr.Kind(answer.GetError()) != fserr.NotHolder {
			return kindError(answer.GetError(), answer.GetDetail())
		}
		if err == nil {
			err = errors.New("it does not lead")
			if leader := answer.GetLeaderAddress(); leader != "" {
				addresses = append([]string{leader}, addresses...)
			}
		}
		failures = append(failures, fmt.Errorf("layout service at %s: %w", address, err))
	}
	return fmt.Errorf("no layout service leads (an election may be under way): %w", errors.Join(failures...))
}

// Repairs returns what the leader of the layout services knows of servers that
// are gone and of placement groups that cannot be rebuilt.
func (c *Cluster) Repairs(ctx context.Context) (r *canopyv1.RepairsResponse, err error) {
	err = c.layoutLeader(ctx, func(ctx context.Context, l canopyv1.LayoutServiceClient) (verdict, error) {
		var err error
		r, err = l.Repairs(ctx, &canopyv1.RepairsRequest{})
		return r, err
	})
	return r, err
}

// SetServer drains a data server, ends that, or forgets the server.
func (c *Cluster) SetServer(ctx context.Context, r *canopyv1.SetServerRequest) error {
	return c.layoutLeader(ctx, func(ctx context.Context, l canopyv1.LayoutServiceClient) (verdict, error) {
		return l.SetServer(ctx, r)
	})
}

// RepairStatus returns the recoveries and scrubs that a data server drives.
func (c *Cluster) RepairStatus(ctx context.Context, address string) (r *canopyv1.RepairStatusResponse, err error) {
	err = c.inspect(ctx, address, c.opts.Timeout, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		r, err = canopyv1.NewDataClient(conn).RepairStatus(ctx, &canopyv1.RepairStatusRequest{})
		return err
	})
	return r, err
}

// EnsurePool returns the pool of a redundancy class, which is made if there is
// none.
func (c *Cluster) EnsurePool(ctx context.Context, class *canopyv1.Redundancy) (pool uint64, err error) {
	err = c.layoutLeader(ctx, func(ctx context.Context, l canopyv1.LayoutServiceClient) (verdict, error) {
		answer, err := l.EnsurePool(ctx, &canopyv1.EnsurePoolRequest{Redundancy: class})
		pool = answer.GetPool()
		return answer, err
	})
	return pool, err
}

// SetScrub starts, stops or paces the scrub.
func (c *Cluster) SetScrub(ctx context.Context, r *canopyv1.SetScrubRequest) (state *canopyv1.ScrubState, err error) {
	err = c.layoutLeader(ctx, func(ctx context.Context, l canopyv1.LayoutServiceClient) (verdict, error) {
		answer, err := l.SetScrub(ctx, r)
		state = answer.GetState()
		return answer, err
	})
	return state, err
}

// ScrubStatus returns what scrubs found.
func (c *Cluster) ScrubStatus(ctx context.Context) (r *canopyv1.ScrubStatusResponse, err error) {
	err = c.anyLayout(ctx, func(ctx context.Context, l canopyv1.LayoutServiceClient) error {
		if r, err = l.ScrubStatus(ctx, &canopyv1.ScrubStatusRequest{}); err != nil {
			return err
		}
		return kindError(r.GetError(), r.GetDetail())
	})
	return r, err
}

// Keys returns the keys of capabilities, without their secrets; with rotate after
// making a new one, and with revoke after dropping the old ones.
func (c *Cluster) Keys(ctx context.Context, request *canopyv1.KeysRequest) (r *canopyv1.KeysResponse, err error) {
	err = c.layoutLeader(ctx, func(ctx context.Context, l canopyv1.LayoutServiceClient) (verdict, error) {
		var err error
		r, err = l.Keys(ctx, request)
		return r, err
	})
	return r, err
}
