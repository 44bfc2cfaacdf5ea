package mdsctl

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
	"github.com/canopyfs/canopy/shard"
)

// subtreeRow is one subtree, as JSON has it.
type subtreeRow struct {
	Subtree     uint64 `json:"subtree"`
	Shard       uint64 `json:"shard"`
	Epoch       uint64 `json:"epoch"`
	RootIno     uint64 `json:"root_ino"`
	Path        string `json:"path"`  // of the root; empty if it could not be found out
	State       string `json:"state"` // as the shard says; empty if it did not answer
	Files       uint64 `json:"files"`
	Directories uint64 `json:"directories"`
	Bytes       uint64 `json:"bytes"`
	HolderNode  uint64 `json:"holder_node"` // of the shard; 0: nobody holds it now
	MapShard    uint64 `json:"map_shard"`   // as the placement map says; 0: it is not there
	MapEpoch    uint64 `json:"map_epoch"`
	// Of a fragment of a split directory, the root: the ranges of its names that lie here;
	// merged: none any more, but subdirectories that were made meanwhile.
	Names  []nameRange `json:"names,omitempty"`
	Merged bool        `json:"merged,omitempty"`
}

type nameRange struct {
	Lo uint32 `json:"lo"`
	Hi uint32 `json:"hi"`
}

// part says which part of its root a subtree has.
func (r *subtreeRow) part() string {
	if r.Merged {
		return "merged"
	}
	var parts []string
	for _, n := range r.Names {
		parts = append(parts, shard.Range(n).String())
	}
	return strings.Join(parts, ",")
}

// split notes the fragments of the root.
func (r *subtreeRow) split(all []*canopyv1.Fragment) {
	fragments := shard.FragmentsOf(all)
	if fragments == nil {
		return
	}
	for _, n := range fragments.In(base.SubtreeID(r.Subtree)) {
		r.Names = append(r.Names, nameRange(n))
	}
	r.Merged = len(r.Names) == 0
}

// subtreeRows joins what shards say of their subtrees with the map. For
// ownership the shards are the truth, the map is for routing.
func subtreeRows(m *canopyv1.PlacementMap, reports []*inspect.NodeReport) []subtreeRow {
	byID := map[uint64]*subtreeRow{}
	for _, s := range m.GetSubtrees() {
		byID[s.GetSubtree()] = &subtreeRow{Subtree: s.GetSubtree(), Shard: s.GetShard(), Epoch: s.GetEpoch(),
			RootIno: s.GetRootIno(), MapShard: s.GetShard(), MapEpoch: s.GetEpoch()}
	}
	for _, r := range reports {
		for _, s := range r.Shards {
			if holder, leader := holderOf(reports, s.GetShard()); r.Info.GetNode() != holder && (holder != 0 || r.Info.GetNode() != leader) {
				continue
			}
			for _, st := range s.GetSubtrees() {
				row := byID[st.GetSubtree()]
				if row == nil {
					row = &subtreeRow{Subtree: st.GetSubtree()}
					byID[st.GetSubtree()] = row
				}
				// Who handed it off says the epoch of the new owner.
				if row.State != "" && (st.GetEpoch() < row.Epoch || st.GetEpoch() == row.Epoch && row.State == "active") {
					continue
				}
				row.Shard, row.Epoch, row.RootIno, row.State = s.GetShard(), st.GetEpoch(), st.GetRootIno(), st.GetState()
				row.Files, row.Directories, row.Bytes = st.GetFiles(), st.GetDirectories(), st.GetBytes()
				row.Names, row.Merged = nil, false
				if row.State == "active" || row.State == "frozen" {
					row.split(st.GetFragments())
				}
			}
		}
	}
	rows := []subtreeRow{}
	for _, r := range byID {
		r.HolderNode, _ = holderOf(reports, r.Shard)
		rows = append(rows, *r)
	}
	sort.Slice(rows, func(i, k int) bool { return rows[i].Subtree < rows[k].Subtree })
	return rows
}

