package mdsctl

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
)

// statusReport is the outcome of `status`, as JSON has it.
type statusReport struct {
	Cluster     string       `json:"cluster"`
	Asked       string       `json:"asked"` // address of the node that gave the map
	MapRevision uint64       `json:"map_revision"`
	Nodes       []nodeRow    `json:"nodes"`
	Shards      []shardRow   `json:"shards"`
	Services    []serviceRow `json:"layout_services"`
	Pools       []poolRow    `json:"pools"`
	Servers     []serverRow  `json:"data_servers"`
	Capacity    capacityRow  `json:"capacity"`
	Moving      []uint64     `json:"subtrees_in_a_move"`
	Problems    []string     `json:"problems"`
	layoutError error
}

type serviceRow struct {
	ID      uint64 `json:"id"`
	Address string `json:"address"`
	Host    string `json:"host"`
	Pid     uint32 `json:"pid,omitempty"` // if it runs on this machine
	Leader  bool   `json:"leader"`
}

// capacityRow is over the data servers: bytes on disks, copies counted.
type capacityRow struct {
	TotalBytes uint64 `json:"total_bytes"`
	FreeBytes  uint64 `json:"free_bytes"`
}

const (
	// behindProblem is how many log entries a replica may lag before it counts as
	// a problem: some hundred are in flight under load.
	behindProblem = 10_000
	// fullProblem is the share of a data server's disk that may be used.
	fullProblem = 0.9
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "One look at the whole cluster, problems in words", Args: noArgs,
		Long: "Show nodes, shards with their holders, layout services, data servers and capacity, and\nsay in words what is wrong.\n\n" +
			"Exit code 1 if anything is wrong, also if some process does not answer.",
		Example: "  mdsctl status\n  mdsctl status -o json | jq -r '.problems[]'\n  until mdsctl status >/dev/null; do sleep 1; done",
		RunE:    func(c *cobra.Command, _ []string) error { return a.status(c.Context()) },
	}
}

func (a *app) status(ctx context.Context) error {
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		r := gatherStatus(ctx, cl)
		if err := a.emit(r, func(t *table) { writeStatus(t, r) }); err != nil {
			return err
		}
		switch n := len(r.Problems); n {
		case 0:
			return nil
		case 1:
			return fmt.Errorf("1 problem: %s", r.Problems[0])
		default:
			return fmt.Errorf("%d problems, the first: %s", n, r.Problems[0])
		}
	})
}

func gatherStatus(ctx context.Context, cl *inspect.Cluster) *statusReport {
	here, _ := os.Hostname() // without it no pid is shown
	m := cl.Map()
	reports := cl.Nodes(ctx)
	r := &statusReport{
		Cluster: m.GetCluster(), Asked: cl.From(), MapRevision: m.GetRevision(),
		Nodes: nodeRows(reports), Shards: shardRows(m, reports), Services: []serviceRow{}, Pools: []poolRow{}, Servers: []serverRow{}, Problems: []string{}, Moving: moving(reports),
	}
	for _, s := range m.GetServices() {
		r.Services = append(r.Services, serviceRow{ID: s.GetId(), Address: s.GetAddress(), Host: s.GetHost(), Pid: pidHere(s.GetHost(), s.GetPid(), here), Leader: s.GetLeader()})
	}
	pools, err := cl.Pools(ctx)
	if err == nil {
		p := poolRows(pools)
		r.Pools, r.Servers = p.Pools, p.Servers
		for _, s := range p.Servers {
			if s.Alive {
				r.Capacity.TotalBytes += s.TotalBytes
				r.Capacity.FreeBytes += s.FreeBytes
			}
		}
	}
	r.layoutError = err
	r.findProblems(subtreeProblems(m))
	return r
}

func subtreeProblems(m *canopyv1.PlacementMap) []string {
	if len(m.GetShards()) == 0 {
		return []string{"the map has no shards: is the cluster still being made?"}
	}
	for _, s := range m.GetSubtrees() {
		if s.GetSubtree() == 1 {
			return nil
		}
	}
	return []string{"the map has no subtree 1: nobody owns /"}
}

