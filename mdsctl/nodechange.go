package mdsctl

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
)

func (a *app) drainCommand() *cobra.Command {
	var stop, leases bool
	c := &cobra.Command{
		Use: "drain NODE", Short: "Hand over the shards that a node holds, and move its replicas away", Args: oneArg("NODE"),
		Long: "Have the node release the leases that it holds, each after its successor is chosen:\n" +
			"clients wait for a moment and see no error. Then move its replicas to other nodes, one\n" +
			"shard after the other: to other failure domains than the shard's other replicas\n" +
			"as far as there are any, and to those with the fewest. The node is given none until \"mdsctl node\n" +
			"resume\" or its next start. A node that is down can be drained too: its replicas\n" +
			"are made anew from the others'. Nothing is done if some replica has nowhere to go.\n\n" +
			"Given again after an interruption it goes on. Then: mdsctl node remove NODE.\n\n" +
			"--leases-only for a restart: the replicas stay. --stop: the same, and the process ends\n(and a supervisor, canopy up too, starts it again).",
		Example: "  mdsctl node drain 2\n  mdsctl node drain 2 --leases-only\n  mdsctl node drain 2 --stop",
		RunE: func(c *cobra.Command, args []string) error {
			return a.drain(c.Context(), args[0], leases || stop, stop)
		},
	}
	c.Flags().BoolVar(&stop, "stop", false, "hand over the leases alone, and end the process afterwards")
	c.Flags().BoolVar(&leases, "leases-only", false, "the replicas stay: the node takes no lease until it is resumed or starts again")
	return c
}

func (a *app) removeNodeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "remove NODE", Short: "Forget a node that has no replicas", Args: oneArg("NODE"),
		Long: "Take the node out of the cluster for ever; if its process runs it ends. Its id is not\n" +
			"used again: started with an empty data directory it gets another. Refused while it\n" +
			"has a replica of some shard: drain it first.",
		Example: "  mdsctl node drain 2 && mdsctl node remove 2",
		RunE: func(c *cobra.Command, args []string) error {
			return a.withNode(c.Context(), args[0], func(cl *inspect.Cluster, id base.NodeID) error {
				return a.removeNode(c.Context(), cl, id, drained{Node: uint64(id), Moved: []changedShard{}})
			})
		},
	}
}

func (a *app) replaceNodeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "replace NODE [BY]", Short: "Replace a node that is lost, by other nodes or by node BY", Args: manyArgs("NODE [BY]", 1, 2),
		Long: "Make the replicas of a node that is down anew on other nodes, or on node BY, from the\n" +
			"shards' other replicas, and remove the node. Refused while the node is alive, and if a\n" +
			"shard has no majority without it.\n\n" +
			"If only the disk was lost, the node itself can come back with a new one: mds --rebuild.",
		Example: "  mdsctl node replace 2\n  mdsctl node replace 2 6",
		RunE: func(c *cobra.Command, args []string) error {
			by, err := parseNodes(args[1:])
			if err != nil {
				return err
			}
			return a.withNode(c.Context(), args[0], func(cl *inspect.Cluster, id base.NodeID) error {
				if cl.NodeInfo(id).GetAlive() {
					return fmt.Errorf("node %v is alive: drain it (mdsctl node drain %v), or end it first", id, id)
				}
				d := drained{Node: uint64(id), Moved: []changedShard{}}
				if err := a.moveReplicas(c.Context(), cl, id, by, &d); err != nil {
					return err
				}
				return a.removeNode(c.Context(), cl, id, d)
			})
		},
	}
}

// drained is the outcome of `node drain`, `remove` and `replace`, as JSON has it.
type drained struct {
	Node    uint64         `json:"node"`
	Stopped bool           `json:"stopped"`
	Removed bool           `json:"removed"`
	Seconds float64        `json:"seconds"` // of the hand-over of the leases
	Moved   []changedShard `json:"moved"`
}

