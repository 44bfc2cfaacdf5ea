package inspect

import (
	"context"
	"fmt"
	"strings"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// DescribeRepair says in one line what a repair does.
func DescribeRepair(r *canopyv1.Repair) string {
	ino := base.Ino(r.GetIno())
	switch r.GetKind() {
	case canopyv1.RepairKind_REPAIR_DIR_COUNTS:
		return fmt.Sprintf("directory %v: count %s", ino, changes(r.GetSeen(), r.GetWant(), "names", "subdirectories", "displaced names"))
	case canopyv1.RepairKind_REPAIR_COUNTERS:
		return fmt.Sprintf("subtree %d: add to its counters %s", r.GetSubtree(), additions(r.GetWant(), "files", "directories", "bytes"))
	case canopyv1.RepairKind_REPAIR_QUOTA:
		return fmt.Sprintf("quota of directory %v: add to its account %s", ino, additions(r.GetWant(), "inodes", "bytes", "inodes with names elsewhere"))
	case canopyv1.RepairKind_REPAIR_LINKS:
		return fmt.Sprintf("file %v: set %s", ino, changes(r.GetSeen(), r.GetWant(), "its link count"))
	case canopyv1.RepairKind_REPAIR_NAMES:
		return fmt.Sprintf("file %v: list the directories of its %d names anew", ino, len(r.GetWant()))
	case canopyv1.RepairKind_REPAIR_PARENT:
		return fmt.Sprintf("directory %v: its parent is %d, where it is named %q; not %d, %q", ino, r.GetTo().GetDir(), r.GetTo().GetName(), r.GetAt().GetDir(), r.GetAt().GetName())
	case canopyv1.RepairKind_REPAIR_ROW:
		return fmt.Sprintf("subtree %d: delete a row that belongs to nothing, key %x", r.GetSubtree(), r.GetKey())
	case canopyv1.RepairKind_REPAIR_CLIENTS:
		return fmt.Sprintf("subtree %d: end the locks and drop the results of clients without a session", r.GetSubtree())
	case canopyv1.RepairKind_REPAIR_RECONNECT, canopyv1.RepairKind_REPAIR_NEW_NAME:
		return fmt.Sprintf("directory %v: give it the name /lost+found/#%v", ino, ino)
	case canopyv1.RepairKind_REPAIR_ROUTE:
		return fmt.Sprintf("subtree %d: publish its shard and epoch in the placement map", r.GetSubtree())
	}
	return fmt.Sprintf("repair of kind %d, which this program does not know", r.GetKind())
}

func changes(seen, want []int64, what ...string) string {
	var parts []string
	for i, name := range what {
		if i < len(seen) && i < len(want) && seen[i] != want[i] {
			parts = append(parts, fmt.Sprintf("%s %d instead of %d", name, want[i], seen[i]))
		}
	}
	return strings.Join(parts, ", ")
}

func additions(want []int64, what ...string) string {
	var parts []string
	for i, name := range what {
		if i < len(want) && want[i] != 0 {
			parts = append(parts, fmt.Sprintf("%+d %s", want[i], name))
		}
	}
	return strings.Join(parts, ", ")
}

// repairsAtOnce bounds one request to a node.
const repairsAtOnce = 256

// Repair mends things at a shard. The answers are in the order of the repairs.
func (c *Cluster) Repair(ctx context.Context, shard base.ShardID, repairs []*canopyv1.Repair) ([]*canopyv1.RepairOutcome, error) {
	var all []*canopyv1.RepairOutcome
	for len(repairs) > 0 {
		n := min(len(repairs), repairsAtOnce)
		request := &canopyv1.RepairRequest{Shard: uint64(shard), Repairs: repairs[:n], By: fmt.Sprintf("%s, process %d", c.opts.Caller.Host, c.opts.Caller.PID)}
		err := c.onHolder(ctx, shard, fsckTimeout, func(ctx context.Context, a canopyv1.AdminClient) error {
			r, err := a.Repair(ctx, request)
			if err == nil && len(r.GetOutcomes()) != n {
				err = fmt.Errorf("the node answered %d of %d repairs", len(r.GetOutcomes()), n)
			}
			if err == nil {
				all = append(all, r.GetOutcomes()...)
			}
			return err
		})
		if err != nil {
			return all, err
		}
		repairs = repairs[n:]
	}
	return all, nil
}
