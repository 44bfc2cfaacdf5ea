package inspect

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// atHolder runs do at the nodes of a shard in turn until one is its holder.
func (c *Cluster) atHolder(ctx context.Context, shard base.ShardID, do func(context.Context, canopyv1.MigrationClient) (kind uint32, err error)) error {
	if c.ShardInfo(shard) == nil {
		return c.UnknownShard(shard)
	}
	var failures []error
	for _, node := range c.Candidates(shard, nil) {
		var kind uint32
		err := c.call(ctx, c.NodeInfo(node).GetAddress(), c.opts.Timeout, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			kind, err = do(ctx, canopyv1.NewMigrationClient(conn))
			return err
		})
		switch k := fserr.Kind(kind); {
		case err != nil:
			failures = append(failures, fmt.Errorf("node %v: %w", node, err))
		case k == fserr.NotHolder || k == fserr.UnknownShard || k == fserr.NotReady:
			failures = append(failures, fmt.Errorf("node %v: %w", node, k))
		default:
			return nil
		}
	}
	return fmt.Errorf("shard %v: no holder answers: %w", shard, errors.Join(failures...))
}

// StartMove has a shard's holder begin to move a directory, and returns the move.
func (c *Cluster) StartMove(ctx context.Context, request *canopyv1.StartMoveRequest) (move *canopyv1.Move, err error) {
	var refused error
	err = c.atHolder(ctx, base.ShardID(request.Shard), func(ctx context.Context, at canopyv1.MigrationClient) (uint32, error) {
		r, err := at.StartMove(ctx, request)
		move, refused = r.GetMove(), refusal(r.GetError(), r.GetDetail())
		return r.GetError(), err
	})
	return move, errors.Join(err, refusedBy(err, refused))
}

// CancelMove has a shard's holder cancel the move of a subtree.
func (c *Cluster) CancelMove(ctx context.Context, shard base.ShardID, subtree base.SubtreeID) (move *canopyv1.Move, err error) {
	var refused error
	err = c.atHolder(ctx, shard, func(ctx context.Context, at canopyv1.MigrationClient) (uint32, error) {
		r, err := at.CancelMove(ctx, &canopyv1.CancelMoveRequest{Shard: uint64(shard), Subtree: uint64(subtree)})
		move, refused = r.GetMove(), refusal(r.GetError(), r.GetDetail())
		return r.GetError(), err
	})
	return move, errors.Join(err, refusedBy(err, refused))
}

// Refusal is what a holder refuses with, in its own words.
type Refusal struct {
	Kind  fserr.Kind
	Words string
}

func (r *Refusal) Error() string { return r.Words }

// Unwrap makes it an error of its kind.
func (r *Refusal) Unwrap() error { return r.Kind }

func refusal(kind uint32, detail string) error {
	k := fserr.Kind(kind)
	switch {
	case kind == 0:
		return nil
	case detail == "":
		detail = k.Error()
	}
	return &Refusal{k, detail}
}

// refusedBy returns the refusal, unless nobody was the holder.
func refusedBy(err, refused error) error {
	if err != nil {
		return nil
	}
	return refused
}

// Moves lists the moves of a shard, as its holder knows them.
func (c *Cluster) Moves(ctx context.Context, shard base.ShardID) (moves []*canopyv1.Move, err error) {
	err = c.atHolder(ctx, shard, func(ctx context.Context, at canopyv1.MigrationClient) (uint32, error) {
		r, err := at.ListMoves(ctx, &canopyv1.ListMovesRequest{Shard: uint64(shard)})
		moves = r.GetMoves()
		return r.GetError(), err
	})
	return moves, err
}