func (a *app) drain(ctx context.Context, arg string, leases, stop bool) error {
	return a.withNode(ctx, arg, func(cl *inspect.Cluster, id base.NodeID) error {
		d := drained{Node: uint64(id), Stopped: stop, Moved: []changedShard{}}
		alive := cl.NodeInfo(id).GetAlive()
		if !leases {
			if err := planMoves(ctx, cl, id, nil); err != nil {
				return fmt.Errorf("drain of node %v: %w; nothing was done (--leases-only hands over the leases alone)", id, err)
			}
		}
		if alive || leases {
			start := time.Now()
			if err := cl.Drain(ctx, id, stop); err != nil {
				return fmt.Errorf("drain of node %v: %w", id, err)
			}
			d.Seconds = time.Since(start).Seconds()
		}
		if !leases {
			if alive {
				if err := a.progress(fmt.Sprintf("node %d has handed over its shards", d.Node)); err != nil {
					return err
				}
			}
			if err := a.moveReplicas(ctx, cl, id, nil, &d); err != nil {
				return err
			}
		}
		return a.emit(d, func(t *table) {
			switch {
			case stop:
				t.line(fmt.Sprintf("node %d has handed over its shards and ends", d.Node))
			case leases:
				t.line(fmt.Sprintf("node %d has handed over its shards", d.Node))
			default:
				t.line(fmt.Sprintf("node %d has no replicas: mdsctl node remove %d", d.Node, d.Node))
			}
		})
	})
}

// progress prints a line that is no part of the result.
func (a *app) progress(line string) error {
	if a.output != "table" {
		return nil
	}
	_, err := fmt.Fprintln(a.env.Stdout, line)
	return err
}

// shardsOn lists the shards with a replica on a node.
func shardsOn(m *canopyv1.PlacementMap, id base.NodeID) (shards []uint64) {
	for _, s := range m.GetShards() {
		for _, r := range s.GetReplicas() {
			if r.GetNode() == uint64(id) {
				shards = append(shards, s.GetShard())
				break
			}
		}
	}
	return shards
}

// move is the request to move a shard's replica off a node.
func move(shard uint64, from base.NodeID, to []uint64) *canopyv1.ChangeReplicasRequest {
	return &canopyv1.ChangeReplicasRequest{Shard: shard, Remove: []uint64{uint64(from)}, Add: to, Replace: len(to) == 0}
}

// planMoves asks whether all replicas of a node could be moved.
func planMoves(ctx context.Context, cl *inspect.Cluster, id base.NodeID, to []uint64) error {
	for _, shard := range shardsOn(cl.Map(), id) {
		request := move(shard, id, to)
		request.DryRun = true
		if _, err := cl.ChangeReplicas(ctx, request); err != nil {
			return err
		}
	}
	return nil
}

// moveReplicas moves all replicas of a node, one shard after the other, so that the
// nodes are not busy with all of them at once.
func (a *app) moveReplicas(ctx context.Context, cl *inspect.Cluster, id base.NodeID, to []uint64, d *drained) error {
	if err := planMoves(ctx, cl, id, to); err != nil {
		return err
	}
	for {
		shards := shardsOn(cl.Map(), id)
		if len(shards) == 0 {
			return nil
		}
		done, err := a.changeReplicas(ctx, cl, move(shards[0], id, to))
		if err != nil {
			return err
		}
		d.Moved = append(d.Moved, done)
		if err := a.progress(done.String()); err != nil {
			return err
		}
	}
}

func (a *app) removeNode(ctx context.Context, cl *inspect.Cluster, id base.NodeID, d drained) error {
	if shards := shardsOn(cl.Map(), id); len(shards) > 0 {
		return fmt.Errorf("node %v has replicas of shards %s: move them first (mdsctl node drain %v)", id, joinIDs(shards), id)
	}
	if err := cl.RemoveNode(ctx, id); err != nil {
		return fmt.Errorf("remove node %v: %w", id, err)
	}
	d.Removed = true
	return a.emit(d, func(t *table) { t.line(fmt.Sprintf("node %d is removed", d.Node)) })
}
