package mdsctl

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
)

// replicaPoll is how often a change of replicas is looked at.
const replicaPoll = 200 * time.Millisecond

// changedShard is the outcome of a command that changed a shard's replicas, as JSON
// has it.
type changedShard struct {
	Shard   uint64   `json:"shard"`
	Nodes   []uint64 `json:"nodes"` // with a replica
	Holder  uint64   `json:"holder_node"`
	Seconds float64  `json:"seconds"`
}

func (c changedShard) String() string {
	return fmt.Sprintf("shard %d: replicas on nodes %s, node %d holds it", c.Shard, joinIDs(c.Nodes), c.Holder)
}

func (a *app) shardCreateCommand() *cobra.Command {
	var replicas, nodes []string
	c := &cobra.Command{
		Use: "create", Short: "Make a new shard on the running cluster", Args: noArgs,
		Long: "Make a shard with an id that none had before, and return when one of its replicas holds\nit. Its replicas lie in different failure domains (labels zone, rack and host of the\nnodes) as far as there are enough, on the nodes with the fewest; --nodes, or several\nnumbers behind --replicas, name the nodes instead.\n" +
			"A new shard is empty: subtrees are moved to it, or made on it by a policy.",
		Example: "  mdsctl shard create --replicas 3\n  mdsctl shard create --nodes 1,2,5",
		RunE: func(c *cobra.Command, _ []string) error {
			request := &canopyv1.CreateShardRequest{}
			if c.Flags().Changed("nodes") && c.Flags().Changed("replicas") {
				return fmt.Errorf("--replicas and --nodes: one of them")
			}
			if len(replicas) > 1 {
				nodes = replicas
			}
			var err error
			if request.Nodes, err = parseNodes(nodes); err != nil {
				return err
			}
			if len(nodes) == 0 {
				n, err := strconv.ParseUint(replicas[0], 10, 32)
				if err != nil {
					return fmt.Errorf("--replicas %s: want 1, 3 or 5, or several nodes: N1,N2,N3", replicas[0])
				}
				request.Replicas = uint32(n)
			}
			return a.createShard(c.Context(), request)
		},
	}
	c.Flags().StringSliceVar(&replicas, "replicas", []string{"3"}, "how many: 1, 3 or 5; or the nodes, N1,N2,...")
	c.Flags().StringSliceVar(&nodes, "nodes", nil, "the nodes, N1,N2,...")
	return c
}

func parseNodes(args []string) (nodes []uint64, err error) {
	for _, s := range args {
		id, err := base.ParseNodeID(strings.TrimSpace(s))
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, uint64(id))
	}
	return nodes, nil
}

func (a *app) createShard(ctx context.Context, request *canopyv1.CreateShardRequest) error {
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		info, err := cl.CreateShard(ctx, request)
		if err != nil {
			return fmt.Errorf("shard create: %w", err)
		}
		done, err := a.waitReplicas(ctx, cl, info)
		if err != nil {
			return err
		}
		return a.emit(done, func(t *table) { t.line(done.String()) })
	})
}