func (a *app) subtreeCommand() *cobra.Command {
	return group("subtree", "Subtrees: the units of ownership", &cobra.Command{
		Use: "ls", Short: "List subtrees with owner, epoch and contents", Args: noArgs,
		Long: "List every subtree with the shard that owns it, its epoch, and how many files and\ndirectories it has. MAP is what clients route by; a late entry there costs them a redirect.\n" +
			"NAMES is of a fragment of a split directory: the hashes of the names that it holds (mdsctl fragments PATH).\nA fragment that was merged holds none; directories that were made in it stay there.",
		Example: "  mdsctl subtree ls",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withCluster(c.Context(), func(cl *inspect.Cluster) error {
				rows := subtreeRows(cl.Map(), cl.Nodes(c.Context()))
				a.addPaths(c.Context(), rows)
				return a.emit(rows, func(t *table) { writeSubtrees(t, rows) })
			})
		},
	})
}

func writeSubtrees(t *table, rows []subtreeRow) {
	t.row("SUBTREE", "SHARD", "HOLDER", "EPOCH", "ROOT-INO", "PATH", "NAMES", "STATE", "FILES", "DIRECTORIES", "BYTES", "MAP")
	for _, r := range rows {
		t.row(r.Subtree, r.Shard, nodeText(r.HolderNode), r.Epoch, r.RootIno, r.Path, r.part(), r.State, r.Files, r.Directories, bytesText(r.Bytes), fmt.Sprintf("shard %d, epoch %d", r.MapShard, r.MapEpoch))
	}
}

// addPaths adds the paths of the roots, as far as they can be found out soon: the list
// is for clusters that are not well, too.
func (a *app) addPaths(ctx context.Context, rows []subtreeRow) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	paths := map[uint64]string{uint64(base.RootIno): "/"}
	unknown := func(r subtreeRow) bool { return r.RootIno != 0 && r.RootIno != uint64(base.RootIno) }
	if slices.ContainsFunc(rows, unknown) {
		_ = a.reach(ctx, "/", true, func(c *client.Client, _ *client.Inode, _ *client.Attr, _ string) error {
			for _, r := range rows {
				if _, asked := paths[r.RootIno]; !asked && unknown(r) {
					paths[r.RootIno], _ = c.DirPath(ctx, base.Ino(r.RootIno)) // it can be gone by now
				}
			}
			return nil
		})
	}
	for i := range rows {
		rows[i].Path = paths[rows[i].RootIno]
	}
}

// sessionRow is one client's session at one shard, as JSON has it.
type sessionRow struct {
	Client      string `json:"client"`
	Shard       uint64 `json:"shard"`
	Host        string `json:"host"`
	Pid         uint32 `json:"pid"`
	Mount       string `json:"mount"`
	Opened      string `json:"opened"`
	LastHeardMS uint64 `json:"last_heard_ms"`
	OpenFiles   uint64 `json:"open_files"`
	Floor       uint64 `json:"floor"`
}

func (a *app) sessionCommand() *cobra.Command {
	return group("session", "Sessions of clients", &cobra.Command{
		Use: "ls", Short: "List the sessions of clients at every shard", Args: noArgs,
		Long:    "List who is connected: each client has a session at every shard that it has used.",
		Example: "  mdsctl session ls\n  mdsctl session ls -o json | jq -r '.[].mount' | sort | uniq -c",
		RunE:    func(c *cobra.Command, _ []string) error { return a.sessions(c.Context()) },
	})
}

