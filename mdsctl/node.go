package mdsctl

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
)

// nodeRow is one metadata node, as JSON has it.
type nodeRow struct {
	Node          uint64   `json:"node"`
	Address       string   `json:"address"`
	RaftAddress   string   `json:"raft_address"`
	HTTPAddress   string   `json:"http_address"`
	Host          string   `json:"host"`
	Pid           uint32   `json:"pid,omitempty"` // if it runs on this machine
	Alive         bool     `json:"alive"`         // by its lease in etcd
	Answers       bool     `json:"answers"`
	Version       string   `json:"version,omitempty"`
	UptimeSeconds int64    `json:"uptime_seconds"`
	EtcdReachable bool     `json:"etcd_reachable"`
	DiskFull      bool     `json:"disk_full"`
	DiskFree      uint64   `json:"disk_free_bytes"`
	DiskReserve   uint64   `json:"disk_reserve_bytes"`
	MapRevision   uint64   `json:"map_revision"`
	Held          []uint64 `json:"shards_held"`
	Led           []uint64 `json:"shards_led"`
	Drained       bool     `json:"drained,omitempty"` // holds no shards until it is resumed
	Replicas      int      `json:"replicas"`
	Labels        []string `json:"labels,omitempty"`
	Error         string   `json:"error,omitempty"`
}

func nodeRows(reports []*inspect.NodeReport) []nodeRow {
	here, _ := os.Hostname() // without it no pid is shown
	rows := []nodeRow{}
	for _, r := range reports {
		n := r.Info
		row := nodeRow{
			Node: n.GetNode(), Address: n.GetAddress(), RaftAddress: n.GetRaftAddress(), HTTPAddress: n.GetHttpAddress(),
			Host: n.GetHost(), Pid: pidHere(n.GetHost(), n.GetPid(), here), Alive: n.GetAlive(), Answers: r.Err == nil,
			Version: r.Status.GetVersion(), UptimeSeconds: r.Status.GetUptimeSeconds(), EtcdReachable: r.Status.GetEtcdReachable(),
			DiskFull: r.Status.GetDiskFull(), DiskFree: r.Status.GetDiskFreeBytes(), DiskReserve: r.Status.GetDiskReserveBytes(),
			MapRevision: r.Status.GetMapRevision(), Held: []uint64{}, Led: []uint64{}, Drained: r.Status.GetDrained(), Replicas: len(r.Shards),
			Labels: n.GetLabels(), Error: errText(r.Err),
		}
		for _, s := range r.Shards {
			if s.GetHolder() {
				row.Held = append(row.Held, s.GetShard())
			}
			if s.GetLeader() {
				row.Led = append(row.Led, s.GetShard())
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func writeNodes(t *table, rows []nodeRow) {
	t.row("NODE", "ADDRESS", "HOST", "PID", "ALIVE", "UP", "REPLICAS", "LEADS", "HOLDS", "ERROR")
	for _, r := range rows {
		up := "-"
		if r.Answers {
			up = (time.Duration(r.UptimeSeconds) * time.Second).String()
		}
		held := joinIDs(r.Held)
		if r.Drained && len(r.Held) == 0 {
			held = "drained"
		}
		t.row(r.Node, r.Address, r.Host, pidText(r.Pid), yes(r.Alive), up, r.Replicas, joinIDs(r.Led), held, r.Error)
	}
}

func (a *app) nodeCommand() *cobra.Command {
	ls := &cobra.Command{
		Use: "ls", Short: "List metadata nodes: address, pid where local, shards led and held", Args: noArgs,
		Long: "List the metadata nodes of the placement map and what each says of itself.\n\n" +
			"ALIVE is the node's lease in etcd. LEADS are the shards whose Raft leader it is,\nHOLDS those whose lease it has: it serves them; \"drained\": it takes none until it\nis resumed. An idle shard has no holder until the next request. PID is shown for processes of this machine.",
		Example: "  mdsctl node ls\n  mdsctl node ls -o json | jq '.[] | select(.alive|not)'",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withCluster(c.Context(), func(cl *inspect.Cluster) error {
				rows := nodeRows(cl.Nodes(c.Context()))
				return a.emit(rows, func(t *table) { writeNodes(t, rows) })
			})
		},
	}
	resume := &cobra.Command{
		Use: "resume NODE", Aliases: []string{"uncordon"}, Short: "Let a drained node hold shards again", Args: oneArg("NODE"),
		Long: "End what drain began: the node may hold shards and be given replicas again. It takes no\n" +
			"shard from others: it is given one when a holder goes. Replicas that have moved stay\n" +
			"where they are. (kubectl's word for it, uncordon, works too.)",
		Example: "  mdsctl node resume 2",
		RunE:    func(c *cobra.Command, args []string) error { return a.resume(c.Context(), args[0]) },
	}
	return group("node", "Metadata nodes", ls, a.drainCommand(), resume, a.removeNodeCommand(), a.replaceNodeCommand())
}

// withNode runs do with a connection to the cluster that has the node.
func (a *app) withNode(ctx context.Context, arg string, do func(*inspect.Cluster, base.NodeID) error) error {
	id, err := base.ParseNodeID(arg)
	if err != nil {
		return err
	}
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		if cl.NodeInfo(id) == nil {
			return fmt.Errorf("there is no node %v: the cluster has %d (mdsctl node ls)", id, len(cl.Map().GetNodes()))
		}
		return do(cl, id)
	})
}

func (a *app) resume(ctx context.Context, arg string) error {
	return a.withNode(ctx, arg, func(cl *inspect.Cluster, id base.NodeID) error {
		if err := cl.Resume(ctx, id); err != nil {
			return fmt.Errorf("resume of node %v: %w", id, err)
		}
		return a.emit(map[string]uint64{"node": uint64(id)}, func(t *table) { t.line(fmt.Sprintf("node %d may hold shards again", id)) })
	})
}