func (a *app) shardReplicaCommand() *cobra.Command {
	change := func(use, short, long, example string, args cobra.PositionalArgs, request func([]uint64) *canopyv1.ChangeReplicasRequest) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: args, Long: long, Example: example,
			RunE: func(c *cobra.Command, args []string) error {
				shard, err := base.ParseShardID(args[0])
				if err != nil {
					return err
				}
				nodes, err := parseNodes(args[1:])
				if err != nil {
					return err
				}
				r := request(nodes)
				r.Shard = uint64(shard)
				return a.withCluster(c.Context(), func(cl *inspect.Cluster) error {
					done, err := a.changeReplicas(c.Context(), cl, r)
					if err != nil {
						return err
					}
					return a.emit(done, func(t *table) { t.line(done.String()) })
				})
			},
		}
	}
	const how = "\n\nA replica joins without a vote, gets one when it has caught up, and only then the other\n" +
		"one goes. The shard's holder does it, one step after the other: the command only waits, and to\n" +
		"give it again goes on waiting. Clients see nothing of it but the hand-over of the lease."
	return group("replica", "Replicas of a shard",
		change("add SHARD [NODE...]", "Add replicas to a shard", "Add a replica on each of the nodes, or one on a node of the command's own choice."+how,
			"  mdsctl shard replica add 3 4 5", manyArgs("SHARD [NODE...]", 1, 6), func(nodes []uint64) *canopyv1.ChangeReplicasRequest {
				r := &canopyv1.ChangeReplicasRequest{Add: nodes}
				if len(nodes) == 0 {
					r.AddCount = 1
				}
				return r
			}),
		change("remove SHARD NODE...", "Take replicas of a shard away", "Take the nodes' replicas away. Refused if fewer than a majority of the rest are on\nlive nodes."+how,
			"  mdsctl shard replica remove 3 4", manyArgs("SHARD NODE...", 2, 6), func(nodes []uint64) *canopyv1.ChangeReplicasRequest {
				return &canopyv1.ChangeReplicasRequest{Remove: nodes}
			}),
		change("move SHARD FROM [TO]", "Move a replica to another node", "Move the replica on node FROM to node TO, or to one of the command's own choice."+how,
			"  mdsctl shard replica move 3 1 4", manyArgs("SHARD FROM [TO]", 2, 3), func(nodes []uint64) *canopyv1.ChangeReplicasRequest {
				return &canopyv1.ChangeReplicasRequest{Remove: nodes[:1], Add: nodes[1:], Replace: len(nodes) == 1}
			}),
		change("cancel SHARD", "Take back a change that is not done", "What joins goes, what leaves stays: as when a node was lost that a replica was to join.",
			"  mdsctl shard replica cancel 3", manyArgs("SHARD", 1, 1), func([]uint64) *canopyv1.ChangeReplicasRequest {
				return &canopyv1.ChangeReplicasRequest{Cancel: true}
			}))
}

// manyArgs wants from lo to hi arguments, called what.
func manyArgs(what string, lo, hi int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < lo || len(args) > hi {
			return fmt.Errorf("%s wants %s, got %d arguments (see %s --help)", c.CommandPath(), what, len(args), c.CommandPath())
		}
		return nil
	}
}

func (a *app) moveLeaseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "move-lease SHARD NODE", Short: "Have another node serve a shard", Args: manyArgs("SHARD NODE", 2, 2),
		Long: "Move the lease of a shard, and Raft's leadership, to the replica on another node. Clients\n" +
			"wait for the hand-over, some 10 to 30 ms; nothing fails.",
		Example: "  mdsctl shard move-lease 3 2",
		RunE: func(c *cobra.Command, args []string) error {
			shard, err := base.ParseShardID(args[0])
			if err != nil {
				return err
			}
			node, err := base.ParseNodeID(args[1])
			if err != nil {
				return err
			}
			return a.withCluster(c.Context(), func(cl *inspect.Cluster) error {
				done, err := a.moveLease(c.Context(), cl, shard, node)
				if err != nil {
					return fmt.Errorf("the lease of shard %v: %w", shard, err)
				}
				return a.emit(done, func(t *table) { t.line(done.String()) })
			})
		},
	}
}

// leaseWait is how long a replica that leads may take to have the lease: an election's
// time, and more on a busy machine.
const leaseWait = 10 * time.Second

// moveLease hands a shard over, and waits until the node holds it.
func (a *app) moveLease(ctx context.Context, cl *inspect.Cluster, shard base.ShardID, node base.NodeID) (changedShard, error) {
	begun := time.Now()
	if err := cl.MoveLease(ctx, shard, node); err != nil {
		return changedShard{}, err
	}
	done := changedShard{Shard: uint64(shard), Nodes: []uint64{}}
	for _, r := range cl.ShardInfo(shard).GetReplicas() {
		done.Nodes = append(done.Nodes, r.GetNode())
	}
	for ctx.Err() == nil {
		done.Holder, _ = holderOf(cl.Nodes(ctx), uint64(shard))
		done.Seconds = time.Since(begun).Seconds()
		switch {
		case done.Holder == uint64(node):
			return done, nil
		case time.Since(begun) > leaseWait:
			return done, fmt.Errorf("node %v leads and does not hold it yet, see mdsctl shard ls", node)
		}
		pauseFor(ctx, replicaPoll)
	}
	return done, ctx.Err()
}