// moving lists the subtrees that some shard takes in or is about to hand off.
func moving(reports []*inspect.NodeReport) []uint64 {
	all := []uint64{}
	for _, n := range reports {
		for _, s := range n.Shards {
			for _, t := range s.GetSubtrees() {
				if state := t.GetState(); (state == "importing" || state == "frozen") && !slices.Contains(all, t.GetSubtree()) {
					all = append(all, t.GetSubtree())
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

func (r *statusReport) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// findProblems says in words what is wrong: nodes, shards, then data.
func (r *statusReport) findProblems(more []string) {
	for _, n := range r.Nodes {
		switch {
		case !n.Answers && !n.Alive:
			r.problem("node %d (%s) is down: start it, or look at its log on %s", n.Node, n.Address, n.Host)
		case !n.Answers:
			r.problem("node %d (%s) does not answer, though its lease in etcd stands: %s", n.Node, n.Address, n.Error)
		case !n.Alive:
			r.problem("node %d answers but has no lease in etcd: it cannot reach etcd", n.Node)
		case !n.EtcdReachable:
			r.problem("node %d cannot reach etcd: known clients are served, the map does not change", n.Node)
		}
		if n.DiskFull {
			r.problem("the disk of node %d is full: %s free, %s are kept in reserve; its shards take only deletions", n.Node,
				bytesText(n.DiskFree), bytesText(n.DiskReserve))
		}
	}
	for _, s := range r.Shards {
		r.shardProblems(s)
	}
	r.Problems = append(r.Problems, more...)
	r.dataProblems()
}

func (r *statusReport) shardProblems(s shardRow) {
	running := 0
	for _, x := range s.Replicas {
		if x.Running {
			running++
		}
	}
	switch {
	case running*2 <= len(s.Replicas):
		r.problem("shard %d is down: %d of %d replicas run, a majority is needed", s.Shard, running, len(s.Replicas))
	case s.HolderNode == 0 && s.LeaderNode == 0:
		r.problem("shard %d has no leader: its nodes may be electing one, or cannot reach each other", s.Shard)
	case running < len(s.Replicas):
		r.problem("shard %d is under-replicated: %d of %d replicas run", s.Shard, running, len(s.Replicas))
	}
	if s.ReadOnly != "" {
		r.problem("shard %d is read-only: %s", s.Shard, s.ReadOnly)
	}
	for _, x := range s.Replicas {
		switch {
		case r.nodeIsDown(x.Node) && x.Joining:
			r.problem("shard %d, replica %d is to join on node %d, which is down: start it, or mdsctl shard replica cancel %d", s.Shard, x.Replica, x.Node, s.Shard)
		case r.nodeIsDown(x.Node):
			r.problem("shard %d, replica %d is on node %d, which is down: start it, or mdsctl node replace %d", s.Shard, x.Replica, x.Node, x.Node)
		case x.Joining && !x.Running:
			r.problem("shard %d, replica %d is to join on node %d and does not run yet: %s", s.Shard, x.Replica, x.Node, x.Error)
		case !x.Running:
			r.problem("shard %d, replica %d on node %d does not run: %s", s.Shard, x.Replica, x.Node, x.Error)
		case x.Behind > behindProblem:
			r.problem("shard %d, replica %d on node %d is %d entries behind", s.Shard, x.Replica, x.Node, x.Behind)
		}
	}
}

// nodeIsDown tells whether a node neither answers nor has its lease.
func (r *statusReport) nodeIsDown(id uint64) bool {
	for _, n := range r.Nodes {
		if n.Node == id {
			return !n.Answers && !n.Alive
		}
	}
	return true
}

func (r *statusReport) dataProblems() {
	leader := false
	for _, s := range r.Services {
		leader = leader || s.Leader
	}
	switch {
	case r.layoutError != nil:
		r.problem("%s", errText(r.layoutError))
	case !leader:
		r.problem("no layout service leads: data servers cannot register, and PGs do not change")
	}
	for _, s := range r.Servers {
		switch {
		case !s.Alive:
			r.problem("data server %d (%s) is down: start it, or look at its log on %s", s.Server, s.Address, s.Host)
		case s.TotalBytes > 0 && float64(s.TotalBytes-min(s.FreeBytes, s.TotalBytes)) > fullProblem*float64(s.TotalBytes):
			r.problem("data server %d is %.0f %% full", s.Server, 100-100*float64(s.FreeBytes)/float64(s.TotalBytes))
		}
	}
	for _, p := range r.Pools {
		if p.Unavailable > 0 {
			r.problem("pool %s: %d of %d placement groups are unavailable: no member is in sync", p.Name, p.Unavailable, p.PGs)
		}
		if p.Degraded > 0 {
			r.problem("pool %s: %d of %d placement groups are degraded: a member is not in sync", p.Name, p.Degraded, p.PGs)
		}
	}
}

// waiting is how many bytes of deleted files are still on data servers, one copy
// counted.
func (r *statusReport) waiting() (bytes uint64) {
	for _, s := range r.Shards {
		bytes += s.Waiting
	}
	return bytes
}

func writeStatus(t *table, r *statusReport) {
	t.line(fmt.Sprintf("cluster %s, map revision %d (from %s)", r.Cluster, r.MapRevision, r.Asked))
	t.title("")
	writeNodes(t, r.Nodes)
	t.title("")
	t.row("SHARD", "HOLDER", "LEADER", "REPLICAS", "SESSIONS")
	for _, s := range r.Shards {
		var parts []string
		for _, x := range s.Replicas {
			part := fmt.Sprintf("%d on node %d", x.Replica, x.Node)
			switch {
			case !x.Running:
				part += " (DOWN)"
			case x.Joining:
				part += " (joins)"
			case x.Leaving:
				part += " (leaves)"
			}
			parts = append(parts, part)
		}
		t.row(s.Shard, nodeText(s.HolderNode), nodeText(s.LeaderNode), strings.Join(parts, ", "), s.Sessions)
	}
	t.title("")
	t.row("LAYOUT-SERVICE", "ADDRESS", "HOST", "PID", "LEADER")
	for _, s := range r.Services {
		t.row(s.ID, s.Address, s.Host, pidText(s.Pid), yes(s.Leader))
	}
	t.title("")
	writePools(t, poolReport{Pools: r.Pools, Servers: r.Servers})
	t.title("")
	if waiting := r.waiting(); waiting > 0 {
		t.line(fmt.Sprintf("%s of deleted files wait to go from the data servers (df counts them as free)", bytesText(waiting)))
	}
	if len(r.Moving) > 0 {
		t.line(fmt.Sprintf("subtrees in a move: %s (mdsctl migrate --status)", joinIDs(r.Moving)))
	}
	t.line(fmt.Sprintf("capacity: %s on data servers that are up, %s free (copies counted)", bytesText(r.Capacity.TotalBytes), bytesText(r.Capacity.FreeBytes)))
	if len(r.Problems) == 0 {
		t.line("no problems")
		return
	}
	for _, p := range r.Problems {
		t.line("PROBLEM: " + p)
	}
}
