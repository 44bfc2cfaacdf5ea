package mds

import (
	"context"
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
)

// Repair mends what a check found, on the shard's holder. Each repair is an entry of the
// log that looks whether what was seen is still so; what was done stands in this node's
// log, too.
func (a *adminService) Repair(ctx context.Context, request *canopyv1.RepairRequest) (*canopyv1.RepairResponse, error) {
	h, err := a.hosted(request.Shard)
	if err != nil {
		return nil, fserr.Status(err)
	}
	if len(request.Repairs) > maxRepairs {
		return nil, fserr.Status(fserr.New(fserr.Invalid, "repair", fmt.Errorf("%d repairs: at most %d at once", len(request.Repairs), maxRepairs)))
	}
	t := h.tenure()
	if t == nil {
		return nil, fserr.Status(fserr.New(fserr.NotHolder, "repair", nil))
	}
	out := &canopyv1.RepairResponse{}
	for _, r := range request.Repairs {
		outcome, err := t.repair(ctx, r)
		if err != nil {
			return nil, fserr.Status(err)
		}
		a.server.log.Warn("repair asked for by an operator", "by", request.By, "shard", h.shard, "kind", r.Kind, "subtree", r.Subtree,
			"inode", r.Ino, "repair", r.String(), "repaired", outcome.Repaired, "detail", outcome.Detail)
		out.Outcomes = append(out.Outcomes, outcome)
	}
	return out, nil
}

func (t *tenure) repair(ctx context.Context, r *canopyv1.Repair) (*canopyv1.RepairOutcome, error) {
	if r.Kind == canopyv1.RepairKind_REPAIR_ROUTE {
		return t.repairRoute(ctx, base.SubtreeID(r.Subtree))
	}
	result, err := t.propose(&canopyv1.Command{Own: &canopyv1.Command_Repair{Repair: r}})
	if err != nil {
		return nil, err
	}
	return &canopyv1.RepairOutcome{Repaired: result.Repaired, Detail: result.Detail}, nil
}

// repairRoute makes the map say what the shard's log says of a subtree. A route with an
// epoch that no owner had is taken away first: a larger epoch alone replaces one
// (PROTOCOLS E8).
func (t *tenure) repairRoute(ctx context.Context, id base.SubtreeID) (*canopyv1.RepairOutcome, error) {
	var route *canopyv1.SubtreeRoute
	err := t.h.group.Read(ctx, func(r shard.Reader) error {
		route = nil
		return namespace.Subtrees(r, t.h.shard, func(s namespace.SubtreeInfo) bool {
			if s.Subtree == id && (s.State == "active" || s.State == "frozen") {
				route = &canopyv1.SubtreeRoute{Subtree: uint64(id), Shard: uint64(t.h.shard), Epoch: uint64(s.Epoch), RootIno: uint64(s.Root)}
			}
			return route == nil
		})
	})
	if err != nil {
		return nil, err
	}
	if route == nil {
		return &canopyv1.RepairOutcome{Detail: "the shard does not own the subtree"}, nil
	}
	place := t.h.server.place
	have := place.Map().Route(id)
	if have.GetShard() == route.Shard && have.GetEpoch() == route.Epoch {
		return &canopyv1.RepairOutcome{Detail: "the map says so already"}, nil
	}
	if have.GetEpoch() >= route.Epoch {
		if err := place.DeleteRoute(ctx, id, base.ShardID(have.GetShard())); err != nil {
			return nil, err
		}
	}
	done, err := place.PutRoute(ctx, route)
	return &canopyv1.RepairOutcome{Repaired: done}, err
}