// changeReplicas asks for a change and waits until it is done.
func (a *app) changeReplicas(ctx context.Context, cl *inspect.Cluster, request *canopyv1.ChangeReplicasRequest) (changedShard, error) {
	info, err := cl.ChangeReplicas(ctx, request)
	if err != nil {
		return changedShard{}, err
	}
	return a.waitReplicas(ctx, cl, info)
}

// waitReplicas waits until a shard's replicas are what info says, and it has a
// holder; it prints how far those are that join.
func (a *app) waitReplicas(ctx context.Context, cl *inspect.Cluster, info *canopyv1.ShardInfo) (changedShard, error) {
	begun := time.Now()
	done := changedShard{Shard: info.GetShard(), Nodes: []uint64{}}
	want := []uint64{}
	for _, r := range info.GetReplicas() {
		if !r.GetLeaving() {
			want, done.Nodes = append(want, r.GetReplica()), append(done.Nodes, r.GetNode())
		}
	}
	slices.Sort(want)
	said := ""
	tick := time.NewTicker(replicaPoll)
	defer tick.Stop()
	for {
		why := "no metadata node answers"
		if err := cl.Refresh(ctx); err == nil {
			if done.Holder, why = settled(cl.ShardInfo(base.ShardID(info.GetShard())), want, cl.Nodes(ctx)); why == "" {
				done.Seconds = time.Since(begun).Seconds()
				return done, nil
			}
		}
		if why != said && a.output == "table" {
			said = why
			if _, err := fmt.Fprintf(a.env.Stdout, "shard %d: %s\n", info.GetShard(), why); err != nil {
				return done, err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return done, fmt.Errorf("shard %d: %s; the cluster goes on with it: mdsctl shard ls, or the same command again", info.GetShard(), why)
		}
	}
}

// settled tells who holds a shard whose replicas are as wanted, or what is waited for.
func settled(info *canopyv1.ShardInfo, want []uint64, reports []*inspect.NodeReport) (holder uint64, why string) {
	have := []uint64{}
	var furthest uint64
	for _, r := range info.GetReplicas() {
		have = append(have, r.GetReplica())
		row, _ := replicaState(r, info.GetShard(), reports)
		furthest = max(furthest, row.Applied)
	}
	for _, r := range info.GetReplicas() {
		row, _ := replicaState(r, info.GetShard(), reports)
		switch {
		case r.GetJoining() && !row.Running:
			return 0, fmt.Sprintf("replica %d on node %d is to join: %s", r.GetReplica(), r.GetNode(), row.Error)
		case r.GetJoining():
			return 0, fmt.Sprintf("replica %d on node %d joins, %d%% of the log", r.GetReplica(), r.GetNode(), share(row.Applied, furthest))
		}
	}
	slices.Sort(have)
	holder, _ = holderOf(reports, info.GetShard())
	switch {
	case !slices.Equal(have, want):
		return 0, fmt.Sprintf("replicas %s leave", joinIDs(without(have, want)))
	case holder == 0:
		return 0, "no node holds it yet"
	}
	for _, n := range reports {
		for _, s := range n.Shards {
			if s.GetShard() != info.GetShard() {
				continue
			}
			if s.GetHolder() && !slices.Equal(s.GetMembers(), want) {
				return 0, fmt.Sprintf("replicas %s leave the membership", joinIDs(without(s.GetMembers(), want)))
			}
			if !slices.Contains(want, s.GetReplica()) {
				return 0, fmt.Sprintf("replica %d is removed from node %d", s.GetReplica(), n.Info.GetNode())
			}
		}
	}
	return holder, ""
}

// without returns what of all is not in some.
func without(all, some []uint64) (rest []uint64) {
	for _, x := range all {
		if !slices.Contains(some, x) {
			rest = append(rest, x)
		}
	}
	return rest
}

func share(part, whole uint64) uint64 {
	if whole == 0 {
		return 100
	}
	return min(100, part*100/whole)
}