func (a *app) sessions(ctx context.Context) error {
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		rows := []sessionRow{}
		var failed error
		for _, s := range cl.Map().GetShards() {
			list, err := cl.Sessions(ctx, base.ShardID(s.GetShard()))
			if err != nil && failed == nil {
				failed = err // shown behind what the other shards say
			}
			for _, i := range list {
				rows = append(rows, sessionRow{
					Client: base.ClientID(i.GetClient()).String(), Shard: i.GetShard(), Host: i.GetHost(), Pid: i.GetPid(), Mount: i.GetMount(),
					Opened: timeText(i.GetOpenedNs()), LastHeardMS: i.GetLastHeardMs(), OpenFiles: i.GetOpenFiles(), Floor: i.GetFloor(),
				})
			}
		}
		err := a.emit(rows, func(t *table) {
			t.row("CLIENT", "SHARD", "HOST", "PID", "MOUNT", "OPENED", "HEARD", "OPEN-FILES")
			for _, r := range rows {
				t.row(r.Client, r.Shard, r.Host, r.Pid, r.Mount, r.Opened, (time.Duration(r.LastHeardMS)*time.Millisecond).String()+" ago", r.OpenFiles)
			}
		})
		if err != nil {
			return err
		}
		return failed
	})
}

// poolReport is the outcome of `pool ls`, as JSON has it.
type poolReport struct {
	Revision uint64      `json:"revision"`
	Pools    []poolRow   `json:"pools"`
	Servers  []serverRow `json:"servers"`
	Repairs  []repairRow `json:"repairs"`
	Stuck    []stuckRow  `json:"stuck"`
	// RebuildAfterMS is after how long the groups of a server that is gone are
	// rebuilt on others; 0: never, or not known.
	RebuildAfterMS uint64   `json:"rebuild_after_ms"`
	Notes          []string `json:"notes,omitempty"` // what could not be asked
}

type poolRow struct {
	Pool        uint64         `json:"pool"`
	Name        string         `json:"name"`
	Class       string         `json:"class"` // replica:N or ec:K+M
	Replicas    uint32         `json:"replicas"`
	PGs         int            `json:"pgs"`
	Degraded    int            `json:"pgs_degraded"`      // fewer in sync than replicas
	Unavailable int            `json:"pgs_unavailable"`   // none in sync
	OneDomain   int            `json:"pgs_in_one_domain"` // two members have a rack, zone or host label in common
	Layout      []componentRow `json:"layout"`
}

type componentRow struct {
	Offset      uint64 `json:"offset"`
	StripeBytes uint64 `json:"stripe_bytes"`
	StripeCount uint32 `json:"stripe_count"`
}

type serverRow struct {
	Server      uint64   `json:"server"`
	Address     string   `json:"address"`
	HTTPAddress string   `json:"http_address"`
	Host        string   `json:"host"`
	Pid         uint32   `json:"pid,omitempty"` // if it runs on this machine
	Alive       bool     `json:"alive"`
	TotalBytes  uint64   `json:"total_bytes"`
	FreeBytes   uint64   `json:"free_bytes"`
	PGs         int      `json:"pgs"`
	Primary     int      `json:"pgs_primary"`
	Labels      []string `json:"labels,omitempty"`
	Draining    bool     `json:"draining,omitempty"`
	GoneMS      uint64   `json:"gone_ms,omitempty"`
}

func poolRows(m *canopyv1.PoolMap) poolReport {
	here, _ := os.Hostname() // without it no pid is shown
	r := poolReport{Revision: m.GetRevision(), Pools: []poolRow{}, Servers: []serverRow{}, Repairs: []repairRow{}, Stuck: []stuckRow{}}
	labels := map[uint64][]string{}
	for _, s := range m.GetServers() {
		labels[s.GetServer()] = s.GetLabels()
	}
	member, primary := map[uint64]int{}, map[uint64]int{}
	for _, p := range m.GetPools() {
		row := poolRow{Pool: p.GetPool(), Name: p.GetName(), Class: stripe.ClassText(stripe.RedundancyOf(p)), Replicas: p.GetReplicas(), PGs: len(p.GetPgs()), Layout: componentRows(p.GetLayout())}
		for _, pg := range p.GetPgs() {
			switch n := len(pg.GetInSync()); {
			case n == 0:
				row.Unavailable++
			case n < int(p.GetReplicas()):
				row.Degraded++
			}
			var places []stripe.Server
			for _, s := range pg.GetMembers() {
				places = append(places, stripe.Server{ID: base.NodeID(s), Labels: labels[s]})
			}
			if stripe.Shared(places) != "" {
				row.OneDomain++
			}
			for _, s := range pg.GetMembers() {
				member[s]++
			}
			if len(pg.GetInSync()) > 0 {
				primary[pg.GetInSync()[0]]++
			}
		}
		r.Pools = append(r.Pools, row)
	}
	for _, s := range m.GetServers() {
		r.Servers = append(r.Servers, serverRow{
			Server: s.GetServer(), Address: s.GetAddress(), HTTPAddress: s.GetHttpAddress(), Host: s.GetHost(), Pid: pidHere(s.GetHost(), s.GetPid(), here),
			Alive: s.GetAlive(), TotalBytes: s.GetTotalBytes(), FreeBytes: s.GetFreeBytes(),
			PGs: member[s.GetServer()], Primary: primary[s.GetServer()], Labels: s.GetLabels(), Draining: s.GetDraining(),
		})
	}
	return r
}

func componentRows(l *canopyv1.Layout) []componentRow {
	rows := []componentRow{}
	for _, c := range l.GetComponents() {
		rows = append(rows, componentRow{Offset: c.GetOffset(), StripeBytes: c.GetStripeBytes(), StripeCount: c.GetStripeCount()})
	}
	return rows
}

// layoutText says in one line how bytes are spread.
func layoutText(rows []componentRow) string {
	s := ""
	for i, c := range rows {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprintf("from %s: %d x %s", bytesText(c.Offset), c.StripeCount, bytesText(c.StripeBytes))
	}
	return s
}

func writePools(t *table, r poolReport) {
	t.row("POOL", "NAME", "CLASS", "PGS", "DEGRADED", "UNAVAILABLE", "LAYOUT")
	for _, p := range r.Pools {
		t.row(p.Pool, p.Name, p.Class, p.PGs, p.Degraded, p.Unavailable, layoutText(p.Layout))
	}
	t.title("")
	t.row("SERVER", "ADDRESS", "HOST", "PID", "ALIVE", "SIZE", "FREE", "PGS", "PRIMARY")
	for _, s := range r.Servers {
		t.row(s.Server, s.Address, s.Host, pidText(s.Pid), yes(s.Alive), bytesText(s.TotalBytes), bytesText(s.FreeBytes), s.PGs, s.Primary)
	}
	for _, p := range r.Pools {
		if p.OneDomain > 0 {
			t.line(fmt.Sprintf("%d placement groups of pool %d have two members in one failure domain", p.OneDomain, p.Pool))
		}
	}
	writeRepairs(t, r)
}

// withPools calls do with the pools, the servers, and what is repaired.
func (a *app) withPools(ctx context.Context, do func(poolReport) error) error {
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		m, err := cl.Pools(ctx)
		if err != nil {
			return err
		}
		r := poolRows(m)
		r.addRepairs(ctx, cl)
		return do(r)
	})
}

func (a *app) poolCommand() *cobra.Command {
	return group("pool", "Pools of data servers", &cobra.Command{
		Use: "ls", Short: "List pools, placement groups in short, and data servers", Args: noArgs,
		Long:    "List the pools with their redundancy class, default layout and how many of\ntheir placement groups are degraded (fewer members are in sync than the class asks for)\nor unavailable (none is), the data servers, and what is recovered or rebuilt now and how far that is.",
		Example: "  mdsctl pool ls",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withPools(c.Context(), func(r poolReport) error {
				return a.emit(r, func(t *table) { writePools(t, r) })
			})
		},
	})
}
